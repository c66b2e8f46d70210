"""The search: draws, prunes, repeats nothing, and resumes after kill -9 as if nothing had happened."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import mentions
from sample_study import plant_run

from hftune.errors import Interrupted
from hftune.recipe import load_recipe
from hftune.studies.compare import compare_study
from hftune.studies.executors import Callback, Job
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan
from hftune.studies.request import parse_grid
from hftune.studies.sweep import sweep

LR = "train.learning_rate"


def quality(job: Job, folder: Path) -> tuple[Any, float]:
    """The recipe of a job, and how good it is: best at a learning rate of 0.01."""
    file = folder / "job.yaml"
    file.write_text(job["recipe"])
    recipe = load_recipe(file)
    assert recipe.train.learning_rate is not None
    return recipe, 0.9 - 0.1 * abs(math.log10(recipe.train.learning_rate) + 2)


class Trainer:
    """A executor that plants runs; three evaluations each, reported as a worker reports them."""

    def __init__(self, folder: Path, stop_after: int | None = None) -> None:
        self.folder = folder
        self.stop_after = stop_after
        self.trained: list[tuple[str, int]] = []
        self.pruned: list[str] = []

    def run(self, job: Job, callback: Callback) -> dict[str, Any]:
        if job["action"] == "score":
            return {"state": "done"}
        if self.stop_after is not None and len(self.trained) >= self.stop_after:
            raise Interrupted("killed", hint="", signal_number=9)
        recipe, share = quality(job, self.folder)
        if job["watch"]:
            for number in (1, 2, 3):
                if not callback(job, {"evaluation": {"number": number, "score": share - 0.1 + 0.03 * number}}):
                    self.pruned.append(job["setting"])
                    return {"state": "pruned"}
        self.trained.append((job["setting"], job["seed"]))
        plant_run(Path(job["path"]), recipe, share, splits=("validation", "test"))
        return {"state": "done"}

    def stop(self) -> None: ...

    def close(self) -> None: ...


def searched(path: Path, executor: Trainer, trials: int = 14, **changes: Any) -> Any:
    plan = Plan(grid=parse_grid([f"{LR}=1e-5..1e-1"]), seeds=(1, 2), search=trials).model_copy(update=changes)
    return sweep(plan, path, create=lambda study, jobs: [executor])


def test_it_draws_prunes_and_selects(tmp_path: Path) -> None:
    executor = Trainer(tmp_path)
    outcome = searched(tmp_path / "s", executor)
    drawn = StudyDir(tmp_path / "s").trials()
    assert [trial["number"] for trial in drawn] == list(range(14))
    states = [trial["state"] for trial in drawn]
    assert states[:5] == ["complete"] * 5  # the median needs something to be the median of
    assert states.count("pruned") == len(executor.pruned) >= 2
    complete = [trial for trial in drawn if trial["state"] == "complete"]
    assert len(executor.trained) == 2 * len(complete)  # both seeds of what survived, none of what did not
    best = max(complete, key=lambda trial: trial["score"])
    assert outcome.selection.setting.values == best["values"]
    assert outcome.failures == []
    worst_kept = min(trial["score"] for trial in complete)
    assert best["score"] > worst_kept
    notes = " ".join(compare_study(StudyDir(tmp_path / "s")).notes)
    assert mentions(notes, f"{len(executor.pruned)} of 14 trials")


def test_stopped_killed_and_grown_it_draws_the_same(tmp_path: Path) -> None:
    whole = Trainer(tmp_path)
    searched(tmp_path / "whole", whole)
    for train_session in (3, 4, 100):
        executor = Trainer(tmp_path, stop_after=train_session)
        try:
            searched(tmp_path / "parts", executor)
        except Interrupted:
            assert train_session != 100
    last = Trainer(tmp_path)
    searched(tmp_path / "parts", last)
    assert last.trained == []
    assert StudyDir(tmp_path / "parts").trials() == StudyDir(tmp_path / "whole").trials()
    grown = Trainer(tmp_path)
    searched(tmp_path / "parts", grown, trials=16)
    assert StudyDir(tmp_path / "parts").trials()[:14] == StudyDir(tmp_path / "whole").trials()
    assert len(StudyDir(tmp_path / "parts").trials()) == 16


def test_the_same_setting_is_trained_once(tmp_path: Path) -> None:
    executor = Trainer(tmp_path)
    searched(tmp_path / "s", executor, trials=8, grid={LR: [1e-3, 1e-2]})
    assert len(executor.trained) == len(set(executor.trained)) <= 4
    drawn = StudyDir(tmp_path / "s").trials()
    assert len(drawn) == 8
    assert len({(trial["values"][LR], trial["state"], trial["score"]) for trial in drawn}) == 2


def test_a_failed_trial_is_no_pruned_one(tmp_path: Path) -> None:
    class Breaking(Trainer):
        def run(self, job: Job, callback: Callback) -> dict[str, Any]:
            if job["action"] == "train" and quality(job, self.folder)[1] < 0.75:
                return {"state": "failed", "reason": "nan", "hint": "lower it"}
            return super().run(job, callback)

    outcome = searched(tmp_path / "s", Breaking(tmp_path), trials=6)
    states = [trial["state"] for trial in StudyDir(tmp_path / "s").trials()]
    assert states.count("failed") == len(outcome.failures) >= 1
    assert "complete" in states
    # They are not drawn again in the next session, and not forgotten either.
    assert searched(tmp_path / "s", Breaking(tmp_path), trials=6).failures == outcome.failures


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hftune: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = hftune("sweep", "--grid", f"{LR}=1e-5..1e-3", "--search", "2", "--output", str(tmp_path / "s"))
    assert code == 2
    assert "pip install 'hftune[search]'" in err
