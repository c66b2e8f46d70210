"""A process that runs the jobs of a study, one after the other: ``python -m hftune.studies.worker``.

Jobs come in on standard input, events and outcomes go out on standard output, one JSON object per line. An event with
an evaluation is answered by the study: whether the run continues. A run that fails, or even ends the process, does not
affect the study; a worker whose study was killed stops at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hftune.errors import HftuneError, Interrupted
from hftune.files import write_text
from hftune.pipeline.train import rescore, train
from hftune.pipeline.verify import verification_server
from hftune.progress import ProgressReporter, quiet_libraries
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir
from hftune.studies.executors import HistoryReader

Send = Callable[[Mapping[str, Any]], bool]
"""Receives an event; its answer to an evaluation is False if the run has to end."""


class PrunedError(Exception):
    """The study ends this run early."""


def run_job(job: Mapping[str, Any], send: Send = lambda event: True) -> dict[str, Any]:
    """Train or score one run; returns the outcome as plain values, also after an error.

    Args:
        job: As ``hftune.studies.executors`` describes it; ``watch`` names the metric whose evaluations are sent.
        send: Receives the events of the run.
    """
    began = time.monotonic()
    run = RunDir(Path(job["path"]))
    progress = EventReporter(send, run, job.get("watch"))
    try:
        if job["action"] == "score":
            result = rescore(run, job["score"], progress)
        else:
            recipe = _recipe(job["recipe"], run.path)
            result = train(recipe, run.path, resume=True, score=tuple(job["score"]), progress=progress)
        outcome: dict[str, Any] = {"state": "done", "splits": dict(result.metrics["splits"])}
        outcome["metric"] = result.metrics.get("selection", {}).get("metric")
    except PrunedError:
        outcome = {"state": "pruned"}
    except Interrupted as stop:
        outcome = {"state": "stopped", "reason": stop.message}
    except HftuneError as error:
        outcome = {"state": "failed", "reason": error.message, "hint": error.hint}
    except Exception as error:  # the study continues after any error of a run
        outcome = {"state": "failed", "reason": f"{type(error).__name__}: {error}", "hint": "run it alone with --debug"}
    return {**outcome, "seconds": round(time.monotonic() - began, 2)}


class EventReporter(ProgressReporter):
    """Sends the progress of a run as events."""

    def __init__(self, send: Send, run: RunDir, watch: str | None) -> None:
        """watch: the metric whose evaluations are sent; the answer to one can end the run."""
        self._send = send
        self._history = HistoryReader(run.history)
        self._watch = watch
        self._total = 0
        self._last = 0.0

    def stage(self, text: str) -> None:
        """Send the stage."""
        self._send({"stage": text})

    def begin(self, total: int, unit: str) -> None:
        """Remember the total."""
        self._total = total

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """Send at most two progress events per second; evaluations always."""
        if self._watch:
            for evaluation in self._history.evaluations(self._history.read(), self._watch):
                if not self._send({"evaluation": evaluation}):
                    raise PrunedError
        now = time.monotonic()
        if now - self._last > 0.5 or done == self._total:
            self._last = now
            self._send({"done": done, "total": self._total, "facts": dict(facts)})

    def warn(self, text: str) -> None:
        """Send the warning."""
        self._send({"warning": text})


def _recipe(text: str, path: Path) -> Recipe:
    # The recipe travels as YAML, so that a cluster needs nothing but the study's folder.
    staged = path.parent / f".{path.name}.yaml"
    write_text(staged, text)
    try:
        return load_recipe(staged)
    finally:
        staged.unlink(missing_ok=True)


class _Inbox:
    """Lines from the study, read in a thread of their own: a run must notice that the study was killed."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._received = 0
        self.finished = 0

    def read(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "action" in message:
                self._received += 1
                self.jobs.put(message)
            else:
                self.answers.put(message)
        if self._received > self.finished:
            # The study was killed. If training continued, the run directory would be locked for its next attempt.
            # sys.exit would end only this thread; the run loses no more than since its last checkpoint.
            os._exit(1)
        self.jobs.put(None)


def serve() -> None:
    """Run jobs until standard input ends."""
    # One process verifies the saved models of all jobs: a fork of this one, before it has opened or computed anything.
    with verification_server():
        _serve()


def _serve() -> None:
    # Events keep the original stdout, and file descriptor 1 becomes stderr: also native libraries, which do not know
    # sys.stdout, can then print nothing between the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    inbox = _Inbox()

    def send(message: Mapping[str, Any]) -> bool:
        events.write(json.dumps(message) + "\n")
        events.flush()
        return bool(inbox.answers.get()["continue"]) if "evaluation" in message else True

    threading.Thread(target=inbox.read, daemon=True).start()
    quiet_libraries()
    while (job := inbox.jobs.get()) is not None:
        outcome = run_job(job, send)
        inbox.finished += 1
        send({"outcome": outcome})


if __name__ == "__main__":
    serve()
