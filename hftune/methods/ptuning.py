"""P-tuning: embeddings in front of the text that a small network makes (Liu et al. 2021, arXiv:2103.10385)."""

from __future__ import annotations

from collections.abc import Sequence

from peft import PromptEncoderConfig
from transformers import PreTrainedModel

from hftune.config.method import PTuningMethod
from hftune.methods.adapters import prompt_shape, wrapped
from hftune.methods.applied import Applied


def apply(model: PreTrainedModel, section: PTuningMethod, fresh_modules: Sequence[str]) -> Applied:
    """Put a prompt encoder in front; only the embeddings it has come to make are saved."""
    width: int = model.get_input_embeddings().embedding_dim
    size = section.encoder_hidden_size or width
    return wrapped(
        model,
        fresh_modules,
        PromptEncoderConfig,
        {
            **prompt_shape(model, width),
            "num_virtual_tokens": section.num_virtual_tokens,
            "encoder_hidden_size": size,
        },
        formula=lambda head: f"n·e + 2·h·e + h² + 2h + e + {head}",
        letters={"n": section.num_virtual_tokens, "h": size},
    )
