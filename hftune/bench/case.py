"""What a benchmark is: two or more sides that do the same work in turns, and the ratio that is aimed at.

A case is one file that ends with ``CASE = Case(…)`` and one line in ``CASES``. ``hftune.bench.measure`` runs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hftune.portability import cpu_seconds

CLOCKS = ("wall", "cpu")


@dataclass(frozen=True)
class Turn:
    """What one side did in one turn."""

    work: float
    """How much, in the case's unit."""
    wall: float
    """Seconds by the clock on the wall."""
    cpu: float
    """Seconds that the processor worked for this process and its children: what others do is not in it."""

    def rate(self, clock: str) -> float:
        """Work a second, by the clock that is named."""
        return self.work / max(self.wall if clock == "wall" else self.cpu, 1e-9)


Side = Callable[[], Turn]


@dataclass(frozen=True)
class Scale:
    """How large a case is made."""

    share: float = 1.0
    """Share of the rows, texts and updates of the full size."""
    encoder: str = "tinybert"
    decoder: str = "mingpt"

    def of(self, full: int, least: int) -> int:
        """So many in place of ``full`` ones."""
        return max(min(full, least), round(full * self.share))


FULL = Scale()
QUICK = Scale(share=0.02, encoder="bert-tiny", decoder="mingpt-tiny")
"""Tiny models and few rows: shows that a case runs; its ratios say nothing."""


@dataclass(frozen=True)
class Goal:
    """What our side, the first, should reach against another; with neither bound the ratio is only shown."""

    against: str
    least: float | None = None
    """Our rate, as a multiple of the other's, at least."""
    most: float | None = None
    """Our time, as a multiple of the other's, at most."""

    def ratio(self, ours: Turn, theirs: Turn, clock: str) -> float:
        """What is compared: a rate with the other's rate, or a time with the other's time."""
        times = ours.rate(clock) / theirs.rate(clock)
        return 1 / times if self.most is not None else times

    def met(self, ratio: float) -> bool:
        """Whether that is good enough."""
        return ratio <= self.most if self.most is not None else ratio >= (self.least or 0.0)


@dataclass(frozen=True)
class Case:
    """One benchmark."""

    name: str
    what: str
    """What our side does, in the table's words."""
    unit: str
    """What work is counted in."""
    goals: tuple[Goal, ...]
    sides: Callable[[Path, Scale], Mapping[str, Side]]
    """A folder of its own and the size → the sides by name, ours first, everything ready for the first turn."""
    repeats: int = 3
    """Turns of each side."""
    warm_ups: int = 0
    """Turns before those, which are not counted."""
    notes: str = field(default="", kw_only=True)
    """What a reader should know about the comparison."""


class Stopwatch:
    """Both clocks at once; started and stopped as often as need be."""

    def __init__(self) -> None:
        """Stands at zero."""
        self.wall = self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens inside."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += cpu_seconds() - cpu

    def turn(self, work: float) -> Turn:
        """What was counted, as a turn."""
        return Turn(work, self.wall, self.cpu)


def timed(work: float, action: Callable[[], object]) -> Turn:
    """Do something once, and tell what it took."""
    watch = Stopwatch()
    with watch.running():
        action()
    return watch.turn(work)


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Let hftune keep what it keeps in a folder of the case, which is empty at first."""
    before = os.environ.get("HFTUNE_CACHE")
    os.environ["HFTUNE_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("HFTUNE_CACHE")
        if before is not None:
            os.environ["HFTUNE_CACHE"] = before
