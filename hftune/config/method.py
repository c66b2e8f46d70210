"""The ``method`` section: which weights move. One class a kind, told apart by ``kind``.

Each class carries the learning rate that suits it, for pretrained weights and for fresh ones; ``Recipe``
fills ``train.learning_rate`` from there when nobody set it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hftune.config.section import Section


class _Method(Section):
    """What every method has."""

    pretrained_learning_rate: ClassVar[float]
    scratch_learning_rate: ClassVar[float]

    @property
    def positions(self) -> int:
        """Positions of the encoder that the method takes for itself."""
        return 0


class _VirtualTokens(_Method):
    """A method that puts trained vectors in front of the text."""

    virtual_tokens: int = Field(default=20, ge=1)
    """Trained vectors in front of the text; they take positions of the encoder, so max_length gets less."""

    @property
    def positions(self) -> int:
        """One for each virtual token."""
        return self.virtual_tokens


class FullMethod(_Method):
    """Every weight moves."""

    kind: Literal["full"] = "full"
    pretrained_learning_rate: ClassVar[float] = 5e-5
    scratch_learning_rate: ClassVar[float] = 5e-4


class HeadMethod(_Method):
    """Only the classification head moves; the encoder is frozen and runs without dropout."""

    kind: Literal["head"] = "head"
    cache_features: bool = True
    """Run the frozen encoder once over the rows and keep what it says on disk, instead of once an epoch."""
    pretrained_learning_rate: ClassVar[float] = 2e-3
    scratch_learning_rate: ClassVar[float] = 2e-3


class PrefixMethod(_VirtualTokens):
    """Trained keys and values in front of the text in every layer, and the head (prefix tuning, P-tuning v2)."""

    kind: Literal["prefix"] = "prefix"
    projection: bool = False
    """Make the prefix from smaller embeddings by a two-layer network, which is thrown away after training."""
    projection_size: int | None = Field(default=None, ge=1)
    """Width of that network; the encoder's own where not given."""
    pretrained_learning_rate: ClassVar[float] = 5e-3
    scratch_learning_rate: ClassVar[float] = 5e-3

    @model_validator(mode="after")
    def _size_of_what_is_there(self) -> PrefixMethod:
        if self.projection_size is not None and not self.projection:
            raise ValueError("projection_size does nothing without projection: true")
        return self


class PromptMethod(_VirtualTokens):
    """Trained embeddings in front of the text, and the head (prompt tuning)."""

    kind: Literal["prompt"] = "prompt"
    pretrained_learning_rate: ClassVar[float] = 1e-2
    scratch_learning_rate: ClassVar[float] = 1e-2


class PTuningMethod(_VirtualTokens):
    """Embeddings in front of the text that a small network makes, and the head (P-tuning)."""

    kind: Literal["ptuning"] = "ptuning"
    encoder_size: int | None = Field(default=None, ge=1)
    """Width of the network that makes the embeddings; that of the word embeddings where not given."""
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3


class LoraMethod(_Method):
    """Low-rank updates beside frozen weights, and the head (LoRA)."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1)
    """Rank of each update."""
    alpha: float = Field(default=16.0, gt=0.0)
    """Updates are scaled by alpha / rank."""
    update_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout before each update."""
    targets: tuple[str, ...] | None = None
    """Ends of the names of the linear layers that get an update; query and value of the attention where not given."""
    merge: bool = False
    """Put the trained adapter into the weights and save a plain checkpoint; lora and ia3 only."""
    pretrained_learning_rate: ClassVar[float] = 5e-4
    scratch_learning_rate: ClassVar[float] = 2e-3


class Ia3Method(_Method):
    """Trained factors for keys, values and feed-forward activations, and the head ((IA)³)."""

    kind: Literal["ia3"] = "ia3"
    targets: tuple[str, ...] | None = None
    """Ends of the names of the linear layers that are rescaled; keys, values, feed-forward where not given."""
    feedforward: tuple[str, ...] = ()
    """Those of targets whose input is rescaled, not their output; only together with targets."""
    merge: bool = False
    """Put the trained adapter into the weights and save a plain checkpoint; lora and ia3 only."""
    pretrained_learning_rate: ClassVar[float] = 5e-3
    scratch_learning_rate: ClassVar[float] = 5e-3


class BitfitMethod(_Method):
    """Every bias moves, and the head (BitFit)."""

    kind: Literal["bitfit"] = "bitfit"
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3


MethodSection = Annotated[
    FullMethod | HeadMethod | PrefixMethod | PromptMethod | PTuningMethod | LoraMethod | Ia3Method | BitfitMethod,
    Field(discriminator="kind"),
]
