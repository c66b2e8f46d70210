"""One source of text → documents in pieces that fit into memory, however large it is. Called by ``stream``.

A text file is decoded as it is read; jsonl goes line by line, parquet and the Hub a few rows at a time.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hftune.config.data import CorpusData
from hftune.data.compressed import ending_of, open_binary
from hftune.data.decode import BOM, MAGIC, UTF16, decode, read_bytes
from hftune.data.documents import ENDINGS, PLAIN, cell_text, text_column
from hftune.data.sources import FORMATS, read_file
from hftune.data.table import Table
from hftune.data.wording import quote
from hftune.errors import HftuneError

PIECE = 1 << 20
"""Most characters of a piece."""
READ = 1 << 20
"""Bytes that are read at once."""
ROWS = 256
"""Rows of a table that are held at once."""


class Piece(NamedTuple):
    """A part of a document; a document that is not too long is one piece."""

    text: str
    ends: bool
    """Whether the document ends here."""


def file_pieces(path: Path, section: CorpusData, documents: str) -> Iterator[Piece]:
    """The documents of a file, one after the other.

    Args:
        path: The file; its ending says whether it is text or a table.
        section: Names the text column of a table.
        documents: What one document of a text is: a key of ``CUTS``.

    Raises:
        HftuneError: The file is no text, or has no column of texts.
    """
    ending = ending_of(path)
    if ending in PLAIN:
        if section.text_column_name is not None:
            raise HftuneError(
                f"data.text_column_name is {quote(section.text_column_name)}, but {quote(path.name)} is plain text",
                hint="leave data.text_column_name out, or give a csv, jsonl or parquet file",
            )
        return CUTS[documents](path)
    if ending not in FORMATS:
        raise HftuneError(
            f"{quote(path.name)} has an ending that is not known: {quote(path.suffix)}",
            hint=f"a corpus ends in {ENDINGS}; text formats can be compressed (.txt.gz, .jsonl.gz …)",
        )
    rows = STREAMED.get(ending, _whole_table)(path, section)
    return (piece for text in rows for piece in _pieces_of(text))


def hub_pieces(where: str, rows: Any, section: CorpusData) -> Iterator[Piece]:
    """The documents of a split of the Hub, which lies on disk."""
    column = text_column(Table(where, {name: [] for name in rows.column_names}), section.text_column_name)
    number = 0
    for batch in rows.select_columns([column]).iter(batch_size=ROWS):
        for value in batch[column]:
            number += 1
            if (text := cell_text(value, where, f"row {number}", column)) is not None:
                yield from _pieces_of(text)


def _decoded(path: Path) -> Iterator[str]:
    """The text of a UTF-8 file as it is read; a byte order mark at its start is left out."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    if not path.is_file():
        read_bytes(path)  # says what it is instead
    offset = lines = 0
    content = b""
    try:
        with open_binary(path) as file:
            while content := file.read(READ):
                if b"\0" in content or (not offset and content.startswith((*UTF16, *MAGIC))):
                    raise UnicodeDecodeError("utf-8", content[:1], 0, 1, "not a text")
                yield decoder.decode(content if offset else content.removeprefix(BOM))
                offset += len(content)
                lines += content.count(b"\n")
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        # Says where, and what to do; bytes of a character that the last cut went through were read before.
        begun = decoder.getstate()[0]
        decode(begun + content, path, offset=offset - len(begun), lines=lines)
        raise
    except OSError as error:
        name = quote(path.name)
        raise HftuneError(f"{name} can't be read: {error.strerror}", hint="check the file's permissions") from error


def _lines(path: Path) -> Iterator[tuple[str, bool]]:
    """Lines without their line feed; a line that is too long comes in parts, of which only the last one ends it."""
    rest = ""
    for chunk in _decoded(path):
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            yield line.removesuffix("\r"), True
        while len(rest) > PIECE:
            cut = _cut(rest)
            yield rest[:cut], False
            rest = rest[cut:]
    if rest:
        yield rest.removesuffix("\r"), True


