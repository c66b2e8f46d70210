"""Carrying out a study: every setting with every seed, complete runs skipped, interrupted ones resumed.

Called by ``hftune sweep``. Selection is on validation; test is scored for the selected setting only, unless asked
otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hftune.config.load import recipe_yaml
from hftune.config.recipe import Recipe
from hftune.data.in_memory import InMemoryData
from hftune.errors import HftuneError
from hftune.opening import with_dtype_of
from hftune.runs.directory import RunDir, is_run
from hftune.studies.folder import StudyDir, begun
from hftune.studies.plan import Plan, check, recipe_for, stage_recipe
from hftune.studies.pool import Hand, Order, Piece, local_crew, share_out
from hftune.studies.select import Selection, select
from hftune.studies.settings import Setting
from hftune.studies.stages import needed

Hire = Callable[[StudyDir, int], list[Hand]]
"""Makes the crew of a study: so many hands."""


class Watcher(Protocol):
    """Hears how a study goes. Called from several threads, one call at a time."""

    def expect(self, order: Order) -> None:
        """An order will be carried out, or is complete already."""

    def news(self, order: Order, message: Mapping[str, Any]) -> None:
        """How far it is: done and total, facts, a stage, a warning."""

    def done(self, order: Order, outcome: Mapping[str, Any]) -> None:
        """It is over: ready (complete from before), done, pruned, failed or stopped."""


class Unwatched:
    """Nobody looks on."""

    def expect(self, order: Order) -> None:
        """Say nothing."""

    def news(self, order: Order, message: Mapping[str, Any]) -> None:
        """Say nothing."""

    def done(self, order: Order, outcome: Mapping[str, Any]) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Outcome:
    """A study that was carried out as far as it could be."""

    study: StudyDir
    selection: Selection
    failures: list[dict[str, Any]]


class Foreman:
    """Gives orders to hands, keeps what failed, and tells the watcher. One for a sitting."""

    def __init__(self, study: StudyDir, plan: Plan, watcher: Watcher) -> None:
        """Failures of an earlier sitting are forgotten: those runs are tried again, but for a search, which is not."""
        self.study = study
        self.plan = plan
        self._watcher = watcher
        self._guard = threading.Lock()
        self.failures: list[dict[str, Any]] = study.failures() if plan.search else []
        study.write_failures(self.failures)

    def order(self, setting: Setting, seed: int, *, watch: str | None = None) -> Order:
        """The order to train one run.

        Raises:
            HftuneError: A run with another recipe lies there.
        """
        recipe = recipe_for(self.plan, setting, seed, self.study.path)
        starts = needed({**self.plan.set, **setting.overrides}, self.plan.depends_on)
        return self._training(
            self.study.run(setting, seed),
            recipe,
            setting=setting.name,
            score=["validation", "test"] if self.plan.test == "all" else ["validation"],
            watch=watch,
            needs=[str(self.study.before(name, seed).path) for name in starts],
        )

    def _training(self, run: RunDir, recipe: Recipe, **facts: Any) -> Order:
        begun = run.read_recipe() if is_run(run.path) else None
        if begun and begun.model_dump(exclude={"hub"}) != with_dtype_of(begun, recipe).model_dump(exclude={"hub"}):
            raise HftuneError(
                f"{run.path} was made with another recipe than the study gives now",
                hint="a study goes on with the recipe it began with; begin another one with --output",
            )
        order = {
            "action": "train",
            "path": str(run.path),
            "seed": recipe.train.seed,
            "recipe": recipe_yaml(recipe),
            **facts,
        }
        with self._guard:
            self._watcher.expect(order)
        return order

    def carry_out(
        self, hand: Hand, order: Order, judge: Callable[[Mapping[str, Any]], bool] = lambda evaluation: True
    ) -> dict[str, Any]:
        """Have one order done, unless it is already; judge says of each evaluation whether the run may go on."""

        def tell(order: Order, message: Mapping[str, Any]) -> bool:
            if "evaluation" in message:
                return judge(message["evaluation"])
            with self._guard:
                self._watcher.news(order, message)
            return True

        ready = order["action"] == "train" and RunDir(Path(order["path"])).complete
        lacking = [path for path in order.get("needs", ()) if not RunDir(Path(path)).complete]
        outcome: dict[str, Any]
        if ready:
            outcome = {"state": "ready"}
        elif lacking:
            reason = f"the run it starts from is not complete: {lacking[0]}"
            outcome = {"state": "failed", "reason": reason, "hint": "fix that one, then start the study again"}
        else:
            outcome = hand.carry_out(order, tell)
        if outcome["state"] == "failed":
            self.note_failure(order["setting"], order["seed"], outcome)
        with self._guard:
            self._watcher.done(order, outcome)
        return outcome

    def note_failure(self, setting: str, seed: int, outcome: Mapping[str, Any]) -> None:
        """Keep it, sorted, so that the file does not depend on who came first."""
        failure = {"setting": setting, "seed": seed, "reason": outcome["reason"], "hint": outcome["hint"]}
        with self._guard:
            others = [one for one in self.failures if (one["setting"], one["seed"]) != (setting, seed)]
            self.failures = sorted([*others, failure], key=lambda one: (one["setting"], one["seed"]))
            self.study.write_failures(self.failures)

    def stages(self) -> Iterator[Piece]:
        """The runs that others start from, each a piece."""
        orders = [
            self._training(
                self.study.before(name, seed),
                stage_recipe(self.plan, name, seed),
                setting=f"before: {name}",
                score=["validation"],
                watch=None,
            )
            for name in self.plan.depends_on
            for seed in self.plan.seeds
        ]
        return (partial(self._piece, order) for order in orders)

    def pieces(self) -> Iterator[Piece]:
        """The whole grid, each run a piece. Every order is made first: what is wrong is said before any work."""
        settings = self.study.settings()
        orders = [self.order(setting, seed) for setting in settings for seed in self.plan.seeds]
        return (partial(self._piece, order) for order in orders)

    def scoring(self, selection: Selection) -> Iterator[Piece]:
        """Test for the selected setting (or all), each run a piece; data without a test split has none."""
        chosen = self.study.settings() if self.plan.test == "all" else [selection.setting]
        for setting in chosen:
            for run in self.study.runs(setting):
                metrics = run.read_metrics()
                if "test" in metrics["data"]["rows"] and "test" not in metrics["splits"]:
                    order = {
                        "action": "score",
                        "path": str(run.path),
                        "setting": setting.name,
                        "seed": run.read_recipe().train.seed,
                        "score": ["validation", "test"],
                    }
                    yield partial(self._piece, order)

    def _piece(self, order: Order, hand: Hand) -> None:
        self.carry_out(hand, order)


def sweep(
    plan: Plan,
    output: Path,
    *,
    jobs: int = 1,
    hire: Hire | None = None,
    watcher: Watcher | None = None,
    rows: InMemoryData | None = None,
) -> Outcome:
    """Carry out a study; starting it again costs only the runs that are not complete.

    Args:
        plan: What to run.
        output: The study's folder.
        jobs: Runs at once.
        hire: Who carries out the runs; workers on this machine where not given.
        watcher: Hears how far it is.
        rows: Data that were given from Python, to be stored in the study's folder; the plan names them there.

    Raises:
        HftuneError: The plan can't be carried out; nothing was trained.
        Interrupted: Somebody asked to stop; what is complete stays complete.
        RunFailed: Not one run of the study succeeded.
    """
    check(plan)
    with begun(output, plan, rows) as study:
        foreman = Foreman(study, plan, watcher or Unwatched())
        if plan.search is None:
            pieces = foreman.pieces()
            jobs = min(jobs, len(study.settings()) * len(plan.seeds))
        else:
            from hftune.studies.search import Search

            pieces = Search(foreman).pieces()
            jobs = min(jobs, plan.search)
        stages = foreman.stages()
        crew = (hire or _workers)(study, jobs)
        try:
            share_out(stages, crew)
            share_out(pieces, crew)
            selection = select(study)
            share_out(foreman.scoring(selection), crew)
        finally:
            for hand in crew:
                hand.close()
        return Outcome(study, selection, foreman.failures)


def _workers(study: StudyDir, jobs: int) -> list[Hand]:
    return local_crew(study.path / "logs", jobs)
