"""The proof that a saved model is the one that was trained: a fresh process loads it and must say the same.

The pipeline calls ``verify``, which starts ``python -m hftune.verify`` and compares; ``hftune.hub`` asks what was
published in the same way. Nothing of the training process can leak into that answer: no patched module, no object in
memory, no tokenizer state.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hftune.child_process import death, fresh_process
from hftune.config.model import NO_TRUST, Trust
from hftune.errors import RunFailed

STAND = "--stand"
_STANDING: list[subprocess.Popen[str]] = []
"""The process that proofs are forked from, where one is kept; see ``standing``."""

TOLERANCE = 1e-4
"""Largest difference of any output, relative to its size: another batch shape may round differently, no more."""


def verify(folder: Path, task: str, probe: list[dict[str, Any]], expected: Any, *, trust: Trust = NO_TRUST) -> None:
    """Compare the saved artifact's answers, from a fresh process, with those of the model in memory.

    Raises:
        RunFailed: It does not load, or says something else.
    """
    compare(folder, fresh_outputs([folder], task, probe, trust=trust)[0], expected)


def fresh_outputs(
    folders: Sequence[Path], task: str, probe: list[dict[str, Any]], *, trust: Trust = NO_TRUST
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
            "trust": trust,
        }
    )
    answered = _ask_standing(request) if _STANDING else _ask_new(request)
    killed = death(answered.get("returncode", 0))
    if killed is not None:
        raise RunFailed(
            f"the process that verifies the saved model {folders[0]} {killed}, so the model is saved but not verified",
            hint=f"{killed.hint}; checkpoints are intact",
        )
    if "error" in answered:
        raise _failed(folders[0], f"a fresh process can't load it: {answered['error']}")
    answer: list[Any] = answered["outputs"]
    return answer


def _ask_new(request: str) -> dict[str, Any]:
    command, environment = fresh_process("hftune.verify")
    outcome = subprocess.run(
        command, env=environment, input=request, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if outcome.returncode != 0:
        last = (outcome.stderr.strip().splitlines()[-1:] or ["no message"])[0]
        return {"error": last, "returncode": outcome.returncode}
    answer: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return answer


@contextmanager
def standing() -> Iterator[None]:
    """Keep a process at hand that has imported everything and nothing more: each proof is then a fork of it.

    A study proves a hundred models, and importing takes longer than loading one. What is forked has trained nothing and
    has seen no other model. Windows can't fork, and on macOS forking after torch was imported is not safe: there each
    proof starts from the beginning.
    """
    if sys.platform != "linux":
        yield
        return
    command, environment = fresh_process("hftune.verify")
    with subprocess.Popen(
        [*command, STAND],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        process_group=0,  # it ends with its forks, and Ctrl-C does not reach it
    ) as process:
        _STANDING.append(process)
        try:
            yield
        finally:
            _STANDING.remove(process)
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End the standing process and the proof that it may be about: whoever asked is not waiting any more."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):  # it has ended already
            os.killpg(process.pid, signal.SIGKILL)


def _ask_standing(request: str) -> dict[str, Any]:
    process = _STANDING[-1]
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    except BaseException:
        _end(process)  # its answer would be taken for the one to the next question
        raise
    # One that was killed, for want of memory say, must not fail the runs that come after.
    answer: dict[str, Any] = json.loads(line) if line else _ask_new(request)
    return answer


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
    """What the saved artifacts say of the probe rows; runs in the fresh process."""
    from hftune.tasks import TASKS

    task = TASKS[request["task"]]
    probe, trust = request["probe"], request["trust"]
    return {"outputs": [task.reload_outputs(Path(folder), probe, trust) for folder in request["folders"]]}


def _answer_or_error(request: str) -> dict[str, Any]:
    try:
        return answer_request(json.loads(request))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def stand() -> None:
    """Answer one request a line, each in a fork; runs in the standing process, which computes nothing itself."""
    import hftune.tasks  # noqa: F401  so that no fork has to

    if sys.platform == "win32":
        raise OSError("this system can't fork")  # standing() starts no such process there
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as channel:
                channel.write(json.dumps(_answer_or_error(line)))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as channel:
            said = channel.read()
        _, status = os.waitpid(child, 0)
        ended = {"error": "it ended without a message", "returncode": os.waitstatus_to_exitcode(status)}
        print(said.replace("\n", " ") or json.dumps(ended), flush=True)


def _failed(folder: Path, what: str) -> RunFailed:
    return RunFailed(
        f"the saved model {folder} is not the model that was trained: {what}",
        hint="checkpoints are intact; run again with --debug, and report this if it stays",
    )


if __name__ == "__main__":
    if STAND in sys.argv:
        stand()
    else:
        print(json.dumps(_answer_or_error(sys.stdin.read())))
