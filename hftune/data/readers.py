"""One file → ``Table``, by the ending of its name: csv, tsv, xlsx, json, jsonl, parquet, fastText.

csv is read with Python's csv module. The loader of the datasets library turns the texts "NA" and "null" into None;
``pyarrow.csv`` joins all rows after an unclosed quote into one text without an error, and ends rows at a bare return.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from hftune.data.tables import (
    COLUMN_NAMES,
    NO_SETTINGS,
    WHOLE_NUMBER,
    Problems,
    Reading,
    Table,
    and_more,
    plain_name,
    refuse_repeated,
)
from hftune.data.text_files import ending_of, numbered_lines, read_text
from hftune.errors import HftuneError, did_you_mean, quote

LABEL_PREFIX = "__label__"
"""What fastText writes before each label (https://fasttext.cc/docs/en/supervised-tutorial.html)."""
JSON_LISTS = ("data", "rows", "examples")
"""Keys under which a json file may hold its list of rows."""
LABEL_TEXT = ["label", "text"]
COLA = ["source", "label", "mark", "sentence"]
"""Columns of the files that have no header."""
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
"""Delimiters of csv files that are recognized, the usual one first."""
SEP_LINE = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
"""A first line with which spreadsheets state the delimiter."""
SAMPLE = 1 << 16
"""Characters from which the delimiter is recognized."""
NAME = re.compile(r"[\w -]+")
QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_table(path: Path, reading: Reading = NO_SETTINGS, problems: Problems | None = None) -> Table:
    """Read a file of rows.

    Args:
        path: The file; its ending shows the format.
        reading: Settings of some formats.
        problems: Where problems of single rows are collected, if the caller looks for more; those rows are left out.
    """
    ending = ending_of(path)
    if ending not in FORMATS:
        raise HftuneError(
            f"{quote(path.name)} has an unknown ending: {quote(ending)}",
            hint=did_you_mean(
                ending,
                FORMATS,
                f"formats are {', '.join(FORMATS)}; text formats can be compressed (.csv.gz, .jsonl.gz …)",
            ),
        )
    refuse_unused(path, reading)
    own = Problems()
    table = FORMATS[ending](path, reading, own)
    if not len(table) and not own.found:
        raise HftuneError(f"{quote(path.name)} has a header and no rows", hint="give a file with rows")
    if problems is None:
        own.refuse()
    else:
        problems.found += own.found
    return table


def refuse_unused(path: Path, reading: Reading) -> None:
    """Refuse settings that a file of this format has no use for."""
    for setting, endings in (("delimiter", (".csv", ".tsv")), ("sheet_name", (".xlsx",))):
        value = getattr(reading, setting)
        if value is not None and ending_of(path) not in endings:
            raise HftuneError(
                f"data.{setting} is {quote(value)}, but {quote(path.name)} is no {' or '.join(endings)} file",
                hint=f"leave data.{setting} out",
            )


# ---- csv, tsv and xlsx ----


def _csv(path: Path, reading: Reading, problems: Problems) -> Table:
    text = read_text(path)
    stated = SEP_LINE.match(text)
    if stated:
        text = "\n" + text[stated.end() :]  # a blank line is skipped, and the others keep their numbers
    delimiter = reading.delimiter or (stated[1] if stated else _sniffed(text, reading))
    return _separated(path, text, delimiter, reading, problems)


def _tsv(path: Path, reading: Reading, problems: Problems) -> Table:
    return _separated(path, read_text(path), reading.delimiter or "\t", reading, problems)


def _separated(path: Path, text: str, delimiter: str, reading: Reading, problems: Problems) -> Table:
    records = _records(text, delimiter, path)
    if delimiter == "\t" and not _tsv_is_quoted(text):
        records = ((number, line.split("\t")) for number, line in numbered_lines(text))
    name = DELIMITERS.get(delimiter, quote(delimiter))
    hint = (
        f"fix that line; a text that holds a {name} must be enclosed in quotes, and --delimiter sets another delimiter"
    )
    return _delimited(path, records, reading, problems, hint)


def _xlsx(path: Path, reading: Reading, problems: Problems) -> Table:
    from hftune.data.excel import sheet_records

    records = sheet_records(path, reading.sheet_name)
    hint = "fill that row, or remove cells to the right of the last header"
    return _delimited(path, records, reading, problems, hint, unit="row")


def _sniffed(text: str, reading: Reading) -> str:
    """The delimiter with the most known column names in the first record; on a tie, one with equal row lengths."""

    def fit(delimiter: str) -> tuple[int, bool]:
        reader = csv.reader(io.StringIO(text[:SAMPLE], newline=""), delimiter=delimiter)
        rows = [row for row in reader if row]
        if not rows or len(rows[0]) < 2:
            return 0, False
        widths = {len(row) for row in rows[:-1] or rows}  # the sample may end inside a record
        known = _known_names(rows[0], reading) or (_columns_without_header(rows[0]) is not None)
        return known, len(widths) == 1

    return max(DELIMITERS, key=fit)  # the first of equal ones


def _known_names(cells: Sequence[str], reading: Reading) -> int:
    """The number of cells that are usual names of columns, or named in the recipe."""
    named = {plain_name(name) for name in reading.named if name is not None}
    return sum(plain_name(cell) in named or plain_name(cell) in COLUMN_NAMES for cell in cells)


def _delimited(
    path: Path,
    records: Iterator[tuple[int, list[str]]],
    reading: Reading,
    problems: Problems,
    hint: str,
    *,
    unit: str = "line",
) -> Table:
    """Records of a file → table; those with another number of cells than the first are problems."""
    first = next(records, None)
    if first is None:
        raise HftuneError(f"{quote(path.name)} has no rows", hint="give a file with rows")
    names = [cell for cell in first[1] if NAME.fullmatch(cell)]  # "Comment!" is a text, not the column comment
    fixed = None if _known_names(names, reading) else _columns_without_header(first[1])
    if fixed is not None:
        records = chain([first], records)
    header = fixed or [cell.strip() for cell in first[1]]
    refuse_repeated(header, path.name)
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    odd: list[tuple[str, int]] = []
    with problems.collected():  # a record that can't be parsed ends the file
        # Cells are appended to their columns at once: a hundred thousand lists would trigger garbage collection.
        for line, record in records:
            if len(record) != len(header):
                odd.append((f"{unit} {line}", len(record)))
                continue
            for cells, cell in zip(columns.values(), record, strict=True):
                cells.append(cell)
            lines.append(line)
    with problems.collected():
        if odd:
            raise HftuneError(
                f"{quote(path.name)}, {odd[0][0]}: expected {len(header)} columns as in the first {unit}, got "
                f"{odd[0][1]}{and_more([place for place, _ in odd])}",
                hint=hint,
            )
    if fixed == LABEL_TEXT:
        # The headerless format writes a line break as the two characters \\ and n.
        columns["text"] = [value.replace("\\n", "\n") for value in columns["text"]]
    return Table(where=path.name, columns=columns, lines=lines, unit=unit)


def _records(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of quoted text with the line each begins on; blank lines are left out."""
    # The default refuses a text over 128 KiB. The limit is one for the whole process, so it is restored.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        begins = 1
        for record in reader:
            if record and (len(record) > 1 or record[0].strip()):
                yield begins, record
            begins = reader.line_num + 1
    except csv.Error as error:
        raise HftuneError(
            f"{quote(path.name)}, the record that begins on line {begins}: {error}",
            hint='enclose a text with commas, quotes or line breaks in quotes, with "" for a quote inside it',
        ) from error
    finally:
        csv.field_size_limit(limit)


def _tsv_is_quoted(text: str) -> bool:
    """Whether quotes in a tsv enclose cells, or are ordinary characters as in many published tsv files.

    If every line has the same number of tabs, and some cell opens with a quote that does not close the cell, the quotes
    are characters: reading them as enclosing would swallow rows.
    """
    # GLUE's files hold stray quotes as characters; csv.writer and spreadsheets enclose cells in them.
    if '"' not in text:
        return False
    rows = [line.split("\t") for _, line in numbered_lines(text)]
    if len({len(row) for row in rows}) > 1:
        return True
    return all(QUOTED.fullmatch(cell) for row in rows for cell in row if cell.startswith('"'))


def _columns_without_header(first: list[str]) -> list[str] | None:
    """The columns if the first line is an example: ``<integer>,<text>``, or as in CoLA's files of GLUE."""
    if len(first) == 2 and WHOLE_NUMBER.fullmatch(first[0].strip()):
        return LABEL_TEXT
    if len(first) == len(COLA) and first[1] in ("0", "1") and first[2] in ("", "*"):
        return COLA
    return None


# ---- fastText and json ----


def _fasttext(path: Path, _: Reading, problems: Problems) -> Table:
    """``__label__N``, a tab or a space, the text."""
    rows: list[tuple[int, str, str]] = []
    odd: list[tuple[str, str]] = []
    for number, line in numbered_lines(read_text(path)):
        head, text = [*line.split(maxsplit=1), ""][:2]
        if not head.startswith(LABEL_PREFIX) or text.startswith(LABEL_PREFIX):
            odd.append((f"line {number}", line))
        else:
            rows.append((number, head.removeprefix(LABEL_PREFIX), text.strip()))
    with problems.collected():
        if odd:
            raise HftuneError(
                f"{quote(path.name)}, {odd[0][0]}: expected one `{LABEL_PREFIX}N`, a tab or a space, "
                f"and the text, got {quote(odd[0][1])}{and_more([place for place, _ in odd])}",
                hint="name a file with other columns .csv or .tsv; a row has one label",
            )
    columns = {"label": [label for _, label, _ in rows], "text": [text for *_, text in rows]}
    return Table(where=path.name, columns=columns, lines=[number for number, *_ in rows])


def _json(path: Path, _: Reading, problems: Problems) -> Table:
    """A list of objects, an object that holds one under ``data``, or an object per line."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        return _from_objects(parse_json(text, path, unique_keys=True), path)
    try:
        whole = parse_json(text, path, unique_keys=True)
    except HftuneError:
        if len(list(numbered_lines(text))) > 1:
            return _json_lines(path, text, problems)
        raise
    lists = [whole[key] for key in JSON_LISTS if isinstance(whole, dict) and isinstance(whole.get(key), list)]
    return _from_objects(lists[0] if len(lists) == 1 else [whole], path)


def _jsonl(path: Path, _: Reading, problems: Problems) -> Table:
    return _json_lines(path, read_text(path), problems)


def _json_lines(path: Path, text: str, problems: Problems) -> Table:
    rows: list[Any] = []
    lines: list[int] = []
    odd: list[tuple[str, HftuneError]] = []
    for number, line in numbered_lines(text):
        at = f"line {number}"
        try:
            rows.append(check_object(parse_json(line, path, number, unique_keys=True), f"{quote(path.name)}, {at}"))
            lines.append(number)
        except HftuneError as error:
            odd.append((at, error))
    with problems.collected():
        if odd:
            raise HftuneError(odd[0][1].message + and_more([at for at, _ in odd]), hint=odd[0][1].hint)
    return _from_objects(rows, path, lines)


def _from_objects(rows: list[Any], path: Path, lines: list[int] | None = None) -> Table:
    """Objects → columns; a key that a row lacks is None there."""
    places = Table(where=path.name, columns={}, lines=lines)
    names = dict.fromkeys(name for place, row in enumerate(rows) for name in check_object(row, places.at(place)))
    return replace(places, columns={name: [row.get(name) for row in rows] for name in names})


def parse_json(text: str, path: Path, line: int | None = None, *, unique_keys: bool = False) -> Any:
    """Parse JSON. With ``unique_keys`` a key that occurs twice is an error: one of its values would be lost."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key occurs twice in one object")
        return made

    try:
        return json.loads(text, object_pairs_hook=object_of if unique_keys else None)
    except (ValueError, RecursionError) as error:
        if line is None and isinstance(error, json.JSONDecodeError):
            line = error.lineno
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).partition(";")[0]
        at = f", line {line}" if line is not None else ""
        raise HftuneError(
            f"{quote(path.name)}{at}: not valid JSON: {reason}",
            hint='jsonl holds one object per line, such as {"text": "…", "label": "…"}; json holds a list',
        ) from error


