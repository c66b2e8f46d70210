"""What a study would cost: each of its settings tried out for a few batches, nothing trained, nothing written.

Called by ``hftune sweep --dry-run``. A setting that starts from another run of the study is tried with what that run
itself starts from: the same architecture, so the same cost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hftune.config.recipe import Recipe
from hftune.dryrun import Estimate, dry_run
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir, refuse_unfit
from hftune.studies.plan import Plan, check, examples, recipe_for, stage_recipe
from hftune.studies.stages import starts_from
from hftune.training.launch import threads_for
from hftune.training.launcher import THREADS
from hftune.training.progress import Listener

VOCABULARY = "model.tokenizer_name"


@dataclass(frozen=True)
class Cost:
    """What the runs of one setting would take."""

    setting: str
    runs: float
    """Those still to be made; a search shares its trials out among the settings that are tried."""
    complete: int
    each: Estimate | None
    """One of them; None where nothing is left to be made."""

    @property
    def minutes(self) -> float:
        """Of all runs that are still to be made, one after the other."""
        return 0.0 if self.each is None else self.runs * self.each.estimated_minutes

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "setting": self.setting,
            "runs": self.runs,
            "complete": self.complete,
            "minutes": round(self.minutes, 2),
            "run": None if self.each is None else self.each.as_dict(),
        }


def costs(plan: Plan, folder: Path, jobs: int, listener: Listener) -> Iterator[Cost]:
    """Try the settings out one by one, the runs that others start from first.

    Args:
        plan: The study.
        folder: Where it lies or would lie; what is complete there costs nothing.
        jobs: Runs at once: each has its share of the cores.
        listener: Who watches.

    Raises:
        HftuneError: Whatever the study would have raised before its first update.
    """
    check(plan)
    refuse_unfit(folder, plan)
    with _share_of_cores(jobs):
        yield from _each(plan, StudyDir(folder), listener)


@contextmanager
def _share_of_cores(jobs: int) -> Iterator[None]:
    """As many threads as one of so many runs has; a number that the user chose stays."""
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


def _each(plan: Plan, study: StudyDir, listener: Listener) -> Iterator[Cost]:
    seeds = plan.seeds
    for name in plan.depends_on:
        runs = [study.before(name, seed) for seed in seeds]
        yield _tried(f"before: {name}", stage_recipe(plan, name, seeds[0]), runs, 1, listener)
    settings = examples(plan)
    times = 1 if plan.search is None else plan.search / len(settings)
    origins = {name: stage_recipe(plan, name, seeds[0]).model.model_name_or_path for name in plan.depends_on}
    alone = plan.model_copy(update={"set": _standing_in(plan.set, origins), "depends_on": {}})
    for setting in settings:
        tried = replace(setting, overrides=_standing_in(setting.overrides, origins))
        runs = [study.run(setting, seed) for seed in seeds]
        yield _tried(setting.name, recipe_for(alone, tried, seeds[0]), runs, times, listener)


def _tried(name: str, recipe: Recipe, runs: list[RunDir], times: float, listener: Listener) -> Cost:
    complete = sum(run.complete for run in runs)
    if complete == len(runs):
        return Cost(name, 0, complete, None)
    listener.stage(f"trying {name}")
    return Cost(name, times * (len(runs) - complete), complete, dry_run(recipe))


def _standing_in(values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, Any]:
    """Settings without runs of the study: what such a run starts from in its place, and a vocabulary learned anew."""
    return {
        key: value if (name := starts_from(value)) is None else None if key == VOCABULARY else origins[name]
        for key, value in values.items()
    }
