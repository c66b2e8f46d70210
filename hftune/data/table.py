"""Rows as they came out of a file or from the Hub: named columns, and where each row stood.

Made by ``sources`` and ``hub``, read by ``columns`` and ``rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """Columns of equal length, values as the source gave them."""

    where: str
    """What the messages call it: a file's name, or a Hub id with its split."""
    columns: dict[str, list[Any]]
    lines: Sequence[int] | None = None
    """The line in the file of each row; None where the source has no lines."""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Label names of the columns that hold class numbers (a ClassLabel feature)."""
    from_hub: bool = False
    """Whether it is a published dataset, whose examples the user can't correct."""

    def __len__(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Where a row stands, for a message."""
        return f"line {self.lines[row]}" if self.lines is not None else f"row {row + 1}"

    def places(self, rows: Sequence[int]) -> str:
        """Where the first of some rows stand."""
        return ", ".join(self.place(row) for row in rows[:3]) + (" …" if len(rows) > 3 else "")


def joined(tables: Sequence[Table]) -> Table:
    """The shards of one split as one table; they have the same columns."""
    first = tables[0]
    if len(tables) == 1:
        return first
    columns: dict[str, list[Any]] = {name: [] for table in tables for name in table.columns}
    for table in tables:
        for name, values in columns.items():
            values.extend(table.columns.get(name, [None] * len(table)))
    return Table(where=f"{first.where} … {tables[-1].where}", columns=columns, classes=first.classes)
