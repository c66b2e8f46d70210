"""Make the plan of a study from a YAML file, from flags, or from Python.

The other arguments replace or extend the values of a study file. Every problem of a file is
reported at once, each key one time and in the terms of a study, because pydantic reports every alternative of a
union that did not fit, under internal names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hftune.config import document
from hftune.config.document import Problem, RecipeError
from hftune.config.shipped import find_study
from hftune.config.values import got, plain, refuse_unasked, typed_keys
from hftune.errors import HftuneError, closest
from hftune.files import file_name
from hftune.pipeline.names import from_names, known_names, unknown
from hftune.pipeline.request import RecipeLike
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import safe
from hftune.studies.plan import PLAN, Plan, Stage, is_study, recipes_of

DEPENDS_ON = "depends_on."
"""Prefix of settings for the runs that others start from."""
FILLED_IN = ("learning_rate", "num_train_epochs", "metric_for_best_model")
"""Settings of ``train`` whose defaults depend on other sections; a resolved recipe states them."""

StudyLike = str | Path | Mapping[str, Any]
"""A shipped study's name, a YAML file, the folder of a study, or a dict with the content of such a file."""


AXIS = "a list of values, named settings of dotted keys, or an interval with the numbers low and high"
EXPECTED = {
    "recipe": "the name of a recipe, its path, or a run",
    "set": "dotted keys with their values, such as train.learning_rate: 1e-3",
    "depends_on": "names of runs, each with recipe, inherit and set",
    "depends_on.recipe": "the name of a recipe, its path, or a run",
    "depends_on.inherit": "a list of keys of the study's set",
    "depends_on.set": "dotted keys with their values, such as train.learning_rate: 1e-3",
    "grid": "dotted keys with their values, such as train.learning_rate: [1e-3, 3e-3]",
    "seeds": "a list of whole numbers, such as [1, 2, 3]",
    "test": "selected or all",
    "reference": "an axis and one of its values, such as method.kind: full",
    "search": "a whole number above 0",
}
"""Description of the values of each key of a study."""
KEY_PARTS = {"grid": 2, "reference": 1, "seeds": 1, "set": 1}
"""How many parts of a place reported by pydantic name a key of the file; 3 for other keys."""


def plan_study(
    study: StudyLike | None,
    *,
    recipe: RecipeLike | None = None,
    task: str | None = None,
    grid: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    test: str | None = None,
    search: int | None = None,
) -> tuple[Plan, str]:
    """The plan of a study, checked for consent to remote code, and the name of its folder.

    Args:
        study: The study that the other arguments override.
        recipe: The recipe that every run starts from.
        task: The kind of task; that of the recipe by default.
        grid: Names and values of settings, or names of the settings that the study has on an axis.
        settings: Settings that all runs share, by dotted key; below ``depends_on.NAME.``, those of such a run.
        seeds: Seeds of each setting.
        test: Score test for the selected setting, or for all.
        search: Sample this many settings.

    Raises:
        HftuneError: The plan can't be made.
    """
    values, name, lines = _stated(study)
    if recipe is not None:
        values["recipe"] = str(recipe) if isinstance(recipe, str | Path) else None
        if not isinstance(recipe, str | Path):
            values["set"] = {**_dotted(recipe), **_mapping(values, "set")}
    stated = _mapping(values, "grid")
    axes = {} if grid is None else _axes(grid, stated, task or _task_of(values, recipe))
    if axes:
        values["grid"] = {**stated, **axes}
    elif "grid" not in values:
        raise HftuneError(
            "there is nothing to vary",
            hint="name a study, or what to vary: --grid learning_rate=3e-4,1e-3, in Python grid={'learning_rate': …}",
        )
    given = dict(settings or {})
    shared = {key: value for key, value in given.items() if not key.startswith(DEPENDS_ON)}
    if task is not None:
        shared = {"task.kind": task, **shared}
    if shared:
        values["set"] = {**_mapping(values, "set"), **plain(shared)}
    values |= _stages(values, {key: value for key, value in given.items() if key not in shared})
    chosen = {"seeds": None if seeds is None else list(seeds), "test": test, "search": search}
    values |= {key: value for key, value in chosen.items() if value is not None}
    plan = make_plan(values, name or "the study", lines)
    # A study file may come from anybody: running code needs a flag.
    typed = typed_keys([*axes.items(), *shared.items()])
    for made in recipes_of(plan):
        refuse_unasked(made, typed)
    return plan, name or _default_name(plan)


