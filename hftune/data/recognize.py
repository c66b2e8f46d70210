"""What a file or a folder is: labeled rows, plain text, or questions, from its columns or its first lines."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hftune.data.chunks import PLAIN
from hftune.data.columns import other_label, recognized_text
from hftune.data.locate import CORPORA, DATASETS, WORDS, as_path, words_of
from hftune.data.questions import ENDINGS, HEADERS
from hftune.data.readers import FORMATS, LABEL_PREFIX, open_parquet, read_table
from hftune.data.settings import DELIMITER_NAMES
from hftune.data.tables import COLUMN_NAMES, Problems, Reading, Table, plain_name
from hftune.data.text_files import ending_of, numbered_lines, text_parts
from hftune.errors import HftuneError
from hftune.files import is_outside

Kind = Literal["labeled", "corpus", "questions"]
"""A kind of ``data`` section."""
LINES = 50
"""Lines of a tsv file that show whether it holds questions."""


def recognize(name: str, delimiter: str | None = None, sheet_name: str | None = None) -> Kind | None:
    """The kind of data with this name: that of its training file; None if nothing shows it.

    What is not on this machine, or can't be read, counts as labeled rows, whose reader reports what is wrong.

    Args:
        name: An embedded name, a path, or anything else.
        delimiter: The setting of that name, if it is stated.
        sheet_name: The setting of that name.
    """
    reading = Reading((), DELIMITER_NAMES.get(delimiter or "", delimiter), sheet_name)
    if name in CORPORA:
        return "corpus"
    try:
        path = None if name in DATASETS else as_path(name)
        file = _training_file(path) if path is not None and path.is_dir() else path
        return "labeled" if file is None else _kind_of(file, reading)
    except (HftuneError, OSError):
        return "labeled"


def _training_file(folder: Path) -> Path | None:
    files = [
        entry
        for entry in sorted(folder.iterdir())
        if ending_of(entry) in (*FORMATS, *PLAIN) and entry.is_file() and not entry.name.startswith((".", "_"))
        if not is_outside(entry, folder)
    ]
    named = [file for file in files if set(WORDS["train"]) & set(words_of(file))]
    return next(iter(named or files), None)


def _kind_of(file: Path, reading: Reading) -> Kind | None:
    ending = ending_of(file)
    if ending in (*PLAIN, ".ft"):
        lines = (line for part in text_parts(file) for _, line in numbered_lines(part))
        return "labeled" if next(lines, "").startswith(LABEL_PREFIX) else "corpus"
    if ending == ".tsv" and _has_questions(file):
        return "questions"
    if ending == ".parquet":
        with open_parquet(file) as source:
            table = Table(file.name, {name: [] for name in source.schema_arrow.names})
    else:
        table = read_table(file, reading, Problems())
    if ending in ENDINGS and tuple(map(plain_name, table.columns)) in HEADERS:
        return "questions"
    if other_label(table) is not None:
        return "labeled"
    return "corpus" if recognized_text(table.columns) is not None else None


def _has_questions(file: Path) -> bool:
    """Whether a tsv file has questions (and answers): by its header, or because most lines begin with a question."""
    lines = [line.split("\t") for _, line in numbered_lines(next(text_parts(file), ""))][:LINES]
    first = tuple(map(plain_name, lines[0]))
    if first in HEADERS or COLUMN_NAMES.intersection(first):
        return first in HEADERS
    asked = sum(cells[0].strip().endswith("?") for cells in lines)
    return all(len(cells) <= 2 for cells in lines) and asked > len(lines) / 2
