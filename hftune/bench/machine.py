"""The machine that benchmarks run on, as a reader of their table must know it. Used by ``hftune bench``."""

from __future__ import annotations

import os
from typing import Any

import psutil
import torch

from hftune.machine import cpu_model
from hftune.runs.environment import versions

TOLD = ("torch", "transformers", "peft", "accelerate", "tokenizers")


def describe() -> dict[str, Any]:
    """Processor, threads, versions, and how busy the machine is before anything is measured."""
    known = versions()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(psutil.getloadavg()[0], 1),
        "versions": {name: known[name] for name in TOLD if name in known},
    }