def check_object(row: Any, at: str) -> dict[str, Any]:
    """A row of JSON, which must be an object."""
    if not isinstance(row, dict):
        raise HftuneError(
            f"{at}: expected an object, got {quote(row)}", hint='a row looks like {"text": "…", "label": "…"}'
        )
    return row


# ---- parquet and Arrow ----


def _parquet(path: Path, _: Reading, __: Problems) -> Table:
    with open_parquet(path) as file:
        return from_arrow(file.read(), path.name)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile``; errors while it is open and read are reported as those of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as source:
            yield pq.ParquetFile(source)
    except (pa.ArrowException, OSError) as error:
        raise HftuneError(
            f"{quote(path.name)} is not a parquet file that can be read: {str(error).splitlines()[0][:200]}",
            hint="write it again, for example with pandas.DataFrame.to_parquet",
        ) from error


def from_arrow(arrow: Any, where: str, *, from_hub: bool = False) -> Table:
    """An Arrow table → table, with the ClassLabel names that the datasets library has written into its schema."""
    from datasets import Features

    names = list(arrow.column_names)
    refuse_repeated(names, where)
    try:
        features = Features.from_arrow_schema(arrow.schema)  # from the JSON under the key "huggingface" of its metadata
    except Exception:  # metadata can hold anything; the columns can be read without it
        features = Features()
    try:
        columns = {name: arrow.column(name).to_pylist() for name in names}
    except (ValueError, OverflowError) as error:
        raise HftuneError(
            f"{quote(where)} holds values that can't be read: {error}", hint="text columns must be UTF-8 strings"
        ) from error
    return Table(where=where, columns=columns, classes=class_names(features), from_hub=from_hub)


def class_names(features: Any) -> dict[str, tuple[str, ...]]:
    """The label names of the ClassLabel columns among the features of a dataset."""
    from datasets import ClassLabel

    return {name: tuple(kind.names) for name, kind in features.items() if isinstance(kind, ClassLabel)}


FORMATS: dict[str, Callable[[Path, Reading, Problems], Table]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".xlsx": _xlsx,
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
    ".txt": _fasttext,
    ".ft": _fasttext,
}
"""The reader of each ending."""
