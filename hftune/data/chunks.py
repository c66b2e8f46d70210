"""One source of text → documents, streamed in chunks that fit into memory, however large the source is.

A text file is decoded as it is read; jsonl is read by lines, parquet and Hub datasets a few rows at a time. Other
tables have to fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hftune.data.columns import text_column
from hftune.data.readers import FORMATS, check_object, open_parquet, parse_json, read_table, refuse_unused
from hftune.data.settings import CorpusData
from hftune.data.tables import Reading, Table, check_characters
from hftune.data.text_files import ending_of, text_parts
from hftune.errors import HftuneError, quote

PLAIN = (".txt", ".text", ".md", "")
"""Endings of files that are read as plain text."""
TABLES = (".jsonl", ".ndjson", ".json", ".parquet")
"""Suffixes of files whose rows are documents in a folder; csv and tsv files next to a text usually have other data."""
CHUNK_SIZE = 1 << 20
"""Maximum number of characters of a chunk."""
ROWS = 256
"""Rows of a table that are in memory at once."""


class Chunk(NamedTuple):
    """A part of a document; a document that is not too long is one chunk."""

    text: str
    ends: bool
    """Whether the document ends here."""
    place: str = ""
    """Where it begins in its file, for messages: ``line 7`` or ``row 7``."""


def file_chunks(path: Path, section: CorpusData, documents: str) -> Iterator[Chunk]:
    """The documents of a file without blank ones; those of a text file are its lines, paragraphs or the whole file."""
    ending = ending_of(path)
    reading = Reading([section.text_column_name], section.delimiter, section.sheet_name)
    refuse_unused(path, reading)
    if ending in PLAIN:
        if section.text_column_name is not None:
            raise HftuneError(
                f"data.text_column_name is {quote(section.text_column_name)}, but {quote(path.name)} is plain text",
                hint="leave data.text_column_name out, or give a csv, jsonl or parquet file",
            )
        return DOCUMENTS[documents](path)
    if ending not in FORMATS:
        endings = ", ".join(ending for ending in (*PLAIN, *FORMATS) if ending)
        raise HftuneError(
            f"{quote(path.name)} has an unknown ending: {quote(path.suffix)}",
            hint=f"a corpus ends in {endings}; text formats can be compressed (.txt.gz, .jsonl.gz …)",
        )
    if ending in STREAMED:
        return _cell_chunks(STREAMED[ending](path, section), path.name)
    return table_chunks(read_table(path, reading), section)


def hub_chunks(where: str, rows: Any, section: CorpusData) -> Iterator[Chunk]:
    """The documents of a split of a Hub dataset that is downloaded already."""
    column = text_column(rows.column_names, where, section.text_column_name)
    values = (value for batch in rows.select_columns([column]).iter(batch_size=ROWS) for value in batch[column])
    return _cell_chunks(((f"row {number}", column, value) for number, value in enumerate(values, start=1)), where)


def table_chunks(table: Table, section: CorpusData) -> Iterator[Chunk]:
    """The documents of a table in memory."""
    column = text_column(table.columns, table.where, section.text_column_name)
    cells = ((table.place(row), column, value) for row, value in enumerate(table.columns[column]))
    return _cell_chunks(cells, table.where)


# ---- tables ----

Cells = Iterator[tuple[str, str, object]]
"""For each row its place, the name of the text column, and the value."""


def _cell_chunks(cells: Cells, where: str) -> Iterator[Chunk]:
    for place, column, value in cells:
        if value is None:
            continue
        if not isinstance(value, str):
            raise HftuneError(
                f"{quote(where)}, {place}: expected text in the column {quote(column)}, got {quote(value)}",
                hint="name the column of the text with --set data.text_column_name=NAME",
            )
        check_characters(value, f"{quote(where)}, {place}")
        if value.strip():
            parts, rest = _cut(value)
            yield from (Chunk(part, False, place) for part in parts)
            yield Chunk(rest, True, place)


def _json_lines(path: Path, section: CorpusData) -> Cells:
    parts: list[str] = []
    column: str | None = None
    for part, ends, number in _lines(path):
        parts.append(part)
        if not ends:
            continue
        line, parts = "".join(parts), []
        if not line.strip():
            continue
        row = check_object(parse_json(line, path, number), f"{quote(path.name)}, line {number}")
        column = column or text_column(row, path.name, section.text_column_name)
        yield f"line {number}", column, row.get(column)


def _parquet(path: Path, section: CorpusData) -> Cells:
    number = 0
    with open_parquet(path) as file:
        column = text_column(file.schema_arrow.names, path.name, section.text_column_name)
        for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield f"row {number}", column, value


STREAMED = {".jsonl": _json_lines, ".ndjson": _json_lines, ".parquet": _parquet}
"""Tables that are read row by row."""


# ---- plain text ----


def _lines(path: Path) -> Iterator[tuple[str, bool, int]]:
    """Parts of lines without the line feed, whether the line ends with this part, and the line number."""
    rest, number = "", 1
    for part in text_parts(path):
        *lines, rest = (rest + part).split("\n")
        for line in lines:
            yield line.removesuffix("\r"), True, number
            number += 1
        long, rest = _cut(rest)
        yield from ((line, False, number) for line in long)
    if rest:  # the last line has no line feed
        yield rest.removesuffix("\r"), True, number


def _each_line(path: Path) -> Iterator[Chunk]:
    begun = False
    for text, ends, number in _lines(path):
        if begun or text.strip():
            yield Chunk(text, ends, f"line {number}")
            begun = not ends


def _paragraphs(path: Path) -> Iterator[Chunk]:
    """The text between blank lines."""
    held: list[str] = []
    # A long line arrives in parts. Only a part at the start of a line that also ends it can be a blank line, and only
    # before such a part the line feed that _lines removed is put back.
    size, begun, at_start, place = 0, False, True, ""
    for text, ends, number in _lines(path):
        if at_start and ends and not text.strip():
            if begun:
                yield Chunk("".join(held), True, place)
            held, size, begun = [], 0, False
        else:
            place = place if begun else f"line {number}"
            held.append(f"\n{text}" if begun and at_start else text)
            size += len(held[-1])
            begun = True
            if size > CHUNK_SIZE:
                yield Chunk("".join(held), False, place)
                held, size = [], 0
        at_start = ends
    if begun:
        yield Chunk("".join(held), True, place)


def _whole_file(path: Path) -> Iterator[Chunk]:
    """The whole text, including blank lines."""
    rest, begun = "", False
    for part in text_parts(path):
        parts, rest = _cut(rest + part)
        yield from (Chunk(text, False, "line 1") for text in parts)
        begun = begun or bool(parts)
    if begun or rest.strip():
        yield Chunk(rest, True, "line 1")


def _cut(text: str) -> tuple[list[str], str]:
    """The parts of a text that is longer than a chunk, and the rest.

    A part ends after a line, else before a space, else at the limit: each chunk is tokenized alone, and a word that is
    split in two would get different tokens.
    """
    parts = []
    while len(text) > CHUNK_SIZE:
        end = text.rfind("\n", 0, CHUNK_SIZE) + 1 or max(text.rfind(" ", 1, CHUNK_SIZE), 0) or CHUNK_SIZE
        parts.append(text[:end])
        text = text[end:]
    return parts, text


DOCUMENTS: dict[str, Callable[[Path], Iterator[Chunk]]] = {
    "lines": _each_line,
    "paragraphs": _paragraphs,
    "file": _whole_file,
}
"""How a text file becomes documents."""
