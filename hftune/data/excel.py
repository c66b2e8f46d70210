"""Rows of an Excel workbook (.xlsx), read with openpyxl: the values that are stored, and nothing else.

No formula is computed, no link to another workbook is followed, and macros are not part of the format. A workbook is a
zip file of XML: what it holds is bounded before it is opened, and the rows and columns that it claims are not believed.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, time
from pathlib import Path
from typing import Any

from hftune.data.text_files import MAX_IN_MEMORY, MAX_RATIO, MIN_LIMIT
from hftune.errors import HftuneError, did_you_mean, listing, quote

MAX_ROWS = 1 << 20
"""Rows of a sheet in Excel itself. A file can claim a row of any number, and openpyxl makes all rows before it."""
MAX_COLUMNS = 1000
MAX_HEADER = 100
"""Rows among which the first with a value is searched."""
ERRORS = {"#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"}
"""What is stored for a formula that failed: no value."""


def sheet_records(path: Path, sheet_name: str | None) -> Iterator[tuple[int, list[str]]]:
    """The rows of a sheet as text, each with its number; blank rows are left out.

    Args:
        path: The workbook.
        sheet_name: The sheet; by default the only one that has rows.
    """
    with _opened(path) as book:
        sheet = _chosen(book, path, sheet_name)
        first = next(_filled_rows(sheet, MAX_COLUMNS, last=MAX_HEADER), None)
        if first is None:
            return
        width = max(place for place, cell in enumerate(first[1], start=1) if cell.strip())
        # One column to the right of the header is read too: a value there is a mistake.
        for number, record in _filled_rows(sheet, width + 1, first=first[0]):
            yield number, record if record[width].strip() else record[:width]


def _filled_rows(sheet: Any, width: int, first: int = 1, last: int | None = None) -> Iterator[tuple[int, list[str]]]:
    rows = sheet.iter_rows(min_row=first, max_row=last or MAX_ROWS, max_col=width, values_only=True)
    for number, cells in enumerate(rows, start=first):
        if cells.count(None) < len(cells):  # fast, because a file can claim a million rows
            record = [_text(cell) for cell in cells]
            if any(cell.strip() for cell in record):
                yield number, record + [""] * (width - len(record))


def _text(value: Any) -> str:
    """A cell as a csv file has it."""
    if value is None or value in ERRORS:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _chosen(book: Any, path: Path, sheet_name: str | None) -> Any:
    """The sheet of that name, or the only visible one with rows."""
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    for sheet in sheets.values():
        sheet.reset_dimensions()  # the size that the file states can be wrong
    if sheet_name is not None:
        if sheet_name not in sheets:
            raise HftuneError(
                f"{quote(path.name)} has no sheet {quote(sheet_name)}; its sheets are {listing(sheets)}",
                hint=did_you_mean(sheet_name, sheets, "name one of them with --sheet-name"),
            )
        return sheets[sheet_name]
    found = [
        name
        for name, sheet in sheets.items()
        if sheet.sheet_state == "visible" and next(_filled_rows(sheet, MAX_COLUMNS, last=MAX_HEADER), None)
    ]
    if len(found) == 1:
        return sheets[found[0]]
    raise HftuneError(
        f"{quote(path.name)} has {'several sheets' if found else 'no sheet'} with rows: {listing(found or sheets)}",
        hint="name one with --sheet-name" if found else "give a file that holds rows",
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The workbook, open for reading; whatever its bytes make openpyxl raise is an error of the file."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise HftuneError(
            f"{quote(path.name)} is an Excel file, and openpyxl is not installed",
            hint="pip install 'hftune[excel]', or save the sheet as csv (UTF-8)",
        ) from error
    if not path.is_file():
        raise HftuneError(f"{quote(path.name)} is not a regular file", hint="give a file of rows")
    try:
        _check_size(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of charts, styles and rules that are not read
            with closing(load_workbook(path, read_only=True, data_only=True, keep_links=False)) as book:
                yield book
    except HftuneError:
        raise
    except Exception as error:  # the file of a stranger can make the parsers raise anything
        raise HftuneError(
            f"{quote(path.name)} is not an Excel file that can be read: {type(error).__name__} {quote(str(error))}",
            hint="open it in Excel or LibreOffice and save it again as .xlsx or csv (UTF-8)",
        ) from error


def _check_size(path: Path) -> None:
    """Refuse a zip bomb. zipfile gives no more bytes of a member than its entry states, so those can be trusted."""
    limit = min(max(MIN_LIMIT, MAX_RATIO * path.stat().st_size), MAX_IN_MEMORY)
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > limit:
        raise HftuneError(
            f"{quote(path.name)} decompresses to {size >> 20:,} MB, from {path.stat().st_size:,} bytes",
            hint="if you trust the file, save it as csv (UTF-8) and use the result",
        )
