"""The confusion matrix: as a table that can be read cell by cell, or as a picture where there are many labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.runs.facts import RunFacts
from hftune.runs.page import Picture, Section
from hftune.runs.plots import READABLE_LABELS
from hftune.runs.plots import confusion as draw_confusion
from hftune.runs.wording import percent

MOST_CONFUSIONS = 12
DRAWN_LABELS = 200
"""Labels of the largest matrix that is drawn: a matrix of 100,000 would take 80 GB, and no page could show it."""


def confusion(facts: RunFacts) -> Section | None:
    """Which label was taken for which."""
    split = facts.main_split
    rows = facts.answered(split) if split else []
    if split is None or not rows or not facts.labels:
        return None
    confused = _most_confused(rows, facts.labels)
    worst = confused[0] if confused else None
    readable, drawn = (len(facts.labels) <= most for most in (READABLE_LABELS, DRAWN_LABELS))
    counts = count(rows, facts.labels) if drawn else np.zeros((0, 0), dtype=np.int64)
    alt = (
        f"Confusion matrix of {len(facts.labels)} labels on {len(rows):,} rows of {split}: "
        f"{percent(counts.trace() / len(rows))} lie on the diagonal."
    )
    picture = (Picture("confusion", draw_confusion(counts, facts.labels), alt, "Confusion matrix"),) if drawn else ()
    return Section(
        id="confusion",
        title="Confusion",
        template="confusion.html.j2",
        lead=(
            f"On {split}, the most frequent confusion is “{worst['gold']}” taken for “{worst['label']}”: "
            f"{worst['count']:,} of {worst['of']:,} rows."
            if worst
            else f"On {split}, no row is confused with another label."
        ),
        pictures=picture,
        values={
            "labels": facts.labels,
            "matrix": _cells(counts) if readable else [],
            "readable": readable,
            "confused": confused,
            "split": split,
        },
    )


def count(rows: list[dict[str, Any]], labels: list[str]) -> NDArray[np.int64]:
    """How often each label (row) was called what (column)."""
    place = {label: index for index, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for row in rows:
        counts[place[str(row["gold"])], place[str(row["label"])]] += 1
    return counts


def _cells(counts: NDArray[np.int64]) -> list[list[dict[str, Any]]]:
    totals = counts.sum(axis=1)
    return [
        [
            {
                "count": int(counts[row, column]),
                "share": round(100 * counts[row, column] / totals[row]) if totals[row] else 0,
                "right": row == column,
            }
            for column in range(len(counts))
        ]
        for row in range(len(counts))
    ]


def _most_confused(rows: list[dict[str, Any]], labels: list[str]) -> list[dict[str, Any]]:
    """The pairs of labels that are confused most often, counted without a matrix of all pairs."""
    place = {label: index for index, label in enumerate(labels)}
    of = Counter(str(row["gold"]) for row in rows)
    pairs = Counter((str(row["gold"]), str(row["label"])) for row in rows)
    wrong = [(gold, label) for gold, label in pairs if gold != label]
    # Equal counts come in the order of the labels.
    wrong.sort(key=lambda pair: (-pairs[pair], place[pair[0]], place[pair[1]]))
    return [
        {"gold": gold, "label": label, "count": pairs[gold, label], "of": of[gold]}
        for gold, label in wrong[:MOST_CONFUSIONS]
    ]
