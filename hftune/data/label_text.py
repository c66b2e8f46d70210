"""Integer labels with their names in a second column, as the SetFit datasets have them. Called by ``hftune.data.load``.

``{"label": 4, "label_text": "very positive"}``: predictions should read "very positive", and labels keep the order of
their integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hftune.data.columns import NAME_ENDINGS
from hftune.data.labels import UNLABELED, WHOLE, is_missing
from hftune.data.table import Table
from hftune.data.wording import quote


def with_label_text(tables: dict[str, Table], label: str) -> tuple[dict[str, Table], list[str]]:
    """Replace integer labels by class numbers with names, if a column next to them has the names.

    The names are used only if they correspond one to one with the integers over all splits.

    Args:
        tables: The splits.
        label: The label column.

    Returns:
        The splits, and a note about where the names come from, or why they are not used.
    """
    column = text_column_of(tables.values(), label)
    if column is None:
        return tables, []
    names: dict[int, str] = {}
    for table in tables.values():
        values = table.columns.get(label, [])
        missing = sum(is_missing(value) for value in values)
        if 0 < missing < len(values) and not table.from_hub:
            return tables, []  # refused later, as for any file
        if _is_hidden(values):
            continue
        for value, text in zip(values, table.columns[column], strict=True):
            if is_missing(value):
                continue
            number = _whole(value)
            if number is None:
                return tables, []  # the labels have names of their own
            if not isinstance(text, str) or not text.strip() or names.setdefault(number, text.strip()) != text.strip():
                return tables, [_unused(label, column)]
    if not names or len(set(names.values())) != len(names):
        return tables, [_unused(label, column)]
    made = {split: _numbered(table, label, column, names) for split, table in tables.items()}
    return made, [f"label names come from column {quote(column)}"]


def text_column_of(tables: Iterable[Table], label: str) -> str | None:
    """The column with the label names, if no split has ClassLabel names already and every labeled split has it."""
    labeled = [table for table in tables if label in table.columns]
    if not labeled or any(label in table.classes for table in labeled):
        return None
    found = [label + ending for ending in NAME_ENDINGS]
    return next((name for name in found if all(name in table.columns for table in labeled)), None)


def _numbered(table: Table, label: str, column: str, names: dict[int, str]) -> Table:
    """A split with the places of its labels in the order of the integers, and None for no label."""
    if label not in table.columns:
        return table
    order = sorted(names)
    place = {number: index for index, number in enumerate(order)}
    values = table.columns[label]
    # Some datasets have a class -1. In a split of -1 alone the names tell it from labels that are not published.
    minus_one = names.get(int(UNLABELED))
    hidden = _is_hidden(values) and (minus_one is None or any(text != minus_one for text in table.columns[column]))
    numbers = [None if hidden or (number := _whole(value)) is None else place[number] for value in values]
    classes = {**table.classes, label: tuple(names[number] for number in order)}
    return replace(table, columns={**table.columns, label: numbers}, classes=classes)


def _is_hidden(values: Sequence[Any]) -> bool:
    """Whether all labels of a split are -1, as those of unpublished test labels are, or missing."""
    return all(is_missing(value) or _whole(value) == int(UNLABELED) for value in values)


def _whole(value: Any) -> int | None:
    """The integer that a cell holds: as a number, or as digits as in a csv file."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and WHOLE.fullmatch(value.strip()):
        return int(value)
    return value if isinstance(value, int) else None


def _unused(label: str, column: str) -> str:
    return f"label names are the values of {quote(label)}: {quote(column)} does not correspond to them one to one"
