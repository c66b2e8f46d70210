"""Columns of rows, their usual names, and the problems of files, which are reported together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hftune.errors import HftuneError, count, listing, quote

PAIRS = (
    ("text", "text_pair"),
    ("question", "passage"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "context"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("query", "document"),
    ("query", "passage"),
    ("claim", "evidence"),
)
"""Names that the two columns of a pair of texts usually have."""
TEXTS = (
    ("text",),
    ("sentence",),
    ("review", "review_text", "review_body", "content", "comment", "comment_text", "body", "tweet", "message",
     "utterance", "document"),
    ("headline",), ("question",), ("query",), ("title",),
)  # fmt: skip
"""Usual names of a text column, the most likely first. Two columns with names of one group are ambiguous."""
LABELS = (
    ("label",),
    ("labels",),
    ("gold_label",),
    ("stars", "star", "star_rating", "rating", "answer", "sentiment", "class", "category", "target", "intent",
     "emotion", "topic", "gold"),
)  # fmt: skip
"""Usual names of a label column, in groups too."""

MOST_PLACES = 5
"""Rows that a message lists of one kind of problem."""
WHOLE_NUMBER = re.compile(r"-?\d{1,18}")


def plain_name(name: str) -> str:
    """A column's name without case, blanks and punctuation: "Review Text" and "review_text" are the same."""
    return re.sub(r"[\W_]+", "", name).casefold()


COLUMN_NAMES = {plain_name(name) for group in (*TEXTS, *LABELS, *PAIRS) for name in group}


class Problems:
    """The errors of a dataset's files, which are reported together."""

    def __init__(self) -> None:
        self.found: list[HftuneError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep an error for later; the rest of the block is skipped."""
        try:
            yield
        except HftuneError as error:
            self.found.append(error)

    def refuse(self) -> None:
        """Raise what was collected, if anything."""
        if len(self.found) == 1:
            raise self.found[0]
        by_hint: dict[str, list[str]] = {}
        for error in self.found:
            by_hint.setdefault(error.hint, []).append(error.message)
        lines = [f"the data has {count(len(self.found), 'problem')}:"]
        for hint, messages in by_hint.items():
            lines += [f"  {message}" for message in messages]
            lines += [f"    → {hint}"] if len(by_hint) > 1 else []
        if by_hint:
            hint = (
                next(iter(by_hint))
                if len(by_hint) == 1
                else "fix the files; each problem is listed with its first rows"
            )
            raise HftuneError("\n".join(lines), hint=hint)


@dataclass(frozen=True)
class Reading:
    """How files are read."""

    named: Collection[str | None] = ()
    """Columns that the recipe names; they show that the first line of a csv file is a header."""
    delimiter: str | None = None
    """Of csv and tsv files; recognized by default."""
    sheet_name: str | None = None
    """Of Excel files; by default the only one with rows."""


NO_SETTINGS = Reading()


@dataclass(frozen=True)
class Table:
    """Columns of equal length, with the values of their source."""

    where: str
    """A file's name, or a Hub id with its split, for messages."""
    columns: dict[str, list[Any]]
    lines: Sequence[int] | None = None
    """The line in the file of each row; None if the source has no lines."""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Label names of the columns that hold class numbers (a ClassLabel feature)."""
    unit: str = "line"
    """What ``lines`` counts: lines of a text file, or rows of a spreadsheet."""
    from_hub: bool = False
    """Whether it is a published dataset, whose examples the user can't correct."""

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """The place of a row, for messages."""
        return f"{self.unit} {self.lines[row]}" if self.lines is not None else f"row {row + 1}"

    def at(self, row: int) -> str:
        """The source and the place of a row, for messages."""
        return f"{quote(self.where)}, {self.place(row)}"

    def places(self, rows: Sequence[int]) -> str:
        """The places of the first of some rows."""
        return shown_places([self.place(row) for row in rows])

    def take(self, rows: Sequence[int]) -> Table:
        """Some of the rows, in the order given."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return Table(self.where, columns, classes=self.classes, from_hub=self.from_hub)


def shown_places(places: Sequence[str]) -> str:
    """The first of some places in a file."""
    return ", ".join(places[:MOST_PLACES]) + (" …" if len(places) > MOST_PLACES else "")


def and_more(places: Sequence[str]) -> str:
    """The places of further rows with the problem of the first, for the end of its message."""
    return f"; the same in {count(len(places) - 1, 'more row')}: {shown_places(places[1:])}" if len(places) > 1 else ""


def joined(tables: Sequence[Table]) -> Table:
    """The shards of one split as one table; they have the same columns."""
    first = tables[0]
    if len(tables) == 1:
        return first
    names = dict.fromkeys(name for table in tables for name in table.columns)
    columns = {
        name: [value for table in tables for value in table.columns.get(name, [None] * len(table))] for name in names
    }
    return Table(where=f"{first.where} … {tables[-1].where}", columns=columns, classes=first.classes)


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Refuse two columns with the same name."""
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise HftuneError(
            f"{quote(where)} has two columns of one name: {listing(repeated)}", hint="rename or remove one of them"
        )


def check_characters(text: str, at: str, what: str = "the text") -> None:
    """Refuse half a surrogate pair: JSON can hold one as an escape, UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise HftuneError(
            f"{at}: {what} holds half a surrogate pair",
            hint="write the file again with whole characters (\\ud83d\\ude00, not \\ud83d alone)",
        ) from error
