"""Interrupted and resumed equals uninterrupted, bit for bit: weights, optimizer, history and the choice of the best."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error
from training_case import Case, CrashAt, KilledError, SignalAt, same

from hftune.errors import HftuneError, Interrupted
from hftune.portability import WARNING_SIGNAL
from hftune.training.checkpoints import Checkpoints
from hftune.training.fit import fit

pytestmark = pytest.mark.numeric

# 60 rows in batches of 8 make 8 micro-batches per epoch; with accumulation 3, 3 steps.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "eval steps": {"eval_steps": 3},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 3, "logging_steps": 1},
    "dataloader_num_workers": {"dataloader_num_workers": 2, "num_train_epochs": 2},
    "no buckets": {"train_sampling_strategy": "random"},
    "stock dropout": {"fast_dropout": False},
    "fractional epochs": {"num_train_epochs": 2.4},
    "max steps": {"max_steps": 19, "eval_steps": 4},
    "two kept": {"eval_steps": 3, "save_total_limit": 2},
}
STOPS = {
    "plain": (1, 8, 9, 24),
    "eval steps": (3, 5),
    "gradient_accumulation_steps": (2, 3),
    "dataloader_num_workers": (8,),
}
SLOW_STOPS = {
    "plain": (3, 7, 16),
    "eval steps": (8,),
    "gradient_accumulation_steps": (4,),
    "dataloader_num_workers": (4, 9),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Uninterrupted runs, made once for each setting."""
    made: dict[str, tuple[Case, Any, dict[str, torch.Tensor]]] = {}

    def run(name: str) -> tuple[Case, Any, dict[str, torch.Tensor]]:
        if name not in made:
            case = Case(tmp_path_factory.mktemp("whole"), SETTINGS[name])
            trainer = case.trainer()
            fitted = fit(trainer)
            made[name] = (case, fitted, {k: v.clone() for k, v in trainer.model.state_dict().items()})
        return made[name]

    return run


def assert_equal_runs(whole: Any, name: str, case: Case, trainer: Any, fitted: Any) -> None:
    expected, expected_fit, expected_weights = whole(name)
    assert same(trainer.model.state_dict(), expected_weights)
    assert fitted.selection == expected_fit.selection
    assert fitted.speed["steps"] == expected_fit.speed["steps"]
    last = f"checkpoint-{fitted.speed['steps']}"
    assert same(case.weights_at(fitted.speed["steps"]), expected.weights_at(fitted.speed["steps"]))
    for file in ("optimizer.pt", "scheduler.pt"):
        mine, other = (torch.load(c.checkpoints / last / file) for c in (case, expected))
        assert str(mine) == str(other)
    assert case.history == expected.history


@pytest.mark.parametrize(
    ("name", "step"),
    [(name, step) for name in SETTINGS for step in STOPS.get(name, (5,))]
    + [pytest.param(name, step, marks=pytest.mark.slow) for name, steps in SLOW_STOPS.items() for step in steps],
    ids=lambda v: str(v),
)
def test_a_stop_on_request_loses_nothing(whole: Any, tmp_path: Path, name: str, step: int) -> None:
    case = Case(tmp_path, SETTINGS[name])
    trainer = case.trainer()
    trainer.add_callback(SignalAt(step))
    with pytest.raises(Interrupted) as stopped:
        fit(trainer)
    assert stopped.value.exit_code == 128 + signal.SIGINT
    assert (case.checkpoints / f"checkpoint-{step}" / "manifest.json").is_file()
    assert max(row["step"] for row in case.history or [{"step": 0}]) <= step

    again = case.trainer()
    fitted = fit(again, resume=True)
    assert_equal_runs(whole, name, case, again, fitted)


@pytest.mark.parametrize(
    ("name", "step"), [("plain", 13), ("plain", 2), ("eval steps", 11), ("gradient_accumulation_steps", 6)]
)
def test_a_crash_goes_back_to_the_last_checkpoint(whole: Any, tmp_path: Path, name: str, step: int) -> None:
    case = Case(tmp_path, SETTINGS[name])
    trainer = case.trainer()
    trainer.add_callback(CrashAt(step))
    with pytest.raises(KilledError):
        fit(trainer)
    again = case.trainer()
    fitted = fit(again, resume=True)
    assert_equal_runs(whole, name, case, again, fitted)


