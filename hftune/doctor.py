"""What ``hftune doctor`` looks at: one small function a question, one line in CHECKS."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
import torch
from huggingface_hub import constants, get_token

from hftune.assets import embedded_data_dir
from hftune.cache import GIGABYTE, cache_limit, cache_root, contents
from hftune.child_process import ISA_VARIABLE
from hftune.config.shipped import catalogue, shipped_studies
from hftune.machine import CLEARLY_FASTER, cpu_model, try_again
from hftune.runs.environment import LIBRARIES

NEEDED_DISK_GB = 2.0
HUB_PATIENCE = 5.0
"""Seconds to wait for the Hub."""


@dataclass(frozen=True)
class Finding:
    """One answer."""

    what: str
    state: Literal["ok", "note", "bad"]
    found: str
    hint: str = ""


def examine() -> list[Finding]:
    """Every check, in order."""
    return [check() for check in CHECKS]


def _python() -> Finding:
    return Finding("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def _libraries() -> Finding:
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("libraries", "bad", f"missing: {', '.join(missing)}", "pip install hftune")
    return Finding("libraries", "ok", ", ".join(found))


def _device() -> Finding:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        every = f"use them all: accelerate launch --multi_gpu --num_processes {len(names)} -m hftune …"
        return Finding("device", "ok", ", ".join(names), every if len(names) > 1 else "")
    if torch.backends.mps.is_available():
        return Finding("device", "ok", "Apple GPU (MPS)")
    return Finding("device", "ok", f"CPU only: {cpu_model()}, {torch.get_num_threads()} threads")


def _bf16() -> Finding:
    """Tried again at each call, because a cached answer can be out of date."""
    trial = try_again("bf16")
    if trial.pays:
        return Finding("bf16 on the CPU", "ok", str(trial), "Muon uses it; --set train.bf16=true trains in it")
    if trial.works:
        return Finding("bf16 on the CPU", "ok", f"{trial}: fp32 is used unless you set train.bf16=true")
    hint = "fp32 is used everywhere, so nothing needs to be done"
    if trial.works_with and trial.speed >= CLEARLY_FASTER:
        hint += f"; to train in bf16, set {ISA_VARIABLE}={trial.works_with} for the whole command"
    return Finding("bf16 on the CPU", "note", str(trial), hint)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GB free"
    if memory.available < 2**30:
        return Finding("memory", "note", found, "close something, or lower --batch-size")
    return Finding("memory", "ok", found)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free < NEEDED_DISK_GB:
        return Finding("disk", "bad", f"{free:.1f} GB free here", "checkpoints need room: choose another --output")
    if not os.access(Path.cwd(), os.W_OK):
        return Finding("disk", "bad", "this folder is not writable", "run elsewhere, or pass --output")
    return Finding("disk", "ok", f"{free:.1f} GB free here")


def _cache() -> Finding:
    size, limit = sum(one.size for one in contents()), cache_limit()
    return Finding("cache", "ok", f"{size / GIGABYTE:.1f} of at most {limit / GIGABYTE:g} GB in {cache_root()}")


def _compiler() -> Finding:
    compiler = next((found for name in ("c++", "g++", "clang++", "cl") if (found := shutil.which(name))), None)
    if compiler is None:
        return Finding("compiler", "note", "none", "train.torch_compile needs a C++ compiler; all else works without")
    return Finding("compiler", "ok", Path(compiler).name)


def _assets() -> Finding:
    recipes = len(catalogue()) + len(shipped_studies())
    datasets = len([entry for entry in embedded_data_dir().iterdir() if entry.is_dir()])
    if not recipes or not datasets:
        return Finding("embedded files", "bad", "missing", "install hftune again: pip install --force-reinstall hftune")
    return Finding("embedded files", "ok", f"{recipes} recipes and studies, {datasets} folders of data")


def _hub() -> Finding:
    from huggingface_hub import get_session

    if constants.HF_HUB_OFFLINE:
        return Finding("Hub", "note", "HF_HUB_OFFLINE is set", "only cached models load; scratch: models need no Hub")
    try:
        # One request with a limit: the client of HfApi would try again for half a minute.
        get_session().get(f"{constants.ENDPOINT}/api/models?limit=1", timeout=HUB_PATIENCE).raise_for_status()
    except Exception as error:  # any failure has the same meaning here: it can't be reached
        return Finding(
            "Hub",
            "note",
            f"can't be reached ({type(error).__name__})",
            "offline: --model scratch:bert-tiny, --data reviews",
        )
    return Finding("Hub", "ok", "reached")


def _login() -> Finding:
    if get_token() is None:
        return Finding("Hub login", "note", "none", "only pushing and private models need one: hf auth login")
    return Finding("Hub login", "ok", "a token is set")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _libraries,
    _device,
    _bf16,
    _memory,
    _disk,
    _cache,
    _compiler,
    _assets,
    _hub,
    _login,
)
