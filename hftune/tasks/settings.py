"""The ``task`` section: what is predicted and how it is scored. One class for each ``kind``.

Each class names the kind of data it reads, which is the default of the ``data`` section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hftune.config.section import DATA, TRAINING, WHAT, Flag, Section

BUILT_IN = re.compile(r"\w+")
"""The name of a built-in metric: neither a file nor a repository, so the Hub is not contacted for it."""


LENGTH_AND_TOKENIZER = (
    *("model.block_size", "model.tokenizer_name", "model.tokenizer_type", "model.vocab_size"),
    "data.documents",
)
"""What divides a text into examples and tokens, in other sections than ``task``."""


class TaskSettings(Section):
    """What every task has: a score to choose checkpoints by, and the kind of data it reads."""

    data_kind: ClassVar[str]
    """The kind of the ``data`` section that this task reads."""
    command: ClassVar[str]
    """The command that runs it."""
    default_model: ClassVar[str] = "scratch:bert-tiny"
    """The model if the recipe names none."""
    held_out: ClassVar[float] = 0.1
    """Share of a corpus that is held out as validation by default."""

    default_metric: ClassVar[str]
    """The validation metric that selects the best checkpoint unless train.metric_for_best_model names another."""

    item_settings: ClassVar[tuple[str, ...]] = ()
    """Settings, by dotted key, that decide which tokens are scored; scores are compared only if these are the same."""

    kind: str
    baselines: bool = True
    """Score simple baselines on the same splits; false saves time and memory."""


class ClassifyTask(TaskSettings):
    """One label for a text or a pair of texts."""

    data_kind: ClassVar[str] = "labeled"
    command: ClassVar[str] = "classify"
    default_metric: ClassVar[str] = "accuracy"

    kind: Literal["classify"] = "classify"
    metrics: tuple[str, ...] = ()
    """Further metrics: built-in ones, the path of a script for ``evaluate.load``, or NAME@COMMIT on the Hub."""
    class_weights: Literal["auto"] | dict[str, float] | None = None
    """Weight of each label in the loss, by label name; auto weighs by inverse frequency."""

    def runs_code(self) -> Iterator[tuple[str, str, str]]:
        """Metrics that are a script, on disk or on the Hub."""
        if untrusted := [name for name in self.metrics if not BUILT_IN.fullmatch(name)]:
            flag = f"--set 'task.metrics=[{', '.join(self.metrics)}]'"
            yield "metrics", f"the code of a metric ({', '.join(untrusted)})", flag


class SpanTask(TaskSettings):
    """Pretrain by span corruption: a part of each document is masked, and must be generated after the rest."""

    data_kind: ClassVar[str] = "corpus"
    command: ClassVar[str] = "pretrain"
    default_metric: ClassVar[str] = "loss"
    default_model: ClassVar[str] = "scratch:mingpt"
    held_out: ClassVar[float] = 0.0
    """Nothing is held out: a fact can only be learned from the document that has it."""

    item_settings: ClassVar[tuple[str, ...]] = (
        *(f"task.{name}" for name in ("min_document_length", "max_prefix_ratio", "corruption_rate", "num_spans")),
        *("task.crop", "task.short_documents", *LENGTH_AND_TOKENIZER),
    )

    kind: Literal["span"] = "span"
    min_document_length: int = Field(default=4, ge=4)
    """Minimum length, in tokens, to which a document is truncated; a shorter one is taken whole."""
    max_prefix_ratio: float = Field(default=0.875, gt=0.0, lt=1.0)
    """Maximum length to which a document is truncated, as a ratio of the model's block_size."""
    corruption_rate: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Ratio of the tokens of a document that are masked, on average."""
    num_spans: int = Field(default=1, ge=1)
    """Number of masked spans in a document; they share corruption_rate."""
    crop: Literal["start", "random"] = "start"
    """Which part of a truncated document is kept: its start, or a random part, another one in each epoch."""
    short_documents: Literal["refuse", "drop"] = "refuse"
    """What to do with documents of fewer than 4 characters, which have no room for a span."""


class ClmTask(TaskSettings):
    """Pretrain a causal language model: each token of a text is predicted from those before it."""

    data_kind: ClassVar[str] = "corpus"
    command: ClassVar[str] = "pretrain"
    default_metric: ClassVar[str] = "loss"
    default_model: ClassVar[str] = "scratch:mingpt"
    held_out: ClassVar[float] = 0.02

    item_settings: ClassVar[tuple[str, ...]] = ("task.block_size", "task.stride", *LENGTH_AND_TOKENIZER)

    kind: Literal["clm"] = "clm"
    block_size: int | None = Field(default=None, ge=4)
    """Number of tokens in a block; the model's maximum by default, at most 1024."""
    stride: int | None = Field(default=None, ge=1)
    """Number of tokens between the starts of two blocks in evaluation; fewer give each token more context."""
    prompts: tuple[str, ...] = ("",)
    """Prompts from which text is generated at each evaluation; an empty one starts a document."""
    max_new_tokens: int = Field(default=60, ge=0)
    """Tokens to generate for each prompt; 0 generates nothing."""


