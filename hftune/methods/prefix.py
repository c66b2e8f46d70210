"""Prefix tuning: trained keys and values in front of the text in every layer (arXiv:2101.00190, arXiv:2110.07602)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from hftune.methods.method import PAST, VirtualTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Embeddings n·d; a layer from d to h with its bias; one from h to the keys and values of all layers with its bias.
PROJECTED = "n·d + h·d + h + 2·L·h·d + 2·L·d"


class PrefixMethod(VirtualTokens):
    """Trained keys and values in front of the text in every layer, and the head (prefix tuning, P-tuning v2)."""

    kind: Literal["prefix"] = "prefix"
    prefix_projection: bool = False
    """Compute the prefix from smaller embeddings with a two-layer MLP, which is dropped after training."""
    encoder_hidden_size: int | None = Field(default=None, ge=1)
    """Width of that MLP; the model's hidden size by default."""
    pretrained_learning_rate: ClassVar[float] = 5e-3
    scratch_learning_rate: ClassVar[float] = 5e-3
    formula: ClassVar[str] = "2·L·n·d"
    papers: ClassVar[tuple[str, ...]] = ("2101.00190", "2110.07602")
    needs: ClassVar[tuple[str, ...]] = (*VirtualTokens.needs, PAST)
    config_class: ClassVar[str] = "PrefixTuningConfig"

    @model_validator(mode="after")
    def _size_of_what_is_there(self) -> PrefixMethod:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("encoder_hidden_size does nothing without prefix_projection: true")
        return self

    def width(self, model: PreTrainedModel) -> int:
        """Keys and values of all heads together have the hidden size."""
        size: int = model.config.hidden_size
        return size

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """A prefix before every layer's keys and values."""
        size = self.encoder_hidden_size or self.width(model)
        return {
            **super().settings(model),
            "prefix_projection": self.prefix_projection,
            "encoder_hidden_size": size,
        }

    def full_formula(self, model: PreTrainedModel, head: str) -> str:
        """The formula of what is trained, which is more than what is saved."""
        return f"{PROJECTED if self.prefix_projection else self.formula} + {head}"

    def letters(self, model: PreTrainedModel) -> dict[str, int]:
        """The number of vectors, and the width of the MLP."""
        return {**super().letters(model), "h": self.encoder_hidden_size or self.width(model)}
