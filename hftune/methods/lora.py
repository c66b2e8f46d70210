"""LoRA: low-rank updates of frozen weights (Hu et al. 2022, arXiv:2106.09685)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hftune.config.section import Flag
from hftune.methods.method import ARCHITECTURES, AdapterMethod
from hftune.models.settings import encoder_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LowRank(AdapterMethod):
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
    # Query and value of each layer get two matrices, r·d and d·r.
    formula: ClassVar[str] = "4·L·r·d"
    config_class: ClassVar[str] = "LoraConfig"

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """Low-rank matrices for the named layers, or for query and value."""
        targets = self.target_modules or ARCHITECTURES[encoder_config(model.config).model_type].lora
        return {
            "r": self.r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": list(targets),
        }

    def letters(self, model: PreTrainedModel) -> dict[str, int]:
        """The rank."""
        return {"r": self.r}


class LoraMethod(LowRank):
    """Low-rank updates of frozen weights, and the head (LoRA)."""

    kind: Literal["lora"] = "lora"
    papers: ClassVar[tuple[str, ...]] = ("2106.09685",)
