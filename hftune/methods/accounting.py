"""How many parameters there are and how many of them move. For metrics.json, terminal and report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from hftune.methods.formula import Letters, evaluate

DUPLICATE = ".original_module."
"""peft keeps the untrained module beside the trained copy that replaces it; nothing ever uses it."""


@dataclass(frozen=True)
class Parameters:
    """Counts, and the closed formula where the method has one."""

    trainable: int
    total: int
    formula: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The ``parameters`` object of metrics.json."""
        return asdict(self)


def count(model: nn.Module, formula: str | None = None, letters: Letters | None = None) -> Parameters:
    """Count each parameter once, however often it is used (tied weights).

    Args:
        model: The model with the right weights frozen.
        formula: What the trainable parameters should come to. One that does not fit this model is not told: a shape
            with an unusual bias or norm has no closed formula here.
        letters: What the letters of the formula stand for.
    """
    parameters = [value for name, value in model.named_parameters() if DUPLICATE not in name]
    trainable = sum(value.numel() for value in parameters if value.requires_grad)
    fits = formula is not None and evaluate(formula, letters or {}) == trainable
    return Parameters(
        trainable=trainable,
        total=sum(value.numel() for value in parameters),
        formula=formula if fits else None,
    )
