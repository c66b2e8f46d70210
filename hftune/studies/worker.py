"""A process that trains run after run for a study and says how far it is: ``python -m hftune.studies.worker``.

Orders come in on standard input and news goes out on standard output, one JSON object a line. A run that fails, or even
takes the process down with it, does not touch the study; a worker whose study is gone stops at once.
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

from hftune.config.load import load_recipe
from hftune.config.recipe import Recipe
from hftune.errors import HftuneError, Interrupted
from hftune.files import write_text
from hftune.pipeline import rescore, train
from hftune.quiet import quiet_libraries
from hftune.runs.directory import RunDir
from hftune.studies.news import NewRows
from hftune.training.progress import Silent
from hftune.verify import standing

Say = Callable[[Mapping[str, Any]], bool]
"""Takes news; False where the run shall end there and then."""


class PrunedError(Exception):
    """The study has seen enough of this run."""


def run_order(order: Mapping[str, Any], say: Say = lambda news: True) -> dict[str, Any]:
    """Train or score one run; the outcome as plain values, whatever happens.

    Args:
        order: action (train or score), path, the splits to score, and to train the recipe as YAML text; ``watch``
            names the validation score of which the study wants to hear at each evaluation.
        say: Called with the news of the run as it goes.
    """
    began = time.monotonic()
    run = RunDir(Path(order["path"]))
    listener = News(say, run, order.get("watch"))
    try:
        if order["action"] == "score":
            result = rescore(run, order["score"], listener)
        else:
            recipe = _recipe(order["recipe"], run.path)
            result = train(recipe, run.path, resume=True, score=tuple(order["score"]), listener=listener)
        outcome: dict[str, Any] = {"state": "done", "splits": dict(result.metrics["splits"])}
    except PrunedError:
        outcome = {"state": "pruned"}
    except Interrupted as stop:
        outcome = {"state": "stopped", "reason": stop.message}
    except HftuneError as error:
        outcome = {"state": "failed", "reason": error.message, "hint": error.hint}
    except Exception as error:  # a study goes on whatever a run does
        outcome = {"state": "failed", "reason": f"{type(error).__name__}: {error}", "hint": "run it alone with --debug"}
    return {**outcome, "seconds": round(time.monotonic() - began, 2)}


class News(Silent):
    """Passes on how far a run is."""

    def __init__(self, say: Say, run: RunDir, watch: str | None) -> None:
        """watch: the validation score of which each evaluation is told, and may end the run."""
        self._say = say
        self._rows = NewRows(run.history)
        self._watch = watch
        self._total = 0
        self._last = 0.0

    def stage(self, text: str) -> None:
        """What the run is about."""
        self._say({"stage": text})

    def begin(self, total: int, unit: str) -> None:
        """Remember what the whole is."""
        self._total = total

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """At most twice a second, which is as often as a person looks; evaluations always."""
        if self._watch:
            for evaluation in self._rows.evaluations(self._rows.read(), self._watch):
                if not self._say({"evaluation": evaluation}):
                    raise PrunedError
        now = time.monotonic()
        if now - self._last > 0.5 or done == self._total:
            self._last = now
            self._say({"done": done, "total": self._total, "facts": dict(facts)})

    def warn(self, text: str) -> None:
        """A warning belongs to the run's row."""
        self._say({"warning": text})


def _recipe(text: str, path: Path) -> Recipe:
    """The recipe travels as YAML, so that a cluster needs nothing but the study's folder."""
    staged = path.parent / f".{path.name}.yaml"
    write_text(staged, text)
    try:
        return load_recipe(staged)
    finally:
        staged.unlink(missing_ok=True)


class _Inbox:
    """Lines from the study, read as they come, so that its end is noticed in the middle of a run."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._received = 0
        self.carried_out = 0

    def read(self) -> None:
        """Runs in a thread of its own until standard input ends."""
        for line in sys.stdin:
            message = json.loads(line)
            if "action" in message:
                self._received += 1
                self.orders.put(message)
            else:
                self.answers.put(message)
        if self._received > self.carried_out:
            # The study was killed. Training on would hold the run directory against its next attempt.
            os._exit(1)
        self.orders.put(None)


def serve() -> None:
    """Carry out orders until there are no more."""
    news = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up between the news
    inbox = _Inbox()

    def say(message: Mapping[str, Any]) -> bool:
        news.write(json.dumps(message) + "\n")
        news.flush()
        return bool(inbox.answers.get()["go_on"]) if "evaluation" in message else True

    threading.Thread(target=inbox.read, daemon=True).start()
    quiet_libraries()
    with standing():
        while (order := inbox.orders.get()) is not None:
            outcome = run_order(order, say)
            inbox.carried_out += 1
            say({"outcome": outcome})


if __name__ == "__main__":
    serve()