class AnswerTask(TaskSettings):
    """Answer questions with a causal language model."""

    data_kind: ClassVar[str] = "questions"
    command: ClassVar[str] = "finetune"
    default_metric: ClassVar[str] = "exact_match"
    default_model: ClassVar[str] = "scratch:mingpt"

    kind: Literal["answer"] = "answer"


class MaskedText(Section):
    """How text is masked for a masked language model."""

    mlm_probability: float = Field(default=0.15, gt=0.0, lt=1.0)
    """Probability of masking a token: 80 % become [MASK], 10 % a random token, 10 % stay."""
    whole_word_mask: bool = False
    """Mask whole words instead of single tokens."""


class JointTask(MaskedText, ClassifyTask):
    """Classification, and masked language modeling of unlabeled text, in one model at the same time."""

    data_kind: ClassVar[str] = "joint"
    command: ClassVar[str] = "joint"

    kind: Literal["joint"] = "joint"  # type: ignore[assignment]  # a classification task, but another kind
    mlm_alpha: float = Field(default=1.0, ge=0.0)
    """Weight of the MLM loss, added to the classification loss; 0 reads no unlabeled text."""
    mlm_alpha_end: float | None = Field(default=None, ge=0.0)
    """Weight of the MLM loss at the last step, reached linearly; constant by default."""
    mlm_batch_size: int | None = Field(default=None, ge=1)
    """Unlabeled examples in a batch on one device; per_device_train_batch_size by default."""

    def alpha_at(self, done: float) -> float:
        """The weight of the second loss when this share of the training is done."""
        end = self.mlm_alpha if self.mlm_alpha_end is None else self.mlm_alpha_end
        return self.mlm_alpha + (end - self.mlm_alpha) * min(1.0, max(0.0, done))

    @property
    def reads_unlabeled(self) -> bool:
        """Whether unlabeled text has any weight at any time."""
        return self.mlm_alpha > 0 or bool(self.mlm_alpha_end)


class MaskedLines(MaskedText, TaskSettings):
    """Examples of a masked language model."""

    data_kind: ClassVar[str] = "corpus"

    max_seq_length: Annotated[int, Flag("max-length", group=DATA)] = Field(default=128, ge=3)
    """Maximum length of an example in tokens, special tokens included; longer ones are truncated."""


class MlmTask(MaskedLines):
    """Train a masked language model on plain text: the first of two stages."""

    command: ClassVar[str] = "pretrain"
    default_metric: ClassVar[str] = "perplexity"

    item_settings: ClassVar[tuple[str, ...]] = (
        *(f"task.{name}" for name in ("mlm_probability", "whole_word_mask", "max_seq_length", "block_size")),
        *LENGTH_AND_TOKENIZER,
    )

    kind: Literal["mlm"] = "mlm"
    block_size: int | None = Field(default=None, ge=3)
    """Concatenate all lines and split them into blocks of this many tokens; one example per line by default."""


class TeacherSettings(Section):
    """The model that a student learns from."""

    teacher: Annotated[str, Flag(group=WHAT, metavar="NAME")]
    """The teacher: an hftune run, a folder or a Hub id of an encoder."""
    teacher_revision: str | None = None
    """Branch, tag or commit of the teacher on the Hub."""
    trust_teacher_code: bool = False
    """Run Python code that comes with the teacher."""

    def runs_code(self) -> Iterator[tuple[str, str, str]]:
        """The teacher's own code."""
        if self.trust_teacher_code:
            yield "trust_teacher_code", f"Python code that comes with {self.teacher}", "--trust-teacher-code"


