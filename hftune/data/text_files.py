"""Local files as bytes and text: gzip up to a bound, UTF-8 only, and an error that names what a file is instead."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hftune.errors import HftuneError, quote

GZIP = ".gz"
COMPRESSIBLE = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt", ".text", ".ft", ".md")
"""Text formats that can be followed by .gz; parquet has its own compression."""
MIN_LIMIT = 64 << 20
MAX_RATIO = 100
"""A gzip file can hold 1,000 times its size; text shrinks to a third or a tenth, rarely to a thirtieth."""
MAX_IN_MEMORY = 4 << 30
READ_SIZE = 1 << 20
"""Bytes of a streamed text that are read at once."""
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
MAGIC = {
    b"PAR1": "parquet",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip (or xlsx)",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    **{b"\x80" + bytes([protocol]): "pickle" for protocol in range(2, 6)},
    b"\x89HDF": "HDF5",
    b"\x89PNG": "PNG",
    b"%PDF": "PDF",
    b"SQLite format 3": "SQLite",
}
"""How binary files begin."""


def ending_of(path: Path) -> str:
    """The format of a file by its name: ``.csv`` for both ``a.csv`` and ``a.csv.gz``; ``.gz`` if that shows nothing."""
    ending = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    return inner if ending == GZIP and inner in COMPRESSIBLE else ending


def stem_of(path: Path) -> str:
    """The name of a file without its format: ``train`` for both ``train.csv`` and ``train.csv.gz``."""
    return Path(path.stem).stem if _is_gzip(path) else path.stem


@contextmanager
def open_binary(path: Path, *, limit: int | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed if its name ends in ``.gz``.

    Reading raises an HftuneError if the file is damaged, or decompresses to more than ``limit`` or than a text
    plausibly does, and OSError if it can't be read.
    """
    with path.open("rb") as file:
        if not _is_gzip(path):
            yield file
            return
        # A few kilobytes of gzip can hold gigabytes of zeros, so what comes out is limited by the size of the file.
        bound = max(MIN_LIMIT, MAX_RATIO * path.stat().st_size)
        # The bound counts what comes out of the decompressor: the size in the footer of a gzip file can be any number.
        yield io.BufferedReader(_BoundedGzip(file, path, bound if limit is None else min(bound, limit)))


def read_text(path: Path) -> str:
    """The text of a regular file, decompressed if its name ends in ``.gz``; an empty file is refused."""
    with _opened(path, limit=MAX_IN_MEMORY) as file:
        content = file.read()
    if not content.removeprefix(BOM).strip():
        raise HftuneError(f"{quote(path.name)} is empty", hint="give a file that holds rows")
    return _decode(content, path)[0]


def text_parts(path: Path) -> Iterator[str]:
    """The text of a file of any size in parts, as it is read; their borders can be anywhere."""
    offset = lines = 0
    rest = b""
    with _opened(path) as file:
        while block := file.read(READ_SIZE):
            content = rest + block
            text, end = _decode(content, path, offset=offset, lines=lines, is_last=False)
            yield text
            offset += end
            lines += content.count(b"\n", 0, end)
            rest = content[end:]  # the first bytes of a character, if the block ends inside one
    if rest:
        yield _decode(rest, path, offset=offset, lines=lines)[0]


@contextmanager
def _opened(path: Path, *, limit: int | None = None) -> Iterator[BinaryIO]:
    """A regular file, open for reading: a pipe may never end."""
    name = quote(path.name)
    if not path.is_file():
        raise HftuneError(f"{name} is not a regular file", hint="give a file of rows, or a folder of such files")
    try:
        with open_binary(path, limit=limit) as file:
            yield file
    except OSError as error:
        raise HftuneError(f"{name} can't be read: {error.strerror}", hint="check the file's permissions") from error


def _decode(content: bytes, path: Path, *, offset: int = 0, lines: int = 0, is_last: bool = True) -> tuple[str, int]:
    """The text of a UTF-8 file without its BOM, and the bytes that it takes.

    ``content`` can be a part of the file, after ``offset`` bytes and ``lines`` lines. Unless it is the last part, a
    character that is cut off at its end is left out.
    """
    name = quote(path.name)
    if not offset:
        _refuse_binary(content, path)
    nul = content.find(b"\0")
    if nul >= 0:
        line = lines + content.count(b"\n", 0, nul) + 1
        raise HftuneError(
            f"{name} holds a NUL byte at offset {offset + nul} (line {line}): a binary or a damaged file",
            hint="give a text file in UTF-8; `tr -d '\\000'` removes stray NUL bytes",
        )
    skipped = len(BOM) if not offset and content.startswith(BOM) else 0
    try:
        text, taken = codecs.utf_8_decode(content[skipped:], "strict", is_last)
    except UnicodeDecodeError as error:
        place = error.start + skipped
        line = lines + content.count(b"\n", 0, place) + 1
        raise HftuneError(
            f"{name} is not UTF-8: byte 0x{content[place]:02x} at offset {offset + place} (line {line})",
            hint="convert it, for example with `iconv -f latin1 -t utf-8`",
        ) from error
    return text, taken + skipped


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers. Only a line feed ends a line; a return before it is removed."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _refuse_binary(content: bytes, path: Path) -> None:
    name = quote(path.name)
    if content.startswith(UTF16):
        raise HftuneError(f"{name} is UTF-16, not UTF-8", hint="save it again as UTF-8")
    for magic, kind in MAGIC.items():
        if content.startswith(magic):
            hint = "unpack or convert it to csv, tsv, json, jsonl or parquet (with that ending) first"
            if kind == "gzip" and not path.name.lower().endswith(".gz"):
                hint = f"compressed text ends in .gz: rename it to {quote(path.stem + ending_of(path) + '.gz')}"
            raise HftuneError(f"{name} is a binary file ({kind}), not text", hint=hint)


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == GZIP and ending_of(path) != GZIP


class _BoundedGzip(io.RawIOBase):
    """The decompressed bytes of a gzip file; reading past the bound is an error."""

    def __init__(self, file: BinaryIO, path: Path, limit: int) -> None:
        self._source = gzip.GzipFile(fileobj=file, mode="rb")
        self._path, self._limit, self._count = path, limit, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
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
