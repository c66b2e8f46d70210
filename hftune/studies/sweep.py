"""Run a study: every setting with every seed, or a search; complete runs are skipped, interrupted ones resumed.

Settings are selected on validation; test is scored for the selected setting only, unless the plan is to score all.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hftune.data.in_memory import InMemoryData
from hftune.errors import HftuneError
from hftune.pipeline.run_session import with_dtype_of
from hftune.recipe import Recipe, read_recipe, recipe_yaml
from hftune.runs.directory import RunDir, is_run
from hftune.studies.executors import (
    CreateExecutors,
    Executor,
    Job,
    StudyCallback,
    Task,
    local_executors,
    run_tasks,
)
from hftune.studies.folder import StudyDir, begun
from hftune.studies.plan import (
    Axis,
    Plan,
    Range,
    StudySetting,
    Value,
    check,
    examples,
    recipe_for,
    setting_of,
    stage_of,
    stage_recipe,
)
from hftune.studies.systems import Selection, select, validation_score

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True)
class StudyOutcome:
    """The result of a study."""

    study: StudyDir
    selection: Selection
    failures: list[dict[str, Any]]


class Scheduler:
    """Turns a plan into jobs for executors, records failures, and reports to the callback."""

    def __init__(self, study: StudyDir, plan: Plan, callback: StudyCallback) -> None:
        """Failures of an earlier session are removed, because a grid tries those runs again; a search does not."""
        self.study = study
        self.plan = plan
        self._callback = callback
        self._guard = threading.Lock()
        self.failures: list[dict[str, Any]] = study.failures() if plan.search else []
        study.write_failures(self.failures)

    def train_job(self, setting: StudySetting, seed: int, *, watch: str | None = None) -> Job:
        """The job that trains one run.

        Raises:
            HftuneError: There is a run with another recipe.
        """
        recipe = recipe_for(self.plan, setting, seed, self.study.path)
        values = {**self.plan.set, **setting.overrides}.values()
        stages = dict.fromkeys(name for value in values if (name := stage_of(value, self.plan)) is not None)
        return self._job(
            self.study.run(setting, seed),
            recipe,
            setting=setting.name,
            score=["validation", "test"] if self.plan.test == "all" else ["validation"],
            watch=watch,
            needs=[str(self.study.stage_run(name, seed).path) for name in stages],
        )

    def _job(self, run: RunDir, recipe: Recipe, **facts: Any) -> Job:
        before = read_recipe(run) if is_run(run.path) else None
        if before and before.model_dump(exclude={"hub"}) != with_dtype_of(before, recipe).model_dump(exclude={"hub"}):
            raise HftuneError(
                f"{run.path} was made with another recipe than the study gives now",
                hint="a study continues with the recipe it began with; start another one with --output",
            )
        job = {"action": "train", "path": str(run.path), "seed": recipe.train.seed, "recipe": recipe_yaml(recipe)}
        job |= facts
        with self._guard:
            self._callback.on_job(job)
        return job

    def run(
        self, job: Job, executor: Executor, judge: Callable[[Mapping[str, Any]], bool] = lambda evaluation: True
    ) -> dict[str, Any]:
        """Run a job unless its run is complete; ``judge`` decides at each evaluation whether it continues."""

        def on_event(job: Job, event: Mapping[str, Any]) -> bool:
            if "evaluation" in event:
                return judge(event["evaluation"])
            with self._guard:
                self._callback.on_event(job, event)
            return True

        ready = job["action"] == "train" and RunDir(Path(job["path"])).complete
        missing = [path for path in job.get("needs", ()) if not RunDir(Path(path)).complete]
        outcome: dict[str, Any]
        if ready:
            outcome = {"state": "ready"}
        elif missing:
            reason = f"the run it starts from is not complete: {missing[0]}"
            outcome = {"state": "failed", "reason": reason, "hint": "fix that one, then start the study again"}
        else:
            outcome = executor.run(job, on_event)
        if outcome["state"] == "failed":
            self.record_failure(job["setting"], job["seed"], outcome)
        with self._guard:
            self._callback.on_end(job, outcome)
        return outcome

    def record_failure(self, setting: str, seed: int, outcome: Mapping[str, Any]) -> None:
        """Add to the failures, which are sorted so that the file does not depend on which job ended first."""
        failure = {"setting": setting, "seed": seed, "reason": outcome["reason"], "hint": outcome["hint"]}
        with self._guard:
            others = [one for one in self.failures if (one["setting"], one["seed"]) != (setting, seed)]
            self.failures = sorted([*others, failure], key=lambda one: (one["setting"], one["seed"]))
            self.study.write_failures(self.failures)

    def stages(self) -> Iterator[Task]:
        """The runs of ``depends_on``."""
        jobs = [
            self._job(
                self.study.stage_run(name, seed),
                stage_recipe(self.plan, name, seed),
                setting=f"depends_on: {name}",
                score=["validation"],
                watch=None,
            )
            for name in self.plan.depends_on
            for seed in self.plan.seeds
        ]
        return map(self._task, jobs)

    def grid(self) -> Iterator[Task]:
        """All runs of the grid. Every job is made first, so that errors are raised before any training."""
        settings = self.study.settings()
        return map(self._task, [self.train_job(setting, seed) for setting in settings for seed in self.plan.seeds])

    def scoring(self, selection: Selection) -> Iterator[Task]:
        """Scoring on test, for the selected setting or for all; data without a test split need none."""
        for setting in self.study.settings() if self.plan.test == "all" else [selection.setting]:
            for run in self.study.runs(setting):
                metrics = run.read_metrics()
                if "test" in metrics["data"]["rows"] and "test" not in metrics["splits"]:
                    yield self._task(
                        {
                            "action": "score",
                            "path": str(run.path),
                            "setting": setting.name,
                            "seed": read_recipe(run).train.seed,
                            "score": ["validation", "test"],
                        }
                    )

    def _task(self, job: Job) -> Task:
        return lambda executor: self.run(job, executor)


def sweep(
    plan: Plan,
    output: Path,
    *,
    jobs: int = 1,
    create: CreateExecutors = local_executors,
    callback: StudyCallback | None = None,
    rows: InMemoryData | None = None,
) -> StudyOutcome:
    """Run a study; starting it again trains only the runs that are not complete.

    Args:
        plan: What to run.
        output: The folder of the study.
        jobs: Runs at once.
        create: Creates the executors; worker processes on this machine by default.
        callback: Receives the progress.
        rows: In-memory data to store in the folder of the study, where the plan names them.

    Raises:
        HftuneError: The plan can't be carried out; nothing was trained.
        Interrupted: A signal asked for a stop; complete runs are kept.
        RunFailed: No run succeeded.
    """
    check(plan)
    with begun(output, plan, rows) as study:
        scheduler = Scheduler(study, plan, callback or StudyCallback())
        if plan.search is None:
            tasks = scheduler.grid()
            jobs = min(jobs, len(study.settings()) * len(plan.seeds))
        else:
            tasks = Search(scheduler).tasks()
            jobs = min(jobs, plan.search)
        stages = scheduler.stages()
        executors = create(study, jobs)
        try:
            run_tasks(stages, executors)
            run_tasks(tasks, executors)
            selection = select(study)
            run_tasks(scheduler.scoring(selection), executors)
        finally:
            for executor in executors:
                executor.close()
        return StudyOutcome(study, selection, scheduler.failures)


# ---- search instead of a grid: Optuna samples settings by earlier validation scores, and prunes poor runs ----
#
# The first seed of a trial is compared at each evaluation with the median of the finished trials; if it is not pruned,
# the other seeds are trained too, and the score of the trial is their mean. The trials are kept in trials.jsonl, from
# which a search that was stopped or killed restores Optuna's study.

RUNNING = "running"
# Significant digits of a sampled number: more would only make names long.
DIGITS = 3


class Search:
    """The trials of one study."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Restores the trials of earlier sessions.

        Raises:
            HftuneError: Optuna is not installed.
        """
        self._optuna = optuna = _optuna()
        self._scheduler = scheduler
        self._plan = scheduler.plan
        self._guard = threading.RLock()
        self._setting_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._axes = {key: self._distribution(axis) for key, axis in self._plan.grid.items()}
        train = recipe_for(self._plan, examples(self._plan)[0], self._plan.seeds[0]).train
        self._metric = train.best_metric
        direction = "maximize" if train.higher_is_better else "minimize"
        self._study = optuna.create_study(direction=direction, pruner=optuna.pruners.MedianPruner())
        self._trials: list[dict[str, Any]] = scheduler.study.trials()
        for trial in self._trials:
            self._restore(trial)

    def tasks(self) -> Iterator[Task]:
        """First the trials that were running when the study was stopped, then new ones, sampled when they start."""
        assert self._plan.search is not None
        waiting = [trial["number"] for trial in self._trials if trial["state"] == RUNNING]
        for number in [*waiting, *range(len(self._trials), self._plan.search)]:
            yield partial(self._run_trial, *self._sample(number))

    def _sample(self, number: int) -> tuple[Trial, StudySetting]:
        with self._guard:
            # Seeded by the number, so that a restarted search samples the same values.
            self._study.sampler = self._optuna.samplers.TPESampler(seed=number)
            trial = self._study.ask(self._axes)  # waiting trials come first, in order
            assert trial.number == number
            values = {key: _rounded(trial.params[key], axis) for key, axis in self._plan.grid.items()}
            if number == len(self._trials):
                self._trials.append({"number": number, "params": trial.params, "values": values})
                self._keep(number, state=RUNNING, score=None, evaluations={})
            for step, score in self._trials[number]["evaluations"].items():
                trial.report(score, int(step))
            return trial, setting_of(self._plan, values)

    def _run_trial(self, trial: Trial, setting: StudySetting, executor: Executor) -> None:
        # Two trials may have the same setting: the second one takes over the result of the first.
        with self._setting_locks[setting.folder]:
            state, score = self._earlier(trial.number, setting) or self._train(trial, setting, executor)
        if state == "stopped":
            return  # the trial stays running, for the next session
        states = self._optuna.trial.TrialState
        with self._guard:
            if state == "complete":
                self._study.tell(trial.number, score)
            else:
                self._study.tell(trial.number, state=states.PRUNED if state == "pruned" else states.FAIL)
            self._keep(trial.number, state=state, score=score)

    def _train(self, trial: Trial, setting: StudySetting, executor: Executor) -> tuple[str, float | None]:
        """State and score of a trial, after one run per seed."""

        def judge(evaluation: Mapping[str, Any]) -> bool:
            with self._guard:
                known = self._trials[trial.number]["evaluations"]
                # A resumed run reports its earlier evaluations again.
                if str(evaluation["number"]) not in known:
                    trial.report(evaluation["score"], evaluation["number"])
                    self._keep(trial.number, evaluations={**known, str(evaluation["number"]): evaluation["score"]})
                return not trial.should_prune()

        for place, seed in enumerate(self._plan.seeds):
            try:
                job = self._scheduler.train_job(setting, seed, watch=self._metric if place == 0 else None)
            except HftuneError as error:  # a combination that no recipe allows
                self._scheduler.record_failure(setting.name, seed, {"reason": error.message, "hint": error.hint})
                return "failed", None
            outcome = self._scheduler.run(job, executor, judge)
            if outcome["state"] in ("stopped", "failed", "pruned"):
                return outcome["state"], None
        return "complete", fmean(validation_score(run, self._metric) for run in self._scheduler.study.runs(setting))

    def _earlier(self, number: int, setting: StudySetting) -> tuple[str, float | None] | None:
        with self._guard:
            for trial in self._trials:
                same = setting_of(self._plan, trial["values"]).folder == setting.folder
                if same and trial["number"] != number and trial["state"] != RUNNING:
                    return trial["state"], trial["score"]
        return None

    def _restore(self, trial: Mapping[str, Any]) -> None:
        states = self._optuna.trial.TrialState
        if trial["state"] == RUNNING:
            self._study.enqueue_trial(trial["params"])  # keeps its number, and is asked for first
            return
        restored = self._optuna.trial.create_trial(
            state={"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[trial["state"]],
            value=trial["score"],
            params=trial["params"],
            distributions=self._axes,
            intermediate_values={int(number): score for number, score in trial["evaluations"].items()},
        )
        self._study.add_trial(restored)

    def _keep(self, number: int, **changes: Any) -> None:
        self._trials[number] |= changes
        self._scheduler.study.write_trials(self._trials)

    def _distribution(self, axis: Axis) -> Any:
        found = self._optuna.distributions
        if not isinstance(axis, Range):
            return found.CategoricalDistribution(list(axis))
        if axis.whole:
            return found.IntDistribution(round(axis.low), round(axis.high), log=axis.log)
        return found.FloatDistribution(axis.low, axis.high, log=axis.log)


def _rounded(value: Value, axis: Axis) -> Value:
    if not isinstance(axis, Range) or axis.whole:
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), axis.low), axis.high)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise HftuneError("a search needs Optuna", hint="pip install 'hftune[search]'") from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna
