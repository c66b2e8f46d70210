"""Every experiment of the lab run once a process, for the tests that look at numbers and pages."""

from __future__ import annotations

from functools import cache

from hftune.lab.choose import choose
from hftune.lab.result import Result
from hftune.lab.run import run

# Complexity is measured at length by ``hftune lab run``; tests need its bytes, not its times.
QUICK = {"complexity": ["lengths=[512,2048]", "seconds_each=0.02"]}


@cache
def quick(name: str) -> Result:
    ((experiment, settings),) = choose(name, QUICK.get(name, []))
    return run(experiment, settings)
