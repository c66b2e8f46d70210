"""Files that may be gzip-compressed: their ending without ``.gz``, and their bytes up to a bound.

Used by every reader of local files in ``hftune.data`` and by ``hftune predict --file``.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hftune.data.wording import quote
from hftune.errors import HftuneError

GZIP = ".gz"
COMPRESSIBLE = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".text", ".ft", ".md")
"""Text formats that can be followed by .gz; parquet has its own compression."""
MIN_LIMIT = 64 << 20
MAX_RATIO = 100
"""A gzip file can hold 1,000 times its size; text shrinks to a third or a tenth, rarely to a thirtieth."""
MAX_IN_MEMORY = 4 << 30


def ending_of(path: Path) -> str:
    """The format of a file by its name: ``.csv`` for both ``a.csv`` and ``a.csv.gz``; ``.gz`` if that says nothing."""
    ending = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if ending == GZIP and inner in COMPRESSIBLE else ending


def stem_of(path: Path) -> str:
    """The name of a file without its format: ``train`` for both ``train.csv`` and ``train.csv.gz``."""
    return Path(path.stem).stem if _is_gzip(path) else path.stem


@contextmanager
def open_binary(path: Path, *, limit: int | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name ends in ``.gz``.

    Args:
        path: The file.
        limit: Most bytes that a compressed file may hold, in addition to the bound by its own size.

    Raises:
        HftuneError: While reading: the file is damaged, or decompresses to more than a text plausibly does.
        OSError: It can't be opened or read.
    """
    with path.open("rb") as file:
        if not _is_gzip(path):
            yield file
            return
        bound = max(MIN_LIMIT, MAX_RATIO * path.stat().st_size)
        yield io.BufferedReader(_Bounded(file, path, bound if limit is None else min(bound, limit)))


def read_whole(path: Path) -> bytes:
    """All bytes of a file, decompressed if its name ends in ``.gz``."""
    with open_binary(path, limit=MAX_IN_MEMORY) as file:
        return file.read()


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == GZIP and ending_of(path) != GZIP


class _Bounded(io.RawIOBase):
    """The decompressed bytes of a gzip file; reading past the bound is an error."""

    def __init__(self, file: BinaryIO, path: Path, limit: int) -> None:
        self._source = gzip.GzipFile(fileobj=file, mode="rb")
        self._path, self._limit, self._count = path, limit, 0

    def readable(self) -> bool:
        """Yes: buffered readers ask."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer; how many bytes there were."""
        try:
            size = self._source.readinto(buffer)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise HftuneError(
                f"{quote(self._path.name)} is not a gzip file that can be read: {error}",
                hint="download or compress it again; a file that is not compressed must not end in .gz",
            ) from error
        self._count += size
        if self._count > self._limit:
            raise HftuneError(
                f"{quote(self._path.name)} decompresses to more than {self._limit >> 20:,} MB, from "
                f"{self._path.stat().st_size:,} bytes",
                hint="if you trust the file, decompress it yourself (`gunzip`) and use the result",
            )
        return size
