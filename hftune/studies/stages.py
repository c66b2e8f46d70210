"""Runs that others of a study start from: trained once a seed before the grid, and named there as ``run:NAME``.

Used by ``hftune.studies.plan`` for the recipes and by ``hftune.studies.sweep``, which has them carried out first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from hftune.config.section import Section
from hftune.errors import HftuneError
from hftune.files import checked_name
from hftune.runs.group import seed_path
from hftune.suggest import did_you_mean

REFERENCE = "run:"
FOLDER = "depends_on"


class Stage(Section):
    """One run a seed that comes before the grid."""

    recipe: str | None = None
    """Its recipe: a shipped name, a path, or a run; the defaults where not given."""
    inherit: tuple[str, ...] = ()
    """Keys of the study's ``set`` that hold for it too."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that differ from its recipe."""


def stage_path(study: Path, stage: str, seed: int) -> Path:
    """The folder of the run of a stage.

    Raises:
        HftuneError: The name of the stage is not the name of a folder.
    """
    return seed_path(study / FOLDER / checked_name(stage, "depends_on:"), seed)


def stage_values(stage: Stage, name: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a stage over its recipe.

    Args:
        stage: What it is.
        name: What it is called.
        shared: The study's ``set``.

    Raises:
        HftuneError: It shall share what the study does not state.
    """
    lacking = [key for key in stage.inherit if key not in shared]
    if lacking:
        raise HftuneError(
            f"depends_on.{name}.inherit names {lacking[0]}, which the study does not state below set",
            hint=f"add --set {lacking[0]}=…, or take it out of depends_on.{name}.inherit",
        )
    return {**{key: shared[key] for key in stage.inherit}, **stage.set}


def resolved(values: Mapping[str, Any], stages: Mapping[str, Stage], study: Path, seed: int) -> dict[str, Any]:
    """Values with every ``run:NAME`` turned into the path of that run with the same seed."""
    return {
        key: str(stage_path(study, _known(name, stages), seed)) if (name := starts_from(value)) is not None else value
        for key, value in values.items()
    }


def needed(values: Mapping[str, Any], stages: Mapping[str, Stage]) -> list[str]:
    """The stages that settings start from."""
    return list(
        dict.fromkeys(_known(name, stages) for value in values.values() if (name := starts_from(value)) is not None)
    )


def starts_from(value: Any) -> str | None:
    """The stage that a value of the form ``run:NAME`` names; None for any other value."""
    return value.removeprefix(REFERENCE) if isinstance(value, str) and value.startswith(REFERENCE) else None


def _known(name: str, stages: Mapping[str, Stage]) -> str:
    if name not in stages:
        raise HftuneError(
            f"{REFERENCE}{name} names a run that the study does not have; it depends on {', '.join(stages) or 'none'}",
            hint=did_you_mean(name, stages) or "state it below depends_on",
        )
    return name
