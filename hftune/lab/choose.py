"""What was asked for on the command line: experiments by name, and their settings from ``--set``. Called by ``run``.

Every setting is checked before anything runs, and every mistake is reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from hftune.config.check import got
from hftune.config.kinds import expectation, takes_bool
from hftune.config.overrides import parse_sets
from hftune.config.section import Section
from hftune.errors import HftuneError
from hftune.lab import EXPERIMENTS
from hftune.lab.experiment import Experiment
from hftune.suggest import did_you_mean

ALL = "all"

Chosen = list[tuple[Experiment[Any], Section]]


def choose(name: str, sets: Sequence[str] = ()) -> Chosen:
    """The experiments called ``name`` or all of them, each with its settings.

    Args:
        name: A name in ``EXPERIMENTS``, or ``all``.
        sets: ``key=value`` for one experiment, ``experiment.key=value`` for all.

    Raises:
        HftuneError: There is no such experiment or setting, or a value does not fit.
    """
    if name != ALL and name not in EXPERIMENTS:
        near = did_you_mean(name, [*EXPERIMENTS, ALL])
        raise HftuneError(
            f"there is no experiment {name!r}" + (f"; {near}" if near else ""),
            hint=f"Choose one of {', '.join(EXPERIMENTS)}, or all.",
        )
    pairs, found = parse_sets(sets)
    problems = [f"{problem.path or '--set'}: {problem.message}" for problem in found]
    given: dict[str, dict[str, Any]] = {one: {} for one in EXPERIMENTS}
    for key, value in pairs:
        owner, dot, setting = key.partition(".")
        if name != ALL and not dot:
            owner, setting = name, key
        if owner not in EXPERIMENTS or not setting:
            problems.append(_no_owner(key, owner))
        elif name not in (ALL, owner):
            problems.append(f"{key}: only {name} is run")
        else:
            given[owner][setting] = value
    chosen: Chosen = []
    for one, experiment in EXPERIMENTS.items():
        if name in (ALL, one):
            settings, wrong = read(experiment, given[one])
            problems += wrong
            if settings is not None:
                chosen.append((experiment, settings))
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise HftuneError(
            f"lab run {name}: {count}\n" + "\n".join(f"  {problem}" for problem in problems),
            hint="`hftune lab ls --json` lists every setting with its default and its meaning.",
        )
    return chosen


def read(experiment: Experiment[Any], given: dict[str, Any]) -> tuple[Section | None, list[str]]:
    """The settings of one experiment, or what is wrong with them."""
    fields = experiment.settings.model_fields
    problems = [
        f"{experiment.name}.{key}: expected {expectation(fields[key])}; got {got(value)}"
        for key, value in given.items()
        if key in fields and isinstance(value, bool) and not takes_bool(fields[key])
    ]
    if problems:
        return None, problems  # pydantic would read true as 1
    try:
        settings: Section = experiment.settings.model_validate(given)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            place = [str(part) for part in details["loc"]]
            path = ".".join([experiment.name, *place])
            if details["type"] == "extra_forbidden":
                near = did_you_mean(place[0], fields)
                problems.append(f"{path}: unknown setting; " + (near or f"known here: {', '.join(fields)}"))
            elif len(place) == 1 and details["type"] not in ("value_error", "too_short", "too_long"):
                problems.append(f"{path}: expected {expectation(fields[place[0]])}; got {got(details['input'])}")
            else:
                message = details["msg"].removeprefix("Value error, ")
                shown = f"; got {got(details['input'])}" if place else ""
                problems.append(f"{path}: {message[:1].lower()}{message[1:]}{shown}")
        return None, problems
    return settings, []


def _no_owner(key: str, owner: str) -> str:
    near = did_you_mean(owner, EXPERIMENTS)
    expected = "expected EXPERIMENT.KEY=VALUE, such as copy.keys=8"
    return f"{key}: {expected}" + (f"; {near}" if near else "")
