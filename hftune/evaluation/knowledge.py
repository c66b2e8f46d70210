"""Knowing or making it up: is an answer right, how sure was the model, and can it have known at all.

Called by the task that answers questions, on its own rows of predictions; the report draws what is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.evaluation.calibration import confidence_bins, mean_gap
from hftune.evaluation.collapse import collapsed

STEPS = 100
"""Points of a risk-coverage curve: one a percent."""
NAME = "{}"
SEEN = ("seen_in_pretraining", "seen_in_finetuning")
CHUNK = 1_000_000
"""Characters of text that are searched at once."""

Floats = NDArray[np.float64]


def exact_match(predicted: Sequence[str], gold: Sequence[str]) -> Floats:
    """1 for each answer that is the right one to the letter, surrounding blanks aside, and 0 for the others."""
    return np.array([float(said.strip() == truth.strip()) for said, truth in zip(predicted, gold, strict=True)])


def answer_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Scores of one split, every row of which has its ``gold`` answer."""
    right, confidence = _right(rows), _confidence(rows)
    return {
        "exact_match": float(right.mean()),
        "ece": mean_gap(confidence_bins(confidence, right)),
        "aurc": area_under_risk(confidence, right),
    }


def knowledge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What metrics.json keeps of one split beside its scores.

    Args:
        rows: Predictions: ``label`` (the answer), ``confidence``, ``gold`` where it is known, and SEEN.

    Returns:
        ``groups`` by where the name was seen; and where the answers are known ``risk_coverage`` and ``bins``.
    """
    known = all(row.get("gold") is not None for row in rows)
    found: dict[str, Any] = {"groups": _groups(rows, known)}
    if known:
        right, confidence = _right(rows), _confidence(rows)
        found["risk_coverage"] = risk_coverage(confidence, right)
        found["bins"] = confidence_bins(confidence, right)
    return found


def risk_coverage(confidence: Floats, right: Floats) -> list[dict[str, float]]:
    """Accuracy when only the surest k % are answered, for every whole k, and the confidence that draws the line."""
    accuracy, falling = _accuracies(confidence, right)
    points = []
    for step in range(1, STEPS + 1):
        rows = -(-len(right) * step // STEPS)
        points.append(
            {
                "coverage": step / STEPS,
                "accuracy": float(accuracy[rows - 1]),
                "confidence": float(falling[rows - 1]),
            }
        )
    return points


def area_under_risk(confidence: Floats, right: Floats) -> float:
    """Mean share of wrong answers over all numbers of answers, surest first: 0 is best."""
    return float(1 - _accuracies(confidence, right)[0].mean())


def _accuracies(confidence: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Accuracy of the surest 1, 2, … answers, and the confidences; equally sure ones count by their common mean."""
    order = np.argsort(-confidence, kind="stable")
    falling = confidence[order]
    _, place, sizes = np.unique(-falling, return_inverse=True, return_counts=True)
    level = np.bincount(place, weights=right[order]) / sizes
    return np.cumsum(level[place]) / np.arange(1, len(right) + 1), falling


def answers_collapsed(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the answers look like those of a constant, in words; None when they do not."""
    names = sorted({str(row[key]).strip() for row in rows for key in ("label", "gold")})
    place = {name: index for index, name in enumerate(names)}
    said, gold = ([place[str(row[key]).strip()] for row in rows] for key in ("label", "gold"))
    return collapsed(np.array(said), np.array(gold), names)


def question_template(questions: Sequence[str]) -> str | None:
    """The question with {} where the name stands, if all questions begin or end with the same words; else None."""
    words = [question.split(" ") for question in questions]
    spare = min((len(each) for each in words), default=1) - 1  # one word at least is the name
    if len(set(questions)) < 2 or spare < 1:
        return None
    first = _alike([each[:spare] for each in words])
    last = _alike([each[::-1][: spare - first] for each in words])
    if not first and not last:
        return None
    before = "".join(f"{word} " for word in words[0][:first])
    after = "".join(f" {word}" for word in words[0][len(words[0]) - last :])
    return f"{before}{NAME}{after or ('?' if all(question.endswith('?') for question in questions) else '')}"


def _alike(lists: Sequence[Sequence[str]]) -> int:
    """How many first words all lists share."""
    count = 0
    for column in zip(*lists, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def name_in(question: str, template: str | None) -> str | None:
    """The name that a question asks about; None where it has another form."""
    if template is None:
        return None
    before, _, after = template.partition(NAME)
    if not (question.startswith(before) and question.endswith(after) and len(question) > len(before) + len(after)):
        return None
    return question[len(before) : len(question) - len(after)].strip()


def names_in_text(names: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Which of the names occur in the texts, as whole words."""
    missing, found = set(names), set()
    for chunk in _chunks(texts):
        here = {name for name in missing if _has_word(chunk, name)}
        found |= here
        missing -= here
    return found


def _has_word(text: str, name: str) -> bool:
    """Whether the name occurs and is not a part of a longer word; many times faster than a pattern that says so."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not (at and text[at - 1].isalnum()) and not text[end : end + 1].isalnum():
            return True
        at = text.find(name, at + 1)
    return False


def _chunks(texts: Iterable[str]) -> Iterable[str]:
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        size += len(text)
        if size >= CHUNK:
            yield "\n".join(held)
            held, size = [], 0
    if held:
        yield "\n".join(held)


def _groups(rows: Sequence[Mapping[str, Any]], known: bool) -> list[dict[str, Any]]:
    """Rows by where their name was seen: how many, how sure, and how often right where that is known."""
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
