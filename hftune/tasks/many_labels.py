"""Classification with thousands of labels: what would take memory for rows times labels is estimated or left out.

Used by ``hftune.tasks.classification``.
"""

from __future__ import annotations

import numpy as np
from transformers import EvalPrediction

from hftune.data.splits import Splits
from hftune.errors import HftuneError

MOST_PROBABILITIES = 100
"""Labels whose probability a prediction lists; of more, the most probable ones and the right one."""
GUESSES = 1 << 22
"""Logits on which the metrics are tried out."""
BYTES_PER_LOGIT = 64
"""Scoring a split holds its logits as float32 and, for probabilities and calibration, several times as float64; 45 were
measured at 100,000 labels, and training takes memory too."""


def untrained_guess(data: Splits) -> EvalPrediction:
    """A made-up outcome on validation, or on a part of it: runs every metric once, to find a missing one before
    training.
    """
    gold = np.asarray(data.validation["label"])
    rows = min(len(gold), max(2, GUESSES // len(data.labels)))
    gold = gold[np.linspace(0, len(gold) - 1, rows).astype(np.int64)]
    predictions = np.zeros((rows, len(data.labels)), dtype=np.float32)
    predictions[np.arange(rows), gold] = 1
    return EvalPrediction(predictions=predictions, label_ids=gold)


def listed_labels(probabilities: np.ndarray, gold: int) -> list[int]:
    """The labels whose probabilities a prediction lists, in their one order; the given and the gold one among them.

    Args:
        probabilities: ``[labels]``, of one row.
        gold: The right label, or -1.
    """
    if len(probabilities) <= MOST_PROBABILITIES:
        return list(range(len(probabilities)))
    highest = np.argpartition(-probabilities, MOST_PROBABILITIES)[:MOST_PROBABILITIES].tolist()
    return sorted({*highest, int(probabilities.argmax()), *([gold] if gold >= 0 else [])})


def check_memory(data: Splits, free: int) -> None:
    """Refuse splits whose scores would not fit into memory, before training and not after.

    Args:
        data: The splits; validation and test are scored.
        free: Bytes that this process can take.

    Raises:
        HftuneError: Names the split and what it would take.
    """
    for name, rows in data.named.items():
        needed = len(rows) * len(data.labels) * BYTES_PER_LOGIT
        if name != "train" and needed > free:
            raise HftuneError(
                f"scoring {name} takes about {needed / 2**30:.1f} GB: it has {len(rows):,} rows, and there are "
                f"{len(data.labels):,} labels; {free / 2**30:.1f} GB of memory are free",
                hint=f"use fewer labels or a smaller {name} split; check that data.label_column_name names the labels",
            )
