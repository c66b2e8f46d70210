"""Runs cases: the sides of each take turns, so that whatever else the machine does hits all alike.

Called by ``hftune bench``. A ratio is taken within each turn; the median of these is what counts.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from hftune.bench.case import CLOCKS, Case, Goal, Scale, Turn
from hftune.errors import HftuneError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Ratio:
    """Our side against another: the median over the turns, and the lowest and highest."""

    goal: Goal
    median: float
    low: float
    high: float

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.goal.met(self.median)


@dataclass(frozen=True)
class Result:
    """A case that was run, or why it was not."""

    case: Case
    turns: Mapping[str, Sequence[Turn]]
    skipped: str = ""

    def ratios(self, clock: str) -> list[Ratio]:
        """One a goal."""
        if self.skipped:
            return []
        ours = next(iter(self.turns.values()))
        found = []
        for goal in self.case.goals:
            pairs = zip(ours, self.turns[goal.against], strict=True)
            each = [goal.ratio(mine, theirs, clock) for mine, theirs in pairs]
            found.append(Ratio(goal, statistics.median(each), min(each), max(each)))
        return found

    def rate(self, side: str, clock: str) -> float:
        """Median work a second of one side."""
        return statistics.median(turn.rate(clock) for turn in self.turns[side])

    def as_dict(self, clock: str) -> dict[str, Any]:
        """For --json and the kept results."""
        return {
            "case": self.case.name,
            "what": self.case.what,
            "unit": self.case.unit,
            "clock": clock,
            "date": date.today().isoformat(),
            "skipped": self.skipped,
            "goals": [self._goal(index, clock) for index in range(len(self.case.goals) if not self.skipped else 0)],
            "sides": {
                side: {
                    **{f"per_second_{one}": round(self.rate(side, one), 6) for one in CLOCKS},
                    "turns": [[turn.work, round(turn.wall, 4), round(turn.cpu, 4)] for turn in turns],
                }
                for side, turns in self.turns.items()
            },
        }

    def _goal(self, index: int, clock: str) -> dict[str, Any]:
        by_clock = {one: self.ratios(one)[index] for one in CLOCKS}
        chosen = by_clock[clock]
        return {
            "against": chosen.goal.against,
            "least": chosen.goal.least,
            "most": chosen.goal.most,
            "ratio": round(chosen.median, 4),
            "low": round(chosen.low, 4),
            "high": round(chosen.high, 4),
            **{f"ratio_{one}": round(ratio.median, 4) for one, ratio in by_clock.items()},
            "met": chosen.met,
        }


def measure(case: Case, scale: Scale, *, repeats: int | None = None, progress: Progress = lambda line: None) -> Result:
    """Run one case.

    Args:
        case: Which.
        scale: How large.
        repeats: Turns of each side; the case's own number where not given.
        progress: Told what happens now.

    Returns:
        Every turn of every side; a case that this machine lacks something for says so in ``skipped``.
    """
    turns: dict[str, list[Turn]] = {}
    with tempfile.TemporaryDirectory(prefix="hftune-bench-") as folder:
        try:
            progress(f"{case.name}: setting up")
            sides = dict(case.sides(Path(folder), scale))
            for turn in range(-case.warm_ups, repeats or case.repeats):
                # There and back: a machine that slows down or speeds up favors nobody.
                for side in list(sides) if turn % 2 == 0 else reversed(sides):
                    progress(f"{case.name}: {side}, " + (f"turn {turn + 1}" if turn >= 0 else "warming up"))
                    done = sides[side]()
                    if turn >= 0:
                        turns.setdefault(side, []).append(done)
        except HftuneError as error:
            return Result(case, {}, skipped=error.message)
    return Result(case, {side: turns[side] for side in sides})
