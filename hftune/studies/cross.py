"""A study over a number and one thing more, as a table of one against the other: labels across, methods down.

Made of a comparison; shown by ``hftune compare``, ``hftune.studies.tables``, ``page`` and ``plots``.
"""

from __future__ import annotations

from dataclasses import dataclass

from hftune.evaluation.significance import Estimate
from hftune.runs.wording import baseline_name
from hftune.studies.compare import Compared
from hftune.studies.settings import short_names, shown


@dataclass(frozen=True)
class Cross:
    """Scores by the values of two axes."""

    name: str
    """What the columns are the values of."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Estimate | None, ...]], ...]
    """A value of the other axis, and its scores; best on validation with the smallest number first."""
    baselines: tuple[tuple[str, tuple[float | None, ...]], ...]
    """What simple systems score, fitted on the training rows of each column."""


def numeric_axes(compared: Compared) -> list[str]:
    """The axes of a study whose values are numbers, at least two of them."""
    found = []
    for axis in dict.fromkeys(axis for row in compared.rows for axis in row.values):
        values = {row.values.get(axis) for row in compared.rows}
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) == len(values) > 1:
            found.append(axis)
    return found


def baselines_along(compared: Compared, axis: str) -> dict[str, dict[float, float]]:
    """Baseline, as people call it → number on the axis → score, where all settings with that number have the same."""
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


def crossed(compared: Compared) -> Cross | None:
    """The table; None for a study that has not two axes of several values, one of them of numbers."""
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
    return Cross(
        name=(short_names(axes)[across] or across).replace("_", " "),
        columns=tuple(shown(column) for column in columns),
        rows=tuple((shown(name), tuple(found.get((name, column)) for column in columns)) for name in names),
        baselines=tuple(
            (name, tuple(by_value.get(column) for column in columns))
            for name, by_value in baselines_along(compared, across).items()
        ),
    )
