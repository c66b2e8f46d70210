"""One process or several: who writes, who waits, and what all must agree on. The only place that asks.

``accelerate launch`` sets the environment; with no launcher there is one process and every question is answered
without touching torch.distributed.
"""

from __future__ import annotations

import os
import sys
from typing import TypeVar

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import set_seed

Value = TypeVar("Value")


def world_size() -> int:
    """Processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process writes the run directory."""
    return world_size() == 1 or bool(_state().is_main_process)


def wait_for_everyone() -> None:
    """Return when all processes have come this far."""
    if world_size() > 1:
        _state().wait_for_everyone()


def agreed(value: Value) -> Value:
    """The main process's value, in every process."""
    if world_size() == 1:
        return value
    _state()  # makes the process group
    values = [value]
    broadcast_object_list(values)
    return values[0]


def smallest(value: int) -> int:
    """The smallest of all processes' values, in every process."""
    if world_size() == 1:
        return value
    _state()
    return int(min(gather_object([value])))


def _state() -> PartialState:
    """Accelerate's view of the processes; without an accelerator it must be told, or takes each for the only one."""
    return PartialState(cpu=not torch.accelerator.is_available())


def threads_for(jobs: int) -> int:
    """CPU threads of each of so many jobs that share this machine: one a real core that this process may use."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    if sys.platform == "linux":
        cores = min(cores, len(os.sched_getaffinity(0)))
    return max(1, cores // jobs)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device, before data order, fresh weights or dropout are drawn."""
    set_seed(seed)
