"""Rows from Python (a DataFrame, a Dataset, a list of dicts …) as one Arrow table per split, stored with the run.

The rows are written as parquet to the run directory before training, so that the run's recipe can name them: running
that recipe again, or resuming the run, reads the same rows as files.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.data.chunks import table_chunks
from hftune.data.load import split_tables
from hftune.data.locate import FILES_ONLY, HUB_ONLY, WORDS
from hftune.data.questions import from_columns
from hftune.data.readers import from_arrow, read_table
from hftune.data.settings import CorpusData, DataSection, LabeledData, QuestionData
from hftune.data.tables import refuse_repeated
from hftune.errors import HftuneError, did_you_mean, listing, quote
from hftune.files import STORED_HERE, write_bytes, write_text

Data = Any
"""What can be trained on or scored: a path, a Hub id, a datasets.Dataset or DatasetDict, a pandas DataFrame, a list of
dicts, or a dict of split name to any of these."""

SPLITS = tuple(WORDS)
SINGLE = "train"
"""The split of data without splits; the others are split from it, as for a single file."""
PLACEHOLDER = "rows"
"""``data.dataset_name`` until the run directory is known; unnamed run directories are called after it."""
TAKES = (
    "a path, a Hub id, a datasets.Dataset or DatasetDict, a pandas.DataFrame, a list of dicts, or a dict of split name "
    "(train, validation, test) to any of these"
)
_EXAMPLES = {
    "labeled": '[{"text": "…", "label": "…"}, …]',
    "joint": '[{"text": "…", "label": "…"}, …]',
    "questions": '[{"question": "…", "answer": "…"}, …]',
    "corpus": '["a document", …] or [{"text": "…"}, …]',
}
"""What a list of rows looks like, by kind of data."""


@dataclass(frozen=True)
class InMemoryData:
    """The rows of each split as Arrow tables, and the name of each in messages."""

    tables: Mapping[str, Any]
    where: Mapping[str, str]

    def fingerprint(self) -> str:
        """A hash of splits, columns and values, the same before and after the rows are stored."""
        # Of the values and not of Arrow's buffers, whose chunks and encodings change on the way through a parquet file.
        digest = hashlib.sha256()
        for split in sorted(self.tables):
            table = from_arrow(self.tables[split], split)
            digest.update(repr((split, sorted(table.classes.items()), list(table.columns.items()))).encode())
        return digest.hexdigest()

    def check(self, section: DataSection) -> None:
        """Check the rows as those of files are checked, before anything is written."""
        _refuse_settings_of_files(section)
        tables = {split: from_arrow(self.tables[split], self.where[split]) for split in self.tables}
        if SINGLE not in tables:
            raise HftuneError(
                f"the data has no train split; its splits are {', '.join(tables)}",
                hint='give the training rows under the name "train"',
            )
        if isinstance(section, LabeledData):
            split_tables(section, tables)
            return
        for split, table in tables.items():
            if isinstance(section, QuestionData):
                from_columns(table, answers=None if split == "test" else True)
            elif not list(table_chunks(table, section)):
                raise HftuneError(f"{quote(table.where)} has no text", hint="give documents that are not blank")

    def write(self, folder: Path) -> None:
        """Store each split as ``<split>.parquet``, written atomically."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        # written first, because it marks the other files as ours
        write_text(folder / STORED_HERE, "rows that were given from Python\n")
        for split, table in self.tables.items():
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            write_bytes(folder / f"{split}.parquet", memoryview(sink.getvalue()))

    def store(self, folder: Path, *, begun: bool) -> None:
        """Store the rows, or check that a resumed run has the same rows.

        Args:
            folder: ``data/`` in the run directory.
            begun: Whether the run stored its rows before. If not, files that are there are left from a run that was
                killed while it wrote them; they may be incomplete and are replaced.
        """
        if not begun:
            for left in stored(folder).values():
                left.unlink()
            self.write(folder)
        elif not stored(folder) or read_stored(folder).fingerprint() != self.fingerprint():
            raise HftuneError(
                f"{folder.parent} was started with other data than the rows that were given now",
                hint="resume it without data=, which takes its own rows, or start another run with another output_dir",
            )


