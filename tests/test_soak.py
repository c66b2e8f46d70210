"""kill -9 at random moments: a few times in ``make test``, 1,000 times over all tasks with ``pytest -m slow``."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_case import write_data
from soak import CASES, Soak, Tally, prepared


@pytest.mark.posix("forks the process that verifies models")
@pytest.mark.timeout(0)
def test_killed_runs_end_as_uninterrupted_ones(tmp_path: Path) -> None:
    tally = Soak(write_data(tmp_path), 1, ("span",), print).run(3)
    assert tally.faults == [], tally.report()
    assert tally.kills == 3 and tally.runs >= 1
    assert Tally.read(tmp_path / "tally.json") == tally, "an interrupted soak could not continue"


@pytest.mark.slow
@pytest.mark.posix("forks the process that verifies models")
@pytest.mark.timeout(0)
def test_a_thousand_kills(pytestconfig: pytest.Config) -> None:
    """In pytest's cache folder, so that the same command continues; delete it there after a change of the code."""
    tally = Soak(prepared(pytestconfig.cache.mkdir("soak")), 1, tuple(CASES), print).run(1000)
    assert tally.faults == [], tally.report()
    assert tally.kills >= 1000
