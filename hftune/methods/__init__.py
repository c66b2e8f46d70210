"""Which weights move: one file a method, one line in METHODS. A method here works for every classification task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel

from hftune.config.method import MethodSection
from hftune.methods import bitfit, full, head, ia3, lora, prefix, prompt, ptuning
from hftune.methods.applied import Applied
from hftune.methods.support import check

__all__ = ["METHODS", "Applied", "apply", "check"]

METHODS: dict[str, Callable[[PreTrainedModel, Any, Sequence[str]], Applied]] = {
    "full": full.apply,
    "head": head.apply,
    "prefix": prefix.apply,
    "prompt": prompt.apply,
    "ptuning": ptuning.apply,
    "lora": lora.apply,
    "ia3": ia3.apply,
    "bitfit": bitfit.apply,
}


def apply(model: PreTrainedModel, section: MethodSection, fresh_modules: Sequence[str]) -> Applied:
    """Freeze, wrap or leave the model as the method says. fresh_modules did not come from the checkpoint."""
    check(section, model.config, causal=model.can_generate())
    return METHODS[section.kind](model, section, fresh_modules)
