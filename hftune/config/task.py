"""The ``task`` section: what is predicted and how it is scored. One class a kind, told apart by ``kind``.

Each class names the kind of data that suits it: ``hftune.config.kinds`` takes it where a recipe states none.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hftune.config.section import Section

LOWER_IS_BETTER = frozenset(
    {
        "loss",
        "span_loss",
        "ece",
        "aurc",
        "perplexity",
        "word_perplexity",
        "mean_absolute_error",
        "bits_per_byte",
        "bits_per_character",
    }
)
"""Scores of which less is better."""


class Task(Section):
    """What every task has: a score to choose checkpoints by, and the kind of data it reads."""

    data_kind: ClassVar[str]
    """The kind of the ``data`` section that this task reads."""
    command: ClassVar[str]
    """The command that carries it out."""
    default_model: ClassVar[str] = "scratch:bert-tiny"
    """The model where the recipe names none."""
    held_out: ClassVar[float] = 0.1
    """Share of a corpus that is held out as validation where the recipe does not say."""

    kind: str
    select_by: str
    """The validation score by which the best checkpoint is chosen."""
    select_mode: Literal["auto", "max", "min"] = "auto"
    """Whether a higher (max) or a lower (min) value of select_by is better; auto knows the built-in ones."""
    baselines: bool = True
    """Score simple baselines on the same splits; false leaves them out, to save time or memory."""

    @property
    def greater_is_better(self) -> bool:
        """Whether a higher value of select_by is better."""
        return self.select_by not in LOWER_IS_BETTER if self.select_mode == "auto" else self.select_mode == "max"


class ClassifyTask(Task):
    """One label for a text or a pair of texts."""

    data_kind: ClassVar[str] = "labeled"
    command: ClassVar[str] = "classify"

    kind: Literal["classify"] = "classify"
    select_by: str = "accuracy"
    """The validation score by which the best checkpoint is chosen."""
    metrics: tuple[str, ...] = ()
    """Further metrics: built-in ones, the path of a script for ``evaluate.load``, or NAME@COMMIT on the Hub."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the target probability that is spread over all labels."""
    class_weights: Literal["auto"] | dict[str, float] | None = None
    """Weight of each label in the loss, by label name; auto weighs by inverse frequency."""


class SpanTask(Task):
    """Pretrain by span corruption: a piece of each document is taken out, and must be written after the rest."""

    data_kind: ClassVar[str] = "corpus"
    command: ClassVar[str] = "pretrain"
    default_model: ClassVar[str] = "scratch:mingpt"
    held_out: ClassVar[float] = 0.0
    """Nothing: what a document says is learned from that document alone, so each one left out is knowledge lost."""

    kind: Literal["span"] = "span"
    select_by: str = "loss"
    """The validation score by which the best checkpoint is chosen."""
    shortest: int = Field(default=4, ge=4)
    """Fewest tokens (characters, or pieces: see model.vocabulary) to which a document is cut; a shorter one is taken
    whole."""
    longest_share: float = Field(default=0.875, gt=0.0, lt=1.0)
    """Most tokens to which a document is cut, as a share of the model's block."""
    span_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the cut document that is taken out, on average."""
    spans: int = Field(default=1, ge=1)
    """Pieces that are taken out of a document; they share span_share."""
    window: Literal["start", "anywhere"] = "start"
    """Which part of a document is kept when it is cut: its start, or a piece from anywhere, another in each epoch."""
    short_documents: Literal["refuse", "drop"] = "refuse"
    """What is done about documents of fewer than 4 characters, which have no room for a span."""


class ClmTask(Task):
    """Pretrain a causal language model: each token of a text is predicted from those before it."""

    data_kind: ClassVar[str] = "corpus"
    command: ClassVar[str] = "pretrain"
    default_model: ClassVar[str] = "scratch:mingpt"
    held_out: ClassVar[float] = 0.02

    kind: Literal["clm"] = "clm"
    select_by: str = "loss"
    """The validation score by which the best checkpoint is chosen."""
    block_size: int | None = Field(default=None, ge=4)
    """Tokens of a block; all that the model has positions for, at most 1024, where not given."""
    stride: int | None = Field(default=None, ge=1)
    """Tokens between the beginnings of two blocks in scoring: fewer give each token more context, and cost more."""
    prompts: tuple[str, ...] = ("",)
    """What the model goes on from at each evaluation; an empty one begins a document."""
    sample_tokens: int = Field(default=60, ge=0)
    """Tokens of each such sample; 0 writes none."""


class AnswerTask(Task):
    """Write the answer to a question."""

    data_kind: ClassVar[str] = "questions"
    command: ClassVar[str] = "finetune"
    default_model: ClassVar[str] = "scratch:mingpt"

    kind: Literal["answer"] = "answer"
    select_by: str = "exact_match"
    """The validation score by which the best checkpoint is chosen."""


class MaskedText(Section):
    """How text is masked for a masked language model."""

    mlm_probability: float = Field(default=0.15, gt=0.0, lt=1.0)
    """Share of the tokens that must be predicted: 80 % of them masked, 10 % replaced, 10 % left as they are."""
    whole_word: bool = False
    """Choose whole words, not single tokens."""


class JointTask(MaskedText, ClassifyTask):
    """One label for a text, and masked tokens of unlabeled text, in one model at the same time."""

    data_kind: ClassVar[str] = "joint"
    command: ClassVar[str] = "joint"

    kind: Literal["joint"] = "joint"  # type: ignore[assignment]  # a classification task, but another kind
    mlm_alpha: float = Field(default=1.0, ge=0.0)
    """Weight of the masked language model's loss beside the classifier's; 0 leaves unlabeled text out altogether."""
    mlm_alpha_end: float | None = Field(default=None, ge=0.0)
    """The weight that it moves to in a straight line by the last update; constant where not given."""
    mlm_batch_size: int | None = Field(default=None, ge=1)
    """Unlabeled examples in one forward pass on one device; as many as labeled ones where not given."""

    def alpha_at(self, done: float) -> float:
        """The weight of the second loss when this share of the training is done."""
        end = self.mlm_alpha if self.mlm_alpha_end is None else self.mlm_alpha_end
        return self.mlm_alpha + (end - self.mlm_alpha) * min(1.0, max(0.0, done))

    @property
    def reads_unlabeled(self) -> bool:
        """Whether unlabeled text has any weight at any time."""
        return self.mlm_alpha > 0 or bool(self.mlm_alpha_end)


class MlmTask(MaskedText, Task):
    """Train a masked language model on plain text: the first of two stages."""

    data_kind: ClassVar[str] = "corpus"
    command: ClassVar[str] = "pretrain"

    kind: Literal["mlm"] = "mlm"
    select_by: str = "perplexity"
    """The validation score by which the best checkpoint is chosen."""
    max_length: int = Field(default=128, ge=3)
    """Tokens kept of each line, special tokens among them."""
    block_size: int | None = Field(default=None, ge=3)
    """Join all lines and cut them into blocks of this many tokens; one example a line where not given."""


TaskSection = Annotated[
    ClassifyTask | JointTask | MlmTask | SpanTask | ClmTask | AnswerTask, Field(discriminator="kind")
]
