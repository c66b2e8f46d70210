"""The collapse alarm: do these predictions look like those of a model that has learned nothing?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.evaluation.metrics import mcc

NEARLY_NEVER = 0.1
"""Other labels are nearly never predicted below this ratio of their gold count."""
SELDOM = 0.25
"""They are seldom predicted below this one."""
FEW_LABELS = 0.5
"""Predictions are of few labels if their effective number is below this ratio of that of gold."""
UNRELATED = 0.1
"""A Matthews correlation below which predictions are next to unrelated to gold."""


def collapsed(predicted: NDArray[Any], gold: NDArray[Any], labels: Sequence[str] | None = None) -> str | None:
    """The reason why these predictions look like those of a collapsed model, or None if they don't.

    A model that predicts one label for nearly every row has learned nothing, whatever it scores: prefix tuning on
    BoolQ is known to stay at the majority rate of 62.17 % for many epochs (https://github.com/THUDM/P-tuning-v2/issues/13).
    Each sign is relative to gold, so that a good model on imbalanced data raises no alarm:

    - Labels other than the most predicted one are predicted less than a tenth as often as they occur. A model that
      gives one of five equally frequent labels to 95 % of the rows does so; a good model that predicts one label for
      99 % of the rows does not, if 99 % of gold have that label.
    - The predictions are no better than a constant: their accuracy is at most two standard errors above that of the
      most frequent label of these rows (not of train, as the baseline's), and they are next to unrelated to gold
      (Matthews correlation). This alone may be bad luck or a hard task, so they must also be concentrated: other labels
      are predicted less than a quarter as often as they occur, or the effective number of predicted labels is less than
      half that of gold.

    Args:
        predicted: ``[rows]``, predicted label indices.
        gold: ``[rows]``, gold label indices.
        labels: Label names for the message; indices are shown without them.
    """
    assert len(predicted) == len(gold)
    if len(np.unique(gold)) < 2:
        return None  # with one gold label, a good model is constant too
    rows = len(gold)
    values, codes = np.unique(np.concatenate([predicted, gold]), return_inverse=True)
    ours, truth = codes[:rows], codes[rows:]
    counts, occurs = (np.bincount(one, minlength=len(values)) for one in (ours, truth))  # [labels]
    top = int(counts.argmax())
    right, majority = float((ours == truth).mean()), float(occurs.max() / rows)
    name = repr(labels[int(values[top])]) if labels is not None else f"label {values[top]}"
    others, others_in_gold = rows - int(counts[top]), rows - int(occurs[top])
    figures = f"accuracy {right:.4f}, majority label of the split {majority:.4f}"
    if not others:
        return f"all {rows:,} predictions are {name}, and {others_in_gold:,} gold labels are not ({figures})"
    reason = f"{counts[top] / rows:.1%} of {rows:,} predictions are {name}, against {occurs[top] / rows:.1%} of gold"
    if missed := int(((counts == 0) & (occurs > 0)).sum()):
        reason += f"; {missed:,} of {int((occurs > 0).sum()):,} labels are never predicted"
    if others < NEARLY_NEVER * others_in_gold:
        return f"{reason} ({figures})"
    correlation = mcc(ours, truth)
    no_better = right <= majority + 2 * np.sqrt(majority * (1 - majority) / rows) and correlation < UNRELATED
    if no_better and (others < SELDOM * others_in_gold or _effective(counts) < FEW_LABELS * _effective(occurs)):
        return f"{reason} ({figures}, Matthews correlation {correlation:.3f})"
    return None


def _effective(counts: NDArray[Any]) -> float:
    """The number of equally frequent labels that would be as concentrated (inverse Simpson index)."""
    shares = counts / counts.sum()
    return float(1 / (shares @ shares))
