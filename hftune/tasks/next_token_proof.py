"""What a causal language model says after the probe texts, in memory and from its folder. Used by span and clm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.model import ModelSection, Trust
from hftune.models.causal import load_saved_lm
from hftune.models.positions import max_positions

LONGEST = 1024
"""Tokens of a probe text that are read where the model has no bound of its own, or a higher one."""


def next_logits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Logits of the token after each text."""
    block, was_training = min(max_positions(model.config) or LONGEST, LONGEST), model.training
    model.eval()
    logits = []
    with torch.inference_mode():
        for row in rows:
            ids = tokenizer(row["text"], add_special_tokens=False)["input_ids"][:block]
            made = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
            logits.append(made[0, -1].float().cpu().tolist())
    model.train(was_training)
    return {"logits": logits}


def saved_next_logits(folder: Path, rows: Sequence[Mapping[str, Any]], trust: Trust) -> dict[str, Any]:
    """The same from the saved folder."""
    section = ModelSection(model_name_or_path=str(folder), **trust)
    model, tokenizer, _ = load_saved_lm(str(folder), section, "cpu")
    return next_logits(model, tokenizer, rows)
