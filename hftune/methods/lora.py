"""LoRA: low-rank updates beside frozen weights (Hu et al. 2022, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Sequence

from peft import LoraConfig
from transformers import PreTrainedModel

from hftune.config.method import LoraMethod
from hftune.methods.adapters import wrapped
from hftune.methods.applied import Applied
from hftune.methods.support import ARCHITECTURES


def apply(model: PreTrainedModel, section: LoraMethod, fresh_modules: Sequence[str]) -> Applied:
    """Add an update to the layers that are named, or to query and value."""
    targets = section.target_modules or ARCHITECTURES[model.config.model_type].lora
    return wrapped(
        model,
        fresh_modules,
        LoraConfig,
        {
            "r": section.r,
            "lora_alpha": section.lora_alpha,
            "lora_dropout": section.lora_dropout,
            "target_modules": list(targets),
        },
        formula=lambda head: f"4·L·r·d + {head}",
        letters={"r": section.r},
        merge=section.merge,
    )