def _each_line(path: Path) -> Iterator[Piece]:
    begun = False
    for text, ends in _lines(path):
        if begun or text.strip():
            yield Piece(text, ends)
            begun = not ends


def _paragraphs(path: Path) -> Iterator[Piece]:
    """What stands between blank lines."""
    held: list[str] = []
    size, begun, at_start = 0, False, True
    for text, ends in _lines(path):
        if at_start and ends and not text.strip():
            if begun:
                yield Piece("".join(held), True)
            held, size, begun = [], 0, False
        else:
            held.append(f"\n{text}" if begun and at_start else text)
            size += len(held[-1])
            begun = True
            if size > PIECE:
                yield Piece("".join(held), False)
                held, size = [], 0
        at_start = ends
    if begun:
        yield Piece("".join(held), True)


def _whole(path: Path) -> Iterator[Piece]:
    """The text as it stands, every character of it."""
    rest, begun = "", False
    for chunk in _decoded(path):
        rest += chunk
        while len(rest) > PIECE:
            cut = _cut(rest)
            yield Piece(rest[:cut], False)
            rest, begun = rest[cut:], True
    if begun or rest.strip():
        yield Piece(rest, True)


def _cut(text: str) -> int:
    """Where a text that is too long is best cut: after a line, else before a blank, else where it must be."""
    return text.rfind("\n", 0, PIECE) + 1 or max(text.rfind(" ", 1, PIECE), 0) or PIECE


def _pieces_of(text: str) -> Iterator[Piece]:
    while len(text) > PIECE:
        cut = _cut(text)
        yield Piece(text[:cut], False)
        text = text[cut:]
    yield Piece(text, True)


def _json_lines(path: Path, section: CorpusData) -> Iterator[str]:
    parts: list[str] = []
    column: str | None = None
    number = 0
    for part, ends in _lines(path):
        parts.append(part)
        if not ends:
            continue
        line, parts, number = "".join(parts), [], number + 1
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad_row(path, number, f"not valid JSON: {error}") from error
        if not isinstance(row, dict):
            raise _bad_row(path, number, f"expected an object, got {quote(row)}")
        column = column or text_column(Table(path.name, {name: [] for name in row}), section.text_column_name)
        text = cell_text(row.get(column), path.name, f"line {number}", column)
        if text is not None:
            yield text


def _bad_row(path: Path, line: int, what: str) -> HftuneError:
    return HftuneError(
        f"{quote(path.name)}, line {line}: {what}", hint='jsonl holds an object a line, such as {"text": "…"}'
    )


def _parquet(path: Path, section: CorpusData) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        file = pq.ParquetFile(path)
        column = text_column(Table(path.name, {name: [] for name in file.schema_arrow.names}), section.text_column_name)
        for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                text = cell_text(value, path.name, f"row {number}", column)
                if text is not None:
                    yield text
    except (pa.ArrowException, OSError) as error:
        raise HftuneError(
            f"{quote(path.name)} is not a parquet file that can be read: {str(error).splitlines()[0][:200]}",
            hint="write it again, for example with pandas.DataFrame.to_parquet",
        ) from error


def _whole_table(path: Path, section: CorpusData) -> Iterator[str]:
    """Formats that can only be read as a whole."""
    table = read_file(path, [section.text_column_name] if section.text_column_name else [])
    column = text_column(table, section.text_column_name)
    for number, value in enumerate(table.columns[column], start=1):
        text = cell_text(value, path.name, f"row {number}", column)
        if text is not None:
            yield text


CUTS: dict[str, Callable[[Path], Iterator[Piece]]] = {"lines": _each_line, "paragraphs": _paragraphs, "file": _whole}
"""How a text file becomes documents."""
STREAMED: dict[str, Callable[[Path, CorpusData], Iterator[str]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
"""How a table is read row by row."""
