"""Scores of a masked language model, and what always guessing by frequency gets. Called by the task mlm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

IGNORED = -100
LARGEST = 700.0
"""Above this a loss has no exponential."""


def masked_scores(statistics: NDArray[np.floating]) -> dict[str, float]:
    """Scores over all masked tokens.

    Args:
        statistics: Summed loss, correct and masked tokens of each row.

    Returns:
        ``loss`` in nats a token, ``perplexity``, and ``accuracy``: the share of masked tokens that were guessed.
    """
    loss, right, masked = np.asarray(statistics, dtype=np.float64).sum(axis=0)
    mean = float(loss / max(masked, 1.0))
    return {
        "loss": mean,
        "perplexity": math.exp(min(mean, LARGEST)),
        "accuracy": float(right / max(masked, 1.0)),
    }


def unigram_scores(
    train: Iterable[Sequence[int]], truth: Iterable[Sequence[int]], special: Iterable[int], vocabulary: int
) -> dict[str, float]:
    """What a guess by frequency scores, whatever stands around.

    Args:
        train: Token ids to count in.
        truth: The true token where one was masked, else -100.
        special: Tokens that are never masked, and so not counted.
        vocabulary: How many tokens there are.
    """
    counts = np.ones(vocabulary)  # a token that was not seen is still possible
    for row in train:
        np.add.at(counts, np.asarray(row, dtype=np.int64), 1)
    counts[list(special)] = 0
    asked = np.concatenate([np.asarray(row, dtype=np.int64) for row in truth])
    asked = asked[asked != IGNORED]
    losses = -np.log(counts[asked] / counts.sum())
    return masked_scores(np.asarray([[losses.sum(), (asked == counts.argmax()).sum(), len(asked)]]))
