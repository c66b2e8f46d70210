"""A comparison as CSV, as Markdown, and as a pivot table of two axes.

Names come from recipes and data, so they are escaped for each format.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from hftune.evaluation.significance import ScoreEstimate
from hftune.hub.card import inline, table
from hftune.runs.formatting import baseline_name, duration, score_name
from hftune.sanitize import spreadsheet_cell
from hftune.studies.compare import Compared, ComparedSystem
from hftune.studies.plan import axis_title, shown

MOST_OWN_BASELINES = 10
"""Baselines of single settings that a table lists."""


def score_text(found: ScoreEstimate | None) -> str:
    """Mean ± std over seeds."""
    if found is None:
        return "–"
    return f"{found.mean:.4f}" if found.std is None else f"{found.mean:.4f} ± {found.std:.4f}"


def interval_text(found: ScoreEstimate | None) -> str:
    """The 95 % interval."""
    return "–" if found is None else f"{found.low:.4f} … {found.high:.4f}"


def interval_note(compared: Compared) -> str:
    """What the scores and intervals cover."""
    if compared.one_seed:
        return "One seed; intervals allow for other rows, not for other seeds"
    return "Mean ± std over seeds; intervals allow for other rows and other seeds"


def memory_text(gigabytes: float | None) -> str:
    """Peak memory."""
    return "–" if gigabytes is None else f"{gigabytes:.2f} GB"


def baseline_rows(compared: Compared) -> list[tuple[str, dict[str, float]]]:
    """The baselines with their scores by split; those that differ between settings once for each setting."""
    found = [(baseline_name(name), scores) for name, scores in compared.baselines.items()]
    names = dict.fromkeys(name for row in compared.rows for name in row.baselines)
    own = [
        (f"{baseline_name(name)} ({row.name})", scores)
        for name in names
        for row in compared.rows
        if (scores := _without(row.baselines.get(name, {}), compared.baselines.get(name, {})))
    ]
    # A study of many settings has a plot or a pivot table of them.
    return found + (own if len(own) <= MOST_OWN_BASELINES else [])


def _without(scores: dict[str, float], shared: dict[str, float]) -> dict[str, float]:
    return {split: score for split, score in scores.items() if split not in shared}


def difference_rows(compared: Compared) -> list[tuple[str, list[str]]]:
    """What differs between the settings, with the value of each in the order of the table."""
    return [
        (key, [shown(values[row.name]) if values[row.name] is not None else "–" for row in compared.rows])
        for key, values in compared.differences.items()
    ]


def csv_text(compared: Compared) -> str:
    """One line per setting, numbers unrounded."""
    axes = list(dict.fromkeys(axis for row in compared.rows for axis in row.values))
    scores = [f"{split}_{part}" for split in compared.splits for part in ("mean", "std", "low", "high")]
    header = ["setting", *axes, "metric", *scores, "seeds", "trainable", "formula", "total", "seconds"]
    header += ["memory_gb", "collapsed", "selected"]
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([_cell(name) for name in header])
    for row in compared.rows:
        cells: list[Any] = [row.name, *(row.values.get(axis) for axis in axes), compared.metric]
        for split in compared.splits:
            found = row.scores.get(split)
            cells += [None] * 4 if found is None else [found.mean, found.std, found.low, found.high]
        seeds = " ".join(map(str, row.seeds))
        cells += [seeds, row.trainable, row.formula, row.total, round(row.seconds, 3), row.memory]
        cells += [row.collapsed, row.selected]
        writer.writerow([_cell(cell) for cell in cells])
    return written.getvalue()


def markdown_text(compared: Compared) -> str:
    """The table, the verdicts and the notes."""
    header = ["setting"]
    for split in compared.splits:
        header.append(f"{split} {score_name(compared.metric)}")
    header += ["95 % interval", "seeds", "trained", "time", "memory"]
    rows = [_cells(row, compared) for row in compared.rows]
    for name, scores in baseline_rows(compared):
        cells = [f"{scores[split]:.4f}" if split in scores else "–" for split in compared.splits]
        rows.append([f"*{inline(name)}*", *cells, "", "", "", "", ""])
    lines = [table(header, rows), "", f"{interval_note(compared)}; the interval is that of {compared.split}."]
    lines += _pivot(compared)
    if different := difference_rows(compared):
        names = [inline(row.name) for row in compared.rows]
        lines += [
            "",
            table(["what differs", *names], [[inline(key), *map(inline, values)] for key, values in different]),
        ]
    if compared.pairs:
        lines += ["", *(f"- {inline(pair.verdict)}" for pair in compared.pairs)]
    if compared.notes:
        lines += ["", *(f"- {inline(note)}" for note in compared.notes)]
    return "\n".join(lines) + "\n"


def _pivot(compared: Compared) -> list[str]:
    pivot = pivot_table(compared)
    if pivot is None:
        return []
    rows = []
    for name, scores in pivot.rows:
        cells = [f"{score_text(one)} ({interval_text(one)})" if one is not None else "–" for one in scores]
        rows.append([inline(name), *cells])
    for name, found in pivot.baselines:
        rows.append([f"*{name}*", *("–" if one is None else f"{one:.4f}" for one in found)])
    return [
        "",
        table([inline(pivot.name), *pivot.columns], rows),
        "",
        f"{compared.split.capitalize()} {score_name(compared.metric)}, with the 95 % interval.",
    ]


def _cells(row: ComparedSystem, compared: Compared) -> list[str]:
    name = f"**{inline(row.name)}**" if row.selected else inline(row.name)
    scores = [score_text(row.scores.get(split)) for split in compared.splits]
    interval = interval_text(row.scores.get(compared.split))
    return [
        name,
        *scores,
        interval,
        str(len(row.seeds)),
        f"{row.trainable:,}{f' = {inline(row.formula)}' if row.formula else ''}",
        duration(row.seconds),
        memory_text(row.memory),
    ]


def _cell(value: Any) -> Any:
    return spreadsheet_cell(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class PivotTable:
    """Scores by the values of two axes."""

    name: str
    """The axis of the columns."""
    row_name: str
    """The axis of the rows."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[ScoreEstimate | None, ...]], ...]
    """A value of the other axis and its scores; best on validation in the first column first."""
    baselines: tuple[tuple[str, tuple[float | None, ...]], ...]
    """Baselines fitted on the training rows of each column."""


