"""minGPT: a GPT with short code that works with all of transformers: Auto classes, generate, pipeline, Trainer."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .configuration_mingpt import MinGPTConfig
from .convert_gpt2 import from_gpt2
from .modeling_mingpt import ATTENTION, MinGPTForCausalLM, MinGPTModel

__all__ = ["ATTENTION", "MinGPTConfig", "MinGPTForCausalLM", "MinGPTModel", "from_gpt2", "register"]


def register() -> None:
    """Register minGPT with the Auto classes, and have its code saved with every model; can be called again."""
    AutoConfig.register("mingpt", MinGPTConfig, exist_ok=True)
    AutoModel.register(MinGPTConfig, MinGPTModel, exist_ok=True)
    AutoModelForCausalLM.register(MinGPTConfig, MinGPTForCausalLM, exist_ok=True)
    MinGPTConfig.register_for_auto_class()
    MinGPTModel.register_for_auto_class("AutoModel")
    MinGPTForCausalLM.register_for_auto_class("AutoModelForCausalLM")
