"""The scores of every task in one table: direction, range, and how each one follows from the prediction items of a run.

An item is one line of predictions/*.jsonl: an example, or a document of a language model. Sweeps, comparisons and
reports read this table: a score that is listed here can be compared with intervals and paired tests. There are three
kinds: a mean over items (accuracy), a function of sums over items (perplexity is exp(sum of losses / sum of tokens)),
and a function of all items (F1). A new task needs an entry of SCORES and nothing else.

Imports nothing heavy: the settings and the command line read the directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Item = Mapping[str, Any]
"""One line of predictions."""
Places = Mapping[str, int]
"""Label name → its index; empty for tasks without labels."""
MAX_EXPONENT = 700.0
"""Above this a loss has no exponential in float64."""
LEAST_PROBABILITY = 5e-7
"""Probabilities are stored with six digits: one that rounds to zero counts as half of the last digit."""


@dataclass(frozen=True)
class Score:
    """One score of a task."""

    columns: Callable[[Item, Places], tuple[float, ...]]
    """The numbers of one item that the score depends on."""
    of_sums: Callable[[Floats], Floats] | None = None
    """Sums of the columns over items ``[..., columns]`` → score ``[...]``; unset with ``of_items`` for a mean."""
    of_items: Callable[[Floats], float] | None = None
    """The columns of all items ``[items, columns]`` → score."""
    higher_is_better: bool = True
    low: float = 0.0
    high: float = 1.0
    unit: str = "points"
    """Of a difference, as verdicts show it."""
    scale: float = 100.0
    """What a difference is multiplied by for that."""
    digits: int = 1

    @property
    def is_mean(self) -> bool:
        """Whether the score is a mean over items."""
        return self.of_sums is None and self.of_items is None


# ---- Kinds of scores ----


def _of_labels(name: str, **look: Any) -> Score:
    """A metric of predicted and gold labels, by its name in ``evaluation.metrics``."""

    def columns(item: Item, places: Places) -> tuple[float, ...]:
        return float(places[item["label"]]), float(places[item["gold"]])

    def score(values: Floats) -> float:
        from hftune.evaluation.metrics import OF_LABELS

        predicted, gold = values.astype(int).T
        return OF_LABELS[name](predicted, gold)

    return Score(columns, of_items=score, **look)


def _of_confidence(function: str) -> Score:
    """A score of how far the confidence of an answer or a label can be trusted; 0 is best."""

    def columns(item: Item, places: Places) -> tuple[float, ...]:
        confidence = item["probabilities"][item["label"]] if "probabilities" in item else item["confidence"]
        return float(confidence), _right(item, places)[0]

    def score(values: Floats) -> float:
        from hftune.evaluation.knowledge import area_under_risk
        from hftune.evaluation.metrics import confidence_bins, expected_calibration_error

        confidence, right = values.T
        if function == "aurc":
            return area_under_risk(confidence, right)
        return expected_calibration_error(confidence_bins(confidence, right == 1))

    return Score(columns, of_items=score, higher_is_better=False)


def _area(items: Floats) -> float:
    """Area under the ROC curve from probabilities of the labels and the gold label; NaN if that is always the same.

    Of two labels that of the second, of more the mean over the labels in gold of each against the rest.
    """
    import numpy as np
    from scipy.stats import rankdata

    gold = items[:, -1].astype(int)
    found = []
    for label in [1] if items.shape[1] == 3 else np.unique(gold):
        positive = gold == label
        count, rest = int(positive.sum()), int((~positive).sum())
        if not count or not rest:
            return math.nan
        # Mann and Whitney's U: how often a positive row is ranked above a negative one.
        ranks = rankdata(items[:, label])[positive].sum()
        found.append((ranks - count * (count + 1) / 2) / (count * rest))
    return float(np.mean(found))


def _probabilities(item: Item, places: Places) -> tuple[float, ...]:
    return (*(item["probabilities"].get(label, 0.0) for label in places), float(places[item["gold"]]))


def _among(k: int) -> Score:
    """Whether the gold label is among the k most probable ones; among equal ones the first label leads."""

    def columns(item: Item, places: Places) -> tuple[float, ...]:
        own, place = item["probabilities"][item["gold"]], places[item["gold"]]
        above = sum(one > own or (one == own and places[label] < place) for label, one in item["probabilities"].items())
        return (float(above < k),)

    return Score(columns)


def _right(item: Item, places: Places) -> tuple[float, ...]:
    return (float(str(item["label"]).strip() == str(item["gold"]).strip()),)


def _negative_log_likelihood(item: Item, places: Places) -> tuple[float, ...]:
    return (-math.log(max(item["probabilities"][item["gold"]], LEAST_PROBABILITY)),)


def _number(name: str) -> Callable[[Item, Places], tuple[float, ...]]:
    return lambda item, places: (float(item[name]),)


def _count(part: str, of: str) -> Callable[[Item, Places], tuple[float, ...]]:
    return lambda item, places: (float(item[part]), float(item[of]))


def _weighted(mean: str, size: str) -> Callable[[Item, Places], tuple[float, ...]]:
    return lambda item, places: (item[mean] * item[size], float(item[size]))


def _nats(loss: str, tokens: str, size: str) -> Callable[[Item, Places], tuple[float, ...]]:
    """The summed loss of an item, and the size of its text."""
    return lambda item, places: (item[loss] * item[tokens], float(item[size]))


def _ratio(sums: Floats) -> Floats:
    import numpy as np

    ratio: Floats = sums[..., 0] / np.maximum(sums[..., 1], 1.0)  # no masked token at all has no loss either
    return ratio


def _bits(sums: Floats) -> Floats:
    return _ratio(sums) / math.log(2)


def _exponential(sums: Floats) -> Floats:
    import numpy as np

    found: Floats = np.exp(np.minimum(_ratio(sums), MAX_EXPONENT))
    return found


def _loss(unit: str, columns: Callable[[Item, Places], tuple[float, ...]], of_sums: Any = None) -> Score:
    return Score(columns, of_sums, higher_is_better=False, high=math.inf, unit=unit, scale=1.0, digits=3)


def _per_token(loss: str = "loss", tokens: str = "tokens", size: str = "") -> Score:
    return _loss("nats", _nats(loss, tokens, size or tokens), _ratio)


def _perplexity(size: str = "tokens") -> Score:
    return replace(_loss("", _nats("loss", "tokens", size), _exponential), low=1.0, digits=2)


def _bits_per(size: str) -> Score:
    return _loss("bits", _nats("loss", "tokens", size), _bits)


# ---- The table ----

_distance = partial(_of_labels, higher_is_better=False, high=math.inf, unit="", scale=1.0, digits=3)

CLASSIFICATION: dict[str, Score] = {
    "accuracy": Score(_right),
    "loss": _loss("nats", _negative_log_likelihood),
    **{
        name: _of_labels(name)
        for name in ("balanced_accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "precision_macro")
    },
    **{name: _of_labels(name) for name in ("precision_weighted", "recall", "recall_macro", "recall_weighted")},
    **{name: _of_labels(name, low=-1.0) for name in ("mcc", "matthews_correlation", "quadratic_kappa")},
    "roc_auc": Score(_probabilities, of_items=_area),
    "roc_auc_ovr": Score(_probabilities, of_items=_area),
    "top_k_accuracy": _among(2),
    "top_3_accuracy": _among(3),
    "top_5_accuracy": _among(5),
    "mean_absolute_error": _distance("mean_absolute_error"),
    "ece": _of_confidence("ece"),
}
LANGUAGE_MODEL: dict[str, Score] = {
    "loss": _per_token(),
    "perplexity": _perplexity(),
    "accuracy": Score(_count("correct", "tokens"), _ratio),
}
SCORES: dict[str, dict[str, Score]] = {
    "classify": CLASSIFICATION,
    "joint": CLASSIFICATION,
    "mlm": LANGUAGE_MODEL,
    "distill_encoder": {
        **LANGUAGE_MODEL,
        "agreement": Score(_weighted("word_agreement", "words"), _ratio, low=-1.0),
        "sentence_agreement": Score(_number("sentence_agreement"), low=-1.0),
    },
    "clm": {**LANGUAGE_MODEL, "word_perplexity": _perplexity("words"), "bits_per_byte": _bits_per("bytes")},
    "span": {
        **LANGUAGE_MODEL,
        "bits_per_character": _bits_per("characters"),
        "span_loss": _per_token("span_loss", "span_tokens"),
        "span_accuracy": Score(_count("span_correct", "span_tokens"), _ratio),
        "span_exact_match": Score(_number("span_exact_match")),
    },
    "answer": {
        "exact_match": Score(_right),
        "loss": _per_token(),
        "ece": _of_confidence("ece"),
        "aurc": _of_confidence("aurc"),
    },
}
"""Kind of task → the scores of its runs."""

LOWER_IS_BETTER = frozenset(
    name for scores in SCORES.values() for name, score in scores.items() if not score.higher_is_better
)
"""Scores for which lower is better; a name means the same in every task."""
