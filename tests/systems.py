"""What Windows can't do: the only place that skips tests for it.

A test carries ``@pytest.mark.posix("why")``; what tests share (forks, launches) calls ``needs_posix("why")``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest


def reason(why: str) -> str:
    return f"needs POSIX: {why}"


def needs_posix(why: str) -> None:
    """Skip the test that is running, on Windows."""
    if sys.platform == "win32":
        pytest.skip(reason(why))


def skip_where_missing(items: Iterable[pytest.Item]) -> None:
    """Skip the tests that are marked ``posix``, on Windows."""
    for item in items:
        for mark in item.iter_markers("posix"):
            (why,) = mark.args
            if sys.platform == "win32":
                item.add_marker(pytest.mark.skip(reason=reason(why)))
