"""Closed formulas for numbers of trainable parameters, as text and as a number. Used by the methods.

Letters: d hidden size, e size of the word embeddings, f size of the feed-forward layer, L layers, n virtual tokens,
r rank, h width of a network that makes a prompt or prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

Letters = Mapping[str, int]
_FACTOR = re.compile(r"(\d+)|([A-Za-z])(²?)")


def evaluate(formula: str, letters: Letters) -> int:
    """The number that a sum of products stands for: ``2·L·n·d + 2d+2``, ``d²+d+2d+2``."""
    return sum(
        prod(
            int(number) if number else letters[letter] ** (2 if square else 1)
            for number, letter, square in _FACTOR.findall(term)
        )
        for term in formula.split("+")
    )


def letters_of(model: PreTrainedModel, **more: int) -> dict[str, int]:
    """What the letters stand for in this model; more: those of the method."""
    config: PreTrainedConfig = model.config
    values = {"d": config.hidden_size, "L": config.num_hidden_layers, "e": _embedding_size(model)}
    feed_forward = config.to_dict().get("intermediate_size") or config.to_dict().get("hidden_dim")
    if not feed_forward and model.can_generate():
        feed_forward = 4 * config.hidden_size  # what GPTs take where their configuration names none
    return {**values, **({"f": feed_forward} if feed_forward else {}), **more}


def head_formula(modules: Mapping[str, nn.Module], labels: int, hidden_size: int) -> str | None:
    """The formula of a head that is one linear layer, or a square one and that; None for any other."""
    size = sum(parameter.numel() for module in modules.values() for parameter in module.parameters())
    for formula in (f"{labels}d+{labels}", f"d²+d+{labels}d+{labels}"):
        if evaluate(formula, {"d": hidden_size}) == size:
            return formula
    return None


def _embedding_size(model: PreTrainedModel) -> int:
    size: int = model.get_input_embeddings().embedding_dim
    return size
