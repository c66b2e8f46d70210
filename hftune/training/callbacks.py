"""Trainer callbacks: history.jsonl and the components of a loss in it, progress, and stopping on a signal.

Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 (Slurm's warning) stop a run after its step: it saves, and can be resumed. Windows
has no SIGUSR1 and no SIGHUP; Ctrl-Break is used instead of the first. Before and after training, where there is no step
to wait for, ``ending_at_once`` ends the run.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from hftune.errors import Interrupted
from hftune.files import read_jsonl, write_jsonl
from hftune.portability import HANGUP, WARNING_SIGNAL
from hftune.progress import ProgressReporter
from hftune.sanitize import json_text

if TYPE_CHECKING:
    from hftune.training.trainer import HftuneTrainer

EVALUATION = "eval_"
TRAIN_KEYS = ("loss", "learning_rate", "grad_norm", "num_input_tokens_seen")
COMPONENT = "_loss"
"""Suffix of the components of a loss."""
AGREEMENT = "_agreement"
"""Suffix of the scores that compare a model with its teacher."""
FEW_STEPS = 50
"""Fewer steps are probably a mistake."""
NOT_SCORES = frozenset({"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"})
SAMPLES = "samples"
"""The split of a row with generated texts."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, WARNING_SIGNAL, *HANGUP)


# ---- history and progress ----


class Clock:
    """Seconds of training, over all sessions of a run."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._before = 0.0
        self.other_seconds = 0.0
        """Seconds of these that were spent on evaluation and checkpoints."""

    def start(self, before: float, other_seconds: float) -> None:
        """Continue from the seconds of earlier sessions."""
        self._before, self.other_seconds = before, other_seconds
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)


class History(TrainerCallback):  # type: ignore[misc]
    """Appends a row to history.jsonl for each logged training loss and each evaluation."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.clock = clock

    def rewind(self, step: int) -> None:
        """Drop what was written after a step, so that a resumed run does not write it twice."""
        if self.path.is_file():
            write_jsonl(self.path, [row for row in read_jsonl(self.path) if row["step"] <= step])

    def sync(self) -> None:
        """Sync the file to the disk before a checkpoint is completed."""
        if self.path.is_file():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def append(self, line: str) -> None:
        """Write one row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line + "\n")

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        """Trainer logs training losses, evaluations, and a closing summary that is not kept."""
        row = history_row(state.global_step, state.epoch, logs or {})
        if row is not None and state.is_world_process_zero:
            self.append(json.dumps({**row, "seconds": round(self.clock.seconds, 3)}, allow_nan=False))


def history_row(step: int, epoch: float, logs: Mapping[str, Any]) -> dict[str, Any] | None:
    """One line of history.jsonl from what Trainer logged; None for anything but training and evaluation rows."""
    row: dict[str, Any] = {"step": step, "epoch": round(epoch, 6)}
    if "loss" in logs:
        row |= {key: _finite(logs[key]) for key in logs if key in TRAIN_KEYS or key.endswith(COMPONENT)}
    elif any(key.startswith(EVALUATION) for key in logs):
        row |= {"split": "validation", **{key: _finite(value) for key, value in scores(logs).items()}}
    else:
        return None
    return row


def scores(logs: Mapping[str, Any]) -> dict[str, float]:
    """The validation scores among Trainer's evaluation metrics, without their prefix."""
    named = {key.removeprefix(EVALUATION): value for key, value in logs.items() if key.startswith(EVALUATION)}
    return {key: float(value) for key, value in named.items() if key not in NOT_SCORES}


def _finite(value: float) -> float | None:
    # JSON has no nan and no inf.
    return float(value) if math.isfinite(value) else None


