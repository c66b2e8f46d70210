"""The peak of memory that a run shows."""

from __future__ import annotations

import sys

import torch

from hftune.training.memory import forget_peak, peak_memory

MEGABYTE = 2**20


def test_the_peak_is_that_of_one_run_and_not_of_an_earlier_one() -> None:
    forget_peak()
    before = peak_memory()
    held = torch.ones(64 * MEGABYTE)  # 256 MB
    with_it = peak_memory()
    del held
    after = peak_memory()
    forget_peak()
    assert with_it - before > 200 * MEGABYTE
    assert abs(after - with_it) < MEGABYTE, "a peak stays when the memory is given back"
    forgotten = with_it - peak_memory()
    assert forgotten > 200 * MEGABYTE if sys.platform == "linux" else forgotten == 0, "only Linux can forget a peak"
