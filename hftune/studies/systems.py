"""What is compared: systems, each one setting with its runs over seeds, from run folders, seed groups or studies.

Collected by ``hftune compare`` and by a study's own comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.files import STORED_HERE
from hftune.runs.directory import RunDir, is_run, with_data
from hftune.runs.group import seed_runs
from hftune.studies.folder import StudyDir, is_study
from hftune.studies.settings import described

# Scores that are a mean over rows, so that rows can be resampled.
METRICS = ("accuracy", "loss")
MOST_TELLING = 3


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


def of_study(study: StudyDir) -> list[System]:
    """The settings of a study that have complete runs."""
    found = [System(setting.name, tuple(study.runs(setting)), setting.values) for setting in study.settings()]
    return [system for system in found if system.runs]


def collect(paths: Sequence[Path]) -> list[System]:
    """The systems in these folders; runs that differ in nothing but the seed are one system.

    Raises:
        HftuneError: A folder holds no run, a run is not complete, or one is named twice.
    """
    if len(paths) == 1 and is_study(paths[0]):
        return of_study(StudyDir.open(paths[0]))
    runs = list({run.path.resolve(): run for path in paths for run in _runs_at(path)}.values())
    for run in runs:
        if not run.complete:
            raise HftuneError(
                f"{run.path} is not complete", hint=f"finish it with --output {run.path} --resume, or leave it out"
            )
    groups: dict[str, list[RunDir]] = {}
    for run in runs:
        recipe = _compared_recipe(run)
        same = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": 0})})
        groups.setdefault(same.model_dump_json(exclude={"hub"}), []).append(run)
    members = [sorted(group, key=lambda run: run.read_recipe().train.seed) for group in groups.values()]
    for group in members:
        _refuse_twins(group)
    names = _names([group[0] for group in members])
    return [System(name, tuple(group), {}) for name, group in zip(names, members, strict=True)]


def common_split(systems: Sequence[System]) -> str:
    """The split to compare on: test where every run was scored on it, else validation."""
    return "test" if all(is_scored(system, "test") for system in systems) else "validation"


def is_scored(system: System, split: str) -> bool:
    """Whether every run of a system was scored on a split."""
    return all(split in run.read_metrics()["splits"] for run in system.runs)


def refuse_different_data(systems: Sequence[System], split: str) -> None:
    """Scores on different rows can't be compared."""
    prints: dict[str, RunDir] = {}
    for system in systems:
        for run in system.runs:
            prints.setdefault(run.read_metrics()["data"]["fingerprints"].get(split, ""), run)
    if len(prints) > 1:
        first, second = list(prints.values())[:2]
        raise HftuneError(
            f"the {split} rows of {first.path} and {second.path} are not the same",
            hint="compare runs on the same data; `hftune evaluate RUN --data D` scores a run on other data",
        )


def item_scores(system: System, split: str, metric: str) -> NDArray[np.float64]:
    """``[seeds, items]``: 1 where the run of that seed got that item right and 0 where not, or its loss in nats."""
    rows = [[_item_score(row, metric) for row in run.read_predictions(split)] for run in system.runs]
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise HftuneError(
            f"the runs of {system.name} do not have predictions for the same {split} rows",
            hint="a predictions file was removed or changed; train that run again",
        )
    return np.asarray(rows, dtype=np.float64)


def training_seconds(metrics: Mapping[str, Any]) -> float:
    """How long a run trained, with the one pass of a frozen encoder that came before."""
    speed = metrics["speed"]
    return float(speed["train_seconds"]) + float(speed.get("ahead_seconds", 0.0))


def _item_score(row: dict[str, Any], metric: str) -> float:
    if metric == "accuracy":
        return float(row["gold"] == row["label"])
    assert metric == "loss", metric
    # Probabilities are kept with six digits: what rounds to nothing counts as half of the last one.
    return float(-np.log(max(row["probabilities"][row["gold"]], 5e-7)))


def _compared_recipe(run: RunDir) -> Recipe:
    """The recipe of a run, in which rows that were given from Python are named by their hash, not by their folder."""
    recipe = run.read_recipe()
    folder = Path(recipe.data.dataset_name)
    if not (folder / STORED_HERE).is_file():
        return recipe
    return with_data(recipe, Path(f"rows-{run.read_metrics()['data']['fingerprints']['train'][:8]}"))


def _runs_at(path: Path) -> list[RunDir]:
    if is_run(path):
        return [RunDir.open(path)]
    if is_study(path):
        return [run for system in of_study(StudyDir.open(path)) for run in system.runs]
    return seed_runs(path) or [RunDir.open(path)]


def _refuse_twins(runs: Sequence[RunDir]) -> None:
    for first, second in pairwise(runs):
        if first.read_recipe().train.seed == second.read_recipe().train.seed:
            raise HftuneError(
                f"{first.path} and {second.path} are the same recipe with the same seed",
                hint="they should give the same result; leave one out",
            )


def _names(runs: Sequence[RunDir]) -> list[str]:
    """What tells the recipes apart, or the folders where that is too much to read or not enough."""
    flat = [_flat(_compared_recipe(run).model_dump(mode="json", exclude={"hub"})) for run in runs]
    keys = list(dict.fromkeys(key for values in flat for key in values if key != "train.seed"))
    telling = [key for key in keys if len({str(values.get(key)) for values in flat}) > 1]
    by_difference = [described({key: _scalar(values.get(key)) for key in telling}) for values in flat]
    by_folder = [_group_folder(run).name for run in runs]
    for names in (by_difference if 0 < len(telling) <= MOST_TELLING else by_folder, by_folder):
        if len(set(names)) == len(names):
            return names
    return [str(_group_folder(run)) for run in runs]


def _group_folder(run: RunDir) -> Path:
    resolved = run.path.resolve()
    return resolved.parent if resolved.name.startswith("seed-") else resolved


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result
