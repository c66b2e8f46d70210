"""How the launch tests start processes, and how they compare what those have left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from systems import needs_posix

from hftune.files import read_json, read_jsonl

HERE = Path(__file__).parent
ROOT = HERE.parent
CONFIG = ("--config_file", str(ROOT / "accelerate_config.yaml"))
TWO = (*CONFIG, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``accelerate launch`` with these words, in this folder."""
    needs_posix("several processes that train together are not tested on Windows")
    paths = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    accelerate = str(Path(sys.executable).with_name("accelerate"))
    return subprocess.run(
        [accelerate, "launch", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )


def launch_jobs(
    folder: Path, words: tuple[str, ...], script: str, jobs: list[dict[str, Any]]
) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Several commands in the processes of one launch; its output, and their exit codes."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = launch(folder, *words, str(HERE / script), str(folder))
    codes = folder / "codes.json"
    return done, json.loads(codes.read_text()) if codes.is_file() else []


def history(run: Path) -> list[dict[str, Any]]:
    """history.jsonl without what differs from run to run."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read_jsonl(run / "history.jsonl")]


FINEST = {"ece": 0.02}
"""Differences that are no news: a row that moves across the edge of a bin moves the whole score."""


def assert_same_course(one: Path, two: Path, tolerance: float) -> None:
    """The same losses, gradients and scores at the same steps, and of the saved model."""
    left, right = history(one), history(two)
    assert [(row["step"], row.get("split")) for row in left] == [(row["step"], row.get("split")) for row in right]
    assert sum("grad_norm" in row for row in left) > 3
    for alone, together in zip(left, right, strict=True):
        assert alone.keys() == together.keys()
        for key, value in alone.items():
            if isinstance(value, float):
                near = pytest.approx(value, rel=tolerance, abs=FINEST.get(key, 1e-6))
                assert together[key] == near, (two.name, key, alone["step"])
    for split, scores in read_json(one / "metrics.json")["splits"].items():
        found = read_json(two / "metrics.json")["splits"][split]
        for key, value in scores.items():
            if isinstance(value, float):
                near = pytest.approx(value, rel=tolerance, abs=FINEST.get(key, 1e-6))
                assert found[key] == near, (two.name, split, key)
