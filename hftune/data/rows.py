"""Table → canonical rows: texts, second texts, label names, each checked. Called by ``hftune.data.load``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hftune.data.columns import Roles, find_label, required
from hftune.data.labels import UNLABELED, label_names
from hftune.data.table import Table
from hftune.data.wording import count, quote
from hftune.errors import HftuneError


@dataclass(frozen=True)
class Rows:
    """Rows of one split with the names of their labels."""

    where: str
    texts: list[str]
    pairs: list[str] | None
    labels: list[str] | None
    """None where the split has no labels."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.texts)

    def take(self, indices: Sequence[int]) -> Rows:
        """Some of the rows, in the order given."""
        return Rows(
            where=self.where,
            texts=[self.texts[index] for index in indices],
            pairs=None if self.pairs is None else [self.pairs[index] for index in indices],
            labels=None if self.labels is None else [self.labels[index] for index in indices],
            notes=self.notes,
        )


def labeled_rows(table: Table, roles: Roles) -> Rows:
    """Rows of train or validation: every one has a text and a label."""
    _require_columns(table, roles)
    required(table, roles.label, "label_column_name")
    return _checked(table, roles, label_names(table, roles.label))


def maybe_labeled_rows(table: Table, roles: Roles) -> Rows:
    """Rows of test, which may have no labels at all: no column, nothing in it, or -1 in every row."""
    _require_columns(table, roles)
    if roles.label not in table.columns:
        other = find_label(table, None)
        if other is not None and other not in (roles.text, roles.pair):
            raise HftuneError(
                f"the label column is {quote(roles.label)} in train and seems to be {quote(other)} in "
                f"{quote(table.where)}",
                hint="give the column one name in all splits",
            )
        return _checked(table, roles, None)
    names = label_names(table, roles.label)
    return _checked(table, roles, None if all(name in (None, UNLABELED) for name in names) else names)


def _require_columns(table: Table, roles: Roles) -> None:
    required(table, roles.text, "text_column_name")
    if roles.pair is not None:
        required(table, roles.pair, "text_pair_column_name")


def _checked(table: Table, roles: Roles, names: list[str | None] | None) -> Rows:
    """Leave out blank rows and those their source marks as unlabeled; refuse any other row with a hole.

    Users can correct their own files. In a dataset of the Hub a row with a hole is left out with a note, but a pair
    with one empty text is kept: published pairs have some, and a benchmark needs a prediction for each.
    """
    texts = _texts(table, roles.text)
    pairs = None if roles.pair is None else _texts(table, roles.pair)
    columns: list[Sequence[str | None]] = [part for part in (texts, pairs, names) if part is not None]
    blank = {row for row, parts in enumerate(zip(*columns, strict=True)) if not any(parts)}
    notes = []
    if blank:
        notes.append(f"{table.where}: {count(len(blank), 'row')} with nothing in them left out")
    marked: set[int] = set()
    if names is not None and (roles.label in table.classes or table.from_hub):
        marked = {row for row, name in enumerate(names) if name is None} - blank
        if marked:
            notes.append(f"{table.where}: {count(len(marked), 'row')} that the source marks as unlabeled left out")
    dropped = blank | marked
    if table.from_hub and pairs is None:
        empty = {row for row, text in enumerate(texts) if not text} - dropped
        if empty:
            notes.append(f"{table.where}: {count(len(empty), 'row')} with no text in {quote(roles.text)} left out")
        dropped |= empty
    elif table.from_hub and pairs is not None:
        half = sum(
            not (text and pair) for row, (text, pair) in enumerate(zip(texts, pairs, strict=True)) if row not in dropped
        )
        if half:
            notes.append(f"{table.where}: {count(half, 'pair')} with one empty text kept")
    keep = [row for row in range(len(table)) if row not in dropped] if dropped else list(range(len(table)))
    if not keep:
        raise HftuneError(
            f"no rows of {quote(table.where)} are left: {'; '.join(notes)}",
            hint="give rows that hold something",
        )
    if not table.from_hub:
        _refuse_empty(table, texts, roles.text, keep)
        if pairs is not None:
            _refuse_empty(table, pairs, roles.pair, keep)
    if names is not None:
        _refuse_unlabeled(table, names, roles.label, keep)
    return Rows(
        where=table.where,
        texts=[texts[row] for row in keep],
        pairs=None if pairs is None else [pairs[row] for row in keep],
        labels=None if names is None else [name for row in keep if (name := names[row]) is not None],
        notes=tuple(notes),
    )


def _texts(table: Table, column: str) -> list[str]:
    """The strings of a column; a missing or blank one becomes the empty string."""
    values: list[Any] = table.columns[column]
    for row, value in enumerate(values):
        if value is not None and type(value) is not str:
            raise HftuneError(
                f"{quote(table.where)}, {table.place(row)}: expected a text in column {quote(column)}, got "
                f"{type(value).__name__} {quote(value)}",
                hint="texts are strings; name the right column with data.text_column_name or "
                "data.text_pair_column_name",
            )
    texts = ["" if value is None or value.isspace() else value for value in values]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        row = next(row for row, text in enumerate(texts) if not _is_unicode(text))
        raise HftuneError(
            f"{quote(table.where)}, {table.place(row)}: the text holds half a surrogate pair",
            hint="write the file again with whole characters (\\ud83d\\ude00, not \\ud83d alone)",
        ) from error
    return texts


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_empty(table: Table, texts: list[str], column: str | None, keep: list[int]) -> None:
    empty = [row for row in keep if not texts[row]]
    if empty:
        raise HftuneError(
            f"{quote(table.where)} has {count(len(empty), 'row')} with no text in column {quote(column)} "
            f"({table.places(empty)})",
            hint="remove those rows, or name the right column with data.text_column_name or data.text_pair_column_name",
        )


def _refuse_unlabeled(table: Table, names: list[str | None], column: str, keep: list[int]) -> None:
    missing = [row for row in keep if names[row] is None]
    if missing:
        raise HftuneError(
            f"{quote(table.where)} has {count(len(missing), 'row')} with no label in column {quote(column)} "
            f"({table.places(missing)})",
            hint="label or remove those rows; only a whole test split may be without labels",
        )
