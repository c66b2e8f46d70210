"""The ``model`` section: which network, with which weights, and what may be trusted to load it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field, field_validator, model_validator

from hftune.config.section import Flag, Section

SCRATCH = "scratch:"
MINGPT = f"{SCRATCH}mingpt"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
COMMIT = re.compile(r"[0-9a-f]{40}")
WHAT = "Model, data and method"
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
TOKENIZER_TYPES = {"mingpt": ("char", "bpe"), "gpt2": ("bpe",), "roberta": ("bpe",)}
"""What a preset can read, by the beginning of its name; the others, which are BERTs, read wordpiece."""


class Trust(TypedDict):
    """Whose code may run when a model is loaded: the settings of that name in the ``model`` section."""

    trust_remote_code: bool
    trust_base_code: str | None


NO_TRUST: Trust = {"trust_remote_code": False, "trust_base_code": None}


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
    """Architecture that the checkpoint must have, as in bert; another one is refused."""
    tokenizer_name: Annotated[str | None, Flag("tokenizer")] = None
    """Tokenizer to use instead of the model's own: a Hub id or a folder."""
    tokenizer_type: Literal["char", "bpe", "wordpiece"] | None = None
    """Tokenizer to train for a model from scratch. minGPT: char (the default) or bpe, and bpe for causal language
    modeling; BERT: wordpiece; RoBERTa and GPT-2: bpe."""
    vocab_size: int = Field(default=4000, ge=300)
    """Vocabulary size of the tokenizer that is trained for a model from scratch; char has one token per character."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of hidden states, attention and classifier; the checkpoint's own by default."""
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
    def shape(self) -> dict[str, Any]:
        """The fields of the configuration that are set, for a model from scratch."""
        return {name: value for name in SHAPE if (value := getattr(self, name)) is not None}

    @property
    def trust(self) -> Trust:
        """What may run when this model is loaded."""
        return {"trust_remote_code": self.trust_remote_code, "trust_base_code": self.trust_base_code}

    @property
    def trust_in_saved(self) -> Trust:
        """What may run when a model that was trained from this one is loaded again: the same code in its new place.

        A whole model has it in its folder. An adapter names this model as its base.
        """
        base = f"{self.model_name_or_path}@{self.model_revision}"
        return {
            "trust_remote_code": self.trust_remote_code or self.trust_base_code is not None,
            "trust_base_code": base if self.trust_remote_code and is_at_commit(base) else None,
        }

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
            raise ValueError(f"{', '.join(asked)} can be set for a model from scratch only; {name} brings its own")
        kinds = next((known for preset, known in TOKENIZER_TYPES.items() if name.startswith(SCRATCH + preset)), None)
        kinds = kinds or ("wordpiece",)
        if self.tokenizer_type not in (None, *kinds):
            raise ValueError(f"{name} reads {' or '.join(kinds)}; got tokenizer_type {self.tokenizer_type}")
        other = [one for one in self.shape if one in (NOT_MINGPT if self.scratch_mingpt else MINGPT_ONLY)]
        if other:
            known = [one for one in SHAPE if one not in (NOT_MINGPT if self.scratch_mingpt else MINGPT_ONLY)]
            raise ValueError(f"{name} has no {', '.join(other)}; it has {', '.join(known)}")
        return self
