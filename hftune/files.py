"""Files that are whole or absent: written beside their place, synced, then renamed. Used by every layer that writes."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


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


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; a run directory is as readable as its owner's other files.
        mask = os.umask(0)
        os.umask(mask)
        Path(staged).chmod(0o666 & ~mask)
        Path(staged).replace(path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, indented, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object."""
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict), f"{path} holds {type(value).__name__}, not an object"
    return value


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line. A last line cut off by a crash is left out: it was never finished."""
    rows = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                break
            rows.append(json.loads(line))
    return rows
