"""Choosing a setting by its mean dev score over seeds. Test plays no part in it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from hftune.errors import RunFailed
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Setting


@dataclass(frozen=True)
class Selection:
    """The setting that dev chose, and what it was chosen by."""

    best: Setting
    metric: str
    mean: float
    seeds: int
    ranking: tuple[tuple[str, float, int], ...]
    """Every setting with its mean dev score and number of runs, best first."""


def select(study: StudyDir, settings: list[Setting]) -> Selection:
    """The best setting; one that lacks seeds because runs failed is ranked behind those that have all."""
    scored: list[tuple[bool, float, int, Setting, str]] = []
    wanted = len(study.plan().seeds)
    for setting in settings:
        runs = study.runs(setting)
        if not runs:
            continue
        task = runs[0].read_recipe().task
        sign = 1.0 if task.select_mode == "max" else -1.0
        mean = fmean(dev_score(run, task.select_by) for run in runs)
        scored.append((len(runs) == wanted, sign * mean, len(runs), setting, task.select_by))
    if not scored:
        raise RunFailed(f"{study.path} has no complete run", hint="start the study again")
    scored.sort(key=lambda entry: (entry[0], entry[1]), reverse=True)
    _, _, count, best, metric = scored[0]
    sign = 1.0 if study.runs(best)[0].read_recipe().task.select_mode == "max" else -1.0
    return Selection(
        best=best,
        metric=metric,
        mean=sign * scored[0][1],
        seeds=count,
        ranking=tuple((setting.name, sign * value, runs) for _, value, runs, setting, _ in scored),
    )


def dev_score(run: RunDir, metric: str) -> float:
    """The score that training selected its checkpoint by, of the saved artefact."""
    scores = run.read_metrics()["splits"]["dev"]
    return float(scores[metric])
