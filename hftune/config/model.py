"""The ``model`` section: which network, with which weights, and what may be trusted to load it."""

from __future__ import annotations

import re
from typing import Any, Literal, TypedDict

from pydantic import Field, field_validator, model_validator

from hftune.config.section import Section

SCRATCH = "scratch:"
MINGPT = f"{SCRATCH}mingpt"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
COMMIT = re.compile(r"[0-9a-f]{40}")


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
    """A model by Hub id, by path, or ``scratch:<preset>`` for fresh weights."""

    name: str = "scratch:bert-tiny"
    """A Hub id, a folder, an hftune run, or scratch:<preset>."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    tokenizer: str | None = None
    """Tokenizer to use instead of the model's own: a Hub id or a folder."""
    vocabulary: Literal["characters", "pieces"] | None = None
    """What a fresh minGPT reads for task.kind span and answer: characters, or pieces of words that are learned from the
    text (byte-level BPE); characters where not given. Task.kind clm always learns pieces."""
    vocab_size: int = Field(default=4000, ge=300)
    """Size of the vocabulary that is learned for a scratch model; a minGPT that reads characters learns none."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of hidden states, attention and classifier; the checkpoint's own where not given."""
    attention: Literal["vanilla", "rope", "synthesizer", "performer", "bigbird", "linformer"] | None = None
    """How a fresh minGPT attends; vanilla where not given."""
    layers: int | None = Field(default=None, ge=1)
    """Blocks of a fresh minGPT; the preset's where not given."""
    heads: int | None = Field(default=None, ge=1)
    """Attention heads of a fresh minGPT; they divide its width."""
    width: int | None = Field(default=None, ge=2)
    """Width of a fresh minGPT."""
    block: int | None = Field(default=None, ge=8)
    """Most tokens that a fresh minGPT reads and writes in one sequence."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint."""
    trust_base_code: str | None = None
    """Run the Python code of an adapter's base on the Hub: REPO@COMMIT."""

    @property
    def from_scratch(self) -> bool:
        """Whether the weights start fresh."""
        return self.name.startswith(SCRATCH)

    @property
    def fresh_mingpt(self) -> bool:
        """Whether this is a minGPT whose weights start fresh."""
        return self.name == MINGPT or self.name.startswith(f"{MINGPT}-")

    @property
    def reads_pieces(self) -> bool:
        """Whether a fresh minGPT is to learn pieces where it would read characters."""
        return self.vocabulary == "pieces"

    @property
    def shape(self) -> dict[str, Any]:
        """What is asked for of a fresh minGPT's shape."""
        asked: dict[str, Any] = {"attention": self.attention, "layers": self.layers, "heads": self.heads}
        asked |= {"width": self.width, "block": self.block}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def trust(self) -> Trust:
        """What may run when this model is loaded."""
        return {"trust_remote_code": self.trust_remote_code, "trust_base_code": self.trust_base_code}

    @property
    def trust_in_saved(self) -> Trust:
        """What may run when a model that was trained from this one is loaded again: the same code in its new place.

        A whole model has it in its folder. An adapter names this model as its base.
        """
        base = f"{self.name}@{self.revision}"
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
        if self.vocabulary is not None and self.tokenizer is not None:
            raise ValueError(
                f"vocabulary and tokenizer both say what is read ({self.tokenizer}); leave one of them out"
            )
        asked = [*self.shape, *(["vocabulary"] if self.vocabulary else [])]
        if asked and not self.fresh_mingpt:
            raise ValueError(f"{', '.join(asked)} can be set for {MINGPT} only; {self.name} brings its own")
        return self
