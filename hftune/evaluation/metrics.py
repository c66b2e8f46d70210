"""Metrics through ``evaluate``: our own in METRICS, without a network, and any other ``evaluate.load`` takes.

Called by the classification task, before training to see that every metric works and then at each evaluation.
Importing this module imports ``evaluate``, and with it transformers; ``hftune.evaluation.scores`` has the
same scores without it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
from huggingface_hub import is_offline_mode

from hftune.errors import HftuneError
from hftune.evaluation import scores
from hftune.suggest import did_you_mean

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
STANDARD = ("accuracy", "f1_macro", "mcc", "ece", "loss")
"""The metrics of every classification run."""


class LabelMetric(evaluate.Metric):  # type: ignore[misc]
    """A metric of predicted label indices."""

    def _info(self) -> evaluate.MetricInfo:
        index = datasets.Value("int64")
        return _describe(self, {"predictions": index, "references": index}, "numpy")


class LogitMetric(evaluate.Metric):  # type: ignore[misc]
    """A metric of logits, one row of them an item."""

    def _info(self) -> evaluate.MetricInfo:
        logits = datasets.List(datasets.Value("float64"))
        # As lists: evaluate hands over arrays of plain values only.
        return _describe(self, {"predictions": logits, "references": datasets.Value("int64")}, None)


def _describe(metric: evaluate.Metric, features: dict[str, Any], form: str | None) -> evaluate.MetricInfo:
    return evaluate.MetricInfo(
        description=str(metric.__doc__),
        citation="",
        inputs_description="",
        features=datasets.Features(features),
        format=form,
    )


class Accuracy(LabelMetric):
    """Share of rows with the gold label."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"accuracy": scores.accuracy(predictions, references)}


class F1Macro(LabelMetric):
    """Unweighted mean of the labels' F1."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"f1_macro": scores.f1(predictions, references, "macro")}


class F1Weighted(LabelMetric):
    """Mean of the labels' F1, weighted by how often each occurs."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"f1_weighted": scores.f1(predictions, references, "weighted")}


class PrecisionMacro(LabelMetric):
    """Unweighted mean of the labels' precision."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"precision_macro": scores.precision_macro(predictions, references)}


class BalancedAccuracy(LabelMetric):
    """Unweighted mean of the labels' recall."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"balanced_accuracy": scores.balanced_accuracy(predictions, references)}


class Mcc(LabelMetric):
    """Matthews correlation coefficient."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"mcc": scores.mcc(predictions, references)}


class QuadraticKappa(LabelMetric):
    """Cohen's kappa with quadratic weights, for ordered labels."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"quadratic_kappa": scores.quadratic_kappa(predictions, references)}


class MeanAbsoluteError(LabelMetric):
    """Mean distance in the order of the labels."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"mean_absolute_error": scores.mean_absolute_error(predictions, references)}


class Loss(LogitMetric):
    """Mean negative log likelihood of the gold labels."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"loss": scores.loss(np.asarray(predictions), np.asarray(references))}


class Ece(LogitMetric):
    """Expected calibration error over 15 bins of equal width."""

    def _compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        return {"ece": scores.ece(np.asarray(predictions), np.asarray(references))}


METRICS: dict[str, type[evaluate.Metric]] = {
    "accuracy": Accuracy,
    "balanced_accuracy": BalancedAccuracy,
    "ece": Ece,
    "f1_macro": F1Macro,
    "f1_weighted": F1Weighted,
    "loss": Loss,
    "mcc": Mcc,
    "mean_absolute_error": MeanAbsoluteError,
    "precision_macro": PrecisionMacro,
    "quadratic_kappa": QuadraticKappa,
}


@functools.cache
def load_metric(name: str) -> evaluate.EvaluationModule:
    """A built-in metric by its name, a script of one's own by its path, or a Hub metric at a commit (NAME@COMMIT).

    Raises:
        HftuneError: There is no such metric, it can't be reached, a name would run a local file, or the code that
            would be fetched for it can change.
    """
    if name in METRICS:
        # evaluate makes a folder for every metric, even for one in memory, which writes nothing there.
        with tempfile.TemporaryDirectory() as folder:
            return METRICS[name](keep_in_memory=True, cache_dir=folder)
    path, _, commit = name.partition("@")
    if not _is_path(name):
        _refuse_hijack(path)
        _refuse_unpinned(path, commit)
    if is_offline_mode():
        evaluate.config.HF_EVALUATE_OFFLINE = True  # evaluate itself does not look at HF_HUB_OFFLINE
    try:
        where = {"path": name} if _is_path(name) else {"path": path, "revision": commit}
        metric = evaluate.load(**where, keep_in_memory=True)
    except (FileNotFoundError, ConnectionError) as error:
        message = f"The metric {name!r} is not built in, and was found neither as a file nor on the Hub."
        raise HftuneError(message, hint=_choices(name)) from error
    except Exception as error:  # what foreign code may raise while it is imported has no bounds
        message = f"The metric {name!r} can't be loaded: {type(error).__name__}: {error}"
        raise HftuneError(message, hint=_choices(name)) from error
    logger.warning("The metric %s is not part of hftune: evaluate runs its code.", name)
    return metric


def _is_path(name: str) -> bool:
    """Whether a script of one's own is meant: it ends in .py, or begins as no name on the Hub does."""
    return name.endswith(".py") or name.startswith((".", "~", "/", os.sep)) or Path(name).is_absolute()


def _refuse_unpinned(path: str, commit: str) -> None:
    """What a name on the Hub stands for can change over night; at a commit it can't."""
    if not COMMIT.fullmatch(commit):
        raise HftuneError(
            f"The metric {path!r} is not built in, and the code that the Hub has for it today is not run.",
            hint=f"Read that code, then name its commit: {path}@COMMIT (40 digits). {_choices(path)}",
        )


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


def classification_scores(logits: Any, gold: Any, labels: Sequence[str], extra: Sequence[str] = ()) -> dict[str, Any]:
    """Score logits ``[rows, labels]`` against gold label indices ``[rows]``.

    Returns:
        accuracy, f1_macro, mcc, ece, loss and those of ``extra``, and under per_class the precision, recall,
        F1 and support of each label by name. A score whose name is taken is prefixed by its metric's name.
    """
    values, truth = scores.checked(logits, gold, labels)
    predicted = values.argmax(axis=1)
    result: dict[str, Any] = {}
    for name in dict.fromkeys((*STANDARD, *extra)):
        metric = load_metric(name)
        if isinstance(metric, LogitMetric):
            # Ours, and called directly: evaluate would turn every logit into a Python object.
            found = metric._compute(predictions=values, references=truth)
        else:
            found = _compute(metric, name, predicted, truth)
        for key, value in found.items():
            result[f"{Path(name.partition('@')[0]).stem}_{key}" if key in result else key] = value
    result["per_class"] = scores.per_class(predicted, truth, labels)
    return result


def _compute(metric: evaluate.EvaluationModule, name: str, predictions: Any, gold: Any) -> dict[str, float]:
    try:
        found = metric.compute(predictions=predictions, references=gold)
        return {key: float(value) for key, value in found.items()}
    except Exception as error:
        if name in METRICS:
            raise  # a mistake of ours, not of the metric's choice
        raise HftuneError(
            f"The metric {name!r} does not work for these labels: {error}",
            hint="A metric must take predicted and gold label indices and return single numbers. " + _choices(name),
        ) from error
