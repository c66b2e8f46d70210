"""How much of the device's arithmetic a training used: the ``mfu`` of metrics.json. Called by ``fitting``.

Model FLOPs are six a weight and token (two forward, four backward), embeddings left out, as Trainer counts them: a
convention, not a measurement, and too high where frozen weights need no gradient. The peak is measured here, with the
matrix product that the device does best.
"""

from __future__ import annotations

import time

import torch

SIDE = {"cpu": 1024, "cuda": 8192, "mps": 4096}
REPEATS = 3


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large matrix product, the best of a few."""
    side = SIDE.get(device.type, 1024)
    left = torch.ones(side, side, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        float((left @ left)[0, 0])  # reading a number waits for the device
        best = min(best, time.perf_counter() - began)
    return 2 * side**3 / best


def model_flops_utilisation(flops: float, seconds: float, device: torch.device, dtype: torch.dtype) -> float | None:
    """Share of the measured peak, or None where nothing was counted."""
    if flops <= 0 or seconds <= 0:
        return None
    return flops / seconds / matmul_peak(device, dtype)
