"""Recipes in and out: YAML, flags and ``--set`` into a checked ``Recipe``, and a ``Recipe`` back into YAML.

Called by every command through ``hftune.cli.options.resolve``, by ``hftune recipes validate``, and by Python
users as ``hftune.load_recipe``. One code path for all of them, and every error at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hftune.config import document
from hftune.config.check import Source, check, got
from hftune.config.kinds import default_kind, section_kinds, task_class
from hftune.config.overrides import merge, nested, parse_sets, plain
from hftune.config.problems import Problem, RecipeError
from hftune.config.recipe import Recipe
from hftune.config.shipped import find_recipe
from hftune.suggest import closest

TYPED = "from a flag or override"
BY_METHOD = "by_method"
"""The key of a recipe file under which settings are stated per method: those of the method that is used count."""


def load_recipe(
    recipe: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    *,
    task: str | None = None,
) -> Recipe:
    """Read, merge and check a recipe: schema defaults < file < its settings for the method < overrides < sets.

    Args:
        recipe: A shipped recipe's name or its last part, a YAML file, or a run directory; None for defaults.
        overrides: Dotted keys and values, as flags give them; None means not given.
        sets: ``a.b=c`` texts, the value read as YAML.
        task: The task kind that the caller carries out; a file that states another one is refused.

    Returns:
        The recipe, frozen, with every default filled in.

    Raises:
        RecipeError: Something is wrong; ``problems`` holds all of it.
    """
    name = "the recipe" if recipe is None else str(recipe)
    set_pairs, problems = parse_sets(sets)
    flag_pairs, bad_values = _override_pairs(overrides or {})
    problems = bad_values + problems
    try:
        path = None if recipe is None else find_recipe(recipe)
        stated, lines = _sections_of(path)
    except document.DocumentError as error:
        # What is laid over an unreadable file can't be judged: its kinds decide which settings there are.
        raise RecipeError(name, [error.problem, *problems]) from error
    by_method, pairs = stated.pop(BY_METHOD, None), flag_pairs + set_pairs
    method_pairs, lines, bad_methods = _of_the_method(by_method, stated, pairs, lines)
    problems += [replace(problem, source=f"{path}:{lines.get(problem.path, 1)}") for problem in bad_methods]
    values = merge(stated, method_pairs + pairs, task)

    def source(dotted: str) -> str:
        for origin, pairs in (("--set", set_pairs), (TYPED, flag_pairs)):
            if any(f"{dotted}.".startswith(f"{key}.") for key, _ in pairs):
                return origin
        while dotted and dotted not in lines:
            dotted = dotted.rpartition(".")[0]
        return f"{path}:{lines[dotted]}" if dotted else ""

    if task is not None:
        problems += _for_task(task, values, source)
    sections, found = check(values, source)
    problems += found
    if problems:
        raise RecipeError(name, problems)
    try:
        return Recipe.model_validate(sections)
    except ValidationError as error:
        raise RecipeError(name, [_across_sections(details) for details in error.errors()]) from error


def recipe_path(recipe: str | Path) -> Path:
    """The file that a recipe's name, path or run directory stands for.

    Raises:
        RecipeError: Nothing, or more than one thing, goes by that name.
    """
    try:
        return find_recipe(recipe)
    except document.DocumentError as error:
        raise RecipeError(str(recipe), [error.problem]) from error


def recipe_yaml(recipe: Recipe) -> str:
    """The whole recipe as YAML, defaults included; loading it gives an equal recipe."""
    return document.dump(plain(recipe.model_dump()))


def _sections_of(path: Path | None) -> tuple[dict[str, Any], dict[str, int]]:
    """What a recipe file states, by section, and the line of each setting; nothing where there is no file."""
    stated, lines = (None, {}) if path is None else document.read(path)
    if stated is not None and not isinstance(stated, dict):
        message = f"expected sections such as task, data and train; got {got(stated)}"
        raise document.DocumentError(Problem("", message, source=str(path)))
    return {section: {} if value is None else value for section, value in (stated or {}).items()}, lines


def _of_the_method(
    by_method: Any, stated: Mapping[str, Any], pairs: list[tuple[str, Any]], lines: dict[str, int]
) -> tuple[list[tuple[str, Any]], dict[str, int], list[Problem]]:
    """What a file states for the method that is used: dotted keys and values, where they are, and what is wrong."""
    known = section_kinds("method")
    if by_method is None:
        return [], lines, []
    if not isinstance(by_method, dict):
        return [], lines, [Problem(BY_METHOD, f"expected settings by method, got {got(by_method)}")]
    problems = []
    for name, sections in by_method.items():
        path = f"{BY_METHOD}.{name}"
        if name not in known:
            near = closest(str(name), known)
            hint = f"Did you mean {near}?" if near else ""
            problems.append(Problem(path, f"expected a method ({', '.join(known)})", hint))
        elif not isinstance(sections, dict) or not all(isinstance(part, dict) for part in sections.values()):
            problems.append(Problem(path, "expected sections such as method and train, with settings"))
    if problems:
        return [], lines, problems
    kind = _kind(nested(pairs)) or _kind(stated) or default_kind("method")
    here = f"{BY_METHOD}.{kind}."
    moved = {path.removeprefix(here): line for path, line in lines.items() if path.startswith(here)}
    found = by_method.get(kind, {})
    settings = [(f"{section}.{key}", value) for section, part in found.items() for key, value in part.items()]
    return settings, {**lines, **moved}, []


def _kind(values: Mapping[str, Any]) -> str | None:
    section = values.get("method")
    kind = section.get("kind") if isinstance(section, Mapping) else None
    return kind if isinstance(kind, str) else None


def _across_sections(details: ErrorDetails) -> Problem:
    """A problem that only the whole recipe shows: each section is fine by itself."""
    message = details["msg"].removeprefix("Value error, ").rstrip(".")
    return Problem(".".join(map(str, details["loc"])), message)


def _override_pairs(overrides: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[Problem]]:
    pairs: list[tuple[str, Any]] = []
    problems: list[Problem] = []
    for key, value in overrides.items():
        try:
            if value is not None:
                pairs.append((key, plain(value)))
        except TypeError as error:
            problems.append(Problem(key, str(error), source=TYPED))
    return pairs, problems


def _for_task(task: str, values: dict[str, Any], source: Source) -> list[Problem]:
    """Fill in the caller's task kind, or say that the recipe is for another one."""
    assert task in section_kinds("task"), f"no task kind {task}"
    section = values.setdefault("task", {})
    if not isinstance(section, dict):
        return []
    stated = section.setdefault("kind", task)
    if stated == task or stated not in list(section_kinds("task")):
        return []
    message = f"expected a recipe for {task}; got one for {stated}"
    return [Problem("task.kind", message, f"Run `hftune {task_class(stated).command}`.", source("task.kind"))]
