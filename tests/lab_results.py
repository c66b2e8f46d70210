"""Every experiment of the lab run once a process, for the tests that look at numbers and pages."""

from __future__ import annotations

from functools import cache

from hftune.lab.run import LabResult, run, select

# Complexity is measured at length by ``hftune lab run``; tests need its bytes, not its times.
QUICK = {"complexity": ["lengths=[1024,4096]", "seconds_each=0.02"]}


@cache
def quick(name: str) -> LabResult:
    ((experiment, settings),) = select(name, QUICK.get(name, []))
    return run(experiment, settings)
