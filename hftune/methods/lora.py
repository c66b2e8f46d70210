"""LoRA: low-rank updates beside frozen weights (Hu et al. 2022, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hftune.config.section import Flag
from hftune.methods.architectures import ARCHITECTURES
from hftune.methods.method import Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied


class LowRank(Method):
    """The settings of LoRA and of its variants."""

    r: Annotated[int, Flag("lora-r")] = Field(default=8, ge=1)
    """Rank of the update matrices."""
    lora_alpha: float = Field(default=16.0, gt=0.0)
    """Scaling of the update: lora_alpha / r."""
    lora_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout before the update."""
    target_modules: Annotated[tuple[str, ...] | None, Flag("lora-target-modules")] = None
    """Suffixes of the modules to adapt; query and value of the attention by default."""
    merge: bool = False
    """Merge the trained adapter into the weights and save a plain checkpoint."""
    pretrained_learning_rate: ClassVar[float] = 5e-4
    scratch_learning_rate: ClassVar[float] = 2e-3
    formula: ClassVar[str] = "4·L·r·d"

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Add an update to the layers that are named, or to query and value."""
        from peft import LoraConfig

        from hftune.methods.adapters import wrapped

        targets = self.target_modules or ARCHITECTURES[model.config.model_type].lora
        return wrapped(
            model,
            fresh_modules,
            LoraConfig,
            {
                "r": self.r,
                "lora_alpha": self.lora_alpha,
                "lora_dropout": self.lora_dropout,
                "target_modules": list(targets),
                **self.variant(),
            },
            formula=lambda head: f"{self.formula} + {head}",
            letters={"r": self.r},
            merge=self.merge,
        )

    def variant(self) -> dict[str, Any]:
        """Further fields of peft's LoraConfig, which make another method of it."""
        return {}


class LoraMethod(LowRank):
    """Low-rank updates beside frozen weights, and the head (LoRA)."""

    kind: Literal["lora"] = "lora"
    papers: ClassVar[tuple[str, ...]] = ("2106.09685",)
