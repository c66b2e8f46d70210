"""Knowledge or hallucination: is an answer right, how confident was the model, was the name in its training data?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.evaluation.collapse import collapsed
from hftune.evaluation.metrics import confidence_bins, expected_calibration_error

STEPS = 100
"""Points of a risk-coverage curve: one per percent."""
NAME = "{}"
SEEN = ("seen_in_pretraining", "seen_in_finetuning")

Floats = NDArray[np.float64]


def exact_match(predicted: Sequence[str], gold: Sequence[str]) -> Floats:
    """1 for each answer that equals the right one, surrounding whitespace ignored, and 0 for the others."""
    return np.array([float(one.strip() == truth.strip()) for one, truth in zip(predicted, gold, strict=True)])


def answer_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Scores of one split whose rows all have a ``gold`` answer."""
    right, confidence = _right(rows), _confidence(rows)
    return {
        "exact_match": float(right.mean()),
        "ece": expected_calibration_error(confidence_bins(confidence, right)),
        "aurc": area_under_risk(confidence, right),
    }


def knowledge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``knowledge`` entry of metrics.json for one split.

    Args:
        rows: Predictions: ``label`` (the answer), ``confidence``, ``gold`` if it is known, and SEEN.

    Returns:
        ``groups`` by where the name was seen; if the answers are known also ``risk_coverage`` and ``bins``.
    """
    known = all(row.get("gold") is not None for row in rows)
    found: dict[str, Any] = {"groups": _groups(rows, known)}
    if known:
        right, confidence = _right(rows), _confidence(rows)
        found["risk_coverage"] = risk_coverage(confidence, right)
        found["bins"] = confidence_bins(confidence, right)
    return found


def risk_coverage(confidence: Floats, right: Floats) -> list[dict[str, float]]:
    """Accuracy on the k % most confident answers, for k from 1 to 100, and the lowest confidence among them."""
    accuracy, falling = _accuracies(confidence, right)
    last = [-(-len(right) * step // STEPS) - 1 for step in range(1, STEPS + 1)]  # rounded up: at least one answer
    return [
        {"coverage": step / STEPS, "accuracy": float(accuracy[row]), "confidence": float(falling[row])}
        for step, row in enumerate(last, start=1)
    ]


def area_under_risk(confidence: Floats, right: Floats) -> float:
    """Mean error rate of the n most confident answers, over all n (AURC, Geifman et al. 2019): 0 is best."""
    return float(1 - _accuracies(confidence, right)[0].mean())


def _accuracies(confidence: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Accuracy of the 1, 2, … most confident answers, and their confidences.

    Ties count with their common mean: otherwise the score of a model with a constant confidence would depend on the
    order of the rows.
    """
    order = np.argsort(-confidence, kind="stable")
    falling = confidence[order]
    # Groups of equal confidence, in falling order; each of their answers counts with the mean of the group.
    _, place, sizes = np.unique(-falling, return_inverse=True, return_counts=True)
    level = np.bincount(place, weights=right[order]) / sizes
    return np.cumsum(level[place]) / np.arange(1, len(right) + 1), falling


def answers_collapsed(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The reason why the answers look like those of a collapsed model; None if they don't."""
    names = sorted({str(row[key]).strip() for row in rows for key in ("label", "gold")})
    place = {name: index for index, name in enumerate(names)}
    predicted, gold = ([place[str(row[key]).strip()] for row in rows] for key in ("label", "gold"))
    return collapsed(np.array(predicted), np.array(gold), names)


def question_template(questions: Sequence[str]) -> str | None:
    """The question with {} in place of the name, if all questions begin or end with the same words; else None."""
    words = [question.split(" ") for question in questions]
    spare = min((len(each) for each in words), default=1) - 1  # at least one word is the name
    if len(set(questions)) < 2 or spare < 1:
        return None
    # "Where was Ada Lovelace born?": words that all questions share at the beginning, then at the end of what is left.
    first = _alike([each[:spare] for each in words])
    last = _alike([each[::-1][: spare - first] for each in words])
    if not first and not last:
        return None
    before = "".join(f"{word} " for word in words[0][:first])
    after = "".join(f" {word}" for word in words[0][len(words[0]) - last :])
    return f"{before}{NAME}{after or ('?' if all(question.endswith('?') for question in questions) else '')}"


def _alike(lists: Sequence[Sequence[str]]) -> int:
    """The number of words that all lists begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*lists, strict=False)))


def name_in(question: str, template: str | None) -> str | None:
    """The name that a question asks about; None if it does not fit the template."""
    if template is None:
        return None
    before, _, after = template.partition(NAME)
    if not (question.startswith(before) and question.endswith(after) and len(question) > len(before) + len(after)):
        return None
    return question[len(before) : len(question) - len(after)].strip()


def names_in_text(names: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Which of the names occur in the texts, as whole words."""
    text = "\n".join(texts)  # one search per name: thousands of names times millions of documents would take hours
    return {name for name in names if _has_word(text, name)}


def _has_word(text: str, name: str) -> bool:
    """Whether the name occurs and is not part of a longer word; many times faster than a regular expression."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (at and text[at - 1].isalnum()) and not text[end : end + 1].isalnum():
            return True
        at = text.find(name, at + 1)
    return False


def _groups(rows: Sequence[Mapping[str, Any]], known: bool) -> list[dict[str, Any]]:
    """Rows grouped by where their name was seen: count, mean confidence, and exact match if answers are known."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in SEEN), []).append(row)
    ranked = sorted(groups.items(), key=lambda item: [(place is None, not place) for place in item[0]])
    return [
        {
            **dict(zip(SEEN, seen, strict=True)),
            "rows": len(members),
            "exact_match": float(_right(members).mean()) if known else None,
            "confidence": float(_confidence(members).mean()),
        }
        for seen, members in ranked
    ]


def _right(rows: Sequence[Mapping[str, Any]]) -> Floats:
    return exact_match([row["label"] for row in rows], [row["gold"] for row in rows])


def _confidence(rows: Sequence[Mapping[str, Any]]) -> Floats:
    return np.array([row["confidence"] for row in rows], dtype=np.float64)
