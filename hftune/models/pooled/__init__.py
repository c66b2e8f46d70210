"""A sequence classifier over the mean or the maximum of an encoder's token vectors, for any encoder of transformers."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForSequenceClassification

from .configuration_pooled import PooledEncoderConfig
from .modeling_pooled import PooledForSequenceClassification, pool

__all__ = ["PooledEncoderConfig", "PooledForSequenceClassification", "pool", "register"]


def register() -> None:
    """Register the class with the Auto classes, and have its code saved with every model; can be called again."""
    AutoConfig.register(PooledEncoderConfig.model_type, PooledEncoderConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(PooledEncoderConfig, PooledForSequenceClassification, exist_ok=True)
    PooledEncoderConfig.register_for_auto_class()
    PooledForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
