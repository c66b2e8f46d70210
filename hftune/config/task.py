"""The ``task`` section: what is predicted and how it is scored. One class a kind, told apart by ``kind``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hftune.config.section import Section


class ClassifyTask(Section):
    """One label for a text or a pair of texts."""

    kind: Literal["classify"] = "classify"
    metrics: tuple[str, ...] = ()
    """Further metrics beside the built-in ones: a name or path that ``evaluate.load`` takes."""
    select_by: str = "accuracy"
    """The dev score by which the best checkpoint is chosen."""
    select_mode: Literal["max", "min"] = "max"
    """Whether a higher (max) or a lower (min) value of select_by is better."""
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the target probability that is spread over all labels."""
    class_weights: Literal["auto"] | dict[str, float] | None = None
    """Weight of each label in the loss, by label name; auto weighs by inverse frequency."""


TaskSection = ClassifyTask
