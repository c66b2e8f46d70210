"""The only maker of ``TrainingArguments``.

Called by ``hftune.training.assembly``. Nothing is ever pushed through Trainer, so no token comes near its pickles.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments, get_scheduler
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils import is_torch_tf32_available

from hftune.child_process import ISA_VARIABLE
from hftune.config.train import DECAY_RATIO, DEFAULT_OPTIM, MUON, STABLE_DECAY, TrainSection
from hftune.errors import HftuneError
from hftune.machine import cpu_trial
from hftune.suggest import did_you_mean
from hftune.training.launch import on_cpu

OURS = ("max_tokens_per_batch", "early_stopping_patience", "fast_dropout", "cls_only_last_layer")
"""Settings of the section that TrainingArguments does not have."""


BY_METRIC = ("reduce_lr_on_plateau", "greedy")
"""Schedulers that follow metric_for_best_model."""
PACKAGES = {
    "adamw_torch_xla": ("torch_xla", "torch_xla"),
    "adamw_torch_npu": ("torch_npu", "torch_npu"),
    "adamw_torch_4bit": ("torchao", "torchao"),
    "adamw_torch_8bit": ("torchao", "torchao"),
    "adamw_anyprecision": ("torchdistx", "torchdistx"),
    **dict.fromkeys(
        ("adamw_bnb", "adamw_8bit", "ademamix", "lion", "paged_", "rmsprop_bnb"), ("bitsandbytes", "bitsandbytes")
    ),
    "galore": ("galore_torch", "galore-torch"),
    "apollo": ("apollo_torch", "apollo-torch"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "stable_adamw": ("optimi", "torch-optimi"),
}
"""The module and the package of optimizers that torch does not have, by the beginning of their names."""


def make_arguments(
    section: TrainSection, *, checkpoints: Path, keep_columns: bool = False
) -> tuple[TrainingArguments, list[str]]:
    """TrainingArguments of the ``train`` section, which has its names.

    Args:
        section: How to train; learning rate, epochs and metric are filled in by then.
        checkpoints: The run's checkpoint directory.
        keep_columns: Whether collators get columns that the model does not take.

    Returns:
        The arguments, and lines that the user should read (a setting that could not be honored).

    Raises:
        HftuneError: The device lacks what was set, or transformers refuses a setting.
    """
    cpu = on_cpu(section.use_cpu)
    notes: list[str] = []
    check_optimizer(section.optim)
    _refuse_compiling_unasked(section)
    chosen = number_format(section.precision, cpu=cpu, launcher=os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
    if chosen == "bf16" and cpu and not cpu_trial("bf16").pays:
        notes.append(f"{cpu_trial('bf16')}; without train.bf16 it would train in fp32")
    declared = {name: getattr(section, name) for name in type(section).model_fields if name not in OURS}
    fields = {
        **declared,
        **_rhythm(section),
        **_scheduler(section),
        "bf16": chosen == "bf16",
        "fp16": chosen == "fp16",
        "use_cpu": cpu,
        "torch_compile": section.torch_compile and _can_compile(cpu, notes),
        "greater_is_better": section.prefers_higher,
        "data_seed": section.order_seed,
        "report_to": _trackers(section.report_to),
        # Trainer reads neither: hftune.training.muon makes the optimizer, and a batch that fits is found beforehand.
        "optim": DEFAULT_OPTIM if section.optim == MUON else section.optim,
        "optim_args": None if section.optim == MUON else section.optim_args,
        "auto_find_batch_size": False,
        "output_dir": str(checkpoints),
        "load_best_model_at_end": True,
        # Without this, early stopping forgets on resume how long it has waited.
        "restore_callback_states_from_checkpoint": True,
        # Trainer would report a loss of 0.0 for nan; the trainer here stops instead.
        "logging_nan_inf_filter": False,
        "dataloader_pin_memory": not cpu,
        # Faster fp32 matrix products on GPUs that have them; fp32 sums are kept.
        "tf32": True if not cpu and is_torch_tf32_available() else None,
        "disable_tqdm": True,
        "remove_unused_columns": not keep_columns,
        # Trainer would take every input whose name ends so for a label that all rows must have.
        "label_names": ["labels"],
        **section.passed_on,
    }
    try:
        arguments = TrainingArguments(**fields)
    except (ValueError, TypeError, ImportError) as error:
        raise HftuneError(
            f"transformers refuses these settings: {error}",
            hint="change the setting of the train section that it names",
        ) from error
    # Several GPUs without a launcher would become DataParallel: slow, and other batch sizes than stated.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments, notes


def _scheduler(section: TrainSection) -> dict[str, Any]:
    """The arguments of the scheduler; the trainer turns a ratio into a number of steps when it knows their total.

    Raises:
        HftuneError: The scheduler does not take them.
    """
    settings = dict(section.lr_scheduler_kwargs or {})
    if section.lr_scheduler_type in BY_METRIC:
        # By default these take every metric for one of which less is better.
        mode = "max" if section.prefers_higher else "min"
        if settings.setdefault("mode", mode) != mode:
            raise HftuneError(
                f"train.lr_scheduler_kwargs has mode {settings['mode']}, but of {section.best_metric} "
                f"{'more' if section.prefers_higher else 'less'} is better",
                hint="leave mode out, or set train.greater_is_better",
            )
    if section.lr_scheduler_type == "greedy":
        # Its own default, 1e-3, is above most learning rates, which could then only rise.
        settings.setdefault("min_lr", (section.learning_rate or 0.0) / 100)
    if section.lr_scheduler_type == STABLE_DECAY:
        # transformers requires num_decay_steps, and decays along a cosine by default.
        settings = {"num_decay_steps": DECAY_RATIO, "decay_type": "linear", **settings}
    _try_scheduler(section, settings)
    return {"lr_scheduler_kwargs": settings or None}


def _try_scheduler(section: TrainSection, settings: dict[str, Any]) -> None:
    """Make the scheduler once: Trainer would do so, and fail, after everything is prepared."""
    steps = {"num_decay_steps": 1} if "num_decay_steps" in settings else {}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=section.learning_rate or 1.0)
    try:
        get_scheduler(section.lr_scheduler_type, optimizer, 1, 100, {**settings, **steps} or None)
    except (ValueError, TypeError) as error:
        raise HftuneError(
            f"lr_scheduler_type {section.lr_scheduler_type} refuses train.lr_scheduler_kwargs {settings}: {error}",
            hint="see the schedulers' page of transformers for what it takes",
        ) from error


def check_optimizer(name: str) -> None:
    """Refuse an optimizer whose package is missing, or that can't be resumed.

    Raises:
        HftuneError: Says which package to install, or what to use instead.
    """
    if name.endswith("_layerwise") or name in ("lomo", "adalomo") or name.startswith("schedule_free"):
        raise HftuneError(
            f"train.optim {name} keeps state that no checkpoint holds, so the run could not be resumed",
            hint=f"use {DEFAULT_OPTIM} or adafactor",
        )
    for prefix, (module, package) in PACKAGES.items():
        if name.startswith(prefix) and importlib.util.find_spec(module) is None:
            raise HftuneError(
                f"train.optim {name} needs the package {package}, which is not installed", hint=f"pip install {package}"
            )


def _rhythm(section: TrainSection) -> dict[str, Any]:
    """Evaluate and save together, so that the best score always has its checkpoint."""
    every = section.evaluates_every
    strategy = "epoch" if every is None else "steps"
    saved = "best" if section.save_strategy == "best" else strategy
    steps = {"eval_steps": every, "save_steps": section.saves_every or TrainingArguments.save_steps}
    return {"eval_strategy": strategy, "save_strategy": saved, **steps}


def _refuse_compiling_unasked(section: TrainSection) -> None:
    """The launch config can turn torch.compile on behind the recipe's back."""
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if backend != "no" and not section.torch_compile:
        raise HftuneError(
            f"the launch config compiles the model (dynamo_backend {backend}), but train.torch_compile is off",
            hint="leave dynamo_config out of the launch config, or set train.torch_compile=true",
        )


