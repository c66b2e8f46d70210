"""What a run tells whoever watches it. The library speaks to a ``Listener``; ``hftune.cli`` draws one with rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    """Receives the course of a run. Every method returns at once."""

    def stage(self, text: str) -> None:
        """A new stage has begun: loading, training, scoring, verifying."""

    def begin(self, total: int, unit: str) -> None:
        """A countable piece of work of so many units starts; ``advance`` follows."""

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """So many units are done in all; facts are loss, learning rate, the latest validation score."""

    def end(self) -> None:
        """The countable piece of work is over."""

    def note(self, text: str) -> None:
        """A line that the user should read."""

    def warn(self, text: str) -> None:
        """Something that puts the result in doubt."""


class Silent:
    """A listener for Python callers who did not bring one."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    def begin(self, total: int, unit: str) -> None:
        """Say nothing."""

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""


@contextmanager
def counting(listener: Listener, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A countable piece of work, for whoever is told how many more are done and not how many in all."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        listener.advance(done, {})

    listener.begin(total, unit)
    yield advance
    listener.end()