class LossComponents:
    """Running sums of the components of a loss, logged next to it: a task's loss adds, the trainer logs."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # name → [sum, number of steps]
        self._in_step: set[str] = set()
        self.counts = True
        """False while a process repeats examples that another one has."""

    def begin_step(self) -> None:
        """Begin a new step."""
        self._in_step.clear()

    def add(self, name: str, share: Tensor) -> None:
        """Add one micro-batch's share of the step's mean."""
        # Kept on the device: reading a number here would wait for it in every micro-batch.
        counted = share.detach().float() * float(self.counts)
        value = torch.stack([counted, counted.new_tensor(float(name not in self._in_step))])
        self._in_step.add(name)
        self._sums[name] = value if name not in self._sums else self._sums[name] + value

    def take(self, gather: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The mean of each component over the steps that had it, over all processes; resets the sums."""
        means = {}
        for name, value in self._sums.items():
            # The shares of all processes add up to the mean of a step, and each of them counted the same steps.
            every = gather(value.reshape(1, 2))  # (processes, 2)
            means[name] = float(every[:, 0].sum() / every[:, 1].mean())
        self._sums.clear()
        return means

    def state(self, gather: Callable[[Tensor], Tensor]) -> dict[str, list[list[float]]]:
        """For a checkpoint: the sums of every process."""
        return {name: gather(value.reshape(1, 2)).tolist() for name, value in self._sums.items()}

    def restore(self, state: Mapping[str, list[list[float]]], process: int, device: torch.device) -> None:
        """Take over the sums of a checkpoint."""
        self._sums = {name: torch.tensor(values[process], device=device) for name, values in state.items()}


class Samples(TrainerCallback):  # type: ignore[misc]
    """Adds generated texts to history.jsonl at the end of each evaluation."""

    def __init__(
        self, generate: Callable[[Any], list[dict[str, Any]]], history: History, *, all_processes: bool
    ) -> None:
        """generate: the model → prompts and texts; all_processes: sharded weights need all of them to run the model."""
        self.generate = generate
        self.history = history
        self.all_processes = all_processes

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """The scores of the evaluation are written."""
        if state.is_world_process_zero or self.all_processes:
            made = self.generate(model)
            if state.is_world_process_zero:
                row = {"step": state.global_step, "epoch": round(state.epoch, 6), "split": SAMPLES, SAMPLES: made}
                self.history.append(json_text(row))


class ReportProgress(TrainerCallback):  # type: ignore[misc]
    """Reports the number of finished steps, with the last loss, learning rate and validation score.

    Each evaluation is also a line of its own, which stays on the terminal and is all that a log has of training.
    """

    def __init__(self, progress: ProgressReporter, metric: str) -> None:
        self.progress = progress
        self.metric = metric
        self.facts: dict[str, float] = {}
        self._best: tuple[float, int] | None = None
        """The best score so far, and its step."""
        self._began: tuple[float, int] | None = None
        """When this session began, and at which step; None while nothing is trained."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The number of steps is known now."""
        if state.max_steps < FEW_STEPS and args.max_steps <= 0:
            self.progress.note(
                f"only {state.max_steps} steps in all: few examples need more --epochs, or a smaller --batch-size"
            )
        self._began = time.perf_counter(), state.global_step
        self._best = None if state.best_metric is None else (state.best_metric, state.best_global_step or 0)
        self.progress.begin(state.max_steps, "steps")
        self.progress.advance(state.global_step, self.facts)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """One more step is finished."""
        self.progress.advance(state.global_step, self.facts)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        """Keep the latest numbers to show."""
        logs = logs or {}
        shown = [
            key for key in logs if key in ("loss", "learning_rate") or (key.endswith(COMPONENT) and "loss" in logs)
        ]
        self.facts |= {key: float(logs[key]) for key in shown}
        score = logs.get(EVALUATION + self.metric)
        if score is not None:
            self.facts[f"validation {self.metric}"] = float(score)
            others = (key.removeprefix(EVALUATION) for key in logs if key.endswith(AGREEMENT))
            self.facts |= {name: float(logs[EVALUATION + name]) for name in others if name != self.metric}
        if self.facts:
            self.progress.advance(state.global_step, self.facts)
        if score is not None and self._began is not None:
            better = self._best is None or (score > self._best[0] if args.greater_is_better else score < self._best[0])
            self._best = (float(score), state.global_step) if better else self._best
            self.progress.note(self._line(state, float(score), logs.get(EVALUATION + "loss"), *self._began))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Evaluations from now on are not part of training."""
        self._began = None

    def _line(self, state: TrainerState, score: float, loss: float | None, began: float, first: int) -> str:
        """Step, loss, validation score, the best so far, and the time left at the speed of this session."""
        name, done = self.metric.replace("_", " "), state.global_step - first
        parts = [f"step {state.global_step:,} of {state.max_steps:,}"]
        if "loss" in self.facts:
            parts.append(f"loss {self.facts['loss']:.4f}")
        elif loss is not None and self.metric != "loss":
            parts.append(f"validation loss {loss:.4f}")  # evaluated before the first logging step
        parts.append(f"validation {name} {score:.4f}")
        parts += [f"{key.replace('_', ' ')} {self.facts[key]:.4f}" for key in self.facts if key.endswith(AGREEMENT)]
        if self._best is not None:
            parts.append(f"best {self._best[0]:.4f} at step {self._best[1]:,}")
        if done > 0:
            left = (time.perf_counter() - began) / done * (state.max_steps - state.global_step)
            parts.append(f"{left:.0f} s left" if left < 100 else f"{left / 60:.0f} min left")
        return ", ".join(parts)


# ---- stopping ----


class StopRequest:
    """The first signal that requested a stop; 0 if none did."""

    def __init__(self) -> None:
        self.signal_number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals within the block."""
        with _handled(SIGNALS, self._received):
            yield

    def _received(self, number: int, frame: FrameType | None) -> None:
        # Only a second Ctrl-C stops at once. Slurm sends SIGUSR1 and then SIGTERM to a run that is
        # still saving, which must finish; torchrun passes on the Ctrl-C that its processes have already received.
        if number == self.signal_number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise Interrupted(
                "stopped at once; the steps since the last checkpoint are lost",
                hint="continue from the last checkpoint with --resume",
                signal_number=number,
            )
        self.signal_number = self.signal_number or number


