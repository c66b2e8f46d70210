"""Signals from outside, as the command line meets them: a checkpoint at the next step, an exit code of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import facts, mentions
from forks import joined, start
from tiny import QUICK, csv_folder
from training_case import Case
from transformers import TrainerCallback

from hftune.errors import Interrupted
from hftune.files import read_jsonl
from hftune.pipeline.run_session import opened
from hftune.portability import HANGUP, WARNING_SIGNAL
from hftune.recipe import load_recipe
from hftune.training.callbacks import StopRequest
from hftune.training.checkpoints import newest_complete, step_of
from hftune.training.fit import fit

SIGNALS = [signal.SIGTERM, signal.SIGINT, WARNING_SIGNAL, *HANGUP]


def command_line(arguments: list[str], output: Path) -> None:
    """``hftune`` in a process of its own; its output goes into a file."""
    from hftune.cli import main

    for number in SIGNALS:  # nohup and shells in the background hand some of them down as ignored
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 2)
    main(arguments)


@pytest.mark.posix("sends a signal to another process")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_saves_at_the_next_step_and_has_its_own_code(here: Path, number: signal.Signals) -> None:
    endless = ("--set", "train.max_steps=1000000", "--set", "train.logging_steps=1")
    command = ["classify", "--data", str(csv_folder(here / "data")), "--output", "run", *QUICK, *endless]
    process = start(command_line, command, here / "said")
    history = here / "run" / "history.jsonl"
    while process.is_alive() and not history.is_file():
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, number)
    assert joined([process]) == [128 + number], (here / "said").read_text()
    output = (here / "said").read_text()
    newest, passed_over = newest_complete(here / "run" / "checkpoints")
    assert newest is not None and not passed_over
    step = step_of(newest)
    assert mentions(output, number.name, f"step {step} of 1000000")
    assert "--output run --resume" in output
    assert max(row["step"] for row in read_jsonl(history)) in (step, step - 1), "it stopped at once"


@pytest.fixture
def not_in_background() -> Iterator[None]:
    """A shell lets what it starts in the background ignore SIGINT, and nohup SIGHUP, and so does Python then."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *HANGUP)}
    for number in before:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("not_in_background")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_outside_training_there_is_nothing_to_wait_for(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with (
        pytest.raises(Interrupted) as stopped,
        opened(tmp_path / "run", load_recipe(None, {}), resume=False),
    ):
        signal.raise_signal(number)
        time.sleep(5)
    assert stopped.value.exit_code == 128 + number
    assert f"--output {tmp_path / 'run'} --resume" in stopped.value.hint
    assert not (tmp_path / "run").exists(), "nothing had been begun"
    assert signal.getsignal(number) is before


@pytest.mark.posix("there is no SIGHUP")
def test_a_run_under_nohup_survives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with opened(tmp_path / "run", load_recipe(None, {}), resume=False), StopRequest().listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class AtTheEnd(TrainerCallback):
    def on_train_end(self, *args: object, **kwargs: object) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_after_the_last_step_is_handled(tmp_path: Path) -> None:
    case = Case(tmp_path, {"num_train_epochs": 1})
    trainer = case.trainer()
    trainer.add_callback(AtTheEnd())
    with pytest.raises(Interrupted, match=facts("step 8 of 8", "saved")) as stopped:
        fit(trainer)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    resumed = case.trainer()
    fit(resumed, resume=True)
    assert resumed.state.global_step == 8
