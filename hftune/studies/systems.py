"""Systems to compare, each one setting with its runs over seeds; and the selection of a setting on validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.config.values import flat
from hftune.errors import HftuneError, RunFailed
from hftune.evaluation.scores import SCORES, Score
from hftune.files import STORED_HERE
from hftune.recipe import Recipe, read_recipe, with_data
from hftune.runs.directory import SEED_PREFIX, RunDir, is_run
from hftune.runs.group import seed_runs
from hftune.studies.folder import StudyDir
from hftune.studies.plan import StudySetting, described, is_study

# With more differences than these, systems are named after their folders.
MOST_DIFFERENCES = 3


@dataclass(frozen=True)
class System:
    """One setting and its runs."""

    name: str
    runs: tuple[RunDir, ...]
    values: dict[str, Any]
    """Its value on each axis of the study; empty for runs outside of studies."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs, in order."""
        return tuple(read_recipe(run).train.seed for run in self.runs)


def of_study(study: StudyDir) -> list[System]:
    """The settings of a study that have complete runs."""
    found = [System(setting.name, tuple(study.runs(setting)), setting.values) for setting in study.settings()]
    return [system for system in found if system.runs]


def collect(paths: Sequence[Path]) -> list[System]:
    """The systems in these folders; runs that differ only in the seed are one system.

    Raises:
        HftuneError: A folder has no run, a run is not complete, or one is named twice.
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
        same = recipe.changed("train", seed=0)
        groups.setdefault(same.model_dump_json(exclude={"hub"}), []).append(run)
    members = [sorted(group, key=lambda run: read_recipe(run).train.seed) for group in groups.values()]
    for group in members:
        _refuse_twins(group)
    names = _names([group[0] for group in members])
    return [System(name, tuple(group), {}) for name, group in zip(names, members, strict=True)]


def common_split(systems: Sequence[System]) -> str:
    """The split to compare on: test if every run was scored on it, else validation."""
    return "test" if all(is_scored(system, "test") for system in systems) else "validation"


def is_scored(system: System, split: str) -> bool:
    """Whether every run of a system was scored on a split."""
    return all(split in run.read_metrics()["splits"] for run in system.runs)


def refuse_different_data(systems: Sequence[System], split: str) -> None:
    """Refuse runs that were scored on different rows."""
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


def scores_of(systems: Sequence[System]) -> dict[str, Score]:
    """The scores by which these systems can be compared, by name."""
    tables = [SCORES.get(read_recipe(run).task.kind, {}) for system in systems for run in system.runs[:1]]
    return {name: score for name, score in tables[0].items() if all(name in table for table in tables)}


def default_metric(systems: Sequence[System]) -> str:
    """The metric that selected the checkpoints of all runs, else the task's own."""
    recipes = [read_recipe(run) for system in systems for run in system.runs]
    chosen = {recipe.train.best_metric for recipe in recipes}
    if len(chosen) == 1 and chosen <= scores_of(systems).keys():
        return chosen.pop()
    return recipes[0].task.default_metric


def item_scores(system: System, split: str, score: Score) -> NDArray[np.float64]:
    """The numbers of each prediction that a score depends on: ``[seeds, items]``, with columns if it is no mean."""
    rows = []
    for run in system.runs:
        places = {label: index for index, label in enumerate(run.read_metrics().get("labels", ()))}
        try:
            rows.append([score.columns(item, places) for item in run.read_predictions(split)])
        except KeyError as error:
            raise HftuneError(
                f"the {split} predictions of {run.path} have no {error.args[0]!r}",
                hint="an earlier version wrote them: train that run again, or compare by another --metric",
            ) from error
    if len({len(row) for row in rows}) > 1 or not rows[0]:
        raise HftuneError(
            f"the runs of {system.name} do not have predictions for the same {split} rows",
            hint="a predictions file was removed or changed; train that run again",
        )
    values = np.asarray(rows, dtype=np.float64)
    return values[..., 0] if score.is_mean else values


def training_seconds(metrics: Mapping[str, Any]) -> float:
    """The training time of a run, with the forward pass of a frozen encoder before it."""
    speed = metrics["speed"]
    return float(speed["train_seconds"]) + float(speed.get("feature_seconds", 0.0))