def test_what_a_kill_left_behind_is_removed_on_resume(
    whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint is in its place, the process is killed, and no further one is saved that would clean up."""
    case, remove = Case(tmp_path, SETTINGS["two kept"]), Checkpoints.rotate

    def rotate(store: Checkpoints, *args: Any, **kwargs: Any) -> None:
        if not store.at(24).is_dir():
            remove(store, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "rotate", rotate)
        fit(case.trainer())
    expected = names(whole("two kept")[0].checkpoints)
    assert len(names(case.checkpoints)) > len(expected)
    again = case.trainer()
    assert_equal_runs(whole, "two kept", case, again, fit(again, resume=True))
    assert names(case.checkpoints) == expected


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_many_stops_in_one_run(whole: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, SETTINGS["eval steps"])
    for step in (2, 3, 9, 17, 24):
        trainer = case.trainer()
        trainer.add_callback(SignalAt(step, WARNING_SIGNAL))
        with pytest.raises(Interrupted) as stopped:
            fit(trainer, resume=True)
        assert stopped.value.exit_code == 128 + WARNING_SIGNAL
    trainer = case.trainer()
    assert_equal_runs(whole, "eval steps", case, trainer, fit(trainer, resume=True))


def test_the_same_run_twice_is_identical(whole: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, SETTINGS["plain"])
    trainer = case.trainer()
    assert_equal_runs(whole, "plain", case, trainer, fit(trainer))


def test_negative_control_another_seed_differs(whole: Any, tmp_path: Path) -> None:
    """The comparisons above can fail: the same weights at the start and another seed end elsewhere."""
    case = Case(tmp_path, {**SETTINGS["plain"], "seed": 2})
    fit(case.trainer())
    assert not same(case.weights_at(24), whole("plain")[0].weights_at(24))


def test_negative_control_lost_random_state_differs(whole: Any, tmp_path: Path) -> None:
    """A resume that forgets dropout's random state ends elsewhere, so the tests above do look at it."""
    case = Case(tmp_path, SETTINGS["plain"])
    trainer = case.trainer()
    trainer.add_callback(SignalAt(3))
    with pytest.raises(Interrupted):
        fit(trainer)
    again = case.trainer()
    again._load_rng_state = lambda checkpoint: None
    fit(again, resume=True)
    assert not same(case.weights_at(24), whole("plain")[0].weights_at(24))


def test_early_stopping_remembers_how_long_it_has_waited(tmp_path: Path) -> None:
    """With the score always the same, patience 3 stops at the fourth evaluation, however often the run is resumed."""
    flat = {"compute_metrics": lambda outcome: {"accuracy": 0.5}}
    settings = {"early_stopping_patience": 3, "eval_steps": 2, "num_train_epochs": 9}
    whole = Case(tmp_path / "whole", settings, inputs=flat)
    assert fit(whole.trainer()).speed["steps"] == 8

    case = Case(tmp_path / "parts", settings, inputs=flat)
    for step in (3, 5, 8):
        trainer = case.trainer()
        trainer.add_callback(SignalAt(step))
        with pytest.raises(Interrupted):
            fit(trainer, resume=True)
    fitted = fit(case.trainer(), resume=True)
    assert fitted.speed["steps"] == 8
    assert case.history == whole.history


def test_seconds_are_counted_on_after_a_resume(tmp_path: Path) -> None:
    case = Case(tmp_path, SETTINGS["plain"])
    trainer = case.trainer()
    trainer.add_callback(SignalAt(10))
    with pytest.raises(Interrupted):
        fit(trainer)
    before = trainer.clock.seconds
    fitted = fit(case.trainer(), resume=True)
    assert fitted.speed["train_seconds"] > before > 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size: 8 → 4"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps: 1 → 2"),
        ({"seed": 5}, "seed: 1 → 5"),
    ],
)
def test_a_changed_setting_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    case = Case(tmp_path, {})
    trainer = case.trainer()
    trainer.add_callback(SignalAt(2))
    with pytest.raises(Interrupted):
        fit(trainer)
    with pytest.raises(HftuneError, match=named):
        fit(Case(tmp_path, change).trainer(), resume=True)


def test_changed_rows_facts_or_frozen_weights_are_refused(tmp_path: Path) -> None:
    case = Case(tmp_path, {}, must_match={"data": "abc"})
    trainer = case.trainer()
    trainer.add_callback(SignalAt(2))
    with pytest.raises(Interrupted):
        fit(trainer)
    with hftune_error("rows", "60 → 59"):
        fit(Case(tmp_path, {}, train_rows=59, must_match={"data": "abc"}).trainer(), resume=True)
    with hftune_error("data", "'abc' → 'xyz'"):
        fit(Case(tmp_path, {}, must_match={"data": "xyz"}).trainer(), resume=True)
    from training_case import tiny_bert

    model = tiny_bert()
    model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    with hftune_error("frozen_weights"):
        fit(case.trainer(model), resume=True)


def test_resume_from_an_explicit_checkpoint(whole: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, SETTINGS["plain"])
    trainer = case.trainer()
    trainer.add_callback(CrashAt(20))
    with pytest.raises(KilledError):
        fit(trainer)
    again = case.trainer()
    fitted = fit(again, resume=case.checkpoints / "checkpoint-8")
    assert_equal_runs(whole, "plain", case, again, fitted)


def test_training_over_old_checkpoints_is_refused(tmp_path: Path) -> None:
    case = Case(tmp_path, {"num_train_epochs": 1})
    fit(case.trainer())
    with hftune_error(str(case.checkpoints)):
        fit(case.trainer())
