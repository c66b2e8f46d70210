"""Full fine-tuning: every weight moves."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from hftune.config.method import FullMethod
from hftune.methods.accounting import count
from hftune.methods.applied import Applied


def apply(model: PreTrainedModel, section: FullMethod, fresh_modules: Sequence[str]) -> Applied:
    """Leave the model as it is."""
    return Applied(model=model, parameters=count(model))
