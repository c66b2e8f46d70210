"""The machine that benchmarks run on, as a reader of their table must know it. Used by ``hftune bench``."""

from __future__ import annotations

import os
from typing import Any

import torch

from hftune.runs.environment import cpu_model, versions

TOLD = ("torch", "transformers", "peft", "accelerate", "tokenizers")


def describe() -> dict[str, Any]:
    """Processor, threads, versions, and how busy the machine is before anything is measured."""
    known = versions()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "versions": {name: known[name] for name in TOLD if name in known},
    }
