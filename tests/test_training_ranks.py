"""Two processes train what one trains: the same rows an update, the same loss, gradient and score, one writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_case import Case, tiny_bert

from hftune.training import fit

HERE = Path(__file__).parent


def launch(folder: Path, **settings: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = [str(HERE / "training_ranks.py"), str(folder), json.dumps(settings)]
    paths = os.pathsep.join([str(HERE.parent), str(HERE)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command + script, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    outcome: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return outcome


# 41 rows: the last update has 9 of 16 rows, and its last pass one row for two processes.
ONE = {"batch_size": 8, "accumulation": 2, "epochs": 2, "log_steps": 1, "learning_rate": 1e-2}
TWO = {**ONE, "batch_size": 4, "rows": 41}


def test_two_processes_equal_one(tmp_path: Path) -> None:
    one = fit(Case(tmp_path / "one", ONE, train_rows=41).trainer(tiny_bert(0.0)))
    two = launch(tmp_path / "two", **TWO)
    assert two["world"] == 2
    assert one.steps == two["steps"] == 6
    assert one.best_score == two["selection"]["score"]
    alone, together = (Case(tmp_path / name, {}).history for name in ("one", "two"))
    assert [row["step"] for row in alone] == [row["step"] for row in together]
    for left, right in zip(alone, together, strict=True):
        for key in ("loss", "grad_norm", "accuracy"):
            if key in left and not (key == "loss" and "split" in left):
                assert right[key] == pytest.approx(left[key], rel=2e-3), (key, left["step"])
    left, right = (
        load_file(tmp_path / name / "checkpoints/checkpoint-6/trainable.safetensors") for name in ("one", "two")
    )
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-2, atol=2e-3)
