"""Label values → label names, and the one order they have everywhere. Called by ``rows`` and ``load``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from hftune.data.table import Table
from hftune.data.wording import closest, count, listing, quote
from hftune.errors import HftuneError

WHOLE = re.compile(r"-?\d{1,18}")
DECIMAL = re.compile(r"-?\d{1,18}(\.\d{1,18})?")
NAMED = {str, bool, int, float}
UNLABELED = "-1"
"""The class number that published test splits carry in place of a label."""


def label_names(table: Table, column: str) -> list[str | None]:
    """The name of each row's label; None where there is none.

    Whole numbers keep their digits, booleans become ``false`` and ``true`` as JSON writes them, class numbers
    get the names their source gives them, strings lose the blanks around them.
    """
    values = table.columns[column]
    if column in table.classes:
        return _class_names(table, column, table.classes[column])
    kinds = {type(value) for value in values if not is_missing(value)}
    for row, value in enumerate(values) if kinds - NAMED else ():
        if not is_missing(value) and type(value) not in NAMED:
            raise HftuneError(
                f"{quote(table.where)}, {table.place(row)}: expected one label, got {quote(value)}",
                hint="several labels for one text (multi-label classification) are not supported yet"
                if isinstance(value, list)
                else f"a label is a string, a whole number or a boolean; is it {quote(column)}?",
            )
    if kinds in ({float}, {int, float}):
        _refuse_scores(table, column, values)
    elif kinds == {str} and (numbers := _as_numbers(values)) is not None:  # a csv file has no other type
        _refuse_scores(table, column, numbers)
    if len(kinds) > 1 and kinds != {int, float}:
        raise HftuneError(
            f"labels of {quote(table.where)} (column {quote(column)}) are of several kinds: "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}",
            hint="write all labels in one way: all strings, all whole numbers, or all true and false",
        )
    names: dict[Any, str] = {}
    result: list[str | None] = []
    for row, value in enumerate(values):
        if is_missing(value):
            result.append(None)
            continue
        if value not in names:
            names[value] = _name(value, table, row)
        result.append(names[value])
    return result


def label_order(names: Iterable[str], classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """All labels in order: as the source lists them, else numbers by value, else strings by code point."""
    if classes is not None:
        return classes
    known = set(names)
    if all(WHOLE.fullmatch(name) for name in known):
        return tuple(sorted(known, key=lambda name: (int(name), name)))
    if all(DECIMAL.fullmatch(name) for name in known):
        return tuple(sorted(known, key=lambda name: (float(name), name)))
    return tuple(sorted(known))


def check_seen(names: Sequence[str], trained: set[str], where: str) -> None:
    """Refuse labels of validation or test that no training row has."""
    unseen = sorted(set(names) - trained)
    if not unseen:
        return
    rows = sum(name not in trained for name in names)
    raise HftuneError(
        f"{quote(where)} has labels that no training row has: {listing(unseen)} ({count(rows, 'row')}); "
        f"train has {listing(sorted(trained))}",
        hint=closest(unseen[0], sorted(trained)) + "mend the labels, or give training rows for them",
    )


def check_classes(names: Iterable[str], where: str) -> None:
    """Refuse training rows that all have one label."""
    known = set(names)
    if len(known) < 2:
        raise HftuneError(
            f"all training rows of {quote(where)} have one label: {listing(known)}",
            hint="a classifier needs at least two; check that data.label_column_name is the right column",
        )


def is_missing(value: Any) -> bool:
    """Whether a cell holds no label: nothing, blanks or NaN."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, float) and math.isnan(value))


def _class_names(table: Table, column: str, classes: tuple[str, ...]) -> list[str | None]:
    """Names of class numbers; -1 is how the Hub writes that a row has no label."""
    names: list[str | None] = []
    for row, value in enumerate(table.columns[column]):
        if is_missing(value) or value == -1:
            names.append(None)
        elif isinstance(value, int) and 0 <= value < len(classes):
            names.append(classes[value])
        else:
            raise HftuneError(
                f"{quote(table.where)}, {table.place(row)}: {quote(value)} is no class number of column "
                f"{quote(column)}, which has {len(classes)} classes",
                hint="the file's own list of label names and its rows do not agree; write it again",
            )
    return names


def _as_numbers(values: Sequence[Any]) -> list[float] | None:
    """Labels that are all written as numbers; None where one is not."""
    try:
        return [math.nan if is_missing(value) else float(value) for value in values]
    except ValueError:
        return None


def _refuse_scores(table: Table, column: str, values: Sequence[Any]) -> None:
    """Refuse labels that are scores: a regression task. Classes that are written as 1.0 and 2.0 pass."""
    scores = [row for row, value in enumerate(values) if isinstance(value, float) and not value.is_integer()]
    scores = [row for row in scores if not math.isnan(values[row])]  # infinity is a score too
    if scores:
        known = [value for value in values if not is_missing(value)]
        raise HftuneError(
            f"{quote(table.where)}, {table.place(scores[0])}: the label {values[scores[0]]:g} is not a whole number; "
            f"column {quote(column)} holds scores from {min(known):g} to {max(known):g}, which is a regression task",
            hint="hftune trains classifiers, regression is not supported yet: name a column of classes with "
            "--label-column, or turn the scores into classes first",
        )


def _name(value: Any, table: Table, row: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(int(value))
    name = str(value).strip()
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise HftuneError(
            f"{quote(table.where)}, {table.place(row)}: the label {quote(name)} holds half a surrogate pair",
            hint="write the file again with whole characters",
        )
    return name
