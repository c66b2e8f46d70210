"""A study: one recipe, a grid (or a search) over dotted keys, and seeds. Read from YAML or made from ``--grid`` flags.

Every comparison in this project is one of these. ``hftune.studies.sweep`` carries it out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from hftune.config import document
from hftune.config.load import load_recipe
from hftune.config.problems import Problem, RecipeError
from hftune.config.recipe import Recipe
from hftune.config.section import Section
from hftune.errors import HftuneError
from hftune.files import checked_name
from hftune.studies.plan_problems import problems_of
from hftune.studies.settings import Setting, Value, make_setting
from hftune.studies.stages import Stage, resolved, stage_values

SEED = "train.seed"


class Range(Section):
    """An interval to search in."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Draw evenly on a logarithmic scale, as suits learning rates."""
    whole: bool = False
    """Whole numbers only."""

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"expected low < high, above 0 where log; got {self.low:g} to {self.high:g}")
        return self


Axis = list[Value] | dict[str, dict[str, Value]] | Range
"""Values of a dotted key, or named settings of several keys at once, or (in a search) an interval."""


class Plan(Section):
    """What a study consists of."""

    recipe: str | None = None
    """The recipe that every run starts from: a shipped name, a path, or a run; the defaults where not given."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that are the same in every run."""
    depends_on: dict[str, Stage] = Field(default_factory=dict)
    """Runs that others start from, once a seed; a value of ``run:NAME`` stands for such a run."""
    grid: dict[str, Axis]
    """What varies: a dotted key and its values, or a free name and named settings of several keys."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """Each setting is trained once with each of these."""
    test: Literal["selected", "all"] = "selected"
    """Score test for the setting that validation selects, or for every setting."""
    reference: dict[str, Value] = Field(default_factory=dict)
    """An axis and the value on it that all others are compared with; the best setting on validation where not given."""
    search: int | None = Field(default=None, ge=1)
    """Draw this many settings in place of the whole grid."""

    @field_validator("grid", mode="before")
    @classmethod
    def _axes(cls, grid: Any) -> Any:
        """Say of each axis what it should have been: the schema alone would list every alternative."""
        if not isinstance(grid, Mapping) or not grid:
            raise ValueError("expected a mapping of dotted keys to their values")
        for key, axis in grid.items():
            named = isinstance(axis, Mapping) and axis and all(isinstance(part, Mapping) for part in axis.values())
            interval = isinstance(axis, Range) or (isinstance(axis, Mapping) and {"low", "high"} <= set(axis))
            if not (named or interval or (isinstance(axis, list) and axis)):
                raise ValueError(f"{key}: expected a list of values, named settings, or low and high; got {axis!r}")
        return grid

    @field_validator("depends_on")
    @classmethod
    def _names_of_folders(cls, stages: dict[str, Stage]) -> dict[str, Stage]:
        try:
            for name in stages:
                checked_name(name, "the run")
        except HftuneError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        return stages

    @field_validator("seeds")
    @classmethod
    def _each_seed_once(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("expected each seed once")
        return seeds


def grid(plan: Plan) -> list[Setting]:
    """Every combination, the last axis changing fastest."""
    axes = [[(key, *choice) for choice in _choices(key, axis)] for key, axis in plan.grid.items()]
    return [make_setting(point) for point in itertools.product(*axes)]


def setting_of(plan: Plan, values: Mapping[str, Value]) -> Setting:
    """The setting with these values on the axes; a search draws them."""
    point: list[tuple[str, Value, Mapping[str, Value]]] = []
    for key, axis in plan.grid.items():
        value = values[key]
        point.append((key, value, axis[str(value)] if isinstance(axis, dict) else {key: value}))
    return make_setting(point)


def examples(plan: Plan) -> list[Setting]:
    """The settings to try a plan out on: the whole grid, or for a search its two corners."""
    if plan.search is None:
        return grid(plan)
    corners: list[dict[str, Value]] = []
    for place in (0, -1):
        ends = {key: _ends(axis)[place] for key, axis in plan.grid.items()}
        corners.append(ends)
    return [setting_of(plan, corner) for corner in corners]


def recipe_for(plan: Plan, setting: Setting, seed: int, study: Path = Path()) -> Recipe:
    """The recipe of one run; study is the folder in which the runs lie that it may start from."""
    values = resolved({**plan.set, **setting.overrides, SEED: seed}, plan.depends_on, study, seed)
    return _loaded(plan.recipe, values)


def stage_recipe(plan: Plan, name: str, seed: int) -> Recipe:
    """The recipe of one run that others start from."""
    stage = plan.depends_on[name]
    return _loaded(stage.recipe, {**stage_values(stage, name, plan.set), SEED: seed})


def _loaded(recipe: str | None, values: Mapping[str, Any]) -> Recipe:
    # None stands for "not given" among overrides; here it is a value like any other.
    nothing = [f"{key}=null" for key, value in values.items() if value is None]
    return load_recipe(recipe, {key: value for key, value in values.items() if value is not None}, nothing)


def check(plan: Plan) -> None:
    """Resolve every recipe of the grid, so that a study does not fail at its last run.

    Raises:
        HftuneError: Something in the plan can't be carried out.
    """
    settings = examples(plan)
    if SEED in plan.set or any(SEED in setting.overrides for setting in settings):
        raise HftuneError(f"{SEED} can't be set or varied in a study", hint="list the seeds: --seeds 1,2,3")
    folders = [setting.folder.lower() for setting in settings]
    if plan.search is None and len(set(folders)) < len(folders):
        raise HftuneError("two settings of the grid have the same name", hint="list each value once")
    _check_reference(plan)
    for recipe in recipes_of(plan):
        if recipe.hub.pushes:
            raise HftuneError(
                "hub.push_to_hub is set, but a study would publish every one of its runs there",
                hint="leave it out, and publish the run you choose: hftune push RUN REPO",
            )


def recipes_of(plan: Plan) -> list[Recipe]:
    """Every recipe of the grid, or of the corners of a search, and of the runs it depends on."""
    recipes = [stage_recipe(plan, name, seed) for name in plan.depends_on for seed in plan.seeds]
    return recipes + [recipe_for(plan, setting, seed) for setting in examples(plan) for seed in plan.seeds]


def _check_reference(plan: Plan) -> None:
    for axis, value in plan.reference.items():
        known = plan.grid.get(axis, [])
        if isinstance(known, Range) or value not in list(known):
            raise HftuneError(
                f"reference names {axis} {value}, which the study does not have",
                hint=f"name one of its axes ({', '.join(plan.grid)}) and a value on it",
            )


def read_plan(path: Path) -> Plan:
    """Read a study file; its recipes are not resolved yet, see ``check``.

    Raises:
        RecipeError: It is not YAML, or not a study; every problem is named.
    """
    values, lines = read_values(path)
    return make_plan(values, str(path), lines)


def read_values(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """What a study file states, and on which line."""
    try:
        stated, lines = document.read(path)
    except document.DocumentError as error:
        raise RecipeError(str(path), [error.problem]) from error
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
        found = problems_of(error, values, [*Plan.model_fields], [*Stage.model_fields], where, lines or {})
        raise RecipeError(where, found, hint="docs/studies.md shows whole studies and what each key means.") from error


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
    except document.DocumentError as error:
        raise HftuneError(
            f"--grid {argument!r}: {error.problem.message}", hint="write --grid train.learning_rate=1e-5,3e-5"
        ) from error


def _interval(key: str, low: str, high: str) -> dict[str, Any]:
    try:
        small, large = float(low), float(high)
    except ValueError as error:
        raise HftuneError(f"--grid {key}={low}..{high} is not an interval", hint="write 1e-5..1e-3") from error
    whole = all(re.fullmatch(r"[-+]?\d+", bound) for bound in (low, high))
    # Two powers of ten or more are searched evenly in the exponent, as learning rates want it.
    return {"low": small, "high": large, "log": small > 0 and large / small >= 100, "whole": whole}


def _choices(key: str, axis: Axis) -> list[tuple[Value, dict[str, Value]]]:
    if isinstance(axis, dict):
        return list(axis.items())
    if isinstance(axis, Range):
        raise HftuneError(
            f"{key} is an interval, which only a search can draw from", hint="add --search N, or list values"
        )
    return [(value, {key: value}) for value in axis]


def _ends(axis: Axis) -> list[Value]:
    if isinstance(axis, Range):
        return [int(bound) if axis.whole else bound for bound in (axis.low, axis.high)]
    return list(axis)
