"""What is compared: systems, each one setting with its runs over seeds, from run folders, seed groups or a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.errors import HftuneError
from hftune.runs.directory import RunDir, is_run
from hftune.runs.group import seed_runs
from hftune.studies.folder import StudyDir, is_study


@dataclass(frozen=True)
class System:
    """One way of training, and the runs that tried it."""

    name: str
    runs: tuple[RunDir, ...]
    values: dict[str, Any]
    """Its place on each axis of a study; empty for loose runs."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs, in order."""
        return tuple(run.read_recipe().train.seed for run in self.runs)


def collect(paths: Sequence[Path]) -> list[System]:
    """The systems in these folders; runs that differ in nothing but the seed are one system."""
    if len(paths) == 1 and is_study(paths[0]):
        study = StudyDir.open(paths[0])
        found = [System(setting.name, tuple(study.runs(setting)), setting.values) for setting in study.settings()]
        return [system for system in found if system.runs]
    runs = [run for path in paths for run in _runs_at(path)]
    unfinished = [str(run.path) for run in runs if not run.complete]
    if unfinished:
        raise HftuneError(
            f"{unfinished[0]} is not complete",
            hint=f"finish it with --output {unfinished[0]} --resume, or leave it out",
        )
    groups: dict[str, list[RunDir]] = {}
    for run in runs:
        recipe = run.read_recipe()
        same = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": 0})})
        groups.setdefault(same.model_dump_json(exclude={"hub"}), []).append(run)
    for members in groups.values():
        _refuse_twins(members)
    names = _names([members[0] for members in groups.values()])
    return [System(name, tuple(members), {}) for name, members in zip(names, groups.values(), strict=True)]


def common_split(systems: Sequence[System]) -> str:
    """The split to compare on: test where every system was scored on it, else dev."""
    has_test = all("test" in run.read_metrics()["splits"] for system in systems for run in system.runs)
    return "test" if has_test else "dev"


def refuse_different_data(systems: Sequence[System], split: str) -> None:
    """Scores on different rows can't be compared."""
    prints = {run.read_metrics()["data"]["fingerprints"][split]: run.path for system in systems for run in system.runs}
    if len(prints) > 1:
        first, second = list(prints.values())[:2]
        raise HftuneError(
            f"the {split} rows of {first} and {second} are not the same",
            hint="compare runs on the same data; `hftune evaluate RUN --data D` scores a run on other data",
        )


def correct(system: System, split: str) -> NDArray[np.float64]:
    """``[seeds, items]``: 1 where the run of that seed got that item right."""
    rows = []
    for run in system.runs:
        predictions = run.read_predictions(split)
        rows.append([float(row["gold"] == row["label"]) for row in predictions])
    if len({len(row) for row in rows}) > 1:
        raise HftuneError(
            f"the runs of {system.name} have predictions for different numbers of {split} rows",
            hint="a predictions file was changed by hand; train that run again",
        )
    return np.asarray(rows)


def _runs_at(path: Path) -> list[RunDir]:
    if is_run(path):
        return [RunDir(path)]
    if is_study(path):
        study = StudyDir.open(path)
        return [run for setting in study.settings() for run in study.runs(setting)]
    return seed_runs(path) or [RunDir.open(path)]


def _refuse_twins(runs: Sequence[RunDir]) -> None:
    seeds = [run.read_recipe().train.seed for run in runs]
    for seed in seeds:
        if seeds.count(seed) > 1:
            twins = [str(run.path) for run in runs if run.read_recipe().train.seed == seed]
            raise HftuneError(
                f"{' and '.join(twins[:2])} are the same recipe with the same seed",
                hint="they must give the same result; leave one out",
            )


def _names(runs: Sequence[RunDir]) -> list[str]:
    """What tells the recipes apart, or the folder names where that is too much to read."""
    if len(runs) == 1:
        return [runs[0].name]
    flat = [_flat(run.read_recipe().model_dump(exclude={"hub"})) for run in runs]
    keys = sorted({key for values in flat for key in values})
    telling = [key for key in keys if key != "train.seed" and len({str(values.get(key, "")) for values in flat}) > 1]
    if not 0 < len(telling) <= 3:
        return [run.path.parent.name if run.path.name.startswith("seed-") else run.path.name for run in runs]
    return [" ".join(f"{key.rpartition('.')[2]}={values.get(key)}" for key in telling) for values in flat]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result