def study_task(study: StudyLike | None, recipe: RecipeLike | None) -> str | None:
    """The kind of task of a study: that of its recipe, else the default; None if it varies."""
    return _task_of(_stated(study)[0], recipe)


def study_recipe(study: StudyLike | None) -> str | None:
    """The recipe that a study names."""
    stated = _stated(study)[0].get("recipe")
    return stated if isinstance(stated, str) else None


def _task_of(values: Mapping[str, Any], recipe: RecipeLike | None) -> str | None:
    if isinstance(recipe, Recipe):
        return recipe.task.kind
    if isinstance(recipe, Mapping):
        return load_recipe(None, recipe).task.kind
    named = [axis for axis in _mapping(values, "grid").values() if isinstance(axis, Mapping)]
    if any(isinstance(part, Mapping) and "task.kind" in part for axis in named for part in axis.values()):
        return None
    kind = _mapping(values, "set").get("task.kind")
    stated = recipe if recipe is not None else values.get("recipe")
    return str(kind) if kind else load_recipe(stated).task.kind if stated is not None else Recipe.default_kind("task")


def _stated(study: StudyLike | None) -> tuple[dict[str, Any], str | None, dict[str, int]]:
    """The content of a study, its name, and the lines of its file."""
    if study is None:
        return {}, None, {}
    if isinstance(study, Mapping):
        return dict(study), None, {}
    if not isinstance(study, str | Path):
        raise HftuneError(
            f"expected a study by name, path or dict; got {type(study).__name__}",
            hint="name one (`hftune recipes ls`), or give a grid",
        )
    path = find_study(str(Path(study) / PLAN if is_study(Path(study)) else study))
    values, lines = read_values(path)
    name = path.resolve().parent.name if path.name == PLAN else path.stem
    return values, file_name(name, kept=" =+-"), lines


def _default_name(plan: Plan) -> str:
    keys = "-".join(key.rpartition(".")[2] for key in plan.grid)
    start = (plan.recipe or "defaults").rstrip("/").rpartition("/")[2].removesuffix(".yaml")
    return safe(f"study-{start}-{keys}")


def _axes(grid: Mapping[str, Any], stated: Mapping[str, Any], kind: str | None) -> dict[str, Any]:
    """The axes by dotted key; free names of named settings stay, with the names inside them dotted."""
    if not isinstance(grid, Mapping):
        raise HftuneError(
            f"grid: expected setting names and lists of values; got {grid!r}", hint='write {"learning_rate": [3e-4]}'
        )
    paths = Recipe.spellings(kind)
    found: dict[str, Any] = {}
    for given, axis in grid.items():
        if not isinstance(given, str):
            raise HftuneError(f"grid: expected the name of a setting; got {given!r}", hint="write names as text")
        if given in stated:
            found[given] = _chosen(given, axis, stated[given])
            continue
        name = given.replace("-", "_")
        if name not in paths and isinstance(axis, Mapping) and not {"low", "high"} <= axis.keys():
            found[given] = {str(value): _inside(chosen, kind) for value, chosen in axis.items()}
            continue
        if "." not in name and name not in paths:
            raise unknown(name, known_names(kind))
        path = paths.get(name, given)
        if path in found:
            raise HftuneError(f"two axes of the grid are the same setting ({path})", hint="leave one of them out")
        if isinstance(axis, str):
            found[path] = parse_grid([f"{path}={axis}"])[path]
        elif isinstance(axis, Mapping):
            found[path] = dict(axis)
        elif isinstance(axis, Iterable):
            try:
                found[path] = plain(list(axis))
            except TypeError as error:
                raise HftuneError(f"grid: {name}: {error}", hint="give text, numbers, True, False or None") from error
        else:
            raise HftuneError(f"grid: expected a list of values for {name}; got {axis!r}", hint=f"write [{axis!r}]")
    return found


