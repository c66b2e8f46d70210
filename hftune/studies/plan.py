"""A study: one recipe, a grid (or a search) over dotted keys, and seeds; and the recipe of each of its runs.

The points of the grid are settings, named after what differs. Runs in ``depends_on`` are trained once per seed before
the grid; a value of ``run:NAME`` in the grid starts from such a run with the same seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hftune.config.section import Section
from hftune.errors import HftuneError, did_you_mean
from hftune.files import checked_name, file_name
from hftune.recipe import Recipe, load_recipe
from hftune.runs.group import seed_path

PLAN = "study.yaml"
"""File of the plan in the folder of a study."""
SEED = "train.seed"
FROM_STAGE = "run:"
"""Prefix of a value that names a run of ``depends_on``."""
STAGES = "depends_on"
"""The key of the plan, and the folder of these runs in the study."""
# As names these keys carry no information: method.kind is the method, data.dataset_name the data.
_EMPTY_NAMES = ("kind", "model_name_or_path", "dataset_name")

Value = bool | int | float | str | None


class Range(Section):
    """An interval to search in."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Sample on a logarithmic scale, as for learning rates."""
    whole: bool = False
    """Integers only."""

    @model_validator(mode="after")
    def _in_order(self) -> Range:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"expected low < high, above 0 with log; got {self.low:g} to {self.high:g}")
        return self


Axis = list[Value] | dict[str, dict[str, Value]] | Range
"""Values of a dotted key, or named settings of several keys at once, or (in a search) an interval."""


class Stage(Section):
    """A run of ``depends_on``, trained once per seed before the grid."""

    recipe: str | None = None
    """Its recipe: a shipped name, a path, or a run; the default recipe if not set."""
    inherit: tuple[str, ...] = ()
    """Keys of the study's ``set`` that apply to it too."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that differ from its recipe."""


class Plan(Section):
    """What a study consists of."""

    recipe: str | None = None
    """The recipe that every run starts from: a shipped name, a path, or a run; the default recipe if not set."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that are the same in every run."""
    depends_on: dict[str, Stage] = Field(default_factory=dict)
    """Runs that others start from, trained once per seed; a value of ``run:NAME`` names such a run."""
    grid: dict[str, Axis]
    """What varies: a dotted key and its values, or a free name and named settings of several keys."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """Each setting is trained once with each of these."""
    test: Literal["selected", "all"] = "selected"
    """Score test for the setting that validation selects, or for every setting."""
    reference: dict[str, Value] = Field(default_factory=dict)
    """An axis and the value on it that all others are compared with; by default the best setting on validation."""
    search: int | None = Field(default=None, ge=1)
    """Sample this many settings instead of the whole grid."""

    @field_validator("grid", mode="before")
    @classmethod
    def _axes(cls, grid: Any) -> Any:
        """Refuse an axis of another form with one error; pydantic would list every alternative of the union."""
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


@dataclass(frozen=True)
class StudySetting:
    """One point of the grid."""

    name: str
    """The name for readers: what differs, as in ``learning_rate=3e-05 method=full``."""
    overrides: dict[str, Value]
    """Dotted keys of the recipe and their values."""
    values: dict[str, Value]
    """The value on each axis: itself, or the name of the named setting."""

    @property
    def folder(self) -> str:
        """The name as part of a path, on any file system."""
        return file_name(self.name, empty="all")


def is_study(path: Path) -> bool:
    """Whether a folder holds a study."""
    return (path / PLAN).is_file()


# ---- settings ----


def grid(plan: Plan) -> list[StudySetting]:
    """Every combination, the last axis changing fastest.

    Raises:
        HftuneError: An axis is an interval, which has no list of values.
    """
    for key, axis in plan.grid.items():
        if isinstance(axis, Range):
            raise HftuneError(
                f"{key} is an interval, which only a search can draw from", hint="add --search N, or list values"
            )
    points = itertools.product(*(_values(axis) for axis in plan.grid.values()))
    return [setting_of(plan, dict(zip(plan.grid, point, strict=True))) for point in points]


def setting_of(plan: Plan, values: Mapping[str, Value]) -> StudySetting:
    """The setting with these values on the axes; on an axis of named settings, a value is a name."""
    overrides: dict[str, Value] = {}
    for key, axis in plan.grid.items():
        overrides |= axis[str(values[key])] if isinstance(axis, dict) else {key: values[key]}
    ordered = {key: values[key] for key in plan.grid}
    return StudySetting(described(ordered), overrides, ordered)


def examples(plan: Plan) -> list[StudySetting]:
    """The settings to check a plan with: the whole grid, or for a search its two corners."""
    if plan.search is None:
        return grid(plan)
    return [setting_of(plan, {key: _values(axis)[end] for key, axis in plan.grid.items()}) for end in (0, -1)]


def _values(axis: Axis) -> list[Value]:
    """The values of an axis, the names of its named settings, or the ends of its interval."""
    if isinstance(axis, Range):
        return [int(bound) if axis.whole else bound for bound in (axis.low, axis.high)]
    return list(axis)


def described(values: Mapping[str, Value]) -> str:
    """The values in one line, each after the shortest unique name of its key: ``learning_rate=3e-05 method=full``."""
    short = short_names(list(values))
    return " ".join(f"{short[key]}={shown(value)}" if short[key] else shown(value) for key, value in values.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The shortest unique name of each dotted key; empty for a single axis whose values need no name."""
    if len(keys) == 1 and keys[0].rpartition(".")[2] in _EMPTY_NAMES:
        return {keys[0]: ""}
    short = {key: _last_name(key) for key in keys}
    taken = list(short.values())
    return {key: name if not name or taken.count(name) == 1 else key for key, name in short.items()}


