"""The ``model`` section: which network, with which weights, and what may be trusted to load it."""

from __future__ import annotations

from pydantic import Field

from hftune.config.section import Section

SCRATCH = "scratch:"


class ModelSection(Section):
    """A model by Hub id, by path, or ``scratch:<preset>`` for fresh weights."""

    name: str = "scratch:bert-tiny"
    """A Hub id, a folder, an hftune run, or scratch:<preset>."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    tokenizer: str | None = None
    """Tokenizer to use instead of the model's own: a Hub id or a folder."""
    vocab_size: int = Field(default=4000, ge=300)
    """Size of the vocabulary that is trained for a scratch model."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of hidden states, attention and classifier; the checkpoint's own where not given."""
    trust_remote_code: bool = False
    """Run Python code that comes with the checkpoint."""
    allow_pickle: bool = False
    """Load weights that exist only as a pickle, which can run any code."""

    @property
    def from_scratch(self) -> bool:
        """Whether the weights start fresh."""
        return self.name.startswith(SCRATCH)
