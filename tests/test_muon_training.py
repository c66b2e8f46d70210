"""Muon in a training: it learns, follows the schedule, and reports what it can't move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error
from training_case import Case, tiny_bert

from hftune.errors import HftuneError
from hftune.recipe import load_recipe
from hftune.training.fit import fit
from hftune.training.muon import Muon

pytestmark = pytest.mark.numeric

SETTINGS = {
    "optim": "muon",
    "lr_scheduler_type": "warmup_stable_decay",
    "lr_scheduler_kwargs": {"num_decay_steps": 0.5},
    "warmup_steps": 0.1,
    "num_train_epochs": 2,
    "logging_steps": 1,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Any]:
    case = Case(tmp_path_factory.mktemp("whole"), SETTINGS)
    trainer = case.trainer()
    fit(trainer)
    return case, trainer


def test_training_with_muon_learns_and_holds_then_decays(whole: tuple[Case, Any]) -> None:
    case, trainer = whole
    assert isinstance(trainer.optimizer.optimizer, Muon)
    rows = [row for row in case.history if "loss" in row and "split" not in row]
    assert rows[-1]["loss"] < rows[0]["loss"]
    # 16 steps: 2 of warmup, then 6 held, then 8 that fall to zero.
    rates = [row["learning_rate"] / 5e-3 for row in rows]
    assert rates == pytest.approx([0.0, 0.5, *[1.0] * 6, *[(16 - step) / 8 for step in range(8, 16)]], abs=1e-6)


def test_a_model_without_blocks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = tiny_bert()
    model.bert.encoder.requires_grad_(False)
    with hftune_error("no matrix", "transformer block"):
        Case(tmp_path / "run", SETTINGS).trainer(model)
    assert not (tmp_path / "run").exists()


def test_the_recipe_fills_in_a_rate_and_refuses_idle_settings() -> None:
    fresh = {"model.model_name_or_path": "scratch:bert-tiny", "train.optim": "muon"}
    assert load_recipe(None, fresh).train.learning_rate == 4e-3
    assert load_recipe(None, {**fresh, "train.learning_rate": 1e-3}).train.learning_rate == 1e-3
    for idle, output in (
        ({"train.optim_args": "momentum=0.9"}, "adamw_torch_fused ignores optim_args momentum"),
        ({"train.optim": "muon", "train.optim_args": "beta=0.9"}, "muon ignores optim_args beta; it takes momentum"),
        ({"train.optim": "muon", "method.kind": "lora"}, "lora trains no whole matrix"),
    ):
        with pytest.raises(HftuneError, match=output):
            load_recipe(None, {"model.model_name_or_path": "scratch:bert-tiny", **idle})


def test_a_decay_is_for_the_scheduler_that_has_one(tmp_path: Path) -> None:
    with pytest.raises(HftuneError, match=r"linear refuses train\.lr_scheduler_kwargs.*num_decay_steps"):
        Case(tmp_path, {"lr_scheduler_kwargs": {"num_decay_steps": 0.5}}).trainer()


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        (0.5, [0.0, 0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),  # of 8: 2 of warm-up, 4 that fall to zero
        (3, [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 2 / 3, 1 / 3, 0.0, 0.0]),
        (99, [0.0, 0.5, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0, 0.0]),
    ],
    ids=["a share", "a number", "longer than there is"],
)
def test_how_long_hold_lets_the_rate_fall(tmp_path: Path, decay: float, rates: list[float]) -> None:
    settings = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": decay},
        "warmup_steps": 2,
    }
    trainer = Case(tmp_path, settings).trainer()
    trainer.create_optimizer()
    schedule = trainer.create_scheduler(8)
    found = []
    for _ in rates:
        found.append(schedule.get_last_lr()[0] / 5e-3)
        trainer.optimizer.step()
        schedule.step()
    assert found == pytest.approx(rates)
