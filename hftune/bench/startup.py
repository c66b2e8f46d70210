"""``hftune --help`` beside an interpreter that does nothing: what a command line costs before it does anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hftune.bench.case import Case, Goal, Scale, Side, Turn, timed

NOTHING = "python -c pass"
STARTS = 5


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """Fresh processes, each started a few times."""
    starts = scale.of(STARTS, least=1)

    def start(words: Sequence[str]) -> Turn:
        command = [sys.executable, *words]

        def run() -> None:
            for _ in range(starts):
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

        return timed(starts, run)

    return {"hftune --help": lambda: start(["-m", "hftune", "--help"]), NOTHING: lambda: start(["-c", "pass"])}


CASE = Case(
    name="startup",
    what="hftune --help",
    unit="starts",
    goals=(Goal(NOTHING, most=25),),
    sides=sides,
    repeats=5,
    warm_ups=1,
)
