"""A keyed store on disk for results that can be computed again: parsed rows, token ids, features, vocabularies.

An entry is a folder ``<cache>/<kind>/<key>/`` with ``entry.json`` and the entry's files: arrays and Arrow tables, which
are memory-mapped when they are read. Entries are written atomically, by one process at a time, and are computed again
if a file was changed or truncated.

The cache is in ~/.cache/hftune (``HFTUNE_CACHE`` sets another folder) and takes at most 20 GB (``HFTUNE_CACHE_GB`` sets
another limit): the least recently used entries are deleted first. All of it can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from hftune.errors import HftuneError
from hftune.files import read_json, sha256, write_json
from hftune.portability import user_id

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

GIGABYTE = 10**9
DEFAULT_LIMIT_GB = 20.0
KINDS = ("blocks", "features", "machine", "rows", "teacher", "tokens", "vocabularies")
FORMAT = 1
"""Part of every key: changes when the layout of entries changes."""
INDEX = "entry.json"
ENTRY_NAME = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\..+")
"""Names of entries, and of temporary folders (with a dot). Nothing else in a folder of the cache is ever deleted."""
IN_USE_SECONDS = 3600.0
"""Entries used within this time are never deleted: another process may have opened them and not mapped them yet."""
NOT_AS_WRITTEN = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading a damaged entry can raise."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class CacheEntry:
    """A stored result: a JSON object, and files by name."""

    path: Path
    info: dict[str, Any]
    files: dict[str, dict[str, Any]]
    """For each file its size and SHA-256; for arrays also dtype and shape."""

    def file(self, name: str) -> Path:
        """The path of one of the files."""
        if name not in self.files:
            raise LookupError(f"there is no {name}")
        return self.path / name

    def array(self, name: str) -> NDArray[Any]:
        """An array, memory-mapped and read-only."""
        import numpy as np

        stored = self.files[name]
        if not math.prod(stored["shape"]):  # an empty file can't be mapped
            return np.empty(stored["shape"], stored["dtype"])
        return np.memmap(self.file(name), dtype=stored["dtype"], mode="r", shape=tuple(stored["shape"]))

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name."""
        return {name: self.array(name) for name, stored in self.files.items() if "dtype" in stored}


@dataclass
class NewEntry:
    """An entry that is being written."""

    path: Path
    info: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """Write a file of any format."""
        with (self.path / name).open("wb") as file:
            yield file
        self.files[name] = {"bytes": (self.path / name).stat().st_size, "sha256": sha256(self.path / name)}

    def array(self, name: str, dtype: np.dtype[Any], parts: Iterable[NDArray[Any]]) -> None:
        """Write an array part by part, so that it does not have to fit into memory."""
        rows, rest = 0, ()
        with self.file(name) as file:
            for part in parts:
                file.write(part.astype(dtype, copy=False).tobytes())
                rows, rest = rows + len(part), part.shape[1:]
        self.files[name] |= {"dtype": dtype.str, "shape": [rows, *rest]}


