"""DoRA: low-rank updates of the direction of each weight, and its magnitude (Liu et al. 2024, arXiv:2402.09353)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from hftune.methods.lora import LowRank


class DoraMethod(LowRank):
    """Low-rank updates of the direction of frozen weights, trained magnitudes, and the head (DoRA)."""

    kind: Literal["dora"] = "dora"
    formula: ClassVar[str] = "4·L·r·d + 2·L·d"
    papers: ClassVar[tuple[str, ...]] = ("2402.09353",)

    def variant(self) -> dict[str, Any]:
        """LoRA with magnitudes."""
        return {"use_dora": True}