def numeric_axes(compared: Compared) -> list[str]:
    """The axes of a study with at least two values, all numbers."""
    found = []
    for axis in dict.fromkeys(axis for row in compared.rows for axis in row.values):
        values = {row.values.get(axis) for row in compared.rows}
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) == len(values) > 1:
            found.append(axis)
    return found


def baselines_along(compared: Compared, axis: str) -> dict[str, dict[float, float]]:
    """Baseline → number on the axis → score, if all settings with that number have the same."""
    found: dict[str, dict[float, set[float]]] = {}
    for row in compared.rows:
        for name, splits in row.baselines.items():
            if compared.split in splits:
                by_value = found.setdefault(baseline_name(name), {})
                by_value.setdefault(row.values[axis], set()).add(splits[compared.split])
    return {
        name: {value: scores.pop() for value, scores in by_value.items() if len(scores) == 1}
        for name, by_value in found.items()
    }


def pivot_table(compared: Compared) -> PivotTable | None:
    """The table; None unless the study has two axes of several values, one of them of numbers."""
    axes = list(dict.fromkeys(axis for row in compared.rows for axis in row.values))
    numbers = numeric_axes(compared)
    if len(axes) != 2 or not numbers:
        return None
    across = numbers[0]
    (down,) = (axis for axis in axes if axis != across)
    columns = sorted({row.values[across] for row in compared.rows})
    found = {(row.values[down], row.values[across]): row.scores.get(compared.split) for row in compared.rows}
    first = [row.values[down] for row in compared.rows if row.values[across] == columns[0]]
    names = list(dict.fromkeys([*first, *(row.values[down] for row in compared.rows)]))
    if len(columns) < 2 or len(names) < 2:
        return None
    return PivotTable(
        name=axis_title(axes, across),
        row_name=axis_title(axes, down),
        columns=tuple(shown(column) for column in columns),
        rows=tuple((shown(name), tuple(found.get((name, column)) for column in columns)) for name in names),
        baselines=tuple(
            (name, tuple(by_value.get(column) for column in columns))
            for name, by_value in baselines_along(compared, across).items()
        ),
    )