def cache_key(*parts: Any) -> str:
    """A hash of everything that a result depends on: hashes of the input, settings, versions of libraries."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True).encode()).hexdigest()[:32]


def cached(
    kind: str,
    key: str,
    make: Callable[[], Made],
    *,
    save: Callable[[Made, NewEntry], None],
    load: Callable[[CacheEntry], Made],
) -> Made:
    """A result from the cache, or computed now and stored. A cache that can't be written costs time and nothing else.

    Args:
        kind: One of KINDS.
        key: From ``cache_key``.
        make: Computes the result.
        save: Writes it to a new entry; an OSError means that it is not stored.
        load: Reads it from an entry; a ValueError, LookupError or TypeError means that it is computed again.
    """
    # The lock is held while the result is computed, not only while it is written: the processes of one launch all need
    # it at the same moment, and one of them computes it while the others wait and then find it.
    with locked(kind, key):
        entry = read_entry(kind, key)
        if entry is not None:
            try:
                return load(entry)
            except NOT_AS_WRITTEN as error:  # the files are intact but not what ``load`` expects
                logger.warning("%s is damaged (%s) and is computed again", entry.path, error)
        made = make()
        try:
            with new_entry(kind, key) as new:
                save(made, new)
        except OSError as error:
            logger.warning("%s are not cached in %s: %s", kind, cache_root() / kind, error)
    return made


def read_entry(kind: str, key: str) -> CacheEntry | None:
    """An entry whose files are as they were written, marked as used now; None if there is none."""
    path = cache_folder(kind) / key
    try:
        # No warning about a missing file: someone may be clearing the cache.
        if not (path / INDEX).is_file():
            return None
        stored = read_json(path / INDEX)
        if stored["sha256"] != cache_key(stored["info"], stored["files"]):
            raise ValueError(f"{INDEX} was changed")
        for name, about in stored["files"].items():
            if not (path / name).is_file():
                return None
            # Hashed on every read. The files are memory-mapped later, where damage would be silent: a file that lost
            # its end on a full disk reads as zeros, and training on zeros looks like training.
            if (path / name).stat().st_size != about["bytes"] or sha256(path / name) != about["sha256"]:
                raise ValueError(f"{name} was changed or truncated")
        # Marks the time of use for delete_oldest: the system's access time is switched off on many machines (noatime).
        with suppress(OSError):  # a read-only cache can be used all the same
            os.utime(path / INDEX)
        return CacheEntry(path, stored["info"], stored["files"])
    except NOT_AS_WRITTEN as error:
        logger.warning("%s is damaged (%s) and is computed again", path, error)
        return None


@contextmanager
def new_entry(kind: str, key: str) -> Iterator[NewEntry]:
    """Write an entry: it appears under its key when the block ends, and not at all if the block fails.

    Raises:
        OSError: The cache can't be written.
    """
    folder = cache_folder(kind)
    folder.mkdir(parents=True, exist_ok=True)
    # A folder can be renamed in one step: readers see the entry with all its files, or not at all. After a kill -9 the
    # temporary folder is left, which delete_oldest counts and deletes as any entry.
    staged = Path(tempfile.mkdtemp(dir=folder, prefix=f".{key}."))
    try:
        new = NewEntry(staged)
        yield new
        index = {"sha256": cache_key(new.info, new.files), "info": new.info, "files": new.files}
        write_json(staged / INDEX, index)
        if (folder / key).exists():  # damaged, or replaced on purpose; a folder can't be renamed onto another
            shutil.rmtree(folder / key)
        staged.rename(folder / key)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    delete_oldest()


@contextmanager
def locked(kind: str, key: str) -> Iterator[None]:
    """Let one process at a time compute an entry, so that the others find it when their turn comes."""
    from filelock import FileLock

    cache_folder(kind)
    # A lock file must not be deleted while another process may be waiting for it, so lock files stay forever. With two
    # digits of the key there are at most 256 of each kind; two keys with the same digits merely wait for each other.
    # The system releases the lock when a process dies, so that no stale lock remains.
    path = cache_root() / "locks" / f"{kind}-{key[:2]}"
    lock = FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:  # a cache that can't be written, or a network disk without locks
        logger.debug("no lock in %s: %s", path.parent, error)
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class CacheUsage:
    """The size of one entry on disk."""

    path: Path
    bytes: int
    used: float
    """When it was last used, in seconds since the epoch."""


def cache_usage() -> list[CacheUsage]:
    """All entries, the least recently used first."""
    found = []
    for path in (path for kind in KINDS for path in (cache_root() / kind).glob("*")):
        with suppress(OSError):  # deleted meanwhile
            if ENTRY_NAME.fullmatch(path.name) and path.is_dir():
                files = {file.name: file.stat() for file in path.iterdir()}
                used = files.get(INDEX, path.stat()).st_mtime
                found.append(CacheUsage(path, sum(about.st_size for about in files.values()), used))
    return sorted(found, key=lambda usage: usage.used)


def delete_oldest() -> None:
    """Delete the least recently used entries until the others fit into the limit."""
    # Without a lock: if two processes delete at once, the second finds less to delete, which ignore_errors covers.
    # On Linux and macOS a process that has mapped a file keeps its content after the deletion.
    limit, entries = cache_limit(), cache_usage()
    total = sum(entry.bytes for entry in entries)
    for entry in entries:
        if total <= limit or entry.used > time.time() - IN_USE_SECONDS:
            return
        shutil.rmtree(entry.path, ignore_errors=True)
        total -= entry.bytes


def cache_root() -> Path:
    """The folder of the cache."""
    named = os.environ.get("HFTUNE_CACHE")
    return Path(named) if named else (home_folder() or temporary_home()) / ".cache" / "hftune"


def cache_folder(kind: str) -> Path:
    """The folder of one of the KINDS. Only its owner can read it, because texts may be private."""
    assert kind in KINDS, "others are never cleaned"
    cache_limit()
    with suppress(OSError):  # reported when something is written
        cache_root().mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache_root() / kind


def cache_limit() -> float:
    """The maximum size of the cache, in bytes."""
    setting = os.environ.get("HFTUNE_CACHE_GB", str(DEFAULT_LIMIT_GB))
    try:
        size = float(setting)
    except ValueError:
        size = math.nan
    if not size >= 0:
        raise HftuneError(f"HFTUNE_CACHE_GB is {setting!r}, not a number of gigabytes", hint="HFTUNE_CACHE_GB=5")
    return size * GIGABYTE


def home_folder() -> Path | None:
    """The user's home; None for a user without one, as in a container that runs under an arbitrary user id."""
    try:
        return Path.home()
    except RuntimeError:
        return None


@cache
def temporary_home() -> Path:
    """A private folder in place of a missing home: the same one every time, if that is safe."""
    # The name is predictable, and anyone can create a folder in /tmp. It is used only if it is a real folder (not a
    # link) that belongs to this user and that no one else can read or write.
    path = Path(tempfile.gettempdir()) / f"hftune-{'user' if user_id() is None else user_id()}"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if private and user_id() in (None, found.st_uid):
            return path
    return Path(tempfile.mkdtemp(prefix="hftune-"))


def ensure_home() -> str | None:
    """Give a process whose user has no home a folder that libraries can write to, and return a note about it.

    Without it, the Hugging Face libraries would make a folder called ``~`` in the current one.
    """
    if home_folder() is not None:
        return None
    os.environ["HOME"] = str(temporary_home())
    return f"this user has no home folder: caches are in {temporary_home()}; set HOME or HFTUNE_CACHE to keep them"
