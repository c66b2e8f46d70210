"""What happens along the way: rows of history.jsonl, and progress for the listener. Added to the trainer by
``hftune.training.assembly``; on several processes only the main one writes and speaks.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hftune.files import read_jsonl, write_jsonl
from hftune.training.progress import Listener

EVALUATION = "eval_"
TRAIN_KEYS = ("loss", "learning_rate", "grad_norm", "num_input_tokens_seen")
PART = "_loss"
"""How the name of a part of the loss ends."""
FEW_UPDATES = 50
"""Fewer than these hardly train anything, and are seldom meant."""
NOT_SCORES = frozenset({"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"})


class Clock:
    """Seconds of training, over all the sittings of a run."""

    def __init__(self) -> None:
        """Stands still until ``start``."""
        self._started: float | None = None
        self._before = 0.0
        self.aside = 0.0
        """Seconds of these that went into evaluation and saving."""

    def start(self, before: float, aside: float) -> None:
        """Go on from what earlier sittings took."""
        self._before, self.aside = before, aside
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)


class History(TrainerCallback):  # type: ignore[misc]
    """Appends a row to history.jsonl for each log step and each evaluation."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """path: history.jsonl of the run."""
        self.path = path
        self.clock = clock

    def rewind(self, step: int) -> None:
        """Drop what was written after a step, so that a resumed run does not tell it twice."""
        rows = read_jsonl(self.path) if self.path.is_file() else []
        if rows or self.path.is_file():
            write_jsonl(self.path, [row for row in rows if row["step"] <= step])

    def sync(self) -> None:
        """Make the rows as durable as the checkpoint that is about to be sealed."""
        if self.path.is_file():
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Trainer has logged: a training row, an evaluation, or its closing summary, which is not kept."""
        row = history_row(state.global_step, state.epoch, logs or {})
        if row is None or not state.is_world_process_zero:
            return
        row["seconds"] = round(self.clock.seconds, 3)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def history_row(step: int, epoch: float, logs: Mapping[str, Any]) -> dict[str, Any] | None:
    """One line of history.jsonl from what Trainer logged; None for anything but training and evaluation rows."""
    row: dict[str, Any] = {"step": step, "epoch": round(epoch, 6)}
    if "loss" in logs:
        row |= {key: _finite(logs[key]) for key in logs if key in TRAIN_KEYS or key.endswith(PART)}
    elif any(key.startswith(EVALUATION) for key in logs):
        row |= {"split": "validation", **{key: _finite(value) for key, value in scores(logs).items()}}
    else:
        return None
    return row


def scores(logs: Mapping[str, Any]) -> dict[str, float]:
    """The validation scores among Trainer's evaluation metrics, by their own names."""
    named = {key.removeprefix(EVALUATION): value for key, value in logs.items() if key.startswith(EVALUATION)}
    return {key: float(value) for key, value in named.items() if key not in NOT_SCORES}


def _finite(value: float) -> float | None:
    """JSON has no nan and no inf."""
    return float(value) if math.isfinite(value) else None


class Progress(TrainerCallback):  # type: ignore[misc]
    """Tells the listener how far training has come, with the last loss, learning rate and validation score."""

    def __init__(self, listener: Listener, select_by: str) -> None:
        """select_by: the validation score to show."""
        self.listener = listener
        self.select_by = select_by
        self.facts: dict[str, float] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The number of updates is known now."""
        if state.max_steps < FEW_UPDATES and args.max_steps <= 0:
            self.listener.note(
                f"only {state.max_steps} updates in all: few rows want more --epochs, or a smaller --batch-size"
            )
        self.listener.begin(state.max_steps, "updates")
        self.listener.advance(state.global_step, self.facts)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """One update more."""
        self.listener.advance(state.global_step, self.facts)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Keep the latest numbers to show."""
        logs = logs or {}
        shown = [key for key in logs if key in ("loss", "learning_rate") or (key.endswith(PART) and "loss" in logs)]
        self.facts |= {key: float(logs[key]) for key in shown}
        if EVALUATION + self.select_by in logs:
            self.facts[f"validation {self.select_by}"] = float(logs[EVALUATION + self.select_by])
        if self.facts:
            self.listener.advance(state.global_step, self.facts)
