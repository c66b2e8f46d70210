"""How far confidence can be believed: reliability bins, expected calibration error, temperature scaling.

Called by the classification task for metrics.json; the report draws its reliability diagram from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from hftune.errors import HftuneError, RunFailed

BINS = 15
# Outside these bounds a temperature no longer says how confident a model is: below, every probability is
# 0 or 1; above, they are all alike. A fit that runs to a bound has met a split that does not determine it.
COLDEST, HOTTEST = 0.2, 20.0


def reliability_bins(probabilities: NDArray[Any], gold: NDArray[Any], bins: int = BINS) -> list[dict[str, float | int]]:
    """Mean confidence and accuracy in equally wide bins of confidence ``(low, high]``, without empty ones.

    Args:
        probabilities: ``[rows, labels]``, each row summing to 1.
        gold: ``[rows]``, label indices.
        bins: How many bins the range 0 to 1 is cut into.
    """
    return confidence_bins(probabilities.max(axis=1), probabilities.argmax(axis=1) == gold, bins)


def confidence_bins(confidence: NDArray[Any], right: NDArray[Any], bins: int = BINS) -> list[dict[str, float | int]]:
    """The same of answers that are right or wrong, each with the confidence it was given ``[rows]``."""
    # Rounding may put a sum of exponentials a hair above 1 or at 0: both belong to the outermost bins.
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return [
        {
            "low": index / bins,
            "high": (index + 1) / bins,
            "confidence": float(confidence[place == index].mean()),
            "accuracy": float(right[place == index].mean()),
            "count": int((place == index).sum()),
        }
        for index in np.unique(place).tolist()
    ]


def expected_calibration_error(probabilities: NDArray[Any], gold: NDArray[Any], bins: int = BINS) -> float:
    """Mean gap between confidence and accuracy over the bins, weighted by how many rows each holds."""
    return mean_gap(reliability_bins(probabilities, gold, bins))


def mean_gap(bins: Sequence[Mapping[str, float | int]]) -> float:
    """Mean gap between confidence and accuracy over the rows of all bins."""
    rows = sum(one["count"] for one in bins)
    return float(sum(abs(one["confidence"] - one["accuracy"]) * one["count"] for one in bins) / rows)


def fit_temperature(logits: NDArray[Any], gold: NDArray[Any]) -> float:
    """The temperature T for which softmax(logits / T) gives the gold labels the highest likelihood.

    T stays within COLDEST and HOTTEST. Where every row is predicted rightly, the likelihood grows without end
    as T falls and says nothing about over-confidence: T is 1 then. T is never worse on these rows than 1 is.
    """
    scores = np.asarray(logits, dtype=np.float64)
    if not len(scores):
        raise HftuneError("A temperature can't be fitted on no rows.", hint="Give a validation split with rows.")
    if not np.isfinite(scores).all():
        raise RunFailed(
            "A temperature can't be fitted on NaN or infinite logits.",
            hint="The weights have diverged: lower train.learning_rate, or set train.bf16 to false.",
        )
    if (scores.argmax(axis=1) == gold).all():
        return 1.0

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(scores / np.exp(log_temperature), axis=1)
        return float(-scaled[np.arange(len(gold)), gold].mean())

    # The loss is convex in 1/T, hence has one valley in log T, which a bounded search can't miss.
    found = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x)) if found.fun < loss(0.0) else 1.0


def calibration(splits: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> dict[str, Any]:
    """The ``calibration`` entry of metrics.json: a temperature fitted on validation, each split with and without it.

    Args:
        splits: Split name to (logits, gold). The temperature is fitted on ``validation`` and on no other split;
            where validation is not among them, temperature and fitted_on are None and nothing is scaled.
    """
    temperature = fit_temperature(*splits["validation"]) if "validation" in splits else None
    report: dict[str, Any] = {"temperature": temperature, "fitted_on": None if temperature is None else "validation"}
    for name, (logits, gold) in splits.items():
        scores = np.asarray(logits, dtype=np.float64)
        plain = softmax(scores, axis=1)
        report[name] = {"ece": expected_calibration_error(plain, gold), "bins": reliability_bins(plain, gold)}
        if temperature is not None:
            scaled = softmax(scores / temperature, axis=1)
            report[name]["ece_scaled"] = expected_calibration_error(scaled, gold)
            report[name]["bins_scaled"] = reliability_bins(scaled, gold)
    return report
