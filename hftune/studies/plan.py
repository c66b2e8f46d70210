"""A study: one recipe, a grid (or a search) over dotted keys, and seeds. Read from YAML or made from ``--over`` flags.

Every comparison in this project is one of these. ``hftune.studies.sweep`` carries it out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from hftune.config.load import load_recipe
from hftune.config.recipe import Recipe
from hftune.config.section import Section
from hftune.errors import HftuneError

Value = bool | int | float | str | None


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


Axis = list[Value] | dict[str, dict[str, Value]] | Range
"""Values of a dotted key, or named settings of several keys at once, or (in a search) an interval."""


class Plan(Section):
    """What a study consists of."""

    recipe: str | None = None
    """The recipe that every run starts from: a shipped name, a path, or a run."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that are the same in every run."""
    over: dict[str, Axis]
    """What varies: a dotted key and its values, or a free name and named settings of several keys."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """Each setting is trained once with each of these."""
    test: Literal["selected", "all"] = "selected"
    """Score test for the setting that dev selects, or for every setting."""
    search: int | None = Field(default=None, ge=1)
    """Draw this many settings in place of the whole grid."""

    @field_validator("over")
    @classmethod
    def _something_varies(cls, over: dict[str, Axis]) -> dict[str, Axis]:
        if not over or any(isinstance(axis, list | dict) and not axis for axis in over.values()):
            raise ValueError("expected at least one key with at least one value")
        return over


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    name: str
    """What differs, for people: ``learning_rate=3e-05 method.kind=full``."""
    overrides: dict[str, Value]
    values: dict[str, Value]
    """The value on each axis: itself, or the name of the named setting."""

    @property
    def folder(self) -> str:
        """The name as part of a path."""
        return re.sub(r"[^\w.=+-]+", "_", self.name).strip("_.") or "all"


def grid(plan: Plan) -> list[Setting]:
    """Every combination, the last axis changing fastest."""
    axes = [[(name, *choice) for choice in _choices(name, axis)] for name, axis in plan.over.items()]
    short = _short_names(list(plan.over))
    return [_setting(point, short) for point in itertools.product(*axes)]


def setting_of(plan: Plan, values: Mapping[str, Value]) -> Setting:
    """The setting with these values on the axes; a search draws them."""
    point = []
    for name, axis in plan.over.items():
        if isinstance(axis, dict):
            point.append((name, values[name], axis[str(values[name])]))
        else:
            point.append((name, values[name], {name: values[name]}))
    return _setting(point, _short_names(list(plan.over)))


def recipe_for(plan: Plan, setting: Setting, seed: int) -> Recipe:
    """The recipe of one run."""
    return load_recipe(plan.recipe, {**plan.set, **setting.overrides, "train.seed": seed})


def check(plan: Plan) -> None:
    """Resolve every recipe of the grid, so that a study does not fail at its last run."""
    if plan.search is None:
        for name, axis in plan.over.items():
            if isinstance(axis, Range):
                raise HftuneError(
                    f"{name} is an interval, which only a search can draw from", hint="add --search N, or list values"
                )
        settings = grid(plan)
        names = [setting.folder for setting in settings]
        if len(set(names)) < len(names):
            raise HftuneError("two settings of the grid are the same", hint="list each value once")
        for setting in settings:
            recipe_for(plan, setting, plan.seeds[0])


def plan_from_yaml(text: str, where: str) -> Plan:
    """Read a study file.

    Raises:
        HftuneError: It is not YAML, or not a study; every problem is named.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise HftuneError(f"{where} is not YAML: {error}", hint="see recipes/studies for examples") from error
    if not isinstance(document, Mapping):
        raise HftuneError(f"{where} is not a study", hint="a study has the keys recipe, over and seeds")
    return make_plan(dict(document), where)


def make_plan(values: dict[str, Any], where: str) -> Plan:
    """A checked plan from plain values."""
    try:
        plan = Plan.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()
        )
        raise HftuneError(
            f"{where} is not a study: {problems}", hint="a study has the keys recipe, set, over, seeds, test and search"
        ) from error
    check(plan)
    return plan


def parse_over(arguments: Sequence[str]) -> dict[str, Any]:
    """``train.learning_rate=1e-5,3e-5`` and, for a search, ``train.learning_rate=1e-5..1e-3``."""
    over: dict[str, Any] = {}
    for argument in arguments:
        key, sign, listed = argument.partition("=")
        if not sign or not key or not listed:
            raise HftuneError(f"--over {argument!r} names no values", hint="write --over train.learning_rate=1e-5,3e-5")
        if key in over:
            raise HftuneError(f"--over {key} was given twice", hint="list all its values in one")
        interval = re.fullmatch(r"([^.,][^,]*?)\.\.([^,]+)", listed)
        over[key] = _interval(key, *interval.groups()) if interval else [_scalar(part) for part in listed.split(",")]
    return over


def _interval(key: str, low: str, high: str) -> dict[str, Any]:
    bounds = [_scalar(low), _scalar(high)]
    if not all(isinstance(bound, int | float) for bound in bounds):
        raise HftuneError(f"--over {key}={low}..{high} is not an interval of numbers", hint="write 1e-5..1e-3")
    whole = all(isinstance(bound, int) for bound in bounds)
    small, large = float(bounds[0] or 0), float(bounds[1] or 0)
    # Two powers of ten or more are searched evenly in the exponent, as learning rates want it.
    return {"low": small, "high": large, "log": small > 0 and large / small >= 100, "whole": whole}


def _scalar(text: str) -> Any:
    """A number where it reads as one: YAML alone takes 1e-5 for text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return yaml.safe_load(text)


def _choices(name: str, axis: Axis) -> Iterator[tuple[Value, dict[str, Value]]]:
    if isinstance(axis, Range):
        raise HftuneError(f"{name} is an interval, which a grid can't list", hint="add --search N, or list values")
    if isinstance(axis, dict):
        yield from axis.items()
    else:
        for value in axis:
            yield value, {name: value}


def _setting(point: Sequence[tuple[str, Value, Mapping[str, Value]]], short: Mapping[str, str]) -> Setting:
    overrides: dict[str, Value] = {}
    for _, _, chosen in point:
        overrides.update(chosen)
    parts = [str(value) if short[name] == "" else f"{short[name]}={_shown(value)}" for name, value, _ in point]
    return Setting(" ".join(parts), overrides, {name: value for name, value, _ in point})


def _shown(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of a dotted key where that is unique; nothing for a free name, whose values say it all."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return {
        key: "" if "." not in key else (last if lasts.count(last) == 1 and last != "kind" and last != "name" else key)
        for key, last in zip(keys, lasts, strict=True)
    }