def _inside(chosen: Any, kind: str | None) -> Any:
    """Named settings of an axis, by dotted key; anything but a mapping is reported when the plan is made."""
    if not isinstance(chosen, Mapping):
        return chosen
    dotted = {name: value for name, value in chosen.items() if "." in str(name)}
    others = {str(name): value for name, value in chosen.items() if name not in dotted}
    return from_names(others, kind).overrides | dotted


def _chosen(key: str, axis: Any, named: Any) -> Any:
    """Values of an axis of the study, or names of the settings that it has there."""
    if isinstance(axis, str):
        axis = parse_grid([f"{key}={axis}"])[key]
    if isinstance(axis, Mapping) or not isinstance(named, dict) or not isinstance(axis, Iterable):
        return axis
    if not all(isinstance(one, dict) for one in named.values()):
        return axis
    for name in axis:
        if name not in named:
            raise HftuneError(
                f"--grid {key}: the study has no {key} {name!r}", hint=f"it has: {', '.join(map(str, named))}"
            )
    return {name: named[name] for name in axis}


def _stages(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """``depends_on.mlm.train.max_steps: 9`` is a setting of the stage ``mlm``."""
    stages = dict(_mapping(values, "depends_on"))
    for key, value in settings.items():
        _, name, setting = [*key.split(".", 2), ""][:3]
        if not isinstance(stages.get(name), dict) or not setting:
            known = ", ".join(stages) or "none"
            raise HftuneError(
                f"{key}: the study depends on no runs {name!r}; it depends on: {known}",
                hint="write --set depends_on.NAME.train.max_steps=100",
            )
        stages[name] = {**stages[name], "set": {**_mapping(stages[name], "set"), setting: value}}
    return {"depends_on": stages} if settings else {}


def _dotted(recipe: Mapping[str, Any] | Recipe) -> dict[str, Any]:
    """A recipe as dotted settings, without those that follow from others."""
    if not isinstance(recipe, Recipe):
        load_recipe(None, recipe)  # raises an error that names the problem
        return {f"{name}.{key}": plain(value) for name, part in recipe.items() for key, value in (part or {}).items()}
    sections = {name: getattr(recipe, name).model_dump(exclude_defaults=True) for name in type(recipe).model_fields}
    kinds = {f"{name}.kind": part.kind for name in sections if hasattr(part := getattr(recipe, name), "kind")}
    stated = {f"{name}.{key}": plain(value) for name, part in sections.items() for key, value in part.items()}
    for key in FILLED_IN:
        without = {name: value for name, value in {**kinds, **stated}.items() if name != f"train.{key}"}
        if getattr(load_recipe(None, without).train, key) == getattr(recipe.train, key):
            stated.pop(f"train.{key}", None)
    return {**kinds, **stated}


def _mapping(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key; anything else is reported by the check of the plan."""
    stated = values.get(key)
    return stated if isinstance(stated, dict) else {}


# ---- files ----


def read_plan(path: Path) -> Plan:
    """Read a study file; its recipes are not resolved yet, see ``check``.

    Raises:
        RecipeError: It is not YAML, or not a study; every problem is named.
    """
    values, lines = read_values(path)
    return make_plan(values, str(path), lines)


def read_values(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The content of a study file, and the line of each key."""
    stated, lines = document.read(path)
    if not isinstance(stated, dict):
        raise RecipeError(str(path), [Problem("", "expected a study with the keys recipe, grid and seeds")])
    return stated, lines


def plan_yaml(plan: Plan) -> str:
    """The plan as YAML; reading it gives an equal plan."""
    values = plan.model_dump(mode="json")
    unused = [key for key in ("depends_on", "reference") if not values[key]]
    return document.dump({key: value for key, value in values.items() if value is not None and key not in unused})


def make_plan(values: Mapping[str, Any], where: str, lines: Mapping[str, int] | None = None) -> Plan:
    """A plan from plain values, every problem named."""
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        found = _problems(error, values, where, lines or {})
        raise RecipeError(where, found, hint="docs/studies.md shows whole studies and what each key means.") from error


def _problems(error: ValidationError, values: Mapping[str, Any], where: str, lines: Mapping[str, int]) -> list[Problem]:
    """Every key that is wrong, once; where and lines locate it in the file."""
    found: dict[str, Problem] = {}
    checked_by_us: set[str] = set()
    for details in error.errors(include_url=False, include_context=False):
        place = [str(part) for part in details["loc"]]
        # The rest of the place is a position in a list, or the name of an alternative of pydantic's.
        known = place[: KEY_PARTS.get(place[0], 3)] if place else []
        path = ".".join(known)
        # The message of a check of ours is more specific than pydantic's messages about the same key.
        if path in checked_by_us or (path in found and details["type"] != "value_error"):
            continue
        hint = ""
        if details["type"] in ("extra_forbidden", "invalid_key"):
            near = closest(place[-1], Plan.model_fields if len(place) == 1 else Stage.model_fields)
            message, hint = f"unknown key in {where}", f"Did you mean {near}?" if near else ""
        elif details["type"] == "value_error":
            checked_by_us.add(path)
            message = details["msg"].removeprefix("Value error, ").rstrip(".")
        elif details["type"] == "missing":
            message = f"is missing: expected {_expected(known)}"
        else:
            message = f"expected {_expected(known)}; got {got(_value(values, details['loc'][: len(known)]))}"
        line = lines.get(place[0]) if place else None
        found[path] = Problem(path, message, hint, f"{where}:{line}" if line else "")
    return list(found.values())


def _expected(known: Sequence[str]) -> str:
    if not known:
        return "a study with the keys recipe, grid and seeds"
    if known[0] == "grid" and len(known) > 1:
        return AXIS
    if known[0] == "depends_on" and len(known) > 1:
        return EXPECTED[f"depends_on.{known[2]}"] if len(known) > 2 else "recipe, inherit and set"
    return EXPECTED[known[0]]


def _value(values: Any, place: Sequence[int | str]) -> Any:
    for part in place:
        try:
            values = values[part]
        except (KeyError, TypeError, IndexError):
            return values
    return values


# ---- --grid ----


def parse_grid(arguments: Sequence[str]) -> dict[str, Any]:
    """``train.learning_rate=1e-5,3e-5`` and, for a search, ``train.learning_rate=1e-5..1e-3``."""
    found: dict[str, Any] = {}
    for argument in arguments:
        key, _, listed = (part.strip() for part in argument.partition("="))
        if not key or not listed:
            raise HftuneError(f"--grid {argument!r} names no values", hint="write --grid train.learning_rate=1e-5,3e-5")
        if key in found:
            raise HftuneError(f"--grid {key} was given twice", hint="list all its values in one")
        interval = re.fullmatch(r"([-+\d.eE]+?)\.\.([-+\d.eE]+)", listed)
        found[key] = _interval(key, *interval.groups()) if interval else _listed(argument, listed)
    return found


def _listed(argument: str, text: str) -> Any:
    try:
        return document.parse(f"[{text}]", "--grid")[0]
    except RecipeError as error:
        raise HftuneError(
            f"--grid {argument!r}: {error.problems[0].message}", hint="write --grid train.learning_rate=1e-5,3e-5"
        ) from error


def _interval(key: str, low: str, high: str) -> dict[str, Any]:
    try:
        small, large = float(low), float(high)
    except ValueError as error:
        raise HftuneError(f"--grid {key}={low}..{high} is not an interval", hint="write 1e-5..1e-3") from error
    whole = all(re.fullmatch(r"[-+]?\d+", bound) for bound in (low, high))
    # Two powers of ten or more are sampled on a logarithmic scale, as for learning rates.
    return {"low": small, "high": large, "log": small > 0 and large / small >= 100, "whole": whole}
