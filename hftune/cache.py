"""What can be made again and is kept between runs, in a bounded space. Used by data, tasks and models.

It lies below ~/.cache/hftune (HFTUNE_CACHE names another folder) and takes 20 GB at most (HFTUNE_CACHE_GB says another
number): whenever something is added, what was not used for longest goes. All of it can be deleted at any time.
"""

from __future__ import annotations

import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hftune.errors import HftuneError
from hftune.portability import user_id

GIGABYTE = 10**9
USUAL = 20.0
"""Gigabytes where HFTUNE_CACHE_GB says nothing."""
KINDS = ("blocks", "features", "machine", "rows", "tokens", "vocabularies")
OURS = re.compile(r"\.?[0-9a-f]{32,64}\.(arrow|bin|json|safetensors)(\..+)?")
"""Names of our files, half-written ones among them: the folder may be one that holds others too."""
IN_USE = 3600.0
"""Seconds after its last use in which nothing is deleted: the run that used it goes on."""


@dataclass(frozen=True)
class Kept:
    """Files of one name, such as tokens and the note on them."""

    files: tuple[Path, ...]
    size: int
    used: float
    """When, in seconds since the epoch."""


def cache_root() -> Path:
    """The folder of all that is kept."""
    named = os.environ.get("HFTUNE_CACHE")
    return Path(named) if named else (home_folder() or temporary_home()) / ".cache" / "hftune"


def home_folder() -> Path | None:
    """The user's home; None for a user that has none, as in a container that runs under any number."""
    try:
        return Path.home()
    except RuntimeError:
        return None


@cache
def temporary_home() -> Path:
    """A folder of this user alone that stands for a missing home: the same one every time, if that is safe."""
    path = Path(tempfile.gettempdir()) / f"hftune-{'user' if user_id() is None else user_id()}"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if private and user_id() in (None, found.st_uid):
            return path
    return Path(tempfile.mkdtemp(prefix="hftune-"))  # somebody else has made that one


def ensure_home() -> str | None:
    """Give a process whose user has no home one that libraries can write to; what to tell the user about it.

    Without it, the Hugging Face libraries would make a folder called ``~`` in the current one.
    """
    if home_folder() is not None:
        return None
    os.environ["HOME"] = str(temporary_home())
    return f"this user has no home folder: caches are in {temporary_home()}; set HOME or HFTUNE_CACHE to keep them"


def cache_folder(kind: str) -> Path:
    """Where things of one of the KINDS are kept. What we make is its owner's alone: texts may be private."""
    assert kind in KINDS, "others are never cleaned"
    cache_limit()  # a wrong one is told before anything is made, not after
    with suppress(OSError):  # whoever writes there says what is wrong
        cache_root().mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache_root() / kind


def cache_limit() -> float:
    """Bytes that may be kept.

    Raises:
        HftuneError: HFTUNE_CACHE_GB is no size.
    """
    told = os.environ.get("HFTUNE_CACHE_GB", str(USUAL))
    try:
        size = float(told)
    except ValueError:
        size = math.nan
    if not size >= 0:
        raise HftuneError(f"HFTUNE_CACHE_GB is {told!r}, not a number of gigabytes", hint="HFTUNE_CACHE_GB=5")
    return size * GIGABYTE


def contents() -> list[Kept]:
    """All that is kept, from what was not used for longest."""
    by_name: dict[Path, list[tuple[Path, os.stat_result]]] = {}
    for path, facts in _files():
        by_name.setdefault(path.with_suffix(""), []).append((path, facts))
    found = [
        Kept(
            tuple(path for path, _ in files),
            sum(facts.st_size for _, facts in files),
            max(facts.st_mtime for _, facts in files),
        )
        for files in by_name.values()
    ]
    return sorted(found, key=lambda kept: kept.used)


def use(path: Path) -> None:
    """Note that a file is used now; one that can't be marked is used all the same."""
    with suppress(OSError):
        os.utime(path)


def make_room() -> None:
    """Delete what was not used for longest, until the rest is no more than may be kept."""
    limit, kept = cache_limit(), contents()
    total = sum(one.size for one in kept)
    for one in kept:
        if total <= limit or one.used > time.time() - IN_USE:
            return
        for path in one.files:
            with suppress(OSError):  # another process was faster, or still reads it
                path.unlink()
        total -= one.size


def _files() -> Iterator[tuple[Path, os.stat_result]]:
    """Our files that are there at this moment."""
    for path in (path for kind in KINDS for path in (cache_root() / kind).rglob("*")):
        with suppress(OSError):
            if OURS.fullmatch(path.name) and path.is_file():
                yield path, path.stat()
