"""What ``hftune doctor --launch`` says: what a launch would start, on what, and what is wrong with it.

accelerate's own code reads the command; nothing is started. One small function a question, one line in QUESTIONS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from hftune.config.recipe import Recipe
from hftune.doctor import Finding
from hftune.errors import HftuneError
from hftune.runs.environment import devices
from hftune.training.arguments import number_format
from hftune.training.launch import threads_for
from hftune.training.launcher import ON_CPU, ONE, THREADS, TPU, Launch, read_launch


@dataclass(frozen=True)
class Plan:
    """A launch, the machine it would run on, and what would be trained."""

    launch: Launch
    gpus: tuple[str, ...]
    """Names of the accelerators that this machine has."""
    recipe: Recipe | None

    @property
    def on_cpu(self) -> bool:
        """Whether no accelerator takes part."""
        asked = self.recipe is not None and self.recipe.train.use_cpu
        return self.launch.cpu or asked or not self.gpus

    @property
    def sharding(self) -> str | None:
        """How the weights would be shared out."""
        settings = self.launch.settings
        if settings.use_fsdp:
            return f"FSDP{settings.fsdp_version}"
        if settings.use_deepspeed:
            return f"DeepSpeed ZeRO-{settings.zero_stage}" if settings.zero_stage is not None else "DeepSpeed"
        return None

    @property
    def update_rows(self) -> int | None:
        """Training rows of one update."""
        if self.recipe is None:
            return None
        return (
            self.recipe.train.per_device_train_batch_size
            * self.recipe.train.gradient_accumulation_steps
            * self.launch.started
        )

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        launch = self.launch
        return {
            "asked": launch.asked,
            "world_size": launch.started,
            "machines": launch.machines,
            "launcher": launch.how,
            "device": "cpu" if self.on_cpu else "gpu",
            "mixed_precision": launch.precision,
            "sharding": self.sharding,
            "update_rows": self.update_rows,
        }


def examine_launch(
    arguments: Sequence[str], recipe: Recipe | None = None, gpus: Sequence[str] | None = None
) -> tuple[Plan, list[Finding]]:
    """Read a launch and look at it from every side.

    Args:
        arguments: What would stand after ``accelerate launch``.
        recipe: What would be trained; without it, what depends on it is left out.
        gpus: The accelerators to reckon with; those of this machine where not given.

    Raises:
        HftuneError: accelerate would refuse the arguments.
    """
    found = [device["name"] for device in devices()] if gpus is None else gpus
    plan = Plan(read_launch(arguments), tuple(found), recipe)
    findings = [question(plan) for question in QUESTIONS]
    return plan, [finding for finding in findings if finding is not None]


def _processes(plan: Plan) -> Finding:
    launch, what = plan.launch, "processes"
    if launch.how == TPU:
        return Finding(what, "bad", "a TPU launch", "hftune trains on CPUs and GPUs")
    if launch.started != launch.asked:
        hint = ON_CPU.format(asked=launch.asked) if plan.on_cpu else "add --multi_gpu"
        return Finding(what, "bad", f"{launch.asked} are asked for, but accelerate would start 1", hint)
    if launch.asked % launch.machines:
        found = f"{launch.asked} can't be shared out among {launch.machines} machines"
        return Finding(what, "bad", found, "num_processes counts all machines: give a multiple of num_machines")
    if launch.how == ONE and len(plan.gpus) > 1 and not plan.on_cpu:
        hint = f"for all: --multi_gpu --num_processes {len(plan.gpus)}"
        return Finding(what, "note", f"1, on one of {len(plan.gpus)} GPUs", hint)
    spread = f", {launch.here} on each of {launch.machines} machines" if launch.machines > 1 else ""
    return Finding(what, "ok", f"world size {launch.started}{spread} ({launch.how})")


def _devices(plan: Plan) -> Finding:
    here = plan.launch.here
    if plan.on_cpu:
        cores = threads_for(1)
        chosen = plan.launch.settings.nondefault & {"num_cpu_threads_per_process"} or THREADS in os.environ
        threads = plan.launch.settings.num_cpu_threads_per_process if chosen else threads_for(here)
        found = f"CPU: {_many(threads, 'thread')}"
        found += f" for each of {here} processes, {cores} cores, over gloo" if here > 1 else ""
        if here > cores:
            hint = "processes that share a core are slower than one: ask for fewer"
            return Finding("devices", "note", found, hint)
        return Finding("devices", "ok", found)
    ids = plan.launch.settings.gpu_ids
    usable = len(plan.gpus) if ids in (None, "all") else len(str(ids).split(","))
    if here > usable:
        hint = f"each process needs a GPU of its own: --num_processes {usable * plan.launch.machines}"
        return Finding("devices", "bad", f"{here} processes for {usable} GPUs", hint)
    return Finding("devices", "ok", ", ".join(plan.gpus[:here]))


def _machines(plan: Plan) -> Finding | None:
    launch, settings = plan.launch, plan.launch.settings
    if launch.machines == 1:
        return None
    if not settings.main_process_ip or not settings.main_process_port:
        hint = "name the first machine on all of them: --main_process_ip HOST --main_process_port 29500"
        return Finding("machines", "bad", "nobody says where the main process is", hint)
    if not 0 <= launch.machine < launch.machines:
        hint = f"machines are numbered 0 to {launch.machines - 1}: --machine_rank"
        return Finding("machines", "bad", f"this would be machine {launch.machine} of {launch.machines}", hint)
    found = f"this is machine {launch.machine} of {launch.machines}, the main process is on {settings.main_process_ip}"
    return Finding("machines", "note", found, "--output, data and caches must lie on a file system that all share")


def _precision(plan: Plan) -> Finding:
    asked = None if plan.recipe is None else plan.recipe.train.precision
    try:
        chosen = number_format(asked, cpu=plan.on_cpu, launcher=plan.launch.precision)
    except HftuneError as error:
        return Finding("precision", "bad", error.message, error.hint)
    return Finding("precision", "ok", f"{chosen} (recipe: {asked or 'unset'}, mixed_precision {plan.launch.precision})")


def _sharding(plan: Plan) -> Finding:
    settings, sharding, what = plan.launch.settings, plan.sharding, "sharding"
    if settings.use_megatron_lm or settings.use_parallelism_config:
        name = "Megatron-LM" if settings.use_megatron_lm else "a parallelism_config"
        return Finding(what, "bad", f"{name}, which hftune does not train with", "use FSDP or DeepSpeed")
    if sharding is None:
        return Finding(what, "ok", "none: every process holds all weights")
    if plan.on_cpu and settings.use_fsdp:
        return Finding(what, "bad", f"{sharding}, but accelerate shards nothing on a CPU", "launch without it")
    if sharding == "FSDP1":
        hint = "fsdp_version: 2 in fsdp_config, or --fsdp_version 2"
        return Finding(what, "bad", "FSDP1, which flattens weights so that they have no names", hint)
    if settings.use_deepspeed and find_spec("deepspeed") is None:
        return Finding(what, "bad", "DeepSpeed is not installed", "pip install deepspeed, or use FSDP")
    if plan.recipe is not None and plan.recipe.train.optim == "muon":
        return Finding(what, "bad", f"{sharding}, but Muon needs whole matrices", "set train.optim=adamw_torch_fused")
    if plan.on_cpu:
        return Finding(what, "note", f"{sharding} on a CPU", "of use only to try it out, with DS_ACCELERATOR=cpu")
    return Finding(what, "ok", sharding)


def _compiling(plan: Plan) -> Finding | None:
    backend = str(plan.launch.settings.dynamo_backend or "no").lower()
    if backend == "no" or (plan.recipe is not None and plan.recipe.train.torch_compile):
        return None
    hint = "leave dynamo_config out of the launch config, or set train.torch_compile=true"
    return Finding("compiling", "bad", f"dynamo_backend {backend}, but train.torch_compile is off", hint)


def _update(plan: Plan) -> Finding:
    if plan.recipe is None:
        return Finding("update", "note", "not known without a recipe", "name what would be trained: --recipe NAME")
    train, count = plan.recipe.train, plan.launch.started
    passes, processes = _many(train.gradient_accumulation_steps, "pass"), _many(count, "process")
    found = f"{train.per_device_train_batch_size} rows × {passes} × {processes} = {plan.update_rows:,} rows"
    alone = train.per_device_train_batch_size * train.gradient_accumulation_steps
    if count == 1:
        return Finding("update", "ok", found)
    share = train.per_device_train_batch_size // count
    same = f"; --batch-size {share} keeps them" if share * count == train.per_device_train_batch_size else ""
    hint = f"one process has {alone:,}, and the learning rate was chosen for them{same}"
    return Finding("update", "note", found, hint)


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"


QUESTIONS: tuple[Callable[[Plan], Finding | None], ...] = (
    _processes,
    _devices,
    _machines,
    _precision,
    _sharding,
    _compiling,
    _update,
)
