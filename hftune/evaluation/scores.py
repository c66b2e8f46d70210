"""Classification scores as pure functions of logits and gold labels, with nothing slow imported.

``hftune.evaluation.metrics`` wraps them as ``evaluate`` metrics; ``hftune.evaluation.baselines`` calls them
directly, so that a baseline and a model are scored by the same lines. Logits are ``[rows, labels]``; gold and
predicted are ``[rows]``, label indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn import metrics as sk

from hftune.errors import HftuneError, RunFailed
from hftune.evaluation.calibration import expected_calibration_error

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def checked(logits: Any, gold: Any, labels: Sequence[str]) -> tuple[Floats, Ints]:
    """Logits and gold as arrays of a known type, or the reason why they can't be scored.

    Raises:
        RunFailed: Some logits are NaN or infinite: every score made of them would be a wrong number.
        HftuneError: There are no rows, or rows without a gold label.
    """
    scores = np.asarray(logits, dtype=np.float64)
    truth = np.asarray(gold, dtype=np.int64)
    assert scores.shape == (len(truth), len(labels)), (scores.shape, truth.shape, labels)
    if not len(truth):
        raise HftuneError("There are no rows to score.", hint="Give a split that holds at least one row.")
    unlabelled = int(((truth < 0) | (truth >= len(labels))).sum())
    if unlabelled:
        raise HftuneError(
            f"{unlabelled:,} of {len(truth):,} rows have no gold label to be scored against.",
            hint="Score a split with labels, or use `hftune predict` for rows without.",
        )
    broken = int((~np.isfinite(scores)).any(axis=1).sum())
    if broken:
        raise RunFailed(
            f"The model gave NaN or infinite logits for {broken:,} of {len(truth):,} rows.",
            hint="The weights have diverged: lower train.learning_rate, or use train.precision fp32.",
        )
    return scores, truth


def accuracy(predicted: Ints, gold: Ints) -> float:
    """Share of rows with the gold label."""
    return float((predicted == gold).mean())


def f1(predicted: Ints, gold: Ints, average: str) -> float:
    """F1 over the labels that occur among gold or predictions: one in neither place is not a mistake."""
    return float(sk.f1_score(gold, predicted, average=average, zero_division=0.0))


def precision_macro(predicted: Ints, gold: Ints) -> float:
    """Unweighted mean of the precisions; a label that is never predicted counts 0."""
    return float(sk.precision_score(gold, predicted, average="macro", zero_division=0.0))


def balanced_accuracy(predicted: Ints, gold: Ints) -> float:
    """Unweighted mean of the recalls of those labels that occur in gold."""
    right = predicted == gold
    return float(np.mean([right[gold == label].mean() for label in np.unique(gold)]))


def mcc(predicted: Ints, gold: Ints) -> float:
    """Matthews correlation; 0 where it is undefined, that is when gold or predictions are of one class."""
    if len(np.unique(gold)) < 2 or len(np.unique(predicted)) < 2:
        return 0.0
    return float(sk.matthews_corrcoef(gold, predicted))


def quadratic_kappa(predicted: Ints, gold: Ints) -> float:
    """Cohen's kappa with quadratic weights, for labels in an order such as stars; 0 where it is undefined."""
    present = np.union1d(gold, predicted)
    if len(present) < 2:
        return 0.0
    # Every index up to the highest is named: a label absent from the split still keeps its neighbours apart.
    return float(sk.cohen_kappa_score(gold, predicted, labels=list(range(int(present.max()) + 1)), weights="quadratic"))


def mean_absolute_error(predicted: Ints, gold: Ints) -> float:
    """Mean distance between predicted and gold position in the label order, for labels such as stars."""
    return float(np.abs(predicted - gold).mean())


def loss(logits: Floats, gold: Ints) -> float:
    """Mean negative log likelihood of the gold labels, in nats, without label smoothing or class weights."""
    return float(-log_softmax(logits, axis=1)[np.arange(len(gold)), gold].mean())


def ece(logits: Floats, gold: Ints) -> float:
    """Expected calibration error over 15 bins of equal width."""
    return expected_calibration_error(np.exp(log_softmax(logits, axis=1)), gold)


def per_class(predicted: Ints, gold: Ints, labels: Sequence[str]) -> dict[str, dict[str, float | int]]:
    """Precision, recall, F1 and support of every label, 0 where there is nothing to divide by."""
    columns = sk.precision_recall_fscore_support(gold, predicted, labels=list(range(len(labels))), zero_division=0.0)
    return {
        label: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    }


def plain_scores(logits: Any, gold: Any, labels: Sequence[str]) -> dict[str, Any]:
    """The standard set of scores without going through ``evaluate``."""
    scores, truth = checked(logits, gold, labels)
    predicted = scores.argmax(axis=1)
    return {
        "accuracy": accuracy(predicted, truth),
        "f1_macro": f1(predicted, truth, "macro"),
        "mcc": mcc(predicted, truth),
        "ece": ece(scores, truth),
        "loss": loss(scores, truth),
        "per_class": per_class(predicted, truth, labels),
    }
