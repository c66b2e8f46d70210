"""Search in place of a grid: Optuna draws settings by earlier validation scores, and ends hopeless runs early.

Used by the sweep when the plan says ``search``. The first seed of a trial is judged at each validation evaluation
against the
median of the finished trials; what survives is trained with all seeds, and the trial's score is their mean. Optuna's
storage is a journal in the study's folder: a search that was killed goes on with the trials that were under way.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hftune.errors import HftuneError
from hftune.studies.plan import Axis, Range, examples, recipe_for, setting_of
from hftune.studies.pool import Hand, Piece
from hftune.studies.select import dev_score
from hftune.studies.settings import Setting, Value

if TYPE_CHECKING:
    from optuna.storages.journal import JournalStorage
    from optuna.trial import Trial

    from hftune.studies.sweep import Foreman

JOURNAL = "search.journal"
DIGITS = 3
"""Significant digits of a drawn number: more would only make names long."""


class Search:
    """The trials of one study, drawn and judged."""

    def __init__(self, foreman: Foreman) -> None:
        """Opens the journal in the study's folder, or begins it.

        Raises:
            HftuneError: Optuna is not installed.
        """
        optuna = _optuna()
        self._optuna = optuna
        self._foreman = foreman
        self._plan = foreman.plan
        self._guard = threading.RLock()
        self._one_at_a_time: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        task = recipe_for(self._plan, examples(self._plan)[0], self._plan.seeds[0]).train
        self._metric = task.best_metric
        self._study = optuna.create_study(
            storage=_journal(foreman.study.path / JOURNAL),
            study_name="study",
            direction="maximize" if task.prefers_higher else "minimize",
            pruner=optuna.pruners.MedianPruner(),
            load_if_exists=True,
        )
        self._drawn: dict[int, dict[str, Any]] = {trial["number"]: trial for trial in foreman.study.drawn()}

    def pieces(self) -> Iterator[Piece]:
        """First the trials that were under way, then new ones, drawn when a hand is free."""
        running = self._optuna.trial.TrialState.RUNNING
        assert self._plan.search is not None
        with self._guard:
            left = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state == running]
        for frozen in left:
            yield partial(self._carry_out, self._draw(frozen.number, frozen._trial_id))
        while (number := self._count()) < self._plan.search:
            yield partial(self._carry_out, self._draw(number, None))

    def _count(self) -> int:
        with self._guard:
            return len(self._study.get_trials(deepcopy=False))

    def _draw(self, number: int, trial_id: int | None) -> tuple[Trial, Setting]:
        """A trial with a value on each axis. Each has a sampler seeded by its number, so that a restart draws alike."""
        with self._guard:
            self._study.sampler = self._optuna.samplers.TPESampler(seed=number)
            trial = self._study.ask() if trial_id is None else self._optuna.Trial(self._study, trial_id)
            values = {key: _suggest(trial, key, axis) for key, axis in self._plan.grid.items()}
            self._keep(trial.number, values=values, state="under way", score=None)
            return trial, setting_of(self._plan, values)

    def _carry_out(self, drawn: tuple[Trial, Setting], hand: Hand) -> None:
        trial, setting = drawn
        # Two trials may draw the same setting: the second one takes over the first one's result.
        with self._one_at_a_time[setting.folder]:
            earlier = self._earlier(trial.number, setting)
            state, score = earlier or self._train(trial, setting, hand)
        if state == "stopped":
            return  # the trial stays under way, for the next sitting
        states = self._optuna.trial.TrialState
        with self._guard:
            if state == "complete":
                self._study.tell(trial, score)
            else:
                self._study.tell(trial, state=states.PRUNED if state == "pruned" else states.FAIL)
            self._keep(trial.number, state=state, score=score)

    def _train(self, trial: Trial, setting: Setting, hand: Hand) -> tuple[str, float | None]:
        """State and score of a trial, after one run a seed."""

        def judge(evaluation: Mapping[str, Any]) -> bool:
            with self._guard:
                trial.report(evaluation["score"], evaluation["number"])
                return not trial.should_prune()

        for place, seed in enumerate(self._plan.seeds):
            watch = self._metric if place == 0 else None
            try:
                order = self._foreman.order(setting, seed, watch=watch)
            except HftuneError as error:  # a combination that no recipe allows
                self._foreman.note_failure(setting.name, seed, {"reason": error.message, "hint": error.hint})
                return "failed", None
            outcome = self._foreman.carry_out(hand, order, judge)
            if outcome["state"] in ("stopped", "failed", "pruned"):
                return outcome["state"], None
        return "complete", fmean(dev_score(run, self._metric) for run in self._foreman.study.runs(setting))

    def _earlier(self, number: int, setting: Setting) -> tuple[str, float | None] | None:
        with self._guard:
            for trial in self._drawn.values():
                same = setting_of(self._plan, trial["values"]).folder == setting.folder
                if same and trial["number"] != number and trial["state"] != "under way":
                    return trial["state"], trial["score"]
        return None

    def _keep(self, number: int, **facts: Any) -> None:
        """Keep the trials in plain form too: the page and the comparison are made without Optuna."""
        self._drawn[number] = {"number": number, **self._drawn.get(number, {}), **facts}
        self._foreman.study.write_drawn([self._drawn[key] for key in sorted(self._drawn)])


def _suggest(trial: Trial, key: str, axis: Axis) -> Value:
    if not isinstance(axis, Range):
        chosen: Value = trial.suggest_categorical(key, list(axis))
        return chosen
    if axis.whole:
        return int(trial.suggest_int(key, round(axis.low), round(axis.high), log=axis.log))
    value = float(f"{trial.suggest_float(key, axis.low, axis.high, log=axis.log):.{DIGITS}g}")
    return min(max(value, axis.low), axis.high)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise HftuneError("a search needs Optuna", hint="pip install 'hftune[search]'") from error
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


class _Held:
    """The lock of Optuna's log. This process holds the whole folder and its threads take turns: nobody to shut out."""

    def acquire(self) -> bool:
        """It is ours already."""
        return True

    def release(self) -> None:
        """It stays ours."""


def _journal(path: Path) -> JournalStorage:
    """Optuna's log file. A line that a killed process left half written is dropped: Optuna would choke on it."""
    from optuna.storages import journal

    if path.is_file():
        written = path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            path.write_bytes(whole)
    return journal.JournalStorage(journal.JournalFileBackend(str(path), lock_obj=_Held()))
