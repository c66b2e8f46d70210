"""The ``model`` section: architecture, weights, tokenizer, and consent to remote code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from pydantic import Field, ValidationError, field_validator, model_validator

from hftune.config.section import WHAT, Flag, Section
from hftune.data.settings import HUB_ID
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SCRATCH = "scratch:"
MINGPT_TYPE = "mingpt"
"""``model_type`` of our own architecture."""
POOLED_TYPE = "pooled_encoder"
"""``model_type`` of our classifier with mean or max pooling, around any encoder."""
MINGPT = f"{SCRATCH}{MINGPT_TYPE}"
MASK = "⁇"
"""The mask of GPTs: it marks the span to fill in, and separates question and answer."""
COMMIT = re.compile(r"[0-9a-f]{40}")
SHAPE = (
    "attention",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "block_size",
)
"""Settings that are fields of the model's configuration."""
NOT_MINGPT = ("max_position_embeddings",)
MINGPT_ONLY = ("attention", "block_size")
TOKENIZER_TYPES = {"mingpt": ("char", "bpe", "unigram"), "gpt2": ("bpe", "unigram"), "roberta": ("bpe", "unigram")}
"""What a preset can read, by the beginning of its name; the others, which are BERTs, read wordpiece."""


class Trust(TypedDict):
    """Consent to remote code: the settings of these names in the ``model`` section."""

    trust_remote_code: bool
    trust_base_code: str | None


NO_TRUST: Trust = {"trust_remote_code": False, "trust_base_code": None}


