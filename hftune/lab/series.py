"""Settings that are a series: lengths, scales, temperatures, one after the other in order. Used by the experiments."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

T = TypeVar("T", int, float)

Count = Annotated[int, Field(ge=1)]
Scale = Annotated[float, Field(gt=0, le=500)]
"""Positive, and small enough for its exponential to be a number."""


def growing(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuse a series that does not grow."""
    if not all(earlier < later for earlier, later in pairwise(values)):
        raise ValueError("each must be greater than the one before")
    return values


def shrinking(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuse a series that does not shrink."""
    if not all(earlier > later for earlier, later in pairwise(values)):
        raise ValueError("each must be less than the one before")
    return values


Counts = Annotated[tuple[Count, ...], AfterValidator(growing), Field(min_length=2)]
Scales = Annotated[tuple[Scale, ...], AfterValidator(growing), Field(min_length=2)]
