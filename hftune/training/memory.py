"""Turns running out of memory into an error that names the settings to lower. Used by ``hftune.training.fitting``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
