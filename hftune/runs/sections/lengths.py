"""Slices by length: does the model answer short texts as well as long ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hftune.runs.facts import RunFacts
from hftune.runs.page import Picture, Section
from hftune.runs.plots import score_by_length
from hftune.runs.shares import wilson
from hftune.runs.wording import number

BANDS = 5


def lengths(facts: RunFacts) -> Section | None:
    """Accuracy over bands of length that hold about as many rows each."""
    split = facts.main_split
    rows = facts.answered(split) if split else []
    if not rows or not facts.labels:
        return None
    unit, slices = _sliced(rows)
    if len(slices) < 2:
        return None
    overall = sum(row["label"] == row["gold"] for row in rows) / len(rows)
    lowest, highest = (pick(slices, key=lambda one: one["accuracy"]) for pick in (min, max))
    picture = Picture(
        "length",
        score_by_length(slices, overall, unit),
        alt=(
            f"Accuracy by length of the text in {unit}, with 95 % intervals: from {number(lowest['accuracy'])} "
            f"at {lowest['range']} to {number(highest['accuracy'])} at {highest['range']}."
        ),
        caption="Accuracy by length",
    )
    return Section(
        id="lengths",
        title="By length",
        template="lengths.html.j2",
        lead=_lead(slices, unit, overall),
        pictures=(picture,),
        values={"slices": slices, "unit": unit, "split": split},
    )


def by_length(rows: list[dict[str, Any]], measure: Callable[[dict[str, Any]], int]) -> list[dict[str, Any]]:
    """Bands of length with as many rows each as ties allow: range, rows, accuracy and its 95 % interval."""
    sizes = np.asarray([measure(row) for row in rows])
    right = np.asarray([row["label"] == row["gold"] for row in rows])
    starts = np.unique(np.quantile(sizes, np.arange(BANDS) / BANDS, method="lower"))
    edges = np.append(starts, sizes.max() + 1)
    slices = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = right[(sizes >= low) & (sizes < high)]
        accuracy = float(inside.mean())
        below, above = wilson(accuracy, len(inside))
        slices.append(
            {
                "range": f"{low:,}–{high - 1:,}" if high - 1 > low else f"{low:,}",
                "rows": len(inside),
                "accuracy": accuracy,
                "low": below,
                "high": above,
            }
        )
    return slices


def _sliced(rows: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """By words; by characters in scripts without spaces, where every text is one word."""
    words = by_length(rows, _words)
    return ("words", words) if len(words) > 1 else ("characters", by_length(rows, _characters))


def _lead(slices: list[dict[str, Any]], unit: str, overall: float) -> str:
    apart = [one["range"] for one in slices if not one["low"] <= overall <= one["high"]]
    if not apart:
        return (
            f"No band of length differs from the accuracy of all rows, {number(overall)}, by more than chance allows."
        )
    return (
        f"Texts of {' and '.join(apart)} {unit} differ from the accuracy of all rows, {number(overall)}, by more than "
        f"their 95 % interval."
    )


def _words(row: dict[str, Any]) -> int:
    return len(str(row["text"]).split()) + len(str(row.get("text_pair", "")).split())


def _characters(row: dict[str, Any]) -> int:
    return len(str(row["text"])) + len(str(row.get("text_pair", "")))
