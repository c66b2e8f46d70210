"""Memory: the most that a run held, and what to lower where there is too little.

Used by ``hftune.training`` throughout, ``hftune.pipeline``, ``hftune.opening`` and ``hftune.dryrun``.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from hftune.errors import RunFailed
from hftune.portability import peak_resident_bytes

LOWER_EVALUATION = (
    "begin anew with a lower train.per_device_eval_batch_size, which gives the same scores, or with "
    "--auto-find-batch-size; with "
    "thousands of labels, also use fewer validation rows: scores need rows × labels"
)


@contextmanager
def out_of_memory(where: str, hint: str) -> Iterator[None]:
    """Say which setting to lower when a device, or torch's allocator on the CPU, has no memory left.

    Args:
        where: What was under way, with the setting that its memory goes with.
        hint: What to do.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not ran_out(error):
            raise
        first = (str(error) or repr(error)).splitlines()[0]
        raise RunFailed(f"out of memory {where}: {first}", hint=hint) from error


def ran_out(error: BaseException) -> bool:
    """Whether memory ran out, whichever library says so; where only words are left of the cause, they must do."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)


PROCESS = Path("/proc/self")
_EARLIER = [0]
"""The peak before the last piece of work that was measured by itself."""

logger = logging.getLogger(__name__)


def forget_peak() -> None:
    """Start measuring anew: a process that trains run after run shall not show one run's peak in the next."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    _EARLIER[0] = 0
    _forget_own_peak()


def _forget_own_peak() -> None:
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, else it counts as held
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # sets the peak to what is held now
        except (OSError, AttributeError) as error:  # a locked-down machine, or a C library without malloc_trim
            logger.debug("the peak of memory is that of the whole process: %s", error)


def peak_memory() -> int:
    """The most bytes held since ``forget_peak``: of the GPU where there is one, else of this process.

    Where the system can't forget a peak (macOS, Windows), it is the peak since the process began.
    """
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return max(_EARLIER[0], _own_peak())


def measured(work: Callable[[], None]) -> int:
    """Bytes of this process that a piece of work takes at its height, beside those that were held before it."""
    _EARLIER[0] = max(_EARLIER[0], _own_peak())
    _forget_own_peak()
    before = int(psutil.Process().memory_info().rss)
    work()
    return max(0, _own_peak() - before)


def _own_peak() -> int:
    status = PROCESS / "status"  # on Linux only
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return peak_resident_bytes()