def axis_title(keys: Sequence[str], key: str) -> str:
    """The name of an axis for headings and figures."""
    return (short_names(keys)[key] or key).replace("_", " ")


def shown(value: Value) -> str:
    """A value as YAML would write it, floats as short as they can be."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def _last_name(key: str) -> str:
    parents, _, last = key.rpartition(".")
    if not parents:
        return ""  # a free name, whose values are names as well
    return parents.rpartition(".")[2] if last in _EMPTY_NAMES else last


# ---- recipes ----


def recipe_for(plan: Plan, setting: StudySetting, seed: int, study: Path = Path()) -> Recipe:
    """The recipe of one run; study is the folder that holds the runs it may start from."""
    values: dict[str, Any] = {}
    for key, value in {**plan.set, **setting.overrides, SEED: seed}.items():
        stage = stage_of(value, plan)
        values[key] = value if stage is None else str(stage_path(study, stage, seed))
    return _load(plan.recipe, values)


def stage_recipe(plan: Plan, name: str, seed: int) -> Recipe:
    """The recipe of one run that others start from.

    Raises:
        HftuneError: It inherits a key that the study does not set.
    """
    stage = plan.depends_on[name]
    for key in stage.inherit:
        if key not in plan.set:
            raise HftuneError(
                f"depends_on.{name}.inherit names {key}, which is not in the study's set",
                hint=f"add --set {key}=…, or remove it from depends_on.{name}.inherit",
            )
    return _load(stage.recipe, {**{key: plan.set[key] for key in stage.inherit}, **stage.set, SEED: seed})


def stage_path(study: Path, stage: str, seed: int) -> Path:
    """The folder of one run that others start from.

    Raises:
        HftuneError: The name of the stage is not the name of a folder.
    """
    return seed_path(study / STAGES / checked_name(stage, "depends_on:"), seed)


def stage_of(value: Any, plan: Plan) -> str | None:
    """The stage that a value of the form ``run:NAME`` names; None for any other value.

    Raises:
        HftuneError: The study has no such stage.
    """
    if not isinstance(value, str) or not value.startswith(FROM_STAGE):
        return None
    name = value.removeprefix(FROM_STAGE)
    if name not in plan.depends_on:
        known = ", ".join(plan.depends_on) or "none"
        raise HftuneError(
            f"{value} names a run that the study does not have; it depends on {known}",
            hint=did_you_mean(name, plan.depends_on) or "define it in depends_on",
        )
    return name


def _load(recipe: str | None, values: Mapping[str, Any]) -> Recipe:
    # Among overrides None means "not given"; a study may vary a key that can be null, so null is passed as text.
    nulls = [f"{key}=null" for key, value in values.items() if value is None]
    return load_recipe(recipe, {key: value for key, value in values.items() if value is not None}, nulls)


def check(plan: Plan) -> None:
    """Resolve every recipe of the grid, so that a study does not fail at its last run.

    Raises:
        HftuneError: A part of the plan can't be carried out.
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
                hint="leave it out, and publish the run you choose: `hftune push RUN USER/NAME`",
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
