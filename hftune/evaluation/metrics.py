"""Classification metrics by name, any other that ``evaluate.load`` can load, and calibration.

Logits are ``[rows, labels]``; gold and predicted labels are ``[rows]``, label indices. ``evaluate``, which imports
transformers, is imported only for a metric that is not built in.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import is_offline_mode
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp, softmax
from sklearn import metrics as sk

from hftune.errors import HftuneError, RunFailed, did_you_mean

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COMMIT = re.compile(r"[0-9a-f]{40}")
STANDARD = ("accuracy", "f1_macro", "mcc", "ece", "loss")
"""The metrics of every classification run."""
MOST_COLUMNS = 100
"""With more labels than these their probabilities are not kept; a predictions file lists as many."""


@dataclass(frozen=True)
class Predictions:
    """What the metrics need to know about logits ``[rows, labels]``, in ``[rows]`` values."""

    predicted: Ints
    gold: Ints
    confidence: Floats
    """Probability of the predicted label."""
    log_likelihood: Floats
    """Of the gold label."""
    above: Ints
    """Number of labels ranked above the gold label: 0 where it is predicted."""
    log_probabilities: Floats | None
    """``[rows, labels]``, or None if there are more than MOST_COLUMNS labels."""

    @classmethod
    def of(cls, parts: Iterable[tuple[Any, Any]], labels: Sequence[str]) -> Predictions:
        """Collect them from consecutive rows of logits and gold labels."""
        # With many labels [rows, labels] is needed for one part at a time, and only a few numbers per row are kept of
        # it: with 100,000 labels the logits of a split would not fit into memory.
        columns: list[tuple[NDArray[Any], ...]] = []
        for logits, gold in parts:
            scores, truth = checked(logits, gold, labels)
            likely = log_softmax(scores, axis=1)
            found = likely[np.arange(len(truth)), truth]
            columns.append((scores.argmax(axis=1), truth, np.exp(likely.max(axis=1)), found, _above(scores, truth)))
            columns[-1] += (likely,) if len(labels) <= MOST_COLUMNS else ()
        predicted, truth, confidence, found, above, *kept = (np.concatenate(one) for one in zip(*columns, strict=True))
        return cls(predicted, truth, confidence, found, above, kept[0] if kept else None)


def _above(scores: Floats, gold: Ints) -> Ints:
    """How many labels are ranked above the gold one; among equal scores the first label leads, as in argmax."""
    own = scores[np.arange(len(gold)), gold][:, None]
    before = np.arange(scores.shape[1])[None, :] < gold[:, None]
    return np.asarray(((scores > own) | ((scores == own) & before)).sum(axis=1))


def accuracy(predicted: Ints, gold: Ints) -> float:
    """Share of rows with the gold label."""
    return float((predicted == gold).mean())


def f1(predicted: Ints, gold: Ints, average: str) -> float:
    """F1 over the labels that occur among gold or predictions: one in neither place is not a mistake."""
    right, given, true = _counts(predicted, gold)
    return _averaged(2 * right, given + true, given, true, average)


def precision(predicted: Ints, gold: Ints, average: str) -> float:
    """Precision over the labels that occur; a label that is never predicted counts 0."""
    right, given, true = _counts(predicted, gold)
    return _averaged(right, given, given, true, average)


def recall(predicted: Ints, gold: Ints, average: str) -> float:
    """Recall over the labels that occur; one that is predicted and not in gold counts 0, as in scikit-learn."""
    right, given, true = _counts(predicted, gold)
    return _averaged(right, true, given, true, average)


def _counts(predicted: Ints, gold: Ints) -> tuple[Ints, Ints, Ints]:
    """For each label the rows that are right, predicted and gold; of two labels at least."""
    # Not scikit-learn's functions, which take milliseconds: a bootstrap computes a metric a thousand times.
    labels = max(2, int(max(gold.max(), predicted.max())) + 1)
    right, given, true = (np.bincount(one, minlength=labels) for one in (gold[predicted == gold], predicted, gold))
    return right, given, true


def _averaged(part: Ints, whole: Ints, given: Ints, true: Ints, average: str) -> float:
    if average == "micro":
        return float(part.sum() / whole.sum())
    each = part / np.maximum(whole, 1)
    if average == "binary":
        return float(each[1])
    return float(each[given + true > 0].mean() if average == "macro" else each @ true / true.sum())


def balanced_accuracy(predicted: Ints, gold: Ints) -> float:
    """Unweighted mean of the recalls of those labels that occur in gold."""
    occurs = np.bincount(gold)
    right = np.bincount(gold[predicted == gold], minlength=len(occurs))
    return float(np.mean(right[occurs > 0] / occurs[occurs > 0]))


def mcc(predicted: Ints, gold: Ints) -> float:
    """Matthews correlation, for several labels as in Gorodkin (2004); 0 if gold or predictions are of one class."""
    # R_K = (c·s − Σ p·t) / √((s² − Σ p²)(s² − Σ t²)): c right of s rows, p and t the rows predicted and gold per label.
    # From the counts of each label: scikit-learn builds a [labels, labels] matrix, 80 GB for 100,000 labels.
    labels = int(max(gold.max(), predicted.max())) + 1
    true, given = (np.bincount(one, minlength=labels).astype(np.float64) for one in (gold, predicted))
    rows, right = float(len(gold)), float((predicted == gold).sum())
    spread = (rows**2 - given @ given) * (rows**2 - true @ true)
    return float((right * rows - true @ given) / np.sqrt(spread)) if spread > 0 else 0.0


def quadratic_kappa(predicted: Ints, gold: Ints) -> float:
    """Cohen's kappa with quadratic weights, for labels in an order such as stars; 0 if it is undefined."""
    # With weights (i - j)² the sum over the confusion matrix is the mean squared difference of the rows, and the sum
    # over the products of its margins is E[g²] + E[p²] - 2 E[g] E[p]: no [labels, labels] matrix is needed.
    first, second = gold.astype(np.float64), predicted.astype(np.float64)
    by_chance = (first**2).mean() + (second**2).mean() - 2 * first.mean() * second.mean()
    return float(1 - ((first - second) ** 2).mean() / by_chance) if by_chance > 0 else 0.0


