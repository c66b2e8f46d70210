"""Names of run directories: made from the recipe, safe on any file system, never one that is taken.

Called by ``hftune.runs.directory`` and by ``hftune.pipeline`` when nobody gave ``--output``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.files import file_name

RUNS = Path("runs")


def default_path(recipe: Recipe, root: Path = RUNS, *, group: bool = False) -> Path:
    """The path a run takes when none was given: ``runs/<task>-<data>-<model>-<method>-s<seed>``, made free.

    Args:
        recipe: The resolved recipe.
        root: The folder that holds the runs.
        group: Whether the path is for several seeds of one recipe; its name then carries no seed.
    """
    parts = [
        recipe.task.kind,
        _last(recipe.data.dataset_name),
        _last(recipe.model.model_name_or_path),
        recipe.method.kind,
    ]
    if not group:
        parts.append(f"s{recipe.train.seed}")
    path = root / "-".join(safe(part) for part in parts)
    return free_name(path) if _taken(path) else path


def free_name(path: Path) -> Path:
    """The path with the lowest number appended (``-2``, ``-3`` …) that nothing lies at."""
    number = 2
    while _taken(path.with_name(f"{path.name}-{number}")):
        number += 1
    return path.with_name(f"{path.name}-{number}")


def safe(text: str) -> str:
    """The text as part of a file name: letters, digits, dots, dashes and underscores, at most 48 bytes."""
    # Three parts of this size plus kind, method and seed stay well under the 255 bytes that file systems allow.
    return file_name(text, kept="", gap="-", longest=48)


def refuse_unwritable(path: Path) -> None:
    """Libraries that save weights take paths as UTF-8, which Python's are not under the locale C without UTF-8 mode."""
    if not str(path.resolve()).isascii() and sys.getfilesystemencoding() != "utf-8":
        raise HftuneError(
            f"the output directory {path} has letters that Python can't pass on under this locale",
            hint="start Python in UTF-8 mode: set PYTHONUTF8=1, or a locale such as LC_ALL=C.UTF-8",
        )


def public_name(source: str) -> str:
    """Where data or weights came from; of a path on the author's machine only its last part."""
    path = Path(source)
    local = source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source or path.exists()
    return path.name if local and path.name else source


def _last(name: str) -> str:
    """What tells one dataset or model from another: the last part of a Hub id or path, without its suffix."""
    path = Path(name)
    if path.name == "model" and path.parent.name:
        # A run's model folder: the run's name says more.
        path = path.parent
    if path.suffix.lower() == ".gz" and Path(path.stem).suffix.lower() in _FILE_SUFFIXES:
        path = path.with_suffix("")
    return path.stem if path.suffix.lower() in _FILE_SUFFIXES else path.name or path.resolve().name


_FILE_SUFFIXES = {".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt"}


def _taken(path: Path) -> bool:
    return path.exists() or path.is_symlink()
