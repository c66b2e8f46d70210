"""What is wrong with a study file, one line a key and in the words of a study. Used by ``hftune.studies.plan``.

Pydantic reports every alternative of a key that did not fit, under its own internal names; a reader wants the key once,
what it can be, and what was found there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hftune.config.check import got
from hftune.config.problems import Problem
from hftune.suggest import closest

AXIS = "a list of values, named settings of dotted keys, or an interval with the numbers low and high"
EXPECTED = {
    "recipe": "the name of a recipe, its path, or a run",
    "set": "dotted keys with their values, such as train.learning_rate: 1e-3",
    "depends_on": "names of runs, each with recipe, inherit and set",
    "depends_on.recipe": "the name of a recipe, its path, or a run",
    "depends_on.inherit": "a list of keys of the study's set",
    "depends_on.set": "dotted keys with their values, such as train.learning_rate: 1e-3",
    "grid": "dotted keys with their values, such as train.learning_rate: [1e-3, 3e-3]",
    "grid.axis": AXIS,
    "seeds": "a list of whole numbers, such as [1, 2, 3]",
    "test": "selected or all",
    "reference": "an axis and one of its values, such as method.kind: full",
    "search": "a whole number above 0",
}
"""What each key of a study can be."""
UNIONS = {"grid": 2, "reference": 1, "seeds": 1, "set": 1}
"""Parts of a place that name a key of the file; the rest is a list position or a name of pydantic's."""


def problems_of(
    error: ValidationError,
    values: Mapping[str, Any],
    keys: Sequence[str],
    stage_keys: Sequence[str],
    where: str,
    lines: Mapping[str, int],
) -> list[Problem]:
    """Every key that is wrong, once.

    Args:
        error: Pydantic's.
        values: What the file states.
        keys: The keys of a study.
        stage_keys: The keys of a run in ``depends_on``.
        where: The file, for the message.
        lines: On which line of it each key is.
    """
    found: dict[str, Problem] = {}
    ours: set[str] = set()
    for details in error.errors(include_url=False, include_context=False):
        place = [str(part) for part in details["loc"]]
        known = place[: UNIONS.get(place[0], 3)] if place else []
        path = ".".join(known)
        if path in ours or (path in found and details["type"] != "value_error"):
            continue
        hint = ""
        if details["type"] == "extra_forbidden":
            near = closest(place[-1], keys if len(place) == 1 else stage_keys)
            message, hint = f"unknown key in {where}", f"Did you mean {near}?" if near else ""
        elif details["type"] == "value_error":  # a check of ours, which has its own words
            ours.add(path)
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
        return EXPECTED["grid.axis"]
    if known[0] == "depends_on" and len(known) > 1:
        return (
            EXPECTED[f"depends_on.{known[2]}"] if len(known) > 2 else EXPECTED["depends_on"].partition("each with ")[2]
        )
    return EXPECTED[known[0]]


def _value(values: Any, place: Sequence[int | str]) -> Any:
    for part in place:
        try:
            values = values[part]
        except (KeyError, TypeError, IndexError):
            return values
    return values
