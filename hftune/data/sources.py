"""One file → table, by the ending of its name. Called by ``hftune.data.load`` for each split.

csv and tsv are read in ``delimited``; json, jsonl, parquet and fastText's ``__label__N<TAB>text`` here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hftune.data.compressed import ending_of
from hftune.data.decode import decode, read_bytes
from hftune.data.delimited import numbered_lines, read_delimited
from hftune.data.table import Table
from hftune.data.wording import closest, listing, quote
from hftune.errors import HftuneError

LABEL_PREFIX = "__label__"
WRAPPERS = ("data", "rows", "examples")
"""Keys under which a json file may hold its list of rows."""


def read_file(path: Path, named: Iterable[str] = ()) -> Table:
    """Read a file of rows.

    Args:
        path: the file; its ending says the format.
        named: columns that the recipe names.
    """
    ending = ending_of(path)
    if ending not in FORMATS:
        raise HftuneError(
            f"{quote(path.name)} has an ending that is not known: {quote(ending)}",
            hint=closest(ending, list(FORMATS))
            + f"formats are {', '.join(FORMATS)}; text formats can be compressed (.csv.gz, .jsonl.gz …)",
        )
    table = FORMATS[ending](path, tuple(named))
    if not len(table):
        raise HftuneError(f"{quote(path.name)} has a header and no rows", hint="give a file that holds rows")
    return table


def _csv(path: Path, named: tuple[str, ...]) -> Table:
    return read_delimited(decode(read_bytes(path), path), path, ",", named)


def _tsv(path: Path, named: tuple[str, ...]) -> Table:
    return read_delimited(decode(read_bytes(path), path), path, "\t", named)


def _fasttext(path: Path, _: tuple[str, ...]) -> Table:
    """``__label__N``, a tab or a space, the text."""
    labels: list[str] = []
    texts: list[str] = []
    lines: list[int] = []
    for number, line in numbered_lines(decode(read_bytes(path), path)):
        head, text = [*line.split(maxsplit=1), ""][:2]
        if not head.startswith(LABEL_PREFIX) or text.startswith(LABEL_PREFIX):
            raise HftuneError(
                f"{quote(path.name)}, line {number}: expected one `{LABEL_PREFIX}N`, a tab or a space, "
                f"and the text, got {quote(line)}",
                hint="name a file with other columns .csv or .tsv; a row has one label",
            )
        labels.append(head.removeprefix(LABEL_PREFIX))
        texts.append(text.strip())
        lines.append(number)
    return Table(where=path.name, columns={"label": labels, "text": texts}, lines=lines)


def _jsonl(path: Path, _: tuple[str, ...]) -> Table:
    return _json_lines(decode(read_bytes(path), path), path)


def _json(path: Path, _: tuple[str, ...]) -> Table:
    """A list of objects, an object that holds one under ``data``, or an object a line."""
    text = decode(read_bytes(path), path)
    if not text.lstrip().startswith("["):
        lines = list(numbered_lines(text))
        try:
            whole = _parse(text, path, None)
        except HftuneError:
            if len(lines) > 1:
                return _json_lines(text, path)
            raise
        wrapped = [whole[key] for key in WRAPPERS if isinstance(whole, dict) and isinstance(whole.get(key), list)]
        rows = wrapped[0] if len(wrapped) == 1 else [whole]
    else:
        rows = _parse(text, path, None)
    return _from_objects(rows, path, None)


def _json_lines(text: str, path: Path) -> Table:
    numbers: list[int] = []
    rows: list[Any] = []
    for number, line in numbered_lines(text):
        rows.append(_parse(line, path, number))
        numbers.append(number)
    return _from_objects(rows, path, numbers)


def _parse(text: str, path: Path, line: int | None) -> Any:
    """Parse JSON; a key that stands twice in one object is an error: one of its values would be lost."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key stands twice in one object")
        return made

    try:
        return json.loads(text, object_pairs_hook=object_of)
    except (ValueError, RecursionError) as error:
        if line is None and isinstance(error, json.JSONDecodeError):
            line = error.lineno
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).partition(";")[0]
        at = f", line {line}" if line is not None else ""
        raise HftuneError(
            f"{quote(path.name)}{at}: not valid JSON: {reason}",
            hint='jsonl holds an object a line, such as {"text": "…", "label": "…"}; json holds a list',
        ) from error


def _from_objects(rows: list[Any], path: Path, lines: list[int] | None) -> Table:
    """Objects → columns; a key that a row lacks is None there."""
    names: dict[str, None] = {}
    for position, row in enumerate(rows):
        if not isinstance(row, dict):
            at = f"line {lines[position]}" if lines is not None else f"row {position + 1}"
            raise HftuneError(
                f"{quote(path.name)}, {at}: expected an object with a text and a label, got {quote(row)}",
                hint='a row looks like {"text": "…", "label": "…"}',
            )
        names.update(dict.fromkeys(row))
    return Table(where=path.name, columns={name: [row.get(name) for row in rows] for name in names}, lines=lines)


def _parquet(path: Path, _: tuple[str, ...]) -> Table:
    """Columns of a parquet file; label names come along where the datasets library wrote them into it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_bytes(path)
    try:
        arrow = pq.ParquetFile(pa.BufferReader(content)).read()
    except (pa.ArrowException, OSError) as error:
        raise HftuneError(
            f"{quote(path.name)} is not a parquet file that can be read: {str(error).splitlines()[0][:200]}",
            hint="write it again, for example with pandas.DataFrame.to_parquet",
        ) from error
    return from_arrow(arrow, path.name)


def from_arrow(arrow: Any, where: str, *, from_hub: bool = False) -> Table:
    """An arrow table → table, with the ClassLabel names its schema carries."""
    from datasets import ClassLabel, Features

    names = list(arrow.column_names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise HftuneError(
            f"{quote(where)} has two columns of one name: {listing(repeated)}",
            hint="rename or remove one of them",
        )
    try:
        features = Features.from_arrow_schema(arrow.schema)
    except Exception:  # what the metadata holds is the file's own affair; the columns can be read without it
        features = {}
    classes = {name: tuple(kind.names) for name, kind in features.items() if isinstance(kind, ClassLabel)}
    try:
        columns = {name: arrow.column(name).to_pylist() for name in names}
    except (ValueError, OverflowError) as error:
        raise HftuneError(
            f"{quote(where)} holds values that can't be read: {error}",
            hint="text columns must be UTF-8 strings",
        ) from error
    return Table(where=where, columns=columns, classes=classes, from_hub=from_hub)


FORMATS: dict[str, Callable[[Path, tuple[str, ...]], Table]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
    ".txt": _fasttext,
    ".ft": _fasttext,
}
"""The reader of each ending."""
