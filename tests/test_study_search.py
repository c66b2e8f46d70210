"""The search: draws, prunes, repeats nothing, and goes on after kill -9 as if nothing had happened."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted_study import plant_run

from hftune.config import load_recipe
from hftune.errors import Interrupted
from hftune.studies.compare import compare_study
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan, parse_grid
from hftune.studies.pool import Order, Tell
from hftune.studies.search import JOURNAL
from hftune.studies.sweep import sweep

LR = "train.learning_rate"


def quality(order: Order, folder: Path) -> tuple[Any, float]:
    """The recipe of an order, and how good it is: best at a learning rate of 0.01."""
    file = folder / "order.yaml"
    file.write_text(order["recipe"])
    recipe = load_recipe(file)
    assert recipe.train.learning_rate is not None
    return recipe, 0.9 - 0.1 * abs(math.log10(recipe.train.learning_rate) + 2)


class Trainer:
    """A hand that plants runs; three evaluations each, told as a worker tells them."""

    def __init__(self, folder: Path, stop_after: int | None = None) -> None:
        self.folder = folder
        self.stop_after = stop_after
        self.trained: list[tuple[str, int]] = []
        self.pruned: list[str] = []

    def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
        if order["action"] == "score":
            return {"state": "done"}
        if self.stop_after is not None and len(self.trained) >= self.stop_after:
            raise Interrupted("killed", hint="", signal_number=9)
        recipe, share = quality(order, self.folder)
        if order["watch"]:
            for number in (1, 2, 3):
                if not tell(order, {"evaluation": {"number": number, "score": share - 0.1 + 0.03 * number}}):
                    self.pruned.append(order["setting"])
                    return {"state": "pruned"}
        self.trained.append((order["setting"], order["seed"]))
        plant_run(Path(order["path"]), recipe, share, splits=("validation", "test"))
        return {"state": "done"}

    def stop(self) -> None: ...

    def close(self) -> None: ...


def searched(path: Path, hand: Trainer, trials: int = 14, **changes: Any) -> Any:
    plan = Plan(grid=parse_grid([f"{LR}=1e-5..1e-1"]), seeds=(1, 2), search=trials).model_copy(update=changes)
    return sweep(plan, path, hire=lambda study, jobs: [hand])


def test_it_draws_prunes_and_selects(tmp_path: Path) -> None:
    hand = Trainer(tmp_path)
    outcome = searched(tmp_path / "s", hand)
    drawn = StudyDir(tmp_path / "s").drawn()
    assert [trial["number"] for trial in drawn] == list(range(14))
    states = [trial["state"] for trial in drawn]
    assert states[:5] == ["complete"] * 5  # the median needs something to be the median of
    assert states.count("pruned") == len(hand.pruned) >= 2
    complete = [trial for trial in drawn if trial["state"] == "complete"]
    assert len(hand.trained) == 2 * len(complete)  # both seeds of what survived, none of what did not
    best = max(complete, key=lambda trial: trial["score"])
    assert outcome.selection.setting.values == best["values"]
    assert outcome.failures == []
    worst_kept = min(trial["score"] for trial in complete)
    assert best["score"] > worst_kept
    notes = " ".join(compare_study(StudyDir(tmp_path / "s")).notes)
    assert f"{len(hand.pruned)} of 14 trials were ended early" in notes


def test_stopped_killed_and_grown_it_draws_the_same(tmp_path: Path) -> None:
    whole = Trainer(tmp_path)
    searched(tmp_path / "whole", whole)
    for sitting in (3, 4, 100):
        hand = Trainer(tmp_path, stop_after=sitting)
        try:
            searched(tmp_path / "parts", hand)
        except Interrupted:
            assert sitting != 100
        # A process that dies while Optuna writes leaves half a line.
        with (tmp_path / "parts" / JOURNAL).open("a") as journal:
            journal.write('{"op_code": 4, "wor')
    last = Trainer(tmp_path)
    searched(tmp_path / "parts", last)
    assert last.trained == []
    assert StudyDir(tmp_path / "parts").drawn() == StudyDir(tmp_path / "whole").drawn()
    grown = Trainer(tmp_path)
    searched(tmp_path / "parts", grown, trials=16)
    assert StudyDir(tmp_path / "parts").drawn()[:14] == StudyDir(tmp_path / "whole").drawn()
    assert len(StudyDir(tmp_path / "parts").drawn()) == 16


def test_the_same_setting_is_trained_once(tmp_path: Path) -> None:
    hand = Trainer(tmp_path)
    searched(tmp_path / "s", hand, trials=8, grid={LR: [1e-3, 1e-2]})
    assert len(hand.trained) == len(set(hand.trained)) <= 4
    drawn = StudyDir(tmp_path / "s").drawn()
    assert len(drawn) == 8
    assert len({(trial["values"][LR], trial["state"], trial["score"]) for trial in drawn}) == 2


def test_a_failed_trial_is_no_pruned_one(tmp_path: Path) -> None:
    class Breaking(Trainer):
        def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
            if order["action"] == "train" and quality(order, self.folder)[1] < 0.75:
                return {"state": "failed", "reason": "nan", "hint": "lower it"}
            return super().carry_out(order, tell)

    outcome = searched(tmp_path / "s", Breaking(tmp_path), trials=6)
    states = [trial["state"] for trial in StudyDir(tmp_path / "s").drawn()]
    assert states.count("failed") == len(outcome.failures) >= 1
    assert "complete" in states
    # They are not drawn again in the next sitting, and not forgotten either.
    assert searched(tmp_path / "s", Breaking(tmp_path), trials=6).failures == outcome.failures


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hftune: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = hftune("sweep", "--grid", f"{LR}=1e-5..1e-3", "--search", "2", "--output", str(tmp_path / "s"))
    assert code == 2
    assert "pip install 'hftune[search]'" in err
