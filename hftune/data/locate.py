"""``data.dataset_name`` → the files of each split. Called by ``hftune.data.load``.

A folder's split files are found by the words in their names. Nothing outside a folder is read through it:
a path that climbs out and a link that leads out are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from hftune.config.data import SplitData
from hftune.config.model import HUB_ID
from hftune.data.compressed import GZIP, ending_of, stem_of
from hftune.data.sources import FORMATS
from hftune.data.wording import closest, listing, quote
from hftune.errors import HftuneError
from hftune.files import leads_out

WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
UNLABELED = {"unlabeled", "unlabelled", "unsupervised", "unlab"}
SHARD = re.compile(r"[-_]\d{1,6}[-_]of[-_]\d{1,6}$")
Files = dict[str, list[Path]]
"""The files of each split; several where a split lies in shards."""


HUB_ONLY = (
    "dataset_config_name",
    "dataset_revision",
    "train_split_name",
    "validation_split_name",
    "test_split_name",
)
"""Settings of the data that mean something for a dataset of the Hub only."""
FILES_ONLY = ("train_file", "validation_file", "test_file")
"""Settings that mean something for files only."""


class SplitNames(Protocol):
    """A data section that may name the file of each split."""

    @property
    def split_files(self) -> dict[str, str | None]: ...  # noqa: D102


def as_path(name: str) -> Path | None:
    """The file or folder of that name, or None where there is none."""
    if not name or "\0" in name:
        raise HftuneError(
            f"data.dataset_name is {quote(name)}", hint="give an embedded name, a Hub id, a folder or a file"
        )
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a name too long for the file system, a home folder that nobody has
        return None


def is_hub_id(name: str) -> bool:
    """Whether a name that is no path can be one of the Hub: ``owner/name`` or bare, with no file's ending."""
    return HUB_ID.fullmatch(name) is not None and ending_of(Path(name)) not in (*FORMATS, GZIP)


def refuse_missing(name: str, embedded: list[str]) -> HftuneError:
    """The error for a path that leads nowhere."""
    path = Path(name).expanduser() if not name.startswith("~") else Path(name)
    try:
        siblings = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        near = f"the folder {quote(str(path.parent))} is not there either; "
    else:
        near = closest(path.name, siblings)
    return HftuneError(
        f"there is no file or folder {quote(name)}",
        hint=near + f"give a file, a folder, a Hub id (owner/name) or an embedded name ({', '.join(embedded)})",
    )


def refuse_settings(section: SplitData, names: Sequence[str], reason: str) -> None:
    """Refuse settings that would be ignored for this dataset.

    Raises:
        HftuneError: One of them is set.
    """
    for name in names:
        value = getattr(section, name)
        if value is not None:
            split = name.partition("_")[0]
            instead = {
                "does not come from the Hub": f"data.{split}_file",
                "comes from the Hub": f"data.{split}_split_name",
            }
            other = f"; set {instead[reason]}" if split in WORDS else ""
            raise HftuneError(
                f"data.{name} is {quote(value)}, but {quote(section.dataset_name)} {reason}",
                hint=f"leave data.{name} out{other}",
            )


def files_of(path: Path, section: SplitNames, endings: Collection[str] = FORMATS) -> Files:
    """The split files of a folder, or the one file with what the recipe names beside it."""
    named = section.split_files
    if path.is_dir():
        return folder_files(path, {split: name for split, name in named.items() if name is not None}, endings)
    if named["train"] is not None:
        raise HftuneError(
            f"data.dataset_name is a file of training rows already ({quote(path.name)}); data.train_file names another",
            hint="leave data.train_file out, or make data.dataset_name the folder of both",
        )
    files = {"train": [path]}
    for split in ("validation", "test"):
        name = named[split]
        if name is not None:
            # A file beside the first one, or any path as it would be written for data.dataset_name.
            found = as_path(name) or as_path(str(path.parent / name))
            if found is None or not found.is_file():
                raise refuse_missing(name, [])
            files[split] = [found]
    return files


def folder_files(folder: Path, named: dict[str, str], endings: Collection[str] = FORMATS) -> Files:
    """The split files of a folder.

    Args:
        folder: where they lie.
        named: files the recipe names, relative to the folder; the others are found by their names.
        endings: how the name of a file of rows ends.
    """
    candidates = sorted(
        entry
        for entry in folder.iterdir()
        if ending_of(entry) in endings
        and not entry.name.startswith((".", "_"))
        and not UNLABELED & set(words_of(entry))
    )
    files: Files = {}
    for split, words in WORDS.items():
        if split in named:
            files[split] = [_named_file(folder, named[split])]
        else:
            found = [entry for entry in candidates if set(words) & set(words_of(entry))]
            if found:
                files[split] = _one_file_or_shards(found, split, folder)
    if "train" not in files:
        files["train"] = _only_file(folder, candidates, files, endings)
    for paths in files.values():
        for path in paths:
            _refuse_leading_out(path, folder)
    return files


def words_of(path: Path) -> list[str]:
    """The words in a file's name: ``sst_train.txt`` has sst and train."""
    return re.split(r"[^a-z0-9]+", SHARD.sub("", stem_of(path)).lower())


def _named_file(folder: Path, name: str) -> Path:
    path = folder / name
    if "\0" in name or ".." in Path(name).parts:
        raise HftuneError(
            f"{quote(name)} climbs out of the data folder {quote(folder.name)}",
            hint="name a file inside the folder, or make data.dataset_name the folder that holds it",
        )
    _refuse_leading_out(path, folder)
    if not path.is_file():
        files = sorted(entry.name for entry in folder.iterdir())
        raise HftuneError(
            f"there is no file {quote(name)} in the data folder {quote(folder.name)}",
            hint=closest(name, files) + f"the folder holds {listing(files)}",
        )
    return path


def _one_file_or_shards(found: list[Path], split: str, folder: Path) -> list[Path]:
    """One file, or the shards of one; else nobody can tell which is meant, unless one is plainly named."""
    plain = [path for path in found if stem_of(path).lower() in WORDS[split]]
    if len(plain) == 1:
        return plain
    families = {(SHARD.sub("", stem_of(path)), ending_of(path)) for path in found}
    if len(families) > 1 or (len(found) > 1 and not all(SHARD.search(stem_of(path)) for path in found)):
        raise HftuneError(
            f"the folder {quote(folder.name)} has several files that could be {split}: "
            f"{listing(path.name for path in found)}",
            hint=f"name one with --set data.{split}_file=FILE",
        )
    return found


def _only_file(folder: Path, candidates: list[Path], files: Files, endings: Collection[str]) -> list[Path]:
    """A folder of one data file is that file; otherwise train can't be told."""
    rest = [path for path in candidates if all(path not in paths for paths in files.values())]
    if len(rest) == 1 and not files:
        return rest
    inside = listing(sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir()))
    raise HftuneError(
        f"the folder {quote(folder.name)} has no training file; it holds {inside or 'nothing'}",
        hint="a split file has train, validation (or valid, val, dev) or test in its name and ends in "
        f"{', '.join(endings)} (text also in .gz after it); name others with --set data.train_file=FILE",
    )


def _refuse_leading_out(path: Path, folder: Path) -> None:
    if leads_out(path, folder):
        raise HftuneError(
            f"{quote(path.name)} leads out of the data folder {quote(folder.name)}",
            hint="copy the file into the folder, or make data.dataset_name the folder that holds it",
        )
