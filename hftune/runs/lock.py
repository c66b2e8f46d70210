"""One process at a time in one run directory. Used through ``RunDir.locked``.

The operating system holds the lock, so it ends with its process however that ends, kill -9 included. The
process id beside it only serves the message.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from hftune.errors import HftuneError
from hftune.files import write_text

logger = logging.getLogger(__name__)

LOCK = ".lock"
OWNER = ".lock-owner"


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a directory for this process.

    Raises:
        HftuneError: Another process is using the directory.
    """
    lock = FileLock(directory / LOCK)
    owner = directory / OWNER
    try:
        lock.acquire(blocking=False)
    except Timeout as busy:
        holder = _read(owner)
        who = f"process {holder}" if holder else "another process"
        raise HftuneError(
            f"the run directory {directory} is being used by {who}",
            hint="wait until it is done, stop it, or take another directory with --output",
        ) from busy
    try:
        before = _read(owner)
        if before:
            logger.info("process %s ended without giving %s free; taking it over", before, directory)
        write_text(owner, f"{os.getpid()}\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _read(owner: Path) -> str:
    try:
        return owner.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
