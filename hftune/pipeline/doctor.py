"""What ``hftune doctor`` checks: the machine, and with ``--launch`` what a launch would start and what is wrong in it.

One small function per question, one line in CHECKS or LAUNCH_CHECKS. accelerate's own code reads the launch command;
nothing is started. The libraries are imported by the checks that need them: only the launch needs more than torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psutil

from hftune.cache import GIGABYTE, cache_limit, cache_root, cache_usage
from hftune.child_process import ISA_VARIABLE
from hftune.config.shipped import shipped_recipes, shipped_studies
from hftune.errors import HftuneError
from hftune.files import embedded_data_dir
from hftune.machine import CLEARLY_FASTER, find_compiler, try_again
from hftune.portability import cpu_model
from hftune.recipe import Recipe
from hftune.runs.environment import LIBRARIES, devices

NEEDED_DISK_GB = 2.0
HUB_PATIENCE = 5.0
"""Seconds to wait for the Hub."""
ONE, TORCHRUN, DEEPSPEED, MPIRUN, TPU = "one process", "torchrun", "DeepSpeed", "mpirun", "TPU"
"""What ``accelerate launch`` starts a script with."""


@dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    state: Literal["ok", "note", "bad"]
    found: str
    hint: str = ""


def examine() -> dict[str, Finding]:
    """Every check, in order, by name."""
    return {what: check() for what, check in CHECKS.items()}


def _python() -> Finding:
    return Finding("ok", ".".join(map(str, sys.version_info[:3])))


def _libraries() -> Finding:
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("bad", f"missing: {', '.join(missing)}", "pip install hftune")
    return Finding("ok", ", ".join(found))


def _device() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        every = f"use them all: accelerate launch --multi_gpu --num_processes {len(names)} -m hftune …"
        return Finding("ok", ", ".join(names), every if len(names) > 1 else "")
    if torch.backends.mps.is_available():
        return Finding("ok", "Apple GPU (MPS)")
    return Finding("ok", f"CPU only: {cpu_model()}, {torch.get_num_threads()} threads")


def _bf16() -> Finding:
    """Not cached, because a cached result can be out of date."""
    trial = try_again("bf16")
    if trial.pays:
        return Finding("ok", str(trial), "Muon uses it; --set train.bf16=true trains in it")
    if trial.works:
        return Finding("ok", f"{trial}: fp32 is used unless you set train.bf16=true")
    hint = "fp32 is used everywhere, so nothing needs to be done"
    if trial.works_with and trial.speed >= CLEARLY_FASTER:
        hint += f"; to train in bf16, set {ISA_VARIABLE}={trial.works_with} for the whole command"
    return Finding("note", str(trial), hint)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GB free"
    if memory.available < 2**30:
        return Finding("note", found, "close something, or lower --batch-size")
    return Finding("ok", found)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free < NEEDED_DISK_GB:
        return Finding("bad", f"{free:.1f} GB free here", "checkpoints need room: choose another --output")
    if not os.access(Path.cwd(), os.W_OK):
        return Finding("bad", "this folder is not writable", "run elsewhere, or pass --output")
    return Finding("ok", f"{free:.1f} GB free here")


def _cache() -> Finding:
    size, limit = sum(entry.bytes for entry in cache_usage()), cache_limit()
    return Finding("ok", f"{size / GIGABYTE:.1f} of at most {limit / GIGABYTE:g} GB in {cache_root()}")


def _compiler() -> Finding:
    compiler = find_compiler()
    if compiler is None:
        return Finding("note", "none", "train.torch_compile needs a C++ compiler; all else works without")
    return Finding("ok", Path(compiler).name)


def _assets() -> Finding:
    recipes = len(shipped_recipes()) + len(shipped_studies())
    datasets = len([entry for entry in embedded_data_dir().iterdir() if entry.is_dir()])
    if not recipes or not datasets:
        return Finding("bad", "missing", "install hftune again: pip install --force-reinstall hftune")
    return Finding("ok", f"{recipes} recipes and studies, {datasets} folders of data")


def _hub() -> Finding:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return Finding("note", "HF_HUB_OFFLINE is set", "only cached models load; scratch: models need no Hub")
    try:
        # One request with a limit: the client of HfApi would try again for half a minute.
        get_session().get(f"{constants.ENDPOINT}/api/models?limit=1", timeout=HUB_PATIENCE).raise_for_status()
    except Exception as error:  # any failure means that it can't be reached
        hint = "offline: --model scratch:bert-tiny, --data reviews"
        return Finding("note", f"can't be reached ({type(error).__name__})", hint)
    return Finding("ok", "reached")


def _login() -> Finding:
    from huggingface_hub import get_token

    if get_token() is None:
        return Finding("note", "none", "only pushing and private models need one: hf auth login")
    return Finding("ok", "a token is set")


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "libraries": _libraries,
    "device": _device,
    "bf16 on the CPU": _bf16,
    "memory": _memory,
    "disk": _disk,
    "cache": _cache,
    "compiler": _compiler,
    "embedded files": _assets,
    "Hub": _hub,
    "Hub login": _login,
}


# ---- a launch ----


@dataclass(frozen=True)
class LaunchPlan:
    """A launch, the machine it would run on, and what would be trained."""

    settings: argparse.Namespace
    """The arguments that accelerate parsed."""
    gpus: tuple[str, ...]
    """Names of the accelerators that this machine has."""
    recipe: Recipe | None

    @property
    def how(self) -> str:
        """ONE, TORCHRUN, DEEPSPEED, MPIRUN or TPU: the order in which ``accelerate launch`` checks them."""
        settings = self.settings
        if not settings.cpu and settings.use_deepspeed:
            return DEEPSPEED
        if not settings.cpu and (settings.use_fsdp or settings.use_megatron_lm or settings.multi_gpu):
            return TORCHRUN
        if not settings.cpu and settings.tpu:
            return TPU
        return ONE if settings.mpirun_hostfile is None else MPIRUN

    @property
    def requested(self) -> int:
        """Processes, on all machines."""
        return int(self.settings.num_processes or 1)

    @property
    def started(self) -> int:
        """Number of processes that would train together."""
        return 1 if self.how == ONE else self.requested

    @property
    def machines(self) -> int:
        """Number of machines."""
        return int(self.settings.num_machines or 1)

    @property
    def here(self) -> int:
        """Processes per machine."""
        return max(1, self.started // self.machines)

    @property
    def precision(self) -> str:
        """no, fp16, bf16 or fp8: followed by a recipe that sets neither bf16 nor fp16."""
        return str(self.settings.mixed_precision or "no").lower()

    @property
    def on_cpu(self) -> bool:
        """Whether training would be on the CPU."""
        use_cpu = self.recipe is not None and self.recipe.train.use_cpu
        return self.settings.cpu or self.settings.use_cpu or use_cpu or not self.gpus

    @property
    def sharding(self) -> str | None:
        """How the weights would be sharded."""
        settings = self.settings
        if settings.use_fsdp:
            return f"FSDP{settings.fsdp_version}"
        if settings.use_deepspeed:
            return f"DeepSpeed ZeRO-{settings.zero_stage}" if settings.zero_stage is not None else "DeepSpeed"
        return None

    @property
    def effective_batch_size(self) -> int | None:
        """Training examples per step."""
        if self.recipe is None:
            return None
        train = self.recipe.train
        return train.per_device_train_batch_size * train.gradient_accumulation_steps * self.started

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "requested": self.requested,
            "world_size": self.started,
            "machines": self.machines,
            "launcher": self.how,
            "device": "cpu" if self.on_cpu else "gpu",
            "mixed_precision": self.precision,
            "sharding": self.sharding,
            "effective_batch_size": self.effective_batch_size,
        }


def examine_launch(
    arguments: Sequence[str], recipe: Recipe | None = None, gpus: Sequence[str] | None = None
) -> tuple[LaunchPlan, dict[str, Finding]]:
    """Read a launch and check it.

    Args:
        arguments: What follows ``accelerate launch``.
        recipe: What would be trained; checks that depend on it are skipped without it.
        gpus: The accelerators; those of this machine by default.

    Raises:
        HftuneError: accelerate would refuse the arguments.
    """
    from hftune.training.launch import read_launch

    found = [device["name"] for device in devices()] if gpus is None else gpus
    plan = LaunchPlan(read_launch(arguments), tuple(found), recipe)
    findings = {what: check(plan) for what, check in LAUNCH_CHECKS.items()}
    return plan, {what: finding for what, finding in findings.items() if finding is not None}


def _processes(plan: LaunchPlan) -> Finding:
    from hftune.training.launch import ON_CPU

    if plan.how == TPU:
        return Finding("bad", "a TPU launch", "hftune trains on CPUs and GPUs")
    if plan.started != plan.requested:
        hint = ON_CPU.format(processes=plan.requested) if plan.on_cpu else "add --multi_gpu"
        return Finding("bad", f"{plan.requested} are requested, but accelerate would start 1", hint)
    if plan.requested % plan.machines:
        found = f"{plan.requested} can't be divided among {plan.machines} machines"
        return Finding("bad", found, "num_processes counts all machines: give a multiple of num_machines")
    if plan.how == ONE and len(plan.gpus) > 1 and not plan.on_cpu:
        hint = f"for all: --multi_gpu --num_processes {len(plan.gpus)}"
        return Finding("note", f"1, on one of {len(plan.gpus)} GPUs", hint)
    spread = f", {plan.here} on each of {plan.machines} machines" if plan.machines > 1 else ""
    return Finding("ok", f"world size {plan.started}{spread} ({plan.how})")


def _devices(plan: LaunchPlan) -> Finding:
    from hftune.training.launch import THREADS, threads_for

    here = plan.here
    if plan.on_cpu:
        cores = threads_for(1)
        # accelerate would set one thread per process; hftune divides the cores unless the user chose a number.
        chosen = plan.settings.nondefault & {"num_cpu_threads_per_process"} or THREADS in os.environ
        threads = plan.settings.num_cpu_threads_per_process if chosen else threads_for(here)
        found = f"CPU: {_many(threads, 'thread')}"
        found += f" for each of {here} processes, {cores} cores, over gloo" if here > 1 else ""
        if here > cores:
            hint = "processes that share a core are slower than one: start fewer"
            return Finding("note", found, hint)
        return Finding("ok", found)
    # gpu_ids are those of one machine, num_processes counts all machines.
    ids = plan.settings.gpu_ids
    usable = len(plan.gpus) if ids in (None, "all") else len(str(ids).split(","))
    if here > usable:
        hint = f"each process needs a GPU of its own: --num_processes {usable * plan.machines}"
        return Finding("bad", f"{here} processes for {usable} GPUs", hint)
    return Finding("ok", ", ".join(plan.gpus[:here]))


def _machines(plan: LaunchPlan) -> Finding | None:
    settings, number = plan.settings, int(plan.settings.machine_rank or 0)
    if plan.machines == 1:
        return None
    if not settings.main_process_ip or not settings.main_process_port:
        hint = "name the first machine on all of them: --main_process_ip HOST --main_process_port 29500"
        return Finding("bad", "the address of the main process is not set", hint)
    if not 0 <= number < plan.machines:
        hint = f"machines are numbered 0 to {plan.machines - 1}: --machine_rank"
        return Finding("bad", f"this would be machine {number} of {plan.machines}", hint)
    found = f"this is machine {number} of {plan.machines}, the main process is on {settings.main_process_ip}"
    return Finding("note", found, "--output, data and caches must be on a file system that all share")


def _precision(plan: LaunchPlan) -> Finding:
    from hftune.training.arguments import precision_for

    stated = None if plan.recipe is None else plan.recipe.train.precision
    try:
        chosen = precision_for(stated, cpu=plan.on_cpu, launcher=plan.precision)
    except HftuneError as error:
        return Finding("bad", error.message, error.hint)
    return Finding("ok", f"{chosen} (recipe: {stated or 'unset'}, mixed_precision {plan.precision})")


def _sharding(plan: LaunchPlan) -> Finding:
    settings, sharding = plan.settings, plan.sharding
    if settings.use_megatron_lm or settings.use_parallelism_config:
        name = "Megatron-LM" if settings.use_megatron_lm else "a parallelism_config"
        return Finding("bad", f"{name}, which hftune does not train with", "use FSDP or DeepSpeed")
    if sharding is None:
        return Finding("ok", "none: every process holds all weights")
    if plan.on_cpu and settings.use_fsdp:
        return Finding("bad", f"{sharding}, but accelerate shards nothing on a CPU", "launch without it")
    if sharding == "FSDP1":
        hint = "fsdp_version: 2 in fsdp_config, or --fsdp_version 2"
        return Finding("bad", "FSDP1, which flattens weights so that they have no names", hint)
    if settings.use_deepspeed and find_spec("deepspeed") is None:
        return Finding("bad", "DeepSpeed is not installed", "pip install deepspeed, or use FSDP")
    if plan.recipe is not None and plan.recipe.train.optim == "muon":
        return Finding("bad", f"{sharding}, but Muon needs whole matrices", "set train.optim=adamw_torch_fused")
    if plan.on_cpu:
        return Finding("note", f"{sharding} on a CPU", "only useful to try it out, with DS_ACCELERATOR=cpu")
    return Finding("ok", sharding)


def _compiling(plan: LaunchPlan) -> Finding | None:
    backend = str(plan.settings.dynamo_backend or "no").lower()
    if backend == "no" or (plan.recipe is not None and plan.recipe.train.torch_compile):
        return None
    hint = "leave dynamo_config out of the launch config, or set train.torch_compile=true"
    return Finding("bad", f"dynamo_backend {backend}, but train.torch_compile is off", hint)


def _effective_batch_size(plan: LaunchPlan) -> Finding:
    if plan.recipe is None:
        return Finding("note", "not known without a recipe", "name what would be trained: --recipe NAME")
    train, count = plan.recipe.train, plan.started
    size, accumulation = train.per_device_train_batch_size, train.gradient_accumulation_steps
    steps = _many(accumulation, "accumulation step")
    found = f"{plan.effective_batch_size:,} = {size} per device × {steps} × {_many(count, 'process')}"
    if count == 1:
        return Finding("ok", found)
    same = f"; --batch-size {size // count} keeps it" if size % count == 0 else ""
    hint = f"one process has {size * accumulation:,}, which the learning rate was chosen for{same}"
    return Finding("note", found, hint)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"


LAUNCH_CHECKS: dict[str, Callable[[LaunchPlan], Finding | None]] = {
    "processes": _processes,
    "devices": _devices,
    "machines": _machines,
    "precision": _precision,
    "sharding": _sharding,
    "compiling": _compiling,
    "effective batch size": _effective_batch_size,
}
