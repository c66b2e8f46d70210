"""Classification scores as pure functions of logits and gold labels, with nothing slow imported.

``hftune.evaluation.metrics`` wraps them as ``evaluate`` metrics; ``hftune.evaluation.baselines`` calls them
directly, so that a baseline and a model are scored by the same lines. Logits are ``[rows, labels]``; gold and
predicted are ``[rows]``, label indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn import metrics as sk

from hftune.errors import HftuneError, RunFailed
from hftune.evaluation.calibration import confidence_bins, expected_calibration_error, mean_gap

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
    unlabeled = int(((truth < 0) | (truth >= len(labels))).sum())
    if unlabeled:
        raise HftuneError(
            f"{unlabeled:,} of {len(truth):,} rows have no gold label to be scored against.",
            hint="Score a split with labels, or use `hftune predict` for rows without.",
        )
    broken = int((~np.isfinite(scores)).any(axis=1).sum())
    if broken:
        raise RunFailed(
            f"The model gave NaN or infinite logits for {broken:,} of {len(truth):,} rows.",
            hint="The weights have diverged: lower train.learning_rate, or set train.bf16 to false.",
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
    occurs = np.bincount(gold)
    right = np.bincount(gold[predicted == gold], minlength=len(occurs))
    return float(np.mean(right[occurs > 0] / occurs[occurs > 0]))


def mcc(predicted: Ints, gold: Ints) -> float:
    """Matthews correlation; 0 where it is undefined, that is when gold or predictions are of one class.

    From the counts of each label alone: scikit-learn builds a matrix of labels times labels, 80 GB for 100,000 of them.
    """
    labels = int(max(gold.max(), predicted.max())) + 1
    true, given = (np.bincount(one, minlength=labels).astype(np.float64) for one in (gold, predicted))
    rows, right = float(len(gold)), float((predicted == gold).sum())
    spread = (rows**2 - given @ given) * (rows**2 - true @ true)
    return float((right * rows - true @ given) / np.sqrt(spread)) if spread > 0 else 0.0


def quadratic_kappa(predicted: Ints, gold: Ints) -> float:
    """Cohen's kappa with quadratic weights, for labels in an order such as stars; 0 where it is undefined.

    The weighted sums over all pairs of labels are sums of squares, so no matrix of labels times labels is needed.
    """
    first, second = gold.astype(np.float64), predicted.astype(np.float64)
    by_chance = (first**2).mean() + (second**2).mean() - 2 * first.mean() * second.mean()
    return float(1 - ((first - second) ** 2).mean() / by_chance) if by_chance > 0 else 0.0


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
    return scores_in_parts([(logits, gold)], labels)


def scores_in_parts(parts: Iterable[tuple[Any, Any]], labels: Sequence[str]) -> dict[str, Any]:
    """The same from logits that come a few rows at a time: those of many rows and many labels fill a machine.

    Args:
        parts: Logits ``[rows, labels]`` and gold ``[rows]`` of some rows after the other.
        labels: Label names.
    """
    kept = []
    for logits, gold in parts:
        scores, truth = checked(logits, gold, labels)
        likely = log_softmax(scores, axis=1)
        kept.append((truth, scores.argmax(axis=1), likely.max(axis=1), likely[np.arange(len(truth)), truth]))
    truth, predicted, confidence, gold_likely = (np.concatenate(column) for column in zip(*kept, strict=True))
    return {
        "accuracy": accuracy(predicted, truth),
        "f1_macro": f1(predicted, truth, "macro"),
        "mcc": mcc(predicted, truth),
        "ece": mean_gap(confidence_bins(np.exp(confidence), predicted == truth)),
        "loss": float(-gold_likely.mean()),
        "per_class": per_class(predicted, truth, labels),
    }
