"""What a model writes at each evaluation, as rows of history.jsonl. Added to the trainer by ``assembly``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hftune.escapes import json_text

SAMPLES = "samples"
"""What stands as the split of such a row."""
Write = Callable[[Any], list[dict[str, Any]]]
"""The model → samples, each with prompt and text; it must leave the random state alone."""


class Samples(TrainerCallback):  # type: ignore[misc]
    """Lets the model write at the end of each evaluation, which its time is part of."""

    def __init__(self, write: Write, path: Path, *, together: bool) -> None:
        """Keep where samples go.

        Args:
            write: Lets the model write.
            path: history.jsonl of the run.
            together: Whether the model lies in shards, so that all processes must run it for one to read.
        """
        self.write = write
        self.together = together
        self.path = path

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **_: Any
    ) -> None:
        """Trainer has evaluated, and its scores are written."""
        if not (state.is_world_process_zero or self.together):
            return
        row = {"step": state.global_step, "epoch": round(state.epoch, 6), "split": SAMPLES, SAMPLES: self.write(model)}
        if not state.is_world_process_zero:
            return
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json_text(row) + "\n")
