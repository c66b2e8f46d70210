"""Uploads beside training: one at a time, in a thread, and of those that wait only the newest. Used by ``best``.

The thread itself does next to nothing: each attempt is a process of its own, at low priority, so that training keeps
its time. What there is to say is collected, and told by whoever owns the terminal.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from hftune.errors import HftuneError
from hftune.hub.attempt import CalledOff, Foreground
from hftune.portability import detached


@dataclass(frozen=True)
class Staged:
    """A model that lies ready to be uploaded."""

    step: int
    folder: Path
    title: str
    """What messages call it."""


@dataclass(frozen=True)
class Word:
    """Something to tell."""

    text: str
    loud: bool = False


class NewestFirst(Foreground):
    """Takes what is staged and uploads it, until it is closed."""

    def __init__(self, upload: Callable[[Staged, Foreground], str]) -> None:
        """upload: brings one of them to the Hub and says in a sentence what is there now."""
        self._upload = upload
        self._changed = threading.Condition()
        self._waiting: Staged | None = None
        self._process: subprocess.Popen[str] | None = None
        self._now: Staged | None = None
        self._closed = False
        self._said: SimpleQueue[Word] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="hftune-push", daemon=True)
        self._thread.start()

    # ---- called by the training thread ----

    def offer(self, staged: Staged) -> Staged | None:
        """Upload this one next; returns the one that waited before it, which nobody will upload now."""
        with self._changed:
            replaced, self._waiting = self._waiting, staged
            self._changed.notify_all()
        return replaced

    def words(self) -> list[Word]:
        """What there is to tell since the last call."""
        found = []
        while True:
            try:
                found.append(self._said.get_nowait())
            except Empty:
                return found

    def close(self) -> Staged | None:
        """Call off what is under way and return when it has ended; which one that was: it may have arrived."""
        with self._changed:
            cut_short = self._now
            self._closed = True
            self._changed.notify_all()
            if self._process is not None:
                self._process.kill()
        self._thread.join()
        return cut_short

    # ---- called by the thread of uploads ----

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting is not None)
                if self._closed:
                    return
                staged, self._waiting = self._waiting, None
                self._now = staged
            assert staged is not None, "woken for one"
            try:
                self._said.put(Word(self._upload(staged, self)))
            except CalledOff:
                if not self._closed:
                    self._said.put(Word(f"{staged.title} was passed over on the Hub: a newer one is there"))
            except HftuneError as error:
                self._failed(staged, error.message)
            except Exception as error:  # nothing that goes wrong here may reach training
                self._failed(staged, f"{type(error).__name__}: {error}")
            finally:
                with self._changed:
                    self._now = None

    def _failed(self, staged: Staged, reason: str) -> None:
        text = f"{staged.title} is not on the Hub: {reason}; training goes on, and the next best is tried again"
        self._said.put(Word(text, loud=True))

    def say(self, text: str) -> None:
        """Kept until it is asked for: only one thread speaks."""
        self._said.put(Word(f"the Hub: {text}"))

    def wait(self, seconds: float) -> None:
        """Let time pass, unless a newer one has come."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closed or self._waiting is not None, timeout=seconds):
                raise CalledOff

    def run(self, command: Sequence[str], body: str, environment: dict[str, str], limit: float) -> tuple[int, str, str]:
        """One attempt in a process that can be ended from outside, and that Ctrl-C does not reach."""
        pipe = subprocess.PIPE
        with self._changed:
            if self._closed:
                raise CalledOff
            process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=environment,
                encoding="utf-8",
                errors="replace",
                **detached(),
            )
            self._process = process
        try:
            output, errors = process.communicate(body, timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        finally:
            with self._changed:
                self._process = None
        if self._closed:
            raise CalledOff
        return process.returncode, output, errors
