"""The cost of a study before it starts: each setting is tried for a few batches; nothing is written.

A setting that starts from another run of the study is tried with what that run itself starts from: the same
architecture, so the same cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hftune.pipeline.dry_run import Estimate, dry_run
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir, refuse_unfit
from hftune.studies.plan import Plan, check, examples, recipe_for, stage_of, stage_recipe
from hftune.training.launch import THREADS, threads_for

TOKENIZER = "model.tokenizer_name"


@dataclass(frozen=True)
class SettingCost:
    """The estimated cost of the runs of one setting."""

    setting: str
    runs: float
    """Runs that are not complete; the trials of a search count evenly for the settings that are tried."""
    complete: int
    each: Estimate | None
    """The estimate of one run; None if all are complete."""

    @property
    def minutes(self) -> float:
        """Minutes of all runs that are not complete, one after the other."""
        return 0.0 if self.each is None else self.runs * self.each.estimated_minutes

    def as_dict(self) -> dict[str, Any]:
        """The cost for --json."""
        return {
            "setting": self.setting,
            "runs": self.runs,
            "complete": self.complete,
            "minutes": round(self.minutes, 2),
            "run": None if self.each is None else self.each.as_dict(),
        }


def costs(plan: Plan, folder: Path, jobs: int, progress: ProgressReporter) -> Iterator[SettingCost]:
    """Try the settings one by one, first the runs that others start from.

    Args:
        plan: The study.
        folder: Its folder, if it exists; complete runs in it cost nothing.
        jobs: Runs at once; each has its share of the cores.
        progress: Receives the progress.

    Raises:
        HftuneError: The errors that the study would raise before its first step.
    """
    check(plan)
    refuse_unfit(folder, plan)
    with _share_of_cores(jobs):
        yield from _each(plan, StudyDir(folder), progress)


@contextmanager
def _share_of_cores(jobs: int) -> Iterator[None]:
    # Use as many threads as one of the runs will have, unless the user chose a number.
    before = torch.get_num_threads()
    chosen = THREADS in os.environ
    if not chosen:
        os.environ[THREADS] = str(threads_for(jobs))
        torch.set_num_threads(threads_for(jobs))
    try:
        yield
    finally:
        if not chosen:
            del os.environ[THREADS]
            torch.set_num_threads(before)


def _each(plan: Plan, study: StudyDir, progress: ProgressReporter) -> Iterator[SettingCost]:
    seeds = plan.seeds
    for name in plan.depends_on:
        runs = [study.stage_run(name, seed) for seed in seeds]
        yield _tried(f"depends_on: {name}", stage_recipe(plan, name, seeds[0]), runs, 1, progress)
    settings = examples(plan)
    times = 1 if plan.search is None else plan.search / len(settings)
    alone = plan.model_copy(update={"set": _without_stages(plan, plan.set), "depends_on": {}})
    for setting in settings:
        tried = replace(setting, overrides=_without_stages(plan, setting.overrides))
        runs = [study.run(setting, seed) for seed in seeds]
        yield _tried(setting.name, recipe_for(alone, tried, seeds[0]), runs, times, progress)


def _tried(name: str, recipe: Recipe, runs: list[RunDir], times: float, progress: ProgressReporter) -> SettingCost:
    complete = sum(run.complete for run in runs)
    if complete == len(runs):
        return SettingCost(name, 0, complete, None)
    progress.stage(f"trying {name}")
    return SettingCost(name, times * (len(runs) - complete), complete, dry_run(recipe))


def _without_stages(plan: Plan, values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a run of the study by the model that the run itself starts from, and its tokenizer by a new one."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        stage = stage_of(value, plan)
        if stage is not None:
            origin = stage_recipe(plan, stage, plan.seeds[0]).model.model_name_or_path
            changed[key] = None if key == TOKENIZER else origin
    return {**values, **changed}
