"""One file → documents: plain text by lines, paragraphs or whole; tables by their text column. Called by ``corpus``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hftune.config.data import CorpusData
from hftune.data.columns import TEXTS, required
from hftune.data.compressed import ending_of
from hftune.data.decode import decode, read_bytes
from hftune.data.delimited import numbered_lines
from hftune.data.sources import FORMATS, read_file
from hftune.data.table import Table
from hftune.data.wording import count, listing, quote
from hftune.errors import HftuneError

PLAIN = (".txt", ".text", ".md", "")
"""Endings of files that are read as text."""
TABLES = (".jsonl", ".ndjson", ".json", ".parquet")
"""Endings under which a folder may hold its documents as rows; csv and tsv beside a text are mostly something else."""
ENDINGS = ", ".join(ending for ending in (*PLAIN, *FORMATS) if ending)
"""How the name of a file that is named itself may end."""


@dataclass(frozen=True)
class Documents:
    """The documents of one source, in its order, none of them blank."""

    where: str
    """What the messages call it: a file's name, or a Hub id with its split."""
    texts: tuple[str, ...]
    places: tuple[str, ...]
    """Where each stands: ``line 7``, ``row 7``."""

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.texts)

    def without_short(self, shortest: int, *, drop: bool) -> tuple[Documents, str | None]:
        """The documents that have enough characters, and what to say where others were left out.

        Raises:
            HftuneError: Some are too short and are not to be left out, or none is long enough.
        """
        short = [index for index, text in enumerate(self.texts) if len(text) < shortest]
        if not short:
            return self, None
        first = f"the first at {self.places[short[0]]}: {quote(self.texts[short[0]])}"
        what = f"{count(len(short), 'document')} of {quote(self.where)} with fewer than {shortest} characters, {first}"
        if not drop or len(short) == len(self.texts):
            raise HftuneError(
                f"found {what}",
                hint="mend the file, see what one document is with --set data.documents=lines|paragraphs|file, "
                "or leave such documents out with --set task.short_documents=drop",
            )
        kept = [index for index in range(len(self.texts)) if len(self.texts[index]) >= shortest]
        return Documents(
            self.where, tuple(self.texts[index] for index in kept), tuple(self.places[index] for index in kept)
        ), f"left out {what}"


def read_documents(path: Path, section: CorpusData, documents: str) -> Documents:
    """The documents of a file.

    Args:
        path: The file; its ending says whether it is text or a table.
        section: Names the text column of a table.
        documents: What one document of a text is: a key of ``CUTS``.
    """
    ending = ending_of(path)
    if ending in PLAIN:
        if section.text_column_name is not None:
            raise HftuneError(
                f"data.text_column_name is {quote(section.text_column_name)}, but {quote(path.name)} is plain text",
                hint="leave data.text_column_name out, or give a csv, jsonl or parquet file",
            )
        found = list(CUTS[documents](decode(read_bytes(path), path)))
        return Documents(path.name, tuple(text for _, text in found), tuple(f"line {line}" for line, _ in found))
    if ending not in FORMATS:
        raise HftuneError(
            f"{quote(path.name)} has an ending that is not known: {quote(path.suffix)}",
            hint=f"a corpus ends in {ENDINGS}; text formats can be compressed (.txt.gz, .jsonl.gz …)",
        )
    return from_table(read_file(path, [section.text_column_name] if section.text_column_name else []), section)


def from_table(table: Table, section: CorpusData) -> Documents:
    """The text column of a table; rows without text are left out, as blank lines are."""
    column = text_column(table, section.text_column_name)
    found = [cell_text(value, table.where, table.place(row), column) for row, value in enumerate(table.columns[column])]
    kept = [row for row, text in enumerate(found) if text is not None]
    return Documents(
        table.where, tuple(text for text in found if text is not None), tuple(table.place(row) for row in kept)
    )


def cell_text(value: object, where: str, place: str, column: str) -> str | None:
    """The text of one cell of a table; None where there is none, as for a blank line.

    Args:
        value: What stands there.
        where: The table, for the messages.
        place: ``line 7`` or ``row 7``.
        column: The column's name.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise HftuneError(
            f"{quote(where)}, {place}: expected text in the column {quote(column)}, got {quote(value)}",
            hint="name the column of the text with --set data.text_column_name=NAME",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise HftuneError(
            f"{quote(where)}, {place}: the text holds half a surrogate pair",
            hint="write the file again with whole characters (\\ud83d\\ude00, not \\ud83d alone)",
        ) from error
    return value if value.strip() else None


def text_column(table: Table, named: str | None) -> str:
    """The column that holds the text: the one that is named, one with a name that people use, or the only one."""
    if named is not None:
        return required(table, named, "text_column_name")
    by_lower = {name.lower(): name for name in table.columns}
    found = next((by_lower[name] for name in TEXTS if name in by_lower), None)
    if found is None and len(table.columns) == 1:
        found = next(iter(table.columns))
    if found is None:
        raise HftuneError(
            f"{quote(table.where)} has no column that looks like text; its columns are {listing(table.columns)}",
            hint="name it with --set data.text_column_name=NAME",
        )
    return found


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """What stands between blank lines, with the number of its first line."""
    first, held = 0, list[str]()
    for number, line in numbered_lines(text):
        if held and number != first + len(held):
            yield first, "\n".join(held)
            held = []
        first = first if held else number
        held.append(line)
    if held:
        yield first, "\n".join(held)


def _whole(text: str) -> Iterator[tuple[int, str]]:
    if text.strip():
        yield 1, text.strip("\r\n")


CUTS: dict[str, Callable[[str], Iterator[tuple[int, str]]]] = {
    "lines": numbered_lines,
    "paragraphs": _paragraphs,
    "file": _whole,
}
"""How a text becomes documents, each with the number of its first line."""
