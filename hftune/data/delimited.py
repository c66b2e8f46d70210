"""csv and tsv → table, strictly: every row has the header's width, and no text is taken for a missing value.

Our own reading, because the loader of the datasets library turns the texts "NA" and "null" into None.
Called by ``sources``.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from hftune.data.columns import is_known_name
from hftune.data.table import Table
from hftune.data.wording import listing, quote
from hftune.errors import HftuneError

WHOLE_NUMBER = re.compile(r"-?\d{1,18}")
QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_delimited(text: str, path: Path, delimiter: str, named: Iterable[str]) -> Table:
    """Read csv or tsv text.

    Args:
        text: the whole file.
        path: for the messages.
        delimiter: a comma or a tab.
        named: columns the recipe names; they show that the first line is a header.
    """
    records: Iterator[tuple[int, list[str]]]
    if delimiter == "\t" and not _tsv_is_quoted(text):
        records = ((number, line.split("\t")) for number, line in numbered_lines(text))
    else:
        records = _records(text, delimiter, path)
    opening = next(records, None)
    if opening is None:
        raise HftuneError(f"{quote(path.name)} holds no rows", hint="give a file that holds rows")
    headed = _has_header(opening[1], set(named))
    header = [cell.strip() for cell in opening[1]] if headed else ["label", "text"]
    _refuse_repeated(header, path)
    columns: dict[str, list[str]] = {name: [] for name in header}
    lines: list[int] = []
    # Cells go to their columns at once: a hundred thousand lists of cells would set Python's collector to work.
    for line, record in records if headed else chain([opening], records):
        if len(record) != len(header):
            _refuse_ragged(path, line, len(record), len(header), delimiter)
        for cells, cell in zip(columns.values(), record, strict=True):
            cells.append(cell)
        lines.append(line)
    if not headed:
        # The headerless format writes a line break as the two characters \\ and n.
        columns["text"] = [value.replace("\\n", "\n") for value in columns["text"]]
    return Table(where=path.name, columns=columns, lines=lines)


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers; only a line feed ends one, a return before it goes."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _records(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Records of quoted text with the line each begins on; blank lines are left out."""
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses a text over 128 KiB
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
            hint='a text with commas, quotes or line breaks stands in quotes, with "" for a quote inside it',
        ) from error
    finally:
        csv.field_size_limit(limit)


def _tsv_is_quoted(text: str) -> bool:
    """Whether quotes in a tsv enclose cells, or are ordinary characters as in many published tsv files.

    Where every line has the same number of tabs, and some cell opens with a quote that does not close the
    cell, the quotes are characters: reading them as enclosing would swallow rows.
    """
    rows = [line.split("\t") for _, line in numbered_lines(text)]
    if '"' not in text:
        return False
    if len({len(row) for row in rows}) > 1:
        return True
    return all(QUOTED.fullmatch(cell) for row in rows for cell in row if cell.startswith('"'))


def _has_header(first: list[str], named: set[str]) -> bool:
    """A first line ``<whole number>,<text>`` is a row, unless it holds a column's name."""
    if any(cell.strip() in named or is_known_name(cell) for cell in first):
        return True
    return not (len(first) == 2 and WHOLE_NUMBER.fullmatch(first[0].strip()))


def _refuse_repeated(header: list[str], path: Path) -> None:
    repeated = [name for name, times in Counter(header).items() if times > 1]
    if repeated:
        raise HftuneError(
            f"{quote(path.name)} has two columns of one name: {listing(repeated)}",
            hint="rename or remove one of them in the header",
        )


def _refuse_ragged(path: Path, line: int, got: int, width: int, delimiter: str) -> None:
    name = "tab" if delimiter == "\t" else "comma"
    raise HftuneError(
        f"{quote(path.name)}, line {line}: expected {width} columns as in the first line, got {got}",
        hint=f"mend that line; a text that holds a {name} must stand in quotes",
    )
