"""Read and write files safely: atomic writes, checked names, no links that lead out of a folder.

A file is written under a temporary name in the same folder, synced and renamed, so that a reader never sees half of it.
Files and folders may come from other people: a damaged file is an ``HftuneError`` and not a traceback, and
``refuse_links`` checks that writing into a folder changes nothing outside it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError
from hftune.portability import has_other_names, is_link
from hftune.sanitize import json_text

PACKAGE = Path(__file__).parent
LONGEST_NAME = 120
"""Most bytes of a file name made from other text; file systems allow 255, and temporary names add to it."""
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows treats as devices, in every folder."""

STORED_HERE = ".hftune"
"""Marks a folder of rows that hftune stored in a run directory: a run that is refused may remove it again."""
STAGED = ".staged"
"""Suffix of a file that is being written."""
SAFETENSORS_STAGED = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""Names under which safetensors writes weights before it renames them."""


class Damaged(HftuneError, ValueError):
    """A file with content that does not fit its format."""

    def __init__(self, path: Path, error: BaseException | str, line: int | None = None) -> None:
        """Error is the reason, and line its place in the file."""
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        at = f", line {line}" if line is not None else ""
        super().__init__(
            f"{path}{at} is damaged: {reason[:200]}",
            hint="it was changed or cut off; copy it again from its source",
        )


def file_name(
    text: str, *, kept: str = "=+-", gap: str = "_", longest: int = LONGEST_NAME, empty: str = "unnamed"
) -> str:
    """Any text as the name of one file or folder. Every name that becomes part of a path goes through here.

    The result has letters, digits, dots, underscores and the kept characters. It has no separator, no dot at either
    end, is not a device of Windows and fits into ``longest`` bytes; a shortened text ends in a hash of the whole.

    Args:
        text: A name from a recipe, a study, a dataset or a run; untrusted.
        kept: Further characters to keep.
        gap: Replaces every run of other characters, and is removed at both ends.
        longest: Most bytes of the result.
        empty: The result if no character is left.
    """
    plain = re.sub(rf"[^\w.{re.escape(kept)}]+", gap, text).strip(f"{gap}.") or empty
    if len(plain.encode()) > longest:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain.encode()[: longest - 9].decode(errors='ignore').rstrip(f'{gap}.')}-{digest}"
    return f"{plain}_" if _RESERVED.fullmatch(plain) else plain


def checked_name(name: str, what: str) -> str:
    """Require a name that can be used as a file name unchanged.

    Args:
        name: From an untrusted file.
        what: The thing with this name, for the message.
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
        folder: Where to look. Files that another process deletes during the listing are left out.
        depth: 1 for the direct contents of the folder, and so on; every depth by default.
    """
    waiting = [(folder, 1)]  # no recursion: untrusted folders can be nested deeper than Python's recursion limit
    while waiting:
        inside, level = waiting.pop()
        for path in _listed(inside):
            yield path
            if level != depth and not is_link(path) and path.is_dir():
                waiting.append((path, level + 1))


def _listed(folder: Path) -> list[Path]:
    if not os.access(folder, os.X_OK):
        return []  # such as lost+found, or a deleted folder: nothing can be reached through it
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HftuneError(
            f"the files in {folder} can't be listed: {error.strerror}",
            hint="check the permissions of that folder, or remove it",
        ) from error


def is_outside(path: Path, folder: Path) -> bool:
    """Whether a path, with every link in it followed, is outside a folder; links in a circle count as outside."""
    try:
        return not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return True


def refuse_links(folder: Path, what: str, depth: int | None = None, *, in_place: bool = False) -> None:
    """Refuse links inside a folder that is about to be used: writing through one would change files elsewhere.

    The folder itself can be a link: the user named it.

    Args:
        folder: A run, a study or another folder that hftune writes to; its contents are untrusted.
        what: The kind of folder, for the message.
        depth: As in ``entries``.
        in_place: Files will be opened and changed, not replaced: hard links are refused as well.
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
    """Remove the temporary files of a killed process below a folder; no other process may be using the folder."""
    for left in folder.rglob(".*"):
        staged = left.name.endswith(STAGED) or SAFETENSORS_STAGED.fullmatch(left.name)
        if staged and (left.is_file() or left.is_symlink()):
            left.unlink(missing_ok=True)


def disk_is_full(error: BaseException) -> bool:
    """Whether writing failed because the disk is full, whichever library raised the error."""
    # torch and safetensors wrap the error of the system in types of their own, so that only the text identifies it.
    # torch's text does not even mention the disk: it reports the position at which the file ended ("unexpected pos").
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
    # In the same folder: a rename is atomic only within one file system.
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=STAGED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # Without a sync, a power failure can leave the new name with an empty file: the rename reaches the disk
            # before the content does.
            os.fsync(file.fileno())
        share(Path(staged))
        Path(staged).replace(path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise


def refuse_in_use(folder: Path) -> None:
    """Refuse a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HftuneError(f"{folder} exists already", hint="Name another folder with --output.")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder, which gets its final name when all files are written."""
    refuse_in_use(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as staged:
            inner = Path(staged) / folder.name
            yield inner
            if folder.exists():
                folder.rmdir()
            inner.rename(folder)
    except OSError as error:
        raise HftuneError(f"can't write {folder}: {error.strerror}", hint="Name another folder.") from error


def share(path: Path) -> None:
    """Give a file, or every file below a folder, the permissions of an ordinary new file (the umask).

    mkstemp and safetensors make files that only their owner can read. Links and hard links are left alone: their
    targets may be private on purpose.
    """
    mask = os.umask(0)  # the only way to read it is to set it
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
    """Write one JSON object per line."""
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
    """Read one JSON object per line. A last line that a crash left incomplete is skipped.

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
    raise ValueError(f"{name} is not JSON")


def asset_root() -> Path:
    """The folder that holds ``recipes/`` and ``data/``."""
    inside_wheel = PACKAGE / "_assets"
    return inside_wheel if inside_wheel.is_dir() else PACKAGE.parent


def recipes_dir() -> Path:
    """The folder of the shipped recipes."""
    return asset_root() / "recipes"


def embedded_data_dir() -> Path:
    """The folder of the embedded datasets, one subfolder each."""
    return asset_root() / "data"
