"""The peak of memory that a run shows."""

from __future__ import annotations

import sys

import pytest
import torch

from hftune.training.memory import forget_peak, peak_memory

MEGABYTE = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
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
    assert with_it - peak_memory() > 200 * MEGABYTE