def _compared_recipe(run: RunDir) -> Recipe:
    """The recipe of a run, in which stored in-memory data are named by their hash, not by their folder."""
    recipe = read_recipe(run)
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
        if read_recipe(first).train.seed == read_recipe(second).train.seed:
            raise HftuneError(
                f"{first.path} and {second.path} are the same recipe with the same seed",
                hint="they should give the same result; leave one out",
            )


def _names(runs: Sequence[RunDir]) -> list[str]:
    """The settings that differ, or the folders if that is too long or not unique."""
    recipes = [_flat_recipe(run) for run in runs]
    differing = _differing(recipes)
    by_difference = [described({key: _scalar(recipe.get(key)) for key in differing}) for recipe in recipes]
    resolved = [run.path.resolve() for run in runs]
    folders = [path.parent if path.name.startswith(SEED_PREFIX) else path for path in resolved]
    by_folder = [folder.name for folder in folders]
    for names in (by_difference if 0 < len(differing) <= MOST_DIFFERENCES else by_folder, by_folder):
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def differences(systems: Sequence[System]) -> dict[str, tuple[Any, ...]]:
    """What differs between systems: recipe keys, data and rows, each with the value of every system in order."""
    firsts = [system.runs[0] for system in systems]
    facts = [run.read_metrics().get("data", {}) for run in firsts]
    columns = [
        {
            **_flat_recipe(run),
            **{f"rows of {split}": count for split, count in data.get("rows", {}).items()},
            **{f"fingerprint of {split}": text[:8] for split, text in data.get("fingerprints", {}).items()},
        }
        for run, data in zip(firsts, facts, strict=True)
    ]
    return {key: tuple(_scalar(column.get(key)) for column in columns) for key in _differing(columns)}


def _flat_recipe(run: RunDir) -> dict[str, Any]:
    return flat(_compared_recipe(run).model_dump(mode="json", exclude={"hub"}))


def _differing(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for column in columns for key in column if key != "train.seed")
    return [key for key in keys if len({str(column.get(key)) for column in columns}) > 1]


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@dataclass(frozen=True)
class Selection:
    """The setting that was selected on validation, and by which metric."""

    setting: StudySetting
    metric: str
    mean: float
    """Mean validation score over its seeds."""
    seeds: int
    ties: tuple[str, ...] = ()
    """Settings with the same mean that come later in the plan."""

    @property
    def reason(self) -> str:
        """How it was selected."""
        seeds = f"{self.seeds} seed{'s' * (self.seeds != 1)}"
        ties = f"; tied with {', '.join(self.ties)}, which come later in the plan" if self.ties else ""
        return (
            f"{self.setting.name} was selected by its mean validation {self.metric}, {self.mean:.4f} over {seeds}; "
            f"test was not used for the selection{ties}"
        )


def select(study: StudyDir) -> Selection:
    """The setting with the best mean validation score; settings with missing seeds come after all others.

    Of several with the same mean, the first one in the plan.

    Raises:
        RunFailed: No run is complete.
    """
    wanted = len(study.plan().seeds)
    found = [(setting, runs) for setting in study.settings() if (runs := study.runs(setting))]
    if not found:
        again = "start the study again: it continues"
        if not (failures := study.failures()):
            raise RunFailed(f"{study.path} has no complete run", hint=again)
        first = failures[0]
        raise RunFailed(
            f"{study.path} has no complete run; the first one failed: {first['reason']}",
            hint=f"{first['hint']}. Then {again}" if first["hint"] else f"fix that, then {again}",
        )
    train = read_recipe(found[0][1][0]).train
    sign = 1.0 if train.higher_is_better else -1.0
    means = [fmean(validation_score(run, train.best_metric) for run in runs) for _, runs in found]
    ranks = [(len(runs) == wanted, sign * mean) for (_, runs), mean in zip(found, means, strict=True)]
    best = ranks.index(max(ranks))
    ties = tuple(found[place][0].name for place in range(len(found)) if ranks[place] == ranks[best] and place != best)
    return Selection(found[best][0], train.best_metric, means[best], len(found[best][1]), ties)


def validation_score(run: RunDir, metric: str) -> float:
    """The score of the saved model by the metric that selected its checkpoint."""
    return float(run.read_metrics()["splits"]["validation"][metric])
