"""How many parameters there are and how many of them move. For metrics.json, terminal and report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Parameters:
    """Counts, and the closed formula where the method has one."""

    trainable: int
    total: int
    formula: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The ``parameters`` object of metrics.json."""
        return asdict(self)


def count(model: nn.Module, formula: str | None = None) -> Parameters:
    """Count each parameter once, however often it is used (tied weights)."""
    parameters = list(model.parameters())
    return Parameters(
        trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        total=sum(parameter.numel() for parameter in parameters),
        formula=formula,
    )
