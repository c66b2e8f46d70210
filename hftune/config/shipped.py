"""Find the shipped recipes and studies, and read the comments at their top."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hftune.config.document import Problem, RecipeError
from hftune.errors import closest, nearby_path
from hftune.files import recipes_dir

STUDIES = "studies"
YAML = (".yaml", ".yml")
LAUNCHERS = ("accelerate", "slurm")
"""Folders below recipes/ with files for the launchers of those names."""
NOT_RECIPES = frozenset({STUDIES, *LAUNCHERS})


@dataclass(frozen=True)
class RecipeEntry:
    """A shipped recipe, with the fields of its header."""

    name: str
    """Path below recipes/, without .yaml: what ``--recipe`` takes."""
    path: Path
    """The file."""
    command: str
    """The command that runs it."""
    expected: str
    """The expected score, and how it was measured."""
    cost: str
    """Time and machine."""


def shipped_recipes(folder: Path | None = None) -> list[RecipeEntry]:
    """All shipped recipes, by name.

    Args:
        folder: Folder to search; that of the shipped recipes by default.
    """
    root = folder or recipes_dir()
    files = sorted(path for path in root.rglob("*.yaml") if path.relative_to(root).parts[0] not in NOT_RECIPES)
    return [_entry(path, path.relative_to(root).with_suffix("").as_posix()) for path in files]


def shipped_studies() -> list[RecipeEntry]:
    """All shipped studies, by name: what ``hftune sweep`` takes."""
    return shipped_recipes(recipes_dir() / STUDIES)


def find_study(study: str) -> Path:
    """The file of a study: a shipped name or a path."""
    entries = {entry.name: entry.path for entry in shipped_studies()}
    name = study.removeprefix(f"{STUDIES}/")
    if name in entries:
        return entries[name]
    path = Path(study)
    if path.is_file():
        return path
    if (other := _other_ending(path)) is not None:
        return other
    if path.suffix in YAML:
        problem = Problem("", "expected a study file, got a path that does not exist", _files_near(path), study)
    else:
        near = closest(name, entries)
        hint = f"Did you mean {near}?" if near else f"Shipped studies: {', '.join(entries)}."
        problem = Problem("", f"there is no study or file {study!r}", hint)
    raise RecipeError(study, [problem])


def find_launch_file(name: str) -> Path | None:
    """A shipped file for a launcher, such as slurm/train.sbatch; None if there is none of that name."""
    root = recipes_dir()
    files = {path.relative_to(root).as_posix(): path for folder in LAUNCHERS for path in (root / folder).glob("*")}
    return files.get(name)


def find_recipe(recipe: str | Path) -> Path:
    """The file of a recipe: a shipped name, a path or a run directory.

    A shipped recipe's full name comes first, then what exists on disk, then the unique last part of a name.
    """
    path = Path(recipe)
    entries = {} if isinstance(recipe, Path) else {entry.name: entry.path for entry in shipped_recipes()}
    if str(recipe) in entries:
        return entries[str(recipe)]
    if path.is_dir() and (path / "recipe.yaml").is_file():
        return path / "recipe.yaml"
    if path.is_file():
        return path
    if (other := _other_ending(path)) is not None:
        return other
    matches = [name for name in entries if name.rpartition("/")[2] == recipe]
    if len(matches) == 1:
        return entries[matches[0]]
    problem = _not_found(str(recipe), path, list(entries))
    if matches:
        hint = f"It could be {' or '.join(matches)}: write the whole name."
        problem = Problem("", f"expected one recipe, got a name that {len(matches)} share", hint)
    raise RecipeError(str(recipe), [problem])


def _not_found(recipe: str, path: Path, names: list[str]) -> Problem:
    if path.is_dir():
        return Problem("", "expected a recipe, got a folder without recipe.yaml", source=recipe)
    if path.suffix in YAML:
        return Problem("", "expected a recipe file, got a path that does not exist", _files_near(path), recipe)
    last_parts = {name.rpartition("/")[2]: name for name in reversed(names)}
    near = closest(recipe, names) or last_parts.get(closest(recipe, last_parts) or "")
    hint = f"Did you mean {near}?" if near else ""
    return Problem("", f"there is no recipe, file or run {recipe!r}", hint)


def _other_ending(path: Path) -> Path | None:
    """``mine.yaml`` for ``mine.yml`` or ``mine``, and the reverse."""
    stem = path.with_suffix("") if path.suffix in YAML else path
    found = [stem.with_name(stem.name + ending) for ending in YAML if stem.name]
    return next((one for one in found if one.is_file()), None)


def _files_near(path: Path) -> str:
    near = nearby_path(path, sorted(one for ending in YAML for one in path.parent.glob(f"*{ending}")))
    return f"{near[:1].upper()}{near[1:]}"


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
