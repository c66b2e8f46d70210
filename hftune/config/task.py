"""The ``task`` section: what is predicted and how it is scored. One class a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hftune.config.section import Section

LOWER_IS_BETTER = frozenset({"loss", "ece", "perplexity", "mean_absolute_error", "bits_per_byte"})
"""Scores of which less is better."""


class ClassifyTask(Section):
    """One label for a text or a pair of texts."""

    kind: Literal["classify"] = "classify"
    metrics: tuple[str, ...] = ()
    """Further metrics beside the built-in ones: a name or path that ``evaluate.load`` takes."""
    select_by: str = "accuracy"
    """The dev score by which the best checkpoint is chosen."""
    select_mode: Literal["auto", "max", "min"] = "auto"
    """Whether a higher (max) or a lower (min) value of select_by is better; auto knows the built-in ones."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the target probability that is spread over all labels."""
    class_weights: Literal["auto"] | dict[str, float] | None = None
    """Weight of each label in the loss, by label name; auto weighs by inverse frequency."""

    @property
    def greater_is_better(self) -> bool:
        """Whether a higher value of select_by is better."""
        return self.select_by not in LOWER_IS_BETTER if self.select_mode == "auto" else self.select_mode == "max"


TaskSection = ClassifyTask
