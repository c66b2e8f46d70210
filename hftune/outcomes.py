"""What using a model gives, whatever its task: a prediction a text, scores of a split. Made by ``hftune.inference``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hftune.config.model import ModelSection


@dataclass(frozen=True)
class Prediction:
    """One answer: the label by name, and the probability of every label; a written answer is its own label."""

    text: str
    text_pair: str | None
    label: str
    probabilities: dict[str, float]
    ended: bool = True
    """Whether a written answer came to its end; false for one that was cut off."""

    @property
    def confidence(self) -> float:
        """Probability of the label that was chosen."""
        return self.probabilities[self.label]


@dataclass(frozen=True)
class Scores:
    """A model on one split: its scores, what plain systems get beside them, and every prediction."""

    source: str
    split: str
    scores: dict[str, Any]
    """Empty for a split whose answers nobody has given."""
    baselines: dict[str, dict[str, Any]]
    collapsed: str | None
    predictions: list[dict[str, Any]]
    extras: dict[str, Any] = field(default_factory=dict)
    """Further objects of the result, by key."""
    lines: list[str] | None = None
    """The predictions in plain form, one a line, where the task has one."""
    belongs: Path | None = None
    """The file that the lines go to when nobody names one; None to write none."""


@dataclass(frozen=True)
class Request:
    """A model, and what it shall be scored on."""

    model: str
    settings: ModelSection
    """Revision, and what may be trusted."""
    data: str | None = None
    """What to score on; the run's own data where not given."""
    split: str | None = None
    """train, validation or test, or all for the rows of a single file."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Settings of labeled data that name columns."""
    metrics: Sequence[str] = ()
    """Further metrics beside the built-in ones."""
    batch_size: int = 64
    unlabeled: bool = False
    """Whether a split without labels gets predictions; it is refused otherwise."""