def stored(folder: Path) -> dict[str, Path]:
    """The files of rows that were stored in a folder, by split."""
    return {split: path for split in SPLITS if (path := folder / f"{split}.parquet").is_file()}


def read_stored(folder: Path) -> InMemoryData:
    """The rows that were stored in a folder."""
    import pyarrow.parquet as pq

    files = stored(folder)
    return InMemoryData({split: pq.read_table(path) for split, path in files.items()}, dict.fromkeys(files, "data"))


def from_python(data: Data, kind: str = "labeled") -> InMemoryData:
    """The rows of any object of type ``Data``, one Arrow table per split.

    Args:
        data: The object, which is not just a path or a Hub id.
        kind: The kind of data that the task reads: labeled, joint, corpus or questions.
    """
    if not isinstance(data, Mapping):
        return InMemoryData({SINGLE: _table(data, "data", kind)}, {SINGLE: "data"})
    if not data:
        raise HftuneError("the data is an empty dict", hint=f"give {TAKES}")
    found: dict[str, Any] = {}
    where: dict[str, str] = {}
    for name, rows in data.items():
        split = _split_name(name, data)
        if split in found:
            raise HftuneError(
                f"the data has two {split} splits: {where[split]} and data[{name!r}]", hint="leave one of them out"
            )
        where[split] = f"data[{name!r}]"
        found[split] = _table(rows, where[split], kind)
    return InMemoryData({split: found[split] for split in SPLITS if split in found}, where)


def _split_name(name: object, data: Mapping[Any, Any]) -> str:
    """The split that a key of a dict names."""
    split = next((split for split, words in WORDS.items() if str(name).lower() in words), None)
    if split is not None:
        return split
    columns = (
        isinstance(values, list | tuple) and not isinstance(next(iter(values), None), Mapping)
        for values in data.values()
    )
    if all(columns):
        raise HftuneError(
            f"expected a dict of split name to rows; got one of column name to values: {listing(data)}",
            hint="write datasets.Dataset.from_dict(data) or pandas.DataFrame(data)",
        )
    raise HftuneError(
        f"the data has a split {name!r}; expected {', '.join(SPLITS)}",
        hint=did_you_mean(str(name), SPLITS, "rename it to one of these, or leave it out"),
    )


def _table(rows: Any, where: str, kind: str) -> Any:
    """One split as an Arrow table with at least one row and no two columns of one name."""
    if isinstance(rows, str | Path):
        table = _from_file(rows, where, kind)
    elif (made := _from_library(rows, where)) is not None:
        table = made
    elif isinstance(rows, Sequence) and not isinstance(rows, bytes | bytearray):
        table = _from_list(rows, where, kind)
    else:
        raise HftuneError(
            f"{where} is of type {type(rows).__module__}.{type(rows).__qualname__}, which has no rows",
            hint=f"give {TAKES}",
        )
    if not table.num_rows:
        raise HftuneError(f"{where} has no rows", hint=f"give rows: {_EXAMPLES[kind]}")
    return table


def _from_library(rows: Any, where: str) -> Any:
    """The table of a DataFrame, a Dataset or any other object with an Arrow interface; None for others."""
    import pyarrow as pa

    # pandas before the Arrow interface, which it has too, but which can make the index a column.
    # An object of a library exists only if the library is imported, so none is imported here just to check.
    pandas, hf = sys.modules.get("pandas"), sys.modules.get("datasets")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        return _from_frame(rows, where)
    if pandas is not None and isinstance(rows, pandas.Series):
        return _from_frame(rows.to_frame(rows.name or "text"), where)
    if hf is not None and isinstance(rows, hf.Dataset):
        table = rows.with_format("arrow")[:]  # in the order of the rows, whatever was selected or shuffled
        return table.replace_schema_metadata(rows.features.arrow_schema.metadata)
    if hf is not None and isinstance(rows, hf.IterableDataset):
        raise HftuneError(
            f"{where} is an IterableDataset, which can be read once and has no length",
            hint="load it without streaming=True, or make a list of it: datasets.Dataset.from_list(list(rows))",
        )
    if isinstance(rows, pa.Table):
        table = rows
    elif hasattr(rows, "__arrow_c_stream__"):
        table = pa.table(rows)
    else:
        return None
    refuse_repeated(table.column_names, where)
    return table


