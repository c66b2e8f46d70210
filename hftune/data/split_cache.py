"""Keeps the splits that were made of files, so that the next run on the same files reads and checks nothing again.

They are found by a hash of the files, of what the recipe asks for and of the code that reads: whatever could change a
row gives another name. Each split is an Arrow file, mapped and not loaded; ``hftune.cache`` says where it lies and for
how long. Called by ``hftune.data.load``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hftune.cache import cache_folder, make_room, use
from hftune.config.data import LabelledData
from hftune.data.locate import Files
from hftune.data.splits import Splits
from hftune.files import read_json, write_bytes, write_json

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

WORTH = 1_000_000
"""Bytes of files from which on looking their rows up is quicker than reading them."""
UNREAD = {"kind", "max_length", "truncate"}
"""Settings that decide what becomes of rows, not which there are."""


def kept(section: LabelledData, files: Files, make: Callable[[], Splits]) -> Splits:
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
        _write(note, found)
    return found


def _key(section: LabelledData, files: Files) -> str | None:
    """A hash of all that decides which rows come out; None where that is not worth it, or a file can't be read."""
    paths = [path for group in files.values() for path in group]
    try:
        if sum(path.stat().st_size for path in paths) < WORTH:
            return None
        named = {split: [(path.name, _digest([path])) for path in group] for split, group in files.items()}
    except OSError:
        return None  # the reader says what is wrong with it
    import pyarrow as pa

    asked = section.model_dump(include=set(LabelledData.model_fields) - UNREAD)
    code = _digest(sorted(Path(__file__).parent.glob("*.py")))
    versions = [platform.python_version(), pa.__version__]
    return hashlib.sha256(json.dumps([asked, named, code, versions], sort_keys=True).encode()).hexdigest()


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _rows(note: Path, fingerprint: str) -> Path:
    """The file of a split, named after what it holds: subsets of one dataset share their dev and test."""
    return note.with_name(f"{fingerprint}.arrow")


def _read(note: Path) -> Splits | None:
    try:
        if not note.is_file():
            return None
        told = read_json(note)
        fingerprints = {split: str(part["fingerprint"]) for split, part in told["splits"].items()}
        paths = {split: _rows(note, fingerprint) for split, fingerprint in fingerprints.items()}
        if not all(path.is_file() for path in paths.values()):
            return None
        built = {split: _mapped(path, fingerprints[split]) for split, path in paths.items()}
        if any(len(rows) != told["splits"][split]["rows"] for split, rows in built.items()):
            raise ValueError("rows are missing")
        splits = Splits(
            train=built["train"],
            dev=built["dev"],
            test=built.get("test"),
            labels=tuple(told["labels"]),
            source=str(told["source"]),
            fingerprints=fingerprints,
            notes=tuple(told["notes"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        logger.warning("%s can't be used (%s): its files are read again", note, error)
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
    import pyarrow as pa

    try:
        for split, rows in splits.named.items():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.data.schema) as stream:
                stream.write_table(rows.data.table)
            write_bytes(_rows(note, splits.fingerprints[split]), memoryview(sink.getvalue()))
        parts = {
            split: {"fingerprint": splits.fingerprints[split], "rows": len(rows)}
            for split, rows in splits.named.items()
        }
        told = {"source": splits.source, "labels": splits.labels, "notes": splits.notes, "splits": parts}
        write_json(note, told)
    except OSError as error:
        logger.warning("rows are not kept: %s can't be written (%s)", note, error)
    make_room()
