"""Prefix tuning: trained keys and values in front of the text in every layer (arXiv:2101.00190, arXiv:2110.07602)."""

from __future__ import annotations

from collections.abc import Sequence

from peft import PrefixTuningConfig
from transformers import PreTrainedModel

from hftune.config.method import PrefixMethod
from hftune.methods.adapters import prompt_shape, wrapped
from hftune.methods.applied import Applied


def apply(model: PreTrainedModel, section: PrefixMethod, fresh_modules: Sequence[str]) -> Applied:
    """Put a prefix before every layer's keys and values."""
    width = model.config.hidden_size
    size = section.encoder_hidden_size or width
    plain, projected = "2·L·n·d", "n·d + h·d + h + 2·L·h·d + 2·L·d"
    return wrapped(
        model,
        fresh_modules,
        PrefixTuningConfig,
        {
            **prompt_shape(model, width),
            "num_virtual_tokens": section.num_virtual_tokens,
            "prefix_projection": section.prefix_projection,
            "encoder_hidden_size": size,
        },
        formula=lambda head: f"{projected if section.prefix_projection else plain} + {head}",
        letters={"n": section.num_virtual_tokens, "h": size},
    )
