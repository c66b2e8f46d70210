"""minGPT: a GPT written to be read, and a full Hugging Face citizen. Used by tasks, lab and benchmarks."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .attention import ATTENTION
from .configuration_mingpt import MinGPTConfig
from .convert_gpt2 import from_gpt2
from .modeling_mingpt import MinGPTForCausalLM, MinGPTModel

__all__ = ["ATTENTION", "MinGPTConfig", "MinGPTForCausalLM", "MinGPTModel", "from_gpt2", "register"]


def register() -> None:
    """Make the Auto classes know minGPT, and make saved models carry their code. Safe to call again."""
    AutoConfig.register("mingpt", MinGPTConfig, exist_ok=True)
    AutoModel.register(MinGPTConfig, MinGPTModel, exist_ok=True)
    AutoModelForCausalLM.register(MinGPTConfig, MinGPTForCausalLM, exist_ok=True)
    MinGPTConfig.register_for_auto_class()
    MinGPTModel.register_for_auto_class("AutoModel")
    MinGPTForCausalLM.register_for_auto_class("AutoModelForCausalLM")
