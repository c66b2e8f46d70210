"""Bytes of a file → text, or an error that says what is wrong with the bytes. Called by ``sources``."""

from __future__ import annotations

from pathlib import Path

from hftune.data.compressed import ending_of, read_whole
from hftune.data.wording import quote
from hftune.errors import HftuneError

BOM = b"\xef\xbb\xbf"
MAGIC = {
    b"PAR1": "parquet",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip (or xlsx)",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"\x80\x02": "pickle",
    b"\x80\x03": "pickle",
    b"\x80\x04": "pickle",
    b"\x80\x05": "pickle",
    b"\x89HDF": "HDF5",
    b"\x89PNG": "PNG",
    b"%PDF": "PDF",
    b"SQLite format 3": "SQLite",
}
UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_bytes(path: Path) -> bytes:
    """The content of a regular file that has any, decompressed if its name ends in ``.gz``."""
    name = quote(path.name)
    try:
        content = read_whole(path) if path.is_file() else None
    except OSError as error:
        raise HftuneError(f"{name} can't be read: {error.strerror}", hint="check the file's permissions") from error
    if content is None:
        raise HftuneError(f"{name} is not a regular file", hint="give a file of rows, or a folder of such files")
    if not content.removeprefix(BOM).strip():
        raise HftuneError(f"{name} is empty", hint="give a file that holds rows")
    return content


def decode(content: bytes, path: Path, *, offset: int = 0, lines: int = 0) -> str:
    """Text of a UTF-8 file; a byte order mark at its start is left out.

    Args:
        content: The file, or a part of it.
        path: For the messages.
        offset: Bytes of the file before that part.
        lines: Lines that end before it.
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
        return content[skipped:].decode("utf-8")
    except UnicodeDecodeError as error:
        place = error.start + skipped
        line = lines + content.count(b"\n", 0, place) + 1
        raise HftuneError(
            f"{name} is not UTF-8: byte 0x{content[place]:02x} at offset {offset + place} (line {line})",
            hint="convert it, for example with `iconv -f latin1 -t utf-8`",
        ) from error


def _refuse_binary(content: bytes, path: Path) -> None:
    """Report what a file is that does not begin as text does."""
    name = quote(path.name)
    if content.startswith(UTF16):
        raise HftuneError(f"{name} is UTF-16, not UTF-8", hint="save it again as UTF-8")
    for magic, kind in MAGIC.items():
        if content.startswith(magic):
            hint = "unpack or convert it to csv, tsv, json, jsonl or parquet (with that ending) first"
            if kind == "gzip" and not path.name.lower().endswith(".gz"):
                hint = f"compressed text ends in .gz: rename it to {quote(path.stem + ending_of(path) + '.gz')}"
            raise HftuneError(f"{name} is a binary file ({kind}), not text", hint=hint)