class DistillEncoderTask(TeacherSettings, MaskedLines):
    """Distill an encoder on plain text: its hidden states match a teacher's, and it is a masked language model."""

    command: ClassVar[str] = "distill"
    default_metric: ClassVar[str] = "agreement"
    held_out: ClassVar[float] = 0.02

    kind: Literal["distill_encoder"] = "distill_encoder"
    max_words: int = Field(default=80, ge=4, le=4096)
    """Words of an example: longer documents are cut into chunks of nearly equal length."""
    mlm_weight: float = Field(default=1.0, gt=0.0)
    """Weight of the loss of the masked tokens."""
    word_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the distance between the student's and the teacher's vectors of words."""
    sentence_weight: float = Field(default=1.0, ge=0.0)
    """Weight of the distance between the student's and the teacher's vectors of whole examples."""
    distance: Literal["cosine", "mse"] = "cosine"
    """Distance of two vectors: 1 - cosine, or the mean squared error to the teacher's layer-normalized vector."""

    @model_validator(mode="after")
    def _something_to_learn(self) -> DistillEncoderTask:
        if not self.word_weight and not self.sentence_weight:
            raise ValueError(
                "word_weight and sentence_weight are 0, so nothing is learned from the teacher; task mlm does the rest"
            )
        return self


class DistillTask(TeacherSettings, ClassifyTask):
    """Distill a classifier: it learns from the labels, and from the probabilities that a teacher gives to each."""

    data_kind: ClassVar[str] = "joint"
    command: ClassVar[str] = "distill"

    kind: Literal["distill"] = "distill"  # type: ignore[assignment]  # a classification task, but another kind
    teacher: Annotated[str | tuple[str, ...], Flag(group=WHAT, metavar="NAME")]  # type: ignore[assignment]
    """The teacher: an hftune run, a folder or a Hub id of a classifier with the labels of the data; a list of several
    is an ensemble, the mean of their probabilities."""
    temperature: Annotated[float, Flag(group=TRAINING)] = Field(default=2.0, gt=0.0)
    """Divisor of the logits of teacher and student in the soft loss, which is multiplied by its square."""
    hard_label_weight: Annotated[float, Flag(group=TRAINING)] = Field(default=0.5, ge=0.0, le=1.0)
    """Weight of the labels of the data; the teacher's probabilities have the rest. 1 is plain classification."""
    hidden_weight: float = Field(default=0.0, ge=0.0)
    """Weight of the distance between the hidden states of student and teacher, as in TinyBERT; method full only."""
    attention_weight: float = Field(default=0.0, ge=0.0)
    """Weight of the distance between their attention scores."""
    layer_map: Literal["uniform", "last"] | tuple[int, ...] = "uniform"
    """The teacher's layer for each layer of the student, in these two losses: spread evenly, the last one for the last
    one alone, or a list that counts from 1."""

    @property
    def teachers(self) -> tuple[str, ...]:
        """The names of the teachers."""
        return (self.teacher,) if isinstance(self.teacher, str) else self.teacher

    @property
    def reads_layers(self) -> bool:
        """Whether hidden states or attention scores are compared."""
        return bool(self.hidden_weight or self.attention_weight)

    @property
    def reads_teacher(self) -> bool:
        """Whether the teacher has any weight."""
        return self.hard_label_weight < 1 or self.reads_layers

    @model_validator(mode="after")
    def _refuse_what_does_not_go_together(self) -> DistillTask:
        if not self.teachers or len(set(self.teachers)) < len(self.teachers):
            raise ValueError("teacher names no model, or one of them twice")
        if len(self.teachers) > 1 and (self.teacher_revision or self.trust_teacher_code):
            raise ValueError("teacher_revision and trust_teacher_code are for one teacher; several are named")
        if len(self.teachers) > 1 and self.reads_layers:
            raise ValueError("hidden_weight and attention_weight compare layers with those of one teacher")
        if self.layer_map != "uniform" and not self.reads_layers:
            raise ValueError("layer_map does nothing without hidden_weight or attention_weight")
        return self


TaskSection = Annotated[
    ClassifyTask | JointTask | MlmTask | SpanTask | ClmTask | AnswerTask | DistillEncoderTask | DistillTask,
    Field(discriminator="kind"),
]