def stopped(number: int, when: str) -> Interrupted:
    """The end of a run that a signal has requested; ``when`` in the run, and what is saved."""
    message = f"stopped by {signal.Signals(number).name} {when}"
    return Interrupted(message, hint="continue with --resume", signal_number=number)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP end the block like Ctrl-C: with a message and an exit code."""

    def end(number: int, frame: FrameType | None) -> None:
        raise stopped(number, "outside training; what was saved is kept")

    with _handled((signal.SIGTERM, WARNING_SIGNAL, *HANGUP), end):
        yield


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    # Outside the main thread Python allows no handlers. An ignored SIGHUP stays ignored: under nohup, a run
    # continues after its terminal is closed.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [n for n in numbers if not (n in HANGUP and signal.getsignal(n) is signal.SIG_IGN)]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class Flow(TrainerCallback):  # type: ignore[misc]
    """The trainer's own callback: prepares the start of training, keeps the gradient norm, and stops on request."""

    def __init__(self, trainer: HftuneTrainer) -> None:
        self.trainer = trainer
        self.stopping = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Trainer has restored its own state by now."""
        self.stopping = False
        # Trainer saves below its output_dir: a checkpoint gets its place when it is complete.
        args.output_dir = str(self.trainer.checkpoints.staging)
        self.trainer.begin_training()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Gradients are accumulated and clipped; the weights have not changed yet."""
        self.trainer.check_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the epoch on a stop request; ``on_epoch_end``, which follows, saves."""
        # After this event Trainer still logs, evaluates and saves whatever is due at the step. If should_training_stop
        # were set here, that checkpoint would record that training is finished.
        control.should_epoch_stop = control.should_epoch_stop or bool(self.trainer.stop_number)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save a checkpoint on a stop request, unless this step has just been saved."""
        if not self.trainer.stop_number:
            return
        if not float(state.epoch).is_integer() and not control.should_training_stop:
            control.should_log = control.should_evaluate = False  # the epoch will be continued
        control.should_save = self.trainer.saved_step != state.global_step
        args.save_strategy = SaveStrategy.EPOCH  # "best" would drop the save if the score is not a new best
        self.stopping = control.should_save
        control.should_training_stop = control.should_training_stop or not control.should_save

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Trainer has written its files; stopping waits for this, or the checkpoint would call training finished."""
        self.trainer.complete_checkpoint()
        control.should_training_stop = control.should_training_stop or self.stopping
