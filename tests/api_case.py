"""Rows and settings that the tests of the Python API share: a run on them takes less than a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

ROWS = [
    {"text": f"the {what} was {how} {number}", "label": label}
    for number in range(20)
    for what, how, label in (("food", "great", "good"), ("soup", "cold", "bad"))
]
FRAME = pd.DataFrame(ROWS)
QUICK: dict[str, Any] = {
    "model": "scratch:bert-tiny",
    "max_seq_length": 16,
    "vocab_size": 300,
    "per_device_train_batch_size": 8,
    "max_steps": 4,
    "eval_steps": 2,
}
SILENT = {**QUICK, "progress": False}


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
