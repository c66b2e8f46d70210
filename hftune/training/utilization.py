"""How much of the device's arithmetic a training used: the ``mfu`` of metrics.json. Called by ``fitting``.

Model FLOPs are six a weight and token (two forward, four backward), embeddings left out, as Trainer counts them: a
convention, not a measurement, and too high where frozen weights need no gradient. The peak is measured here, with the
matrix product that the device does best.
"""

from __future__ import annotations

import time

import torch

SIDE = {"cpu": 256, "cuda": 8192, "mps": 4096}
LEAST_PRODUCTS = 4
MEASURED_SECONDS = 0.1
SHORTEST = 1.0
"""Seconds of updates below which the share would tell of the first passes, and not of training."""


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a matrix product, the best of many.

    On a CPU it is that of one thread times the threads that train: where other processes want the cores too, threads
    that share a product wait for each other, and even the best one tells a tenth of the peak.
    """
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    side = SIDE.get(device.type, 1024)
    left = torch.ones(side, side, device=device, dtype=dtype)
    best, done, end = float("inf"), 0, time.perf_counter() + MEASURED_SECONDS
    if threads > 1:
        torch.set_num_threads(1)
    try:
        while done < LEAST_PRODUCTS or time.perf_counter() < end:
            began = time.perf_counter()
            float((left @ left)[0, 0])  # reading a number waits for the device
            best, done = min(best, time.perf_counter() - began), done + 1
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
    return threads * 2 * side**3 / best


def model_flops_utilization(flops: float, seconds: float, device: torch.device, dtype: torch.dtype) -> float | None:
    """Share of the measured peak; None where nothing was counted, or too little, or the peak was not reached.

    Args:
        flops: Of all updates, by convention.
        seconds: What the updates took.
        device: Where they were made.
        dtype: Of their matrix products.
    """
    if flops <= 0 or seconds < SHORTEST:
        return None
    share = flops / seconds / matmul_peak(device, dtype)
    return share if share <= 1 else None
