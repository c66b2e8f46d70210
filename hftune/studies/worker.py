"""A process that trains run after run for a study and says how far it is: ``python -m hftune.studies.worker``.

Orders come in on standard input and news goes out on standard output, one JSON object a line. A run that fails, or even
takes the process down with it, does not touch the study; a worker whose study is gone stops.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hftune.config.load import load_recipe
from hftune.errors import HftuneError, Interrupted
from hftune.files import write_text
from hftune.pipeline import train
from hftune.quiet import quiet_libraries
from hftune.training.progress import Silent

Say = Callable[[Mapping[str, Any]], None]


def run_order(order: Mapping[str, Any], say: Say = lambda news: None) -> dict[str, Any]:
    """Train one run; the outcome as plain values, whatever happens.

    Args:
        order: recipe (YAML text), path, and the splits to score.
        say: Called with the news of the run as it goes.
    """
    began = time.monotonic()
    path = Path(order["path"])
    try:
        recipe = _recipe(order["recipe"], path)
        result = train(recipe, path, resume=True, score=tuple(order["score"]), listener=News(say))
        outcome: dict[str, Any] = {"state": "done", "splits": dict(result.metrics["splits"])}
    except Interrupted as stop:
        outcome = {"state": "stopped", "reason": stop.message}
    except HftuneError as error:
        outcome = {"state": "failed", "reason": error.message, "hint": error.hint}
    except Exception as error:  # a study goes on whatever a run does
        outcome = {"state": "failed", "reason": f"{type(error).__name__}: {error}", "hint": "run it alone with --debug"}
    return {**outcome, "path": str(path), "seconds": round(time.monotonic() - began, 2)}


class News(Silent):
    """Passes on how far a run is."""

    def __init__(self, say: Say) -> None:
        """Say gets a small object at every step that is worth a look."""
        self._say = say
        self._total = 0
        self._last = 0.0

    def begin(self, total: int, unit: str) -> None:
        """Remember what the whole is."""
        self._total = total

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """At most twice a second, which is as often as a person looks."""
        now = time.monotonic()
        if now - self._last > 0.5 or done == self._total:
            self._last = now
            self._say({"done": done, "total": self._total, "facts": dict(facts)})

    def warn(self, text: str) -> None:
        """A warning belongs to the run's row."""
        self._say({"warning": text})


def _recipe(text: str, path: Path) -> Any:
    """The recipe travels as YAML, so that a cluster needs nothing but the study's folder."""
    staged = path.parent / f".{path.name}.yaml"
    write_text(staged, text)
    try:
        return load_recipe(staged)
    finally:
        staged.unlink(missing_ok=True)


def _stop_with_parent() -> None:
    """Training for a study that was killed would hold its run directory against the next attempt."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def serve() -> None:
    """Carry out orders until there are no more."""
    news = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up between the news

    def say(message: Mapping[str, Any]) -> None:
        news.write(json.dumps(message) + "\n")
        news.flush()

    threading.Thread(target=_stop_with_parent, daemon=True).start()
    quiet_libraries()
    for line in sys.stdin:
        say({"outcome": run_order(json.loads(line), say)})


if __name__ == "__main__":
    serve()
