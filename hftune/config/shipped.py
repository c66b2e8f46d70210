"""The shipped recipes and studies: found by looking, described by their own first lines.

Used by ``hftune.config.load``, ``hftune recipes`` and ``hftune sweep``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hftune.assets import recipes_dir
from hftune.config.document import DocumentError
from hftune.config.problems import Problem
from hftune.suggest import closest

STUDIES = "studies"
NOT_RECIPES = frozenset({STUDIES, "accelerate", "slurm"})
"""Folders below recipes/ that hold files of another kind."""


@dataclass(frozen=True)
class RecipeEntry:
    """A shipped recipe, as its header describes it."""

    name: str
    """Path below recipes/, without .yaml: what ``--recipe`` takes."""
    path: Path
    """The file."""
    command: str
    """The command that runs it."""
    expected: str
    """The score to expect, and where that number is from."""
    cost: str
    """Time and machine."""


def catalogue(folder: Path | None = None) -> list[RecipeEntry]:
    """All shipped recipes, by name.

    Args:
        folder: Where to look; the shipped recipes where not given.
    """
    root = folder or recipes_dir()
    files = sorted(path for path in root.rglob("*.yaml") if path.relative_to(root).parts[0] not in NOT_RECIPES)
    return [_entry(path, path.relative_to(root).with_suffix("").as_posix()) for path in files]


def shipped_studies() -> list[RecipeEntry]:
    """All shipped studies, by name: what ``hftune sweep`` takes."""
    root = recipes_dir() / STUDIES
    return [_entry(path, path.relative_to(root).with_suffix("").as_posix()) for path in sorted(root.rglob("*.yaml"))]


def find_study(study: str) -> Path:
    """The file that a shipped study's name or a path stands for.

    Raises:
        DocumentError: Nothing goes by that name.
    """
    entries = {entry.name: entry.path for entry in shipped_studies()}
    name = study.removeprefix(f"{STUDIES}/")
    if name in entries:
        return entries[name]
    if Path(study).is_file():
        return Path(study)
    if Path(study).suffix in (".yaml", ".yml"):
        raise DocumentError(Problem("", "expected a study file, got a path where there is none", source=study))
    near = closest(name, entries)
    hint = f"Did you mean {near}?" if near else f"Shipped studies: {', '.join(entries)}."
    raise DocumentError(Problem("", f"no study or file goes by the name {study!r}", hint))


def find_recipe(recipe: str | Path) -> Path:
    """The file that a name, a path or a run directory stands for.

    A shipped recipe's full name comes first, then what exists on disk, then the unique last part of a name.

    Raises:
        DocumentError: Nothing, or more than one thing, goes by that name.
    """
    path = Path(recipe)
    entries = {} if isinstance(recipe, Path) else {entry.name: entry.path for entry in catalogue()}
    if str(recipe) in entries:
        return entries[str(recipe)]
    if path.is_dir() and (path / "recipe.yaml").is_file():
        return path / "recipe.yaml"
    if path.is_file():
        return path
    matches = [name for name in entries if name.rpartition("/")[2] == recipe]
    if len(matches) == 1:
        return entries[matches[0]]
    if matches:
        hint = f"It could be {' or '.join(matches)}: write the whole name."
        raise DocumentError(Problem("", f"expected one recipe, got a name that {len(matches)} share", hint))
    raise DocumentError(_not_found(str(recipe), path, list(entries)))


def _not_found(recipe: str, path: Path, names: list[str]) -> Problem:
    if path.is_dir():
        return Problem("", "expected a recipe, got a folder without recipe.yaml", source=recipe)
    if path.suffix in (".yaml", ".yml"):
        return Problem("", "expected a recipe file, got a path where there is none", source=recipe)
    last_parts = {name.rpartition("/")[2]: name for name in reversed(names)}
    near = closest(recipe, names) or last_parts.get(closest(recipe, last_parts) or "")
    hint = f"Did you mean {near}?" if near else ""
    return Problem("", f"no recipe, file or run goes by the name {recipe!r}", hint)


def _entry(path: Path, name: str) -> RecipeEntry:
    """Read the comment at the top; a line indented below ``# Expected:`` or ``# Cost:`` continues it."""
    fields = {"command": "", "expected": "", "cost": ""}
    current: str | None = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("#"):
            break
        text = line[1:]
        label = re.match(r"\s*(Expected|Cost):\s*(.*)", text)
        if label:
            current = label[1].lower()
            fields[current] = label[2].strip()
        elif text.strip().startswith("hftune ") and not fields["command"]:
            current = None
            fields["command"] = text.strip()
        elif current and text.startswith("   ") and text.strip():
            fields[current] += f" {text.strip()}"
        else:
            current = None
    return RecipeEntry(name=name, path=path, **fields)
