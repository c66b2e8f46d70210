"""Verify that a saved model is the one that was trained: a new process loads it and must give the same outputs.

``verify`` starts ``python -m hftune.pipeline.verify`` and compares. Nothing of the training process can influence the
result: no patched module, no object in memory, no tokenizer state.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hftune.child_process import death, module_command
from hftune.errors import RunFailed
from hftune.models.settings import NO_TRUST, Trust
from hftune.tasks import TASKS, task_class

TOLERANCE = 1e-4
"""Largest difference of any output, relative to its size: another batch shape may round differently, no more."""


def verify(folder: Path, task: str, probe: list[dict[str, Any]], expected: Any, *, trust: Trust = NO_TRUST) -> None:
    """Compare the outputs of the saved model, from a new process, with those of the model in memory.

    Raises:
        RunFailed: It does not load, or gives other outputs.
    """
    compare(folder, fresh_outputs([folder], task, probe, trust=trust)[0], expected)


def fresh_outputs(
    folders: Sequence[Path], task: str, probe: list[dict[str, Any]], *, trust: Trust = NO_TRUST
) -> list[Any]:
    """The outputs of each model folder for the probe examples, loaded by a new process.

    Raises:
        RunFailed: One does not load.
    """
    paths = [str(folder.resolve()) for folder in folders]
    request = json.dumps({"folders": paths, "task": task, "probe": probe, "trust": trust})
    answer = _ask_server(request) if _SERVERS else _ask_new_process(request)
    killed = death(answer.get("returncode", 0))
    if killed is not None:
        raise RunFailed(
            f"the process that verifies the saved model {folders[0]} {killed}, so the model is saved but not verified",
            hint=f"{killed.hint}; checkpoints are intact",
        )
    if "error" in answer:
        raise _failed(folders[0], f"a new process can't load it: {answer['error']}")
    outputs: list[Any] = answer["outputs"]
    return outputs


def _ask_new_process(request: str) -> dict[str, Any]:
    # Not multiprocessing: a fork shares our memory, and spawn imports the main module, which may patch what we verify.
    command, environment = module_command("hftune.pipeline.verify")
    outcome = subprocess.run(
        command, env=environment, input=request, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if outcome.returncode != 0:
        last = (outcome.stderr.strip().splitlines()[-1:] or ["no message"])[0]
        return {"error": last, "returncode": outcome.returncode}
    # The last line: libraries print to standard output when they are imported.
    answer: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return answer


@dataclass(frozen=True)
class Server:
    """The process that verifications are forked from: its id and its pipes."""

    pid: int
    requests: TextIO
    answers: TextIO

    def end(self) -> None:
        """End the server and the fork that may be running: the caller is not waiting for it any more."""
        if sys.platform == "win32" or self.requests.closed:
            return
        with suppress(ProcessLookupError, PermissionError):  # it has ended already
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        with suppress(BrokenPipeError):  # a request that was not sent
            self.requests.close()


_SERVERS: list[Server] = []
"""The process that verifications are forked from, if there is one; see ``verification_server``."""


@contextmanager
def verification_server() -> Iterator[None]:
    """Keep a fork of this process that has imported everything and nothing more: each verification is a fork of it.

    A study verifies a hundred models, and importing takes longer than loading one. This must be called before the
    process trains or loads anything: what is forked is then as good as a new process, and torch has no threads whose
    locks a fork would inherit. Windows can't fork, and on macOS forking after torch was imported is not safe: there
    each verification starts a new process.
    """
    if sys.platform != "linux":
        yield
        return
    for kind in TASKS:
        task_class(kind)  # so that no fork has to import it
    server = _fork_server()
    _SERVERS.append(server)
    try:
        yield
    finally:
        _SERVERS.remove(server)
        server.end()


def _fork_server() -> Server:
    if sys.platform == "win32":
        raise OSError("this system can't fork")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours_out)  # or it would never see the end of its requests
            os.close(ours_in)
            # Standard input and output belong to the parent, and no library may print between the answers.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):  # those of a cluster job, for example, would submit it again
                    signal.signal(number, signal.SIG_DFL)
            serve(os.fdopen(theirs_in, encoding="utf-8"), os.fdopen(theirs_out, "w", encoding="utf-8"))
        finally:
            os._exit(0)  # no exit handlers: they belong to the parent
    os.close(theirs_in)
    os.close(theirs_out)
    with suppress(OSError):  # here too: the child may not have come to it when it is ended
        os.setpgid(child, child)
    return Server(child, os.fdopen(ours_out, "w", encoding="utf-8"), os.fdopen(ours_in, encoding="utf-8"))


def _ask_server(request: str) -> dict[str, Any]:
    server = _SERVERS[-1]
    if server.requests.closed:
        return _ask_new_process(request)
    try:
        server.requests.write(request + "\n")
        server.requests.flush()
        line = server.answers.readline()
    except BrokenPipeError:
        line = ""
    except BaseException:
        server.end()  # its answer would be taken for the one to the next request
        raise
    # A server that was killed, for lack of memory for example, must not fail the runs that come after.
    answer: dict[str, Any] = json.loads(line) if line else _ask_new_process(request)
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
    # Relative for large outputs, absolute for those near 0, where a relative difference means nothing.
    difference = float(np.max(np.abs(before - after) / np.maximum(1.0, np.abs(before))))
    if not difference <= TOLERANCE:  # which NaN is not, either
        raise _failed(folder, f"its outputs differ by {difference:.2g}, more than {TOLERANCE:.0e}")


def _failed(folder: Path, what: str) -> RunFailed:
    return RunFailed(
        f"the saved model {folder} is not the model that was trained: {what}",
        hint="checkpoints are intact; run again with --debug, and report this if it happens again",
    )


# ---- In the new process ----


def _answer(request: str) -> dict[str, Any]:
    """The outputs of the saved models for the probe examples, or the error."""
    try:
        wanted = json.loads(request)
        task = task_class(wanted["task"])
        folders = [Path(folder) for folder in wanted["folders"]]
        return {"outputs": [task.reload_outputs(folder, wanted["probe"], wanted["trust"]) for folder in folders]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer one request per line, each in a fork; the server itself computes nothing."""
    if sys.platform == "win32":
        raise OSError("this system can't fork")
    os.setpgid(0, 0)  # it ends together with its forks, and Ctrl-C does not reach it
    gc.freeze()  # or each fork would copy all imported objects with its first garbage collection
    for line in requests:
        reading, writing = os.pipe()
        # Safe although torch was imported: the server has computed nothing, so torch has no threads whose locks a fork
        # would inherit.
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as channel:
                channel.write(json.dumps(_answer(line)))
            os._exit(0)  # no exit handlers: they belong to the server
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as channel:
            answer = channel.read()
        _, status = os.waitpid(child, 0)
        ended = {"error": "it ended without a message", "returncode": os.waitstatus_to_exitcode(status)}
        answers.write((answer.replace("\n", " ") or json.dumps(ended)) + "\n")
        answers.flush()


if __name__ == "__main__":
    print(json.dumps(_answer(sys.stdin.read())))