def mean_absolute_error(predicted: Ints, gold: Ints) -> float:
    """Mean distance between predicted and gold position in the label order, for labels such as stars."""
    return float(np.abs(predicted - gold).mean())


def loss(rows: Predictions) -> float:
    """Mean negative log likelihood of the gold labels, in nats, without label smoothing or class weights."""
    return float(-rows.log_likelihood.mean())


def ece(rows: Predictions) -> float:
    """Expected calibration error over 15 bins of equal width."""
    return expected_calibration_error(confidence_bins(rows.confidence, rows.predicted == rows.gold))


def roc_auc(rows: Predictions) -> float:
    """Area under the ROC curve of the second label; NaN if gold has one label only."""
    return _area(rows, 1)


def roc_auc_ovr(rows: Predictions) -> float:
    """Unweighted mean over the labels in gold of the area under the curve of each against the rest."""
    return float(np.mean([_area(rows, label) for label in np.unique(rows.gold)]))


def _area(rows: Predictions, label: int) -> float:
    assert rows.log_probabilities is not None, "refuse_unsuitable has checked the number of labels"
    positive = rows.gold == label
    if positive.all() or not positive.any():
        return float("nan")
    # By the log odds, which have the order of the probabilities: close to 1 those would be rounded to ties.
    others = logsumexp(np.delete(rows.log_probabilities, label, axis=1), axis=1)
    return float(sk.roc_auc_score(positive, rows.log_probabilities[:, label] - others))


def top_accuracy(rows: Predictions, k: int) -> float:
    """Share of rows whose gold label is among the k most probable ones."""
    return float((rows.above < k).mean())


