"""The ``method`` section: which parameters are trained. One class a kind, told apart by ``kind``.

Each class carries the learning rate that suits it, for pretrained weights and for fresh ones; ``Recipe``
fills ``train.learning_rate`` from there when nobody set it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hftune.config.section import Flag, Section


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

    num_virtual_tokens: int = Field(default=20, ge=1)
    """Number of trained vectors before the text; they take positions of the encoder, so max_seq_length gets less."""

    @property
    def positions(self) -> int:
        """One for each virtual token."""
        return self.num_virtual_tokens


class FullMethod(_Method):
    """All parameters are trained."""

    kind: Literal["full"] = "full"
    pretrained_learning_rate: ClassVar[float] = 5e-5
    scratch_learning_rate: ClassVar[float] = 5e-4


class HeadMethod(_Method):
    """Only the classification head is trained; the encoder is frozen and runs without dropout."""

    kind: Literal["head"] = "head"
    cache_features: bool = True
    """Compute the features of the frozen encoder once and cache them on disk, instead of once per epoch."""
    pretrained_learning_rate: ClassVar[float] = 2e-3
    scratch_learning_rate: ClassVar[float] = 2e-3


class PrefixMethod(_VirtualTokens):
    """Trained keys and values in front of the text in every layer, and the head (prefix tuning, P-tuning v2)."""

    kind: Literal["prefix"] = "prefix"
    prefix_projection: bool = False
    """Compute the prefix from smaller embeddings with a two-layer MLP, which is dropped after training."""
    encoder_hidden_size: int | None = Field(default=None, ge=1)
    """Width of that MLP; the model's hidden size by default."""
    pretrained_learning_rate: ClassVar[float] = 5e-3
    scratch_learning_rate: ClassVar[float] = 5e-3

    @model_validator(mode="after")
    def _size_of_what_is_there(self) -> PrefixMethod:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("encoder_hidden_size does nothing without prefix_projection: true")
        return self


class PromptMethod(_VirtualTokens):
    """Trained embeddings in front of the text, and the head (prompt tuning)."""

    kind: Literal["prompt"] = "prompt"
    pretrained_learning_rate: ClassVar[float] = 1e-2
    scratch_learning_rate: ClassVar[float] = 1e-2


class PTuningMethod(_VirtualTokens):
    """Embeddings in front of the text that a small network makes, and the head (P-tuning)."""

    kind: Literal["ptuning"] = "ptuning"
    encoder_hidden_size: int | None = Field(default=None, ge=1)
    """Width of the prompt encoder; that of the word embeddings by default."""
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3


class LoraMethod(_Method):
    """Low-rank updates beside frozen weights, and the head (LoRA)."""

    kind: Literal["lora"] = "lora"
    r: Annotated[int, Flag("lora-r")] = Field(default=8, ge=1)
    """Rank of the update matrices."""
    lora_alpha: float = Field(default=16.0, gt=0.0)
    """Scaling of the update: lora_alpha / r."""
    lora_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout before the update."""
    target_modules: Annotated[tuple[str, ...] | None, Flag("lora-target-modules")] = None
    """Suffixes of the modules to adapt; query and value of the attention by default."""
    merge: bool = False
    """Merge the trained adapter into the weights and save a plain checkpoint; lora and ia3 only."""
    pretrained_learning_rate: ClassVar[float] = 5e-4
    scratch_learning_rate: ClassVar[float] = 2e-3


class Ia3Method(_Method):
    """Trained factors for keys, values and feed-forward activations, and the head ((IA)³)."""

    kind: Literal["ia3"] = "ia3"
    target_modules: tuple[str, ...] | None = None
    """Suffixes of the modules to rescale; keys, values and feed-forward by default."""
    feedforward_modules: tuple[str, ...] = ()
    """Those of target_modules whose input is rescaled, not their output; only together with target_modules."""
    merge: bool = False
    """Merge the trained adapter into the weights and save a plain checkpoint; lora and ia3 only."""
    pretrained_learning_rate: ClassVar[float] = 5e-3
    scratch_learning_rate: ClassVar[float] = 5e-3


class BitfitMethod(_Method):
    """The biases and the head are trained (BitFit)."""

    kind: Literal["bitfit"] = "bitfit"
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3


MethodSection = Annotated[
    FullMethod | HeadMethod | PrefixMethod | PromptMethod | PTuningMethod | LoraMethod | Ia3Method | BitfitMethod,
    Field(discriminator="kind"),
]
