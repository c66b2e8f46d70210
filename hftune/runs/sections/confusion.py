"""The confusion matrix: as a table that can be read cell by cell, or as a picture where there are many labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.runs.facts import RunFacts
from hftune.runs.page import Picture, Section
from hftune.runs.plots import READABLE_LABELS
from hftune.runs.plots import confusion as draw_confusion
from hftune.runs.wording import percent

MOST_CONFUSIONS = 12


def confusion(facts: RunFacts) -> Section | None:
    """Which label was taken for which."""
    split = facts.main_split
    rows = facts.answered(split) if split else []
    if split is None or not rows or not facts.labels:
        return None
    counts = count(rows, facts.labels)
    confused = _most_confused(counts, facts.labels)
    worst = confused[0] if confused else None
    alt = (
        f"Confusion matrix of {len(facts.labels)} labels on {len(rows):,} rows of {split}: "
        f"{percent(counts.trace() / len(rows))} lie on the diagonal."
    )
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
        pictures=(Picture("confusion", draw_confusion(counts, facts.labels), alt, "Confusion matrix"),),
        values={
            "labels": facts.labels,
            "matrix": _cells(counts),
            "readable": len(facts.labels) <= READABLE_LABELS,
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


def _most_confused(counts: NDArray[np.int64], labels: list[str]) -> list[dict[str, Any]]:
    pairs = [
        {
            "gold": labels[row],
            "label": labels[column],
            "count": int(counts[row, column]),
            "of": int(counts[row].sum()),
        }
        for row, column in np.argwhere(counts > 0)
        if row != column
    ]
    # argwhere goes row by row and the sort is stable: equal counts keep the order of the labels.
    return sorted(pairs, key=lambda pair: -pair["count"])[:MOST_CONFUSIONS]
