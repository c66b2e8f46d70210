"""Memory: the most that a run held, and what to lower where there is too little.

Used by ``hftune.training.fitting``, ``hftune.pipeline`` and ``hftune.dryrun``.
"""

from __future__ import annotations

import ctypes
import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hftune.errors import RunFailed
from hftune.training.sampler import RankBatches


@contextmanager
def out_of_memory(batches: RankBatches) -> Iterator[None]:
    """Say which setting to lower when a device, or torch's allocator on the CPU, has no memory left."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        told = any(phrase in str(error) for phrase in ("can't allocate memory", "not enough memory"))
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not told:
            raise
        half = max(1, batches.batch_size // 2)
        raise RunFailed(
            f"out of memory with train.batch_size={batches.batch_size}: {str(error).splitlines()[0]}",
            hint=f"train.batch_size={half} train.accumulation={batches.accumulation * 2} makes the same updates with "
            "half the memory; a lower data.max_length or train.gradient_checkpointing=true saves more",
        ) from error


PROCESS = Path("/proc/self")

logger = logging.getLogger(__name__)


def forget_peak() -> None:
    """Start measuring anew: a process that trains run after run shall not show one run's peak in the next."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, else it counts as held
            (PROCESS / "clear_refs").write_text("5")  # sets the peak to what is held now
        except (OSError, AttributeError) as error:  # a locked-down machine, or a C library without malloc_trim
            logger.debug("the peak of memory is that of the whole process: %s", error)


def peak_memory() -> int:
    """The most bytes held since ``forget_peak``: of the GPU where there is one, else of this process.

    Where the system can't forget a peak (macOS), it is the peak since the process began.
    """
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    status = PROCESS / "status"  # not there on macOS
    lines = status.read_text().splitlines() if status.is_file() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