def number_format(precision: str | None, *, cpu: bool, launcher: str = "no") -> str:
    """fp32, bf16 or fp16: the dtype of the forward pass. On a CPU, bf16 is tried before it is used.

    Args:
        precision: fp32, bf16 or fp16 as the recipe sets it; None where it leaves the choice.
        cpu: Whether training runs on the processor.
        launcher: The launch config's mixed_precision, which Trainer would take without a word; unset follows it.

    Raises:
        HftuneError: It does not work on this device, or the launch config says something else.
    """
    if launcher not in ("no", precision):
        if precision is not None or launcher not in ("bf16", "fp16"):
            stated = "left to the machine" if precision is None else precision
            raise HftuneError(
                f"the launch config has mixed_precision {launcher}, but the recipe's precision is {stated}",
                hint='write mixed_precision: "no" in the launch config, so that train.bf16 and train.fp16 decide',
            )
        precision, source = launcher, "the launch config's mixed_precision"
    else:
        source = f"train.{precision}"
    if precision is None:
        return "bf16" if not cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported(False) else "fp32"
    lacking, hint = None, f"leave {source} out: fp32 on a CPU, bf16 on a GPU that has it"
    if precision == "bf16" and cpu:
        trial = cpu_trial("bf16")
        lacking = None if trial.works else str(trial)
        if trial.works_with:
            hint += f", or set {ISA_VARIABLE}={trial.works_with} for the whole command"
    elif precision == "bf16" and torch.cuda.is_available() and not torch.cuda.is_bf16_supported(False):
        lacking = f"{torch.cuda.get_device_name()} has no bf16"
    elif precision == "fp16" and cpu:
        lacking = "mixed fp16 needs a GPU"
    if lacking:
        raise HftuneError(f"{source} asks for {precision}, but {lacking}", hint=hint)
    return precision


def _can_compile(cpu: bool, notes: list[str]) -> bool:
    """Inductor builds C++ for a CPU and Triton kernels for a GPU; without a compiler the run goes on uncompiled."""
    if cpu and not has_compiler():
        notes.append(
            "train.torch_compile is on, but there is no C++ compiler: the model runs uncompiled, which is slower"
        )
        return False
    return True


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which torch.compile needs for a CPU."""
    return any(shutil.which(name) for name in ("g++", "c++", "clang++", "cl"))


def _trackers(names: tuple[str, ...]) -> list[str]:
    """Trainer's tracker names, each known and installed."""
    available = get_available_reporting_integrations()
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            raise HftuneError(
                f"train.report_to names {name!r}, which transformers does not know",
                hint=did_you_mean(name, INTEGRATION_TO_CALLBACK) or f"use one of: {known}",
            )
        if name not in available:
            raise HftuneError(
                f"train.report_to names {name!r}, which is not installed",
                hint=f"pip install {name}, or leave it out: history.jsonl is always written",
            )
    return list(names) or ["none"]
