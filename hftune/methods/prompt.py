"""Prompt tuning: trained embeddings in front of the text (Lester et al. 2021, arXiv:2104.08691)."""

from __future__ import annotations

from collections.abc import Sequence

from peft import PromptTuningConfig
from transformers import PreTrainedModel

from hftune.config.method import PromptMethod
from hftune.methods.adapters import prompt_shape, wrapped
from hftune.methods.applied import Applied


def apply(model: PreTrainedModel, section: PromptMethod, fresh_modules: Sequence[str]) -> Applied:
    """Put trained embeddings before those of the text; the first position, which the head reads, is one of them."""
    tokens, labels = section.num_virtual_tokens, model.config.num_labels
    width: int = model.get_input_embeddings().embedding_dim  # ELECTRA's is not its hidden size
    linear = f"{labels}d+{labels}"

    def formula(head: str) -> str:
        if head == linear and width == model.config.hidden_size:
            return f"{tokens + labels}d+{labels}"
        return f"n·e + {head}"

    return wrapped(
        model,
        fresh_modules,
        PromptTuningConfig,
        {**prompt_shape(model, width), "num_virtual_tokens": tokens},
        formula=formula,
        letters={"n": tokens},
    )