def _from_frame(frame: Any, where: str) -> Any:
    """The columns of a DataFrame, without its index."""
    import pyarrow as pa

    names = [str(name) for name in frame.columns]
    refuse_repeated(names, where)
    return pa.table([_column(frame.iloc[:, place], name, where) for place, name in enumerate(names)], names)


def _from_list(rows: Sequence[Any], where: str, kind: str) -> Any:
    """Rows as dicts with the same keys; documents can be plain strings."""
    import pyarrow as pa

    if not rows:
        raise HftuneError(f"{where} is an empty list", hint=f"give rows: {_EXAMPLES[kind]}")
    if kind == "corpus" and isinstance(rows[0], str):
        rows = [{"text": row} if isinstance(row, str) else row for row in rows]
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise HftuneError(
                f"{where}[{place}]: expected a dict, got {type(row).__name__} {quote(row)}",
                hint=f"write rows as {_EXAMPLES[kind]}",
            )
        if row.keys() != rows[0].keys():
            raise HftuneError(
                f"{where}[{place}] has the keys {listing(row)}; the rows before it have {listing(rows[0])}",
                hint="give every row the same keys; None marks a value that is missing",
            )
    names = [str(name) for name in rows[0]]
    refuse_repeated(names, where)
    return pa.table([_column([row[key] for row in rows], str(key), where) for key in rows[0]], names)


def _column(values: Any, name: str, where: str) -> Any:
    """One column as an Arrow array; NaN is a missing value."""
    import pyarrow as pa

    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError) as error:
        kinds = sorted({type(value).__name__ for value in values if value is not None and value == value})
        raise HftuneError(
            f"column {quote(name)} of {where} has values of several types: {', '.join(kinds[:5])}",
            hint="write all of them in one way, as strings for example, or leave the column out",
        ) from error


def _from_file(rows: str | Path, where: str, kind: str) -> Any:
    """A file as one split, next to others in memory."""
    import pyarrow as pa
    from datasets import ClassLabel, Features

    path = Path(rows).expanduser()
    if not path.is_file():
        raise HftuneError(
            f"{where} is {str(rows)!r}, and there is no such file",
            hint="give a file; for a Hub id or a folder, which have all splits, write data=NAME",
        )
    if kind not in ("labeled", "joint"):
        raise HftuneError(
            f"{where} is a file, and only labeled data can be combined from files and rows",
            hint="name the file of each split with train_file, validation_file and test_file, and its folder with data",
        )
    table = read_table(path)
    made = pa.table([_column(values, name, where) for name, values in table.columns.items()], list(table.columns))
    if not table.classes:
        return made
    features = Features.from_arrow_schema(made.schema)
    features |= {name: ClassLabel(names=list(names)) for name, names in table.classes.items()}
    return made.replace_schema_metadata(Features(features).arrow_schema.metadata)


def _refuse_settings_of_files(section: DataSection) -> None:
    """Refuse settings of files and Hub datasets."""
    stated = [name for name in (*HUB_ONLY, *FILES_ONLY) if getattr(section, name, None)]
    if isinstance(section, CorpusData) and section.documents is not None:
        stated.append("documents")
    if stated:
        raise HftuneError(
            f"{', '.join(stated)}: such a setting is for files and Hub datasets, and the data was given as rows",
            hint="leave it out",
        )
