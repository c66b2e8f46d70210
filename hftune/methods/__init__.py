"""Which weights move: one file a method, one line in METHODS. A method here works for every classification task."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from hftune.config.method import MethodSection
from hftune.methods import full
from hftune.methods.applied import Applied

__all__ = ["METHODS", "Applied", "apply"]

METHODS = {
    "full": full.apply,
}


def apply(model: PreTrainedModel, section: MethodSection, fresh_modules: Sequence[str]) -> Applied:
    """Freeze, wrap or leave the model as the method says. fresh_modules did not come from the checkpoint."""
    return METHODS[section.kind](model, section, fresh_modules)
