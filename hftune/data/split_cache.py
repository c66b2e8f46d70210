"""Keeps the splits that were made of files, so that the next run on the same files parses and checks nothing again.

They are found by a hash of the files, of what the recipe asks for and of the code that reads: whatever could change a
row gives another note. Each split is an Arrow file that is named after its bytes, and is mapped, not loaded, once these
are what the name says. ``hftune.cache`` says where it lies and for how long. Called by ``hftune.data.load``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from hftune import __version__
from hftune.cache import cache_folder, make_room, use
from hftune.config.data import LabeledData
from hftune.data.locate import Files
from hftune.data.splits import Splits
from hftune.files import read_json, sha256, write_bytes, write_json

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

WORTH = 1_000_000
"""Bytes of files from which on looking their rows up is quicker than parsing them."""
UNREAD = {"kind", "max_seq_length", "truncation"}
"""Settings that decide what becomes of rows, not which there are."""


def kept(section: LabeledData, files: Files, make: Callable[[], Splits]) -> Splits:
    """The splits of some files from disk, or made now and put there.

    Args:
        section: What the recipe asks for.
        files: Those of each split.
        make: Reads, checks and splits them; the same files must give the same rows.
    """
    key = _key(section, files)
    if key is None:
        return make()
    note = cache_folder("rows") / f"{key[:32]}.json"
    found = _read(note)
    if found is None:
        found = make()
        if _key(section, files) == key:  # else a file was changed while it was read
            _write(note, found)
    return found


def _key(section: LabeledData, files: Files) -> str | None:
    """A hash of all that decides which rows come out; None where that is not worth it, or a file can't be read."""
    paths = [path for group in files.values() for path in group]
    try:
        # What is no file, such as a pipe, may never end.
        if not all(path.is_file() for path in paths) or sum(path.stat().st_size for path in paths) < WORTH:
            return None
        named = {split: [(path.name, sha256(path)) for path in group] for split, group in files.items()}
    except OSError:
        return None  # the reader says what is wrong with it
    asked = section.model_dump(include=set(LabeledData.model_fields) - UNREAD)
    return hashlib.sha256(json.dumps([asked, named, _reader()], sort_keys=True).encode()).hexdigest()


@cache
def _reader() -> list[str]:
    """What reads: the versions of the libraries and a hash of this package's own code, as the process began with it."""
    code = [sha256(path) for path in sorted(Path(__file__).parent.glob("[!.]*.py"))]
    return [__version__, platform.python_version(), version("pyarrow"), version("datasets"), *code]


def _read(note: Path) -> Splits | None:
    try:
        if not note.is_file():
            return None
        told = read_json(note)
        paths = {split: note.with_name(f"{digest}.arrow") for split, digest in told["files"].items()}
        if not all(path.is_file() for path in paths.values()):
            return None
        if any(sha256(path) != path.stem for path in paths.values()):
            raise ValueError("rows are not what was written")
        fingerprints = dict(told["fingerprints"])
        built = {split: _mapped(path, fingerprints[split]) for split, path in paths.items()}
        splits = Splits(
            train=built["train"],
            validation=built["validation"],
            test=built.get("test"),
            labels=tuple(told["labels"]),
            source=told["source"],
            fingerprints=fingerprints,
            notes=tuple(told["notes"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        logger.warning("%s can't be used (%s): the files are read again", note, error)
        return None
    for path in (note, *paths.values()):
        use(path)
    return splits


def _mapped(path: Path, fingerprint: str) -> Dataset:
    from datasets import Dataset
    from datasets.table import MemoryMappedTable

    return Dataset(MemoryMappedTable.from_file(str(path)), fingerprint=fingerprint[:16])


def _write(note: Path, splits: Splits) -> None:
    """The note comes last; a disk that takes nothing costs the next run time, and this one nothing."""
    try:
        told = {
            "source": splits.source,
            "labels": splits.labels,
            "notes": splits.notes,
            "fingerprints": splits.fingerprints,
            "files": {split: _write_rows(note.parent, rows) for split, rows in splits.named.items()},
        }
        write_json(note, told)
    except OSError as error:
        logger.warning("rows are not kept: %s can't be written (%s)", note, error)
    make_room()


def _write_rows(folder: Path, rows: Dataset) -> str:
    """A split as an Arrow file, unless the same is there, as validation and test of other subsets are. Returns its
    name.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.data.schema) as stream:
        stream.write_table(rows.data.table)
    content = memoryview(sink.getvalue())
    name = hashlib.sha256(content).hexdigest()
    path = folder / f"{name}.arrow"
    if path.is_file() and sha256(path) == name:
        use(path)
    else:
        write_bytes(path, content)
    return name
