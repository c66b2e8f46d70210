"""DoRA: low-rank updates of the direction of each weight, and its magnitude (Liu et al. 2024, arXiv:2402.09353)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hftune.methods.lora import LowRank

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DoraMethod(LowRank):
    """Low-rank updates of the direction of frozen weights, trained magnitudes, and the head (DoRA)."""

    kind: Literal["dora"] = "dora"
    # One magnitude for each output of query and value.
    formula: ClassVar[str] = "4·L·r·d + 2·L·d"
    papers: ClassVar[tuple[str, ...]] = ("2402.09353",)

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """Those of LoRA, with magnitudes."""
        return {**super().settings(model), "use_dora": True}
