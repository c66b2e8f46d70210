"""Prefix tuning: trained keys and values in front of the text in every layer (arXiv:2101.00190, arXiv:2110.07602)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from hftune.methods.method import PAST, VirtualTokens, prompt_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied

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

    @model_validator(mode="after")
    def _size_of_what_is_there(self) -> PrefixMethod:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("encoder_hidden_size does nothing without prefix_projection: true")
        return self

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Put a prefix before every layer's keys and values."""
        from peft import PrefixTuningConfig

        from hftune.methods.adapters import wrapped

        width = model.config.hidden_size
        size = self.encoder_hidden_size or width
        return wrapped(
            model,
            fresh_modules,
            PrefixTuningConfig,
            {
                **prompt_shape(model, width),
                "num_virtual_tokens": self.num_virtual_tokens,
                "prefix_projection": self.prefix_projection,
                "encoder_hidden_size": size,
            },
            formula=lambda head: f"{PROJECTED if self.prefix_projection else self.formula} + {head}",
            letters={"n": self.num_virtual_tokens, "h": size},
        )
