"""kill -9 at random moments: a few times in ``make test``, 200 times over all tasks with ``pytest -m slow``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from crash_case import write_data
from soak import CASES, Soak


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("kills", "cases"), [(3, ("span",)), pytest.param(200, tuple(CASES), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_killed_runs_end_as_uninterrupted_ones(tmp_path: Path, kills: int, cases: Sequence[str]) -> None:
    tally = Soak(write_data(tmp_path), 1, cases, print).run(kills)
    assert tally.faults == [], tally.told()
    assert tally.kills == kills and tally.runs >= 1