def encoder_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the encoder: that inside of a classifier with mean or max pooling, else the given one."""
    return config.encoder_config if config.model_type == POOLED_TYPE else config


def is_at_commit(text: str) -> bool:
    """Whether this is REPO@COMMIT: a Hub id and the 40 digits of a commit."""
    repo, _, commit = text.partition("@")
    return bool(HUB_ID.fullmatch(repo) and COMMIT.fullmatch(commit))


class ModelSection(Section):
    """A model by Hub id, by path, or ``scratch:<preset>`` for random initialization."""

    model_name_or_path: Annotated[str, Flag("model", group=WHAT, metavar="NAME")] = "scratch:bert-tiny"
    """A Hub id, a folder, an hftune run, or scratch:<preset>."""
    model_revision: Annotated[str | None, Flag("revision")] = None
    """Branch, tag or commit on the Hub."""
    model_type: str | None = None
    """Architecture that the model must have, as in bert; another one is refused."""
    tokenizer_name: Annotated[str | None, Flag("tokenizer")] = None
    """Tokenizer to use instead of the model's own: a Hub id or a folder."""
    tokenizer_type: Literal["char", "bpe", "wordpiece", "unigram"] | None = None
    """Tokenizer to train for a model from scratch. minGPT: char (the default; not for causal language modeling), bpe or
    unigram; RoBERTa and GPT-2: bpe (the default) or unigram; BERT: wordpiece."""
    vocab_size: int = Field(default=4000, ge=300)
    """Vocabulary size of the tokenizer that is trained for a model from scratch; char has one token per character."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of hidden states, attention and classifier; the checkpoint's own by default."""
    pooling: Literal["auto", "cls", "mean", "max"] = "auto"
    """What a classifier reads of a text: its first token (cls), or the mean or maximum of all tokens; auto is what a
    sentence encoder was trained with (its 1_Pooling/config.json), and what the architecture's own class reads for all
    others."""
    attention: Literal["vanilla", "rope", "synthesizer", "performer", "bigbird", "linformer"] | None = None
    """Attention of a minGPT from scratch; vanilla by default."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    """Number of layers of a model from scratch; the preset's by default."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Number of attention heads of a model from scratch; must divide hidden_size."""
    hidden_size: int | None = Field(default=None, ge=2)
    """Hidden size of a model from scratch."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Width of the feed-forward layers of a model from scratch."""
    max_position_embeddings: int | None = Field(default=None, ge=8)
    """Longest sequence of a BERT or RoBERTa from scratch, in tokens."""
    block_size: int | None = Field(default=None, ge=8)
    """Longest sequence of a minGPT from scratch, in tokens."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint."""
    trust_base_code: str | None = None
    """Run the Python code of an adapter's base on the Hub: REPO@COMMIT."""

    @property
    def from_scratch(self) -> bool:
        """Whether the weights are initialized at random."""
        return self.model_name_or_path.startswith(SCRATCH)

    @property
    def scratch_mingpt(self) -> bool:
        """Whether this is a minGPT from scratch."""
        return self.model_name_or_path == MINGPT or self.model_name_or_path.startswith(f"{MINGPT}-")

    @property
    def scratch_model_type(self) -> str | None:
        """The architecture of a model from scratch, which begins the preset's name; None for other models."""
        if not self.from_scratch:
            return None
        family = self.model_name_or_path.removeprefix(SCRATCH).partition("-")[0]
        return "bert" if family == "tinybert" else family

    @property
    def shape(self) -> dict[str, Any]:
        """The fields of the configuration that are set, for a model from scratch."""
        return {name: value for name in SHAPE if (value := getattr(self, name)) is not None}

    @property
    def trust(self) -> Trust:
        """Consent to code that loading this model runs."""
        return {"trust_remote_code": self.trust_remote_code, "trust_base_code": self.trust_base_code}

    @property
    def trust_in_saved(self) -> Trust:
        """Consent for loading a model that was trained from this one: the same code in its new place.

        A whole model has it in its folder. An adapter names this model as its base.
        """
        base = f"{self.model_name_or_path}@{self.model_revision}"
        return {
            "trust_remote_code": self.trust_remote_code or self.trust_base_code is not None,
            "trust_base_code": base if self.trust_remote_code and is_at_commit(base) else None,
        }

    def runs_code(self) -> Iterator[tuple[str, str, str]]:
        """The model's own code, and that of an adapter's base."""
        if self.trust_remote_code:
            yield "trust_remote_code", f"Python code that comes with {self.model_name_or_path}", "--trust-remote-code"
        if self.trust_base_code:
            base = self.trust_base_code
            yield "trust_base_code", f"Python code of {base}", f"--trust-base-code {base}"

    @field_validator("trust_base_code")
    @classmethod
    def _at_commit(cls, value: str | None) -> str | None:
        if value is not None and not is_at_commit(value):
            raise ValueError("expected REPO@COMMIT, with all 40 digits of the commit whose code you have read")
        return value

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> ModelSection:
        name = self.model_name_or_path
        if self.tokenizer_type is not None and self.tokenizer_name is not None:
            raise ValueError(
                f"tokenizer_type trains a tokenizer and tokenizer_name takes {self.tokenizer_name}; set one of them"
            )
        asked = [*self.shape, *(["tokenizer_type"] if self.tokenizer_type else [])]
        if asked and not self.from_scratch:
            raise ValueError(f"{', '.join(asked)} can be set for a model from scratch only; {name} has its own")
        kinds = next((known for preset, known in TOKENIZER_TYPES.items() if name.startswith(SCRATCH + preset)), None)
        kinds = kinds or ("wordpiece",)
        if self.tokenizer_type not in (None, *kinds):
            raise ValueError(f"{name} reads {' or '.join(kinds)}; got tokenizer_type {self.tokenizer_type}")
        other = [one for one in self.shape if one in (NOT_MINGPT if self.scratch_mingpt else MINGPT_ONLY)]
        if other:
            known = [one for one in SHAPE if one not in (NOT_MINGPT if self.scratch_mingpt else MINGPT_ONLY)]
            raise ValueError(f"{name} has no {', '.join(other)}; it has {', '.join(known)}")
        return self


def used_model(
    name: str, revision: str | None, trust_remote_code: bool | None, trust_base_code: str | None
) -> ModelSection:
    """The model that a command uses, and whose code may run to load it, from the flags of the command.

    Raises:
        HftuneError: It is a path that does not exist; found before torch is imported.
    """
    from hftune.models.hub_files import refuse_missing

    refuse_missing(name)
    trust: Trust = {"trust_remote_code": bool(trust_remote_code), "trust_base_code": trust_base_code}
    try:
        return ModelSection(model_name_or_path=name, model_revision=revision, **trust)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise HftuneError(
            f"--trust-base-code: {expected}; got {trust_base_code!r}",
            hint="leave it out: the command names the repository and the commit if such code is needed",
        ) from error
