"""The proof that a saved model is the one that was trained: a fresh process loads it and must say the same.

The pipeline calls ``verify``, which starts ``python -m hftune.verify`` and compares; ``hftune.hub`` asks what was
published in the same way. Nothing of the training process can leak into that answer: no patched module, no object in
memory, no tokenizer state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hftune.errors import RunFailed

TOLERANCE = 1e-4
"""Largest difference of any output, relative to its size: another batch shape may round differently, no more."""


def verify(
    folder: Path, task: str, probe: list[dict[str, Any]], expected: Any, *, trust_remote_code: bool = False
) -> None:
    """Compare the saved artefact's answers, from a fresh process, with those of the model in memory.

    Raises:
        RunFailed: It does not load, or says something else.
    """
    compare(folder, fresh_outputs([folder], task, probe, trust_remote_code=trust_remote_code)[0], expected)


def fresh_outputs(
    folders: Sequence[Path], task: str, probe: list[dict[str, Any]], *, trust_remote_code: bool = False
) -> list[Any]:
    """What each model folder says of the probe rows when a fresh process loads it.

    Raises:
        RunFailed: One does not load.
    """
    request = json.dumps(
        {
            "folders": [str(folder.resolve()) for folder in folders],
            "task": task,
            "probe": probe,
            "trust_remote_code": trust_remote_code,
        }
    )
    command, environment = fresh_process("hftune.verify")
    outcome = subprocess.run(command, env=environment, input=request, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        reason = outcome.stderr.strip().splitlines()[-1:] or ["no message"]
        raise _failed(folders[0], f"a fresh process can't load it: {reason[0]}")
    answer: list[Any] = json.loads(outcome.stdout.splitlines()[-1])["outputs"]
    return answer


def fresh_process(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run one of our modules; a json.py in the current folder is not imported there."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(entry for entry in (root, os.environ.get("PYTHONPATH", "")) if entry)
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": path}


def compare(folder: Path, got: Any, expected: Any) -> None:
    """Raise unless both are the same numbers and names."""
    if isinstance(expected, dict):
        if expected.keys() != got.keys():
            raise _failed(folder, f"it gives {sorted(got)}, not {sorted(expected)}")
        for key in expected:
            compare(folder, got[key], expected[key])
        return
    if not expected or isinstance(expected[0], str):
        if list(got) != list(expected):
            raise _failed(folder, f"it gives {got}, not {expected}")
        return
    before, after = np.asarray(expected, dtype=np.float64), np.asarray(got, dtype=np.float64)
    if before.shape != after.shape:
        raise _failed(folder, f"its outputs have the shape {after.shape}, not {before.shape}")
    difference = float(np.max(np.abs(before - after) / np.maximum(1.0, np.abs(before))))
    if not difference <= TOLERANCE:
        raise _failed(folder, f"its outputs differ by {difference:.2g}, more than {TOLERANCE:.0e}")


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """What the saved artefacts say of the probe rows; runs in the fresh process."""
    from hftune.tasks import TASKS

    task = TASKS[request["task"]]
    trusted = request["trust_remote_code"]
    return {"outputs": [task.reload_outputs(Path(folder), request["probe"], trusted) for folder in request["folders"]]}


def _failed(folder: Path, what: str) -> RunFailed:
    return RunFailed(
        f"the saved model {folder} is not the model that was trained: {what}",
        hint="checkpoints are intact; run again with --debug, and report this if it stays",
    )


if __name__ == "__main__":
    print(json.dumps(answer_request(json.loads(sys.stdin.read()))))
