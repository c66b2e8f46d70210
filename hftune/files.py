"""Files that are whole or absent: written beside their place, synced, then renamed. Used by every layer that writes.

What is read may have been written by anybody: a file that is not what it should be is an error in words.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError
from hftune.escapes import json_text

STAGED = ".staged"
"""How the name of a file ends that is being written."""


class Damaged(HftuneError, ValueError):
    """A file that is not what its name says."""

    def __init__(self, path: Path, error: BaseException | str, line: int | None = None) -> None:
        """error: what is wrong with it."""
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        at = f", line {line}" if line is not None else ""
        super().__init__(
            f"{path}{at} is damaged: {reason[:200]}",
            hint="it was changed or cut off; take it again from where it was made",
        )


def remove_staged(folder: Path) -> None:
    """Remove what a killed process was writing anywhere below a folder that is nobody else's now."""
    for left in folder.rglob(f".*{STAGED}"):
        left.unlink(missing_ok=True)


def disk_is_full(error: BaseException) -> bool:
    """Whether writing failed for want of space, whichever library says so.

    torch and safetensors wrap the system's error in types of their own; the words are all that is left of it, and of
    torch's not even these: it says at which position a file has ended.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    phrases = ("No space left", "os error 28", "quota exceeded", "unexpected pos ")
    return any(phrase in str(error) for phrase in phrases)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that a reader sees the old content or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=STAGED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        share(Path(staged))
        Path(staged).replace(path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise


def share(path: Path) -> None:
    """Let a file, or every file below a folder, be read by whoever may read its owner's other files.

    mkstemp and safetensors make files that are private.
    """
    mask = os.umask(0)
    os.umask(mask)
    for file in [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]:
        file.chmod(0o666 & ~mask)


def sha256(path: Path) -> str:
    """A hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, indented, keys in the order given."""
    write_text(path, json_text(value, indent=2) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_text(path, "".join(json_text(row) + "\n" for row in rows))


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        Damaged: It holds something else, or can't be read.
    """
    try:
        return _object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(path, error) from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line. A last line cut off by a crash is left out: it was never finished.

    Raises:
        Damaged: A line holds something else, or the file can't be read.
    """
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n"):
                    break
                rows.append(_object(line))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(path, error, line=len(rows) + 1) from error
    return rows


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}, not an object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
