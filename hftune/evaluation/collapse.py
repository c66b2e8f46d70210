"""The collapse alarm: a model that gives nearly everything one label has learned nothing, whatever it scores.

Called by the classification task after the final evaluation; the reason goes into warning and metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEARLY_ALL = 0.99
"""From this share of predictions on, one label counts as nearly all of them."""
CONCENTRATED = 0.25
"""Predictions are concentrated when other labels are given less often than this share of their gold count."""


def collapsed(predicted: NDArray[Any], gold: NDArray[Any], labels: Sequence[str] | None = None) -> str | None:
    """Why these predictions look like those of a collapsed model, in words, or None if they don't.

    Two signs, each seen against gold, so that a good model on an imbalanced set raises no alarm: (nearly) all
    predictions are one label while gold is not; or the accuracy equals the majority rate to the item while
    the predictions are far more concentrated than gold.

    Args:
        predicted: ``[rows]``, predicted label indices.
        gold: ``[rows]``, gold label indices.
        labels: Label names for the message; indices are shown without them.
    """
    assert len(predicted) == len(gold)
    if len(np.unique(gold)) < 2:
        return None  # With one label in gold, a constant prediction is what a good model gives too.
    rows = len(gold)
    values, counts = np.unique(predicted, return_counts=True)
    top, top_count = values[counts.argmax()], int(counts.max())
    majority_count = int(np.unique(gold, return_counts=True)[1].max())
    right = int((predicted == gold).sum())

    name = f"{labels[int(top)]!r}" if labels is not None else f"label {top}"
    others_in_gold = rows - int((gold == top).sum())
    concentrated = rows - top_count < CONCENTRATED * others_in_gold
    figures = f"accuracy {right / rows:.4f}, share of the commonest label {majority_count / rows:.4f}"
    if top_count == rows:
        return f"all {rows:,} predictions are {name}, and {others_in_gold:,} gold labels are not ({figures})"
    if top_count >= NEARLY_ALL * rows and concentrated:
        return (
            f"{top_count / rows:.1%} of {rows:,} predictions are {name}, against "
            f"{1 - others_in_gold / rows:.1%} of the gold labels ({figures})"
        )
    if right == majority_count and concentrated:
        return (
            f"the accuracy {right / rows:.4f} is exactly the majority rate, and {top_count / rows:.1%} of "
            f"{rows:,} predictions are {name}, against {1 - others_in_gold / rows:.1%} of the gold labels"
        )
    return None
