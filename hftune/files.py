"""Files that are whole or absent: written beside their place, synced, then renamed. Used by every layer that writes.

What is read may have been written by anybody: a file that is not what it should be is an error in words. A folder that
is written to may come from anybody too: ``refuse_links`` checks that nothing in it leads elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError
from hftune.escapes import json_text
from hftune.portability import has_other_names, is_link

LONGEST_NAME = 120
"""Bytes of a file name that is made from other text; file systems take 255."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows takes for devices, in every folder."""

STORED_HERE = ".hftune"
"""Marks a folder of rows that hftune stored in a run directory: a run that is refused may remove it again."""
STAGED = ".staged"
"""How the name of a file ends that is being written."""
SAFETENSORS_STAGED = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""Names under which safetensors writes weights before it renames them."""


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


def file_name(
    text: str, *, kept: str = "=+-", gap: str = "_", longest: int = LONGEST_NAME, empty: str = "unnamed"
) -> str:
    """Any text as the name of one file or folder: the only way from the name of a thing to a path.

    The result has letters, digits, dots, underscores and what is kept. It has no separator, begins and ends with no
    dot, is no device of Windows and fits into ``longest`` bytes; a text that is cut ends in a hash of all of it.

    Args:
        text: A name from a recipe, a study, a dataset or a run, which may be a stranger's.
        kept: Further characters that stay.
        gap: Stands for every run of other characters, and is removed at both ends.
        longest: Bytes of the result.
        empty: The result when nothing is left.
    """
    plain = re.sub(rf"[^\w.{re.escape(kept)}]+", gap, text).strip(f"{gap}.") or empty
    if len(plain.encode()) > longest:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain.encode()[: longest - 9].decode(errors='ignore').rstrip(f'{gap}.')}-{digest}"
    return f"{plain}_" if _RESERVED.fullmatch(plain) else plain


def checked_name(name: str, what: str) -> str:
    """A name that becomes a path as it is.

    Args:
        name: From a file that may be a stranger's.
        what: What has this name, for the message.

    Raises:
        HftuneError: It is not one that ``file_name`` gives.
    """
    if file_name(name) != name:
        raise HftuneError(
            f"{what} {name[:LONGEST_NAME]!r} can't be the name of a file",
            hint=f"use letters, digits, - _ = + and dots inside, at most {LONGEST_NAME} bytes",
        )
    return name


def entries(folder: Path, depth: int | None = None) -> Iterator[Path]:
    """Everything below a folder, links included but not followed; the folder itself can be a link.

    Args:
        folder: Where to look. Another process may be writing there: what disappears meanwhile is left out.
        depth: 1 for what is directly in the folder, and so on; every depth by default.

    Raises:
        HftuneError: A folder can't be listed, but files in it can be reached by name.
    """
    waiting = [(folder, 1)]  # no recursion: folders of strangers can be nested deeper than Python's limit
    while waiting:
        inside, level = waiting.pop()
        for path in _listed(inside):
            yield path
            if level != depth and not is_link(path) and path.is_dir():
                waiting.append((path, level + 1))


def _listed(folder: Path) -> list[Path]:
    if not os.access(folder, os.X_OK):
        return []  # such as lost+found, or a folder that is gone: nothing can be reached through it
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HftuneError(
            f"the files in {folder} can't be listed: {error.strerror}",
            hint="check the permissions of that folder, or remove it",
        ) from error


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path, with every link in it followed, is outside a folder; links in a circle count as outside."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return True


def refuse_links(folder: Path, what: str, depth: int | None = None, *, in_place: bool = False) -> None:
    """Refuse links inside a folder that is about to be used: writing through one would change files elsewhere.

    The folder itself can be a link: the user named it.

    Args:
        folder: A run, a study or another folder that hftune writes to, which may come from a stranger.
        what: What a message calls such a folder.
        depth: As in ``entries``.
        in_place: Files will be opened and changed, not replaced: hard links are refused as well.

    Raises:
        HftuneError: Names the first link and where it leads.
    """
    for path in entries(folder, depth):
        if is_link(path):
            raise HftuneError(
                f"{path} is a link to {path.readlink()}, and links inside {what} are refused: files elsewhere could be "
                "changed or deleted through them",
                hint=f"remove the link, or replace it with the files it leads to; {folder} itself can be a link",
            )
        if in_place and has_other_names(path):
            raise HftuneError(
                f"{path} is a hard link: the same file has another name elsewhere, and would be changed there too",
                hint=f"copy {folder} with `cp -r`, which makes files of their own, and continue with the copy",
            )


def remove_staged(folder: Path) -> None:
    """Remove what a killed process was writing anywhere below a folder that is nobody else's now."""
    for left in folder.rglob(".*"):
        staged = left.name.endswith(STAGED) or SAFETENSORS_STAGED.fullmatch(left.name)
        if staged and (left.is_file() or left.is_symlink()):
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

    mkstemp and safetensors make files that are private. Links are left alone, hard links too: what they lead to may be
    private on purpose.
    """
    mask = os.umask(0)
    os.umask(mask)
    for file in entries(path) if path.is_dir() else [path]:
        if file.is_file() and not is_link(file) and not has_other_names(file):
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
