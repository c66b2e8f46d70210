"""The ``model`` section: which network, with which weights, and what may be trusted to load it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from hftune.config.section import Section

SCRATCH = "scratch:"
MINGPT = f"{SCRATCH}mingpt"


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
    allow_pickle: bool = False
    """Load weights that exist only as a pickle, with the reader of torch that builds tensors alone."""

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
