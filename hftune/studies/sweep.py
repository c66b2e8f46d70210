"""Carrying out a study: every setting with every seed, complete runs skipped, interrupted ones resumed.

Called by ``hftune sweep``. Selection is on dev; test is scored for the selected setting only, unless asked otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.config.load import recipe_yaml
from hftune.errors import Interrupted, RunFailed
from hftune.pipeline import rescore
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan, Setting, recipe_for
from hftune.studies.pool import Order, Tell, carry_out_all
from hftune.studies.select import Selection, select

Launch = Callable[[list[Order], Tell, Callable[[Order, dict[str, Any]], None]], bool]


@dataclass(frozen=True)
class Outcome:
    """A study that was carried out as far as it could be."""

    study: StudyDir
    selection: Selection
    failures: list[dict[str, Any]]


def orders_of(study: StudyDir, plan: Plan, settings: list[Setting]) -> tuple[list[Order], list[Order]]:
    """What is still to be done, and what is complete already."""
    todo: list[Order] = []
    ready: list[Order] = []
    score = ["dev", "test"] if plan.test == "all" else ["dev"]
    for setting in settings:
        for seed in plan.seeds:
            path = study.run_path(setting, seed)
            order = {
                "path": str(path),
                "setting": setting.name,
                "seed": seed,
                "score": score,
                "recipe": recipe_yaml(recipe_for(plan, setting, seed)),
            }
            (ready if RunDir(path).complete else todo).append(order)
    return todo, ready


def sweep(
    plan: Plan,
    output: Path,
    *,
    jobs: int = 1,
    launch: Launch | None = None,
    tell: Tell = lambda order, news: None,
    done: Callable[[Order, Mapping[str, Any]], None] = lambda order, outcome: None,
) -> Outcome:
    """Carry out a grid study; starting it again costs only the runs that are not complete.

    Args:
        plan: What to run.
        output: The study's folder.
        jobs: Runs at once on this machine.
        launch: How orders are carried out; workers on this machine where not given.
        tell: Hears how far each run is.
        done: Hears the outcome of each run.

    Raises:
        Interrupted: Somebody asked to stop; what is complete stays complete.
        RunFailed: Not one run of the study succeeded.
    """
    study = StudyDir.begin(output, plan)
    settings = study.settings()
    todo, ready = orders_of(study, plan, settings)
    for order in ready:
        done(order, {"state": "ready", "path": order["path"]})
    failures: list[dict[str, Any]] = []

    def note_outcome(order: Order, outcome: dict[str, Any]) -> None:
        if outcome["state"] == "failed":
            failures.append({"setting": order["setting"], "seed": order["seed"], **outcome})
            study.write_failures(list(failures))
        done(order, outcome)

    run_all = launch or (lambda orders, tell, done: carry_out_all(orders, jobs, tell, done))
    study.write_failures([])
    if not run_all(todo, tell, note_outcome):
        raise Interrupted(
            f"the study {output} was stopped; complete runs are kept",
            hint="start the same command again to go on",
            signal_number=2,
        )
    return finish(study, plan, settings, failures)


def finish(study: StudyDir, plan: Plan, settings: list[Setting], failures: list[dict[str, Any]]) -> Outcome:
    """Select on dev, then score test for what was selected (or for all)."""
    if not any(study.runs(setting) for setting in settings):
        reason = failures[0]["reason"] if failures else "nothing was run"
        raise RunFailed(f"no run of {study.path} succeeded; the first: {reason}", hint="mend that, then start it again")
    selection = select(study, settings)
    chosen = settings if plan.test == "all" else [selection.best]
    for setting in chosen:
        for run in study.runs(setting):
            if "test" in run.read_metrics()["data"]["rows"]:
                rescore(run, ("dev", "test"))
    return Outcome(study, selection, failures)
