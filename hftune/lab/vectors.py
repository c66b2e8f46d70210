"""Vectors to experiment with: seeded, in double precision, orthonormal where wanted. Used by the experiments."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hftune.config.section import Section


class KeySettings(Section):
    """How many keys there are, and how wide they are."""

    keys: int = Field(16, ge=3)
    """Number of keys and values."""
    dimension: int = Field(32, ge=3)
    """Width of keys and values; at least as many as keys, so that the keys can be orthogonal."""

    @model_validator(mode="after")
    def _room_for_all(self) -> Self:
        if self.keys > self.dimension:
            raise ValueError(f"{self.keys} keys can't be orthogonal in {self.dimension} dimensions: raise dimension")
        return self


def generator(seed: int) -> torch.Generator:
    """A source of randomness that nothing else shares."""
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, source: torch.Generator) -> Tensor:
    """Independent N(0, 1) numbers."""
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def orthonormal(count: int, dimension: int, source: torch.Generator) -> Tensor:
    """Unit vectors [count, dimension] at right angles to each other."""
    basis, _ = torch.linalg.qr(gaussian(dimension, count, source=source))
    rows: Tensor = basis.T.contiguous()
    return rows