OF_LABELS: dict[str, Callable[[Ints, Ints], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "f1": functools.partial(f1, average="binary"),
    "f1_macro": functools.partial(f1, average="macro"),
    "f1_micro": functools.partial(f1, average="micro"),
    "f1_weighted": functools.partial(f1, average="weighted"),
    "matthews_correlation": mcc,
    "mcc": mcc,
    "mean_absolute_error": mean_absolute_error,
    "precision": functools.partial(precision, average="binary"),
    "precision_macro": functools.partial(precision, average="macro"),
    "precision_weighted": functools.partial(precision, average="weighted"),
    "quadratic_kappa": quadratic_kappa,
    "recall": functools.partial(recall, average="binary"),
    "recall_macro": functools.partial(recall, average="macro"),
    "recall_weighted": functools.partial(recall, average="weighted"),
}
"""Metrics of predicted and gold labels, each ``[rows]``. The names are those of scikit-learn's scorers and of evaluate;
without an average (``f1``, ``precision``, ``recall``) the second label is the positive one, as in both."""
TOP = {"top_k_accuracy": 2, "top_3_accuracy": 3, "top_5_accuracy": 5}
"""Metrics that count a row as right if gold is among the k most probable labels; 2 is the default of scikit-learn."""
OF_PROBABILITIES: dict[str, Callable[[Predictions], float]] = {
    "ece": ece,
    "loss": loss,
    "roc_auc": roc_auc,
    "roc_auc_ovr": roc_auc_ovr,
    **{name: functools.partial(top_accuracy, k=k) for name, k in TOP.items()},
}
"""Metrics of probabilities; one that is not defined for the rows is NaN."""
FOR_SEVERAL_LABELS = {
    "f1": ("f1_macro", "f1_micro", "f1_weighted"),
    "precision": ("precision_macro", "precision_weighted"),
    "recall": ("recall_macro", "recall_weighted"),
    "roc_auc": ("roc_auc_ovr",),
}
"""Metrics of two labels, and what to use with more."""
METRICS = tuple(sorted((*OF_LABELS, *OF_PROBABILITIES)))
"""The built-in metrics; evaluation.scores has their directions and ranges."""


def refuse_unsuitable(names: Iterable[str], labels: Sequence[str]) -> None:
    """Refuse metrics that don't fit the number of labels, before anything is trained or scored."""
    for name in names:
        found = f"the metric {name!r} does not fit these {len(labels):,} labels"
        if name in FOR_SEVERAL_LABELS and len(labels) != 2:
            raise HftuneError(
                f"{found}: it is the score of one of two labels",
                hint=f"with more labels use {', '.join(FOR_SEVERAL_LABELS[name])}",
            )
        if TOP.get(name, 0) >= len(labels):
            fitting = [other for other, k in TOP.items() if k < len(labels)]
            raise HftuneError(
                f"{found}: the {TOP[name]} most probable ones are all of them, so it is always 1",
                hint=f"use {', '.join(['accuracy', *fitting])}",
            )
        if name == "roc_auc_ovr" and len(labels) > MOST_COLUMNS:
            raise HftuneError(f"{found}: it takes at most {MOST_COLUMNS}", hint="use f1_macro or top_5_accuracy")


def classification_scores(logits: Any, gold: Any, labels: Sequence[str], extra: Sequence[str] = ()) -> dict[str, Any]:
    """Score logits ``[rows, labels]`` against gold label indices ``[rows]``; returns what ``scores_in_parts`` does."""
    return scores_in_parts([(logits, gold)], labels, extra)


def scores_in_parts(
    parts: Iterable[tuple[Any, Any]], labels: Sequence[str], extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Score logits that arrive a few rows at a time, because [rows, labels] may not fit into memory.

    Args:
        parts: Logits ``[rows, labels]`` and gold labels ``[rows]`` of consecutive rows.
        labels: Label names.
        extra: Metrics in addition to the standard ones.

    Returns:
        accuracy, f1_macro, mcc, ece, loss and those of ``extra``, and under per_class the precision, recall,
        F1 and support of each label by name. A score whose name is taken is prefixed by its metric's name; one that
        is not defined for these rows is left out.
    """
    refuse_unsuitable(extra, labels)
    rows = Predictions.of(parts, labels)
    result: dict[str, Any] = {}
    for name in dict.fromkeys((*STANDARD, *extra)):
        if name in OF_LABELS:
            found = {name: OF_LABELS[name](rows.predicted, rows.gold)}
        elif name in OF_PROBABILITIES:
            found = {name: OF_PROBABILITIES[name](rows)}
        else:
            found = _compute_loaded(name, rows.predicted, rows.gold)
        for key, value in found.items():
            if np.isnan(value) and name in OF_PROBABILITIES:
                logger.warning("%s is left out: all %s rows have the same gold label.", name, f"{len(rows.gold):,}")
                continue
            result[f"{Path(name.partition('@')[0]).stem}_{key}" if key in result else key] = value
    result["per_class"] = per_class(rows.predicted, rows.gold, labels)
    return result


def per_class(predicted: Ints, gold: Ints, labels: Sequence[str]) -> dict[str, dict[str, float | int]]:
    """Precision, recall, F1 and support of every label, 0 where there is nothing to divide by."""
    columns = sk.precision_recall_fscore_support(gold, predicted, labels=list(range(len(labels))), zero_division=0.0)
    return {
        label: {"precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    }


def checked(logits: Any, gold: Any, labels: Sequence[str]) -> tuple[Floats, Ints]:
    """Logits and gold labels as arrays of a known type; what can't be scored is refused."""
    scores = np.asarray(logits, dtype=np.float64)  # float16 and bfloat16 would round small probabilities to 0
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


@functools.cache
def load_metric(name: str) -> Any:
    """A metric that is not built in: a script by its path, or a metric on the Hub at a commit (NAME@COMMIT).

    Raises:
        HftuneError: There is no such metric, it can't be reached, a name would run a local file, or the code that
            would be downloaded for it can change.
    """
    import evaluate

    path, _, commit = name.partition("@")
    if not _is_path(name):
        _refuse_hijack(path)
        if not COMMIT.fullmatch(commit):  # the code behind a name on the Hub can change; that of a commit can't
            raise HftuneError(
                f"The metric {path!r} is not built in, and the code that the Hub has for it today is not run.",
                hint=f"Read that code, then name its commit: {path}@COMMIT (40 digits). {_choices(path)}",
            )
    if is_offline_mode():
        evaluate.config.HF_EVALUATE_OFFLINE = True  # evaluate itself ignores HF_HUB_OFFLINE
    try:
        where = {"path": name} if _is_path(name) else {"path": path, "revision": commit}
        metric = evaluate.load(**where, keep_in_memory=True)
    except (FileNotFoundError, ConnectionError) as error:
        message = f"The metric {name!r} is not built in, and was found neither as a file nor on the Hub."
        raise HftuneError(message, hint=_choices(name)) from error
    except Exception as error:  # a script can raise anything while it is imported
        message = f"The metric {name!r} can't be loaded: {type(error).__name__}: {error}"
        raise HftuneError(message, hint=_choices(name)) from error
    logger.warning("The metric %s is not part of hftune: evaluate runs its code.", name)
    return metric


def _compute_loaded(name: str, predicted: Ints, gold: Ints) -> dict[str, float]:
    metric = load_metric(name)
    try:
        return {key: float(value) for key, value in metric.compute(predictions=predicted, references=gold).items()}
    except Exception as error:  # a script can raise anything
        raise HftuneError(
            f"The metric {name!r} does not work for these labels: {error}",
            hint="A metric must take predicted and gold label indices and return single numbers. " + _choices(name),
        ) from error


def _is_path(name: str) -> bool:
    """Whether a name is the path of a script: it ends in .py, or begins as no name on the Hub can."""
    return name.endswith(".py") or name.startswith((".", "~", "/", os.sep)) or Path(name).is_absolute()


def _refuse_hijack(name: str) -> None:
    """Let only an explicit path be a local file: for a name, evaluate.load would run ./NAME/NAME.py."""
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise HftuneError(f"{name!r} is not the name of a metric.", hint=_choices(name))
    script = Path(name, f"{name.rpartition('/')[2]}.py")
    if script.exists():
        raise HftuneError(
            f"The metric name {name!r} would run the file {script} of the current folder.",
            hint=f"Write ./{name} if that file is meant, otherwise run from another folder. {_choices(name)}",
        )


def _choices(name: str) -> str:
    question = did_you_mean(name.rpartition("/")[2].removesuffix(".py"), METRICS)
    built_in = f"built in, with no network: {', '.join(METRICS)}; any other is looked up on the Hub, as NAME@COMMIT"
    return f"{question} {built_in}; a path (./my_metric.py) is a script of your own".lstrip()


# ---- calibration: reliability bins, expected calibration error, temperature scaling ----
#
# All three as in Guo et al. (2017), On Calibration of Modern Neural Networks, with their 15 bins.

BINS = 15
# Outside these bounds a temperature is meaningless: below, every probability is 0 or 1; above, all are equal.
# A fit that ends at a bound had a split that does not determine the temperature.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.2, 20.0


def reliability_bins(probabilities: NDArray[Any], gold: NDArray[Any]) -> list[dict[str, float | int]]:
    """Mean confidence and accuracy in equally wide bins of confidence ``(low, high]``, without empty ones.

    Takes probabilities ``[rows, labels]`` and gold label indices ``[rows]``.
    """
    return confidence_bins(probabilities.max(axis=1), probabilities.argmax(axis=1) == gold)


def confidence_bins(confidence: NDArray[Any], right: NDArray[Any]) -> list[dict[str, float | int]]:
    """The same for answers that are right or wrong, each with its confidence ``[rows]``."""
    # Rounding may put a probability slightly above 1 or at 0: both belong to the outermost bins.
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return [
        {
            "low": index / BINS,
            "high": (index + 1) / BINS,
            "confidence": float(confidence[place == index].mean()),
            "accuracy": float(right[place == index].mean()),
            "count": int((place == index).sum()),
        }
        for index in np.unique(place).tolist()
    ]


def expected_calibration_error(bins: Sequence[Mapping[str, float | int]]) -> float:
    """Mean gap between confidence and accuracy over the bins, weighted by how many rows each holds."""
    rows = sum(one["count"] for one in bins)
    return float(sum(abs(one["confidence"] - one["accuracy"]) * one["count"] for one in bins) / rows)


def fit_temperature(logits: NDArray[Any], gold: NDArray[Any]) -> float:
    """The temperature T for which softmax(logits / T) gives the gold labels the highest likelihood.

    T stays between MIN_TEMPERATURE and MAX_TEMPERATURE. If every row is predicted correctly, the likelihood has no
    maximum (it grows as T falls), so T is 1. T is never worse on these rows than 1 is.
    """
    scores = np.asarray(logits, dtype=np.float64)  # [rows, labels]
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

    # The loss is convex in 1/T, so it has one minimum in log T, which a bounded search finds.
    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x)) if found.fun < loss(0.0) else 1.0


def calibration(splits: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> dict[str, Any]:
    """The ``calibration`` entry of metrics.json: a temperature fitted on validation, each split with and without it.

    Args:
        splits: Split name to (logits, gold). The temperature is fitted on ``validation`` and on no other split;
            without a validation split, temperature and fitted_on are None and nothing is scaled.
    """
    temperature = fit_temperature(*splits["validation"]) if "validation" in splits else None
    report: dict[str, Any] = {"temperature": temperature, "fitted_on": None if temperature is None else "validation"}
    for name, (logits, gold) in splits.items():
        scores = np.asarray(logits, dtype=np.float64)
        bins = reliability_bins(softmax(scores, axis=1), gold)
        report[name] = {"ece": expected_calibration_error(bins), "bins": bins}
        if temperature is not None:
            scaled = reliability_bins(softmax(scores / temperature, axis=1), gold)
            report[name] |= {"ece_scaled": expected_calibration_error(scaled), "bins_scaled": scaled}
    return report
