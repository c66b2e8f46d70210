"""Make TrainingArguments from the ``train`` section; refuse settings that this machine or launch does not support.

Trainer never pushes to the Hub, so its pickles contain no token.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from transformers import TrainingArguments, get_scheduler
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils import is_torch_tf32_available

from hftune.child_process import ISA_VARIABLE
from hftune.errors import HftuneError, did_you_mean
from hftune.machine import find_compiler
from hftune.training.launch import on_cpu
from hftune.training.settings import DECAY_RATIO, DEFAULT_OPTIM, MUON, STABLE_DECAY, TrainSection

OURS = ("max_tokens_per_batch", "early_stopping_patience", "fast_dropout", "cls_only_last_layer")
"""Settings of the section that are not in TrainingArguments."""
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
UNSUPPORTED_LAUNCHES = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}
"""Ways to shard a model that a launcher may request, and that have no weights by name."""


def make_arguments(section: TrainSection, *, checkpoints: Path) -> tuple[TrainingArguments, list[str]]:
    """TrainingArguments of the ``train`` section, which has its names.

    Args:
        section: How to train; learning rate, epochs and metric are filled in by now.
        checkpoints: The run's checkpoint directory.

    Returns:
        The arguments, and lines for the user (a setting that could not be honored).

    Raises:
        HftuneError: This machine, the launch or an installed package does not allow a setting.
    """
    _check_launch(section)
    check_optimizer(section.optim)
    report_to = _trackers(section.report_to)
    cpu = on_cpu(section.use_cpu)
    notes: list[str] = []
    chosen = precision_for(section.precision, cpu=cpu, launcher=os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
    if chosen == "bf16" and cpu:
        from hftune.machine import cpu_trial

        if not cpu_trial("bf16").pays:
            notes.append(f"{cpu_trial('bf16')}; without train.bf16 it would train in fp32")
    if section.torch_compile and cpu and not find_compiler():
        notes.append("train.torch_compile is on, but there is no C++ compiler: the model runs uncompiled, and slower")
    fields = {
        **{name: getattr(section, name) for name in type(section).model_fields if name not in OURS},
        **_evaluation(section),
        "lr_scheduler_kwargs": _scheduler(section),
        "bf16": chosen == "bf16",
        "fp16": chosen == "fp16",
        "use_cpu": cpu,
        "torch_compile": section.torch_compile and (not cpu or bool(find_compiler())),
        "greater_is_better": section.higher_is_better,
        "data_seed": section.order_seed,
        "report_to": report_to,
        # Trainer reads neither: the optimizer is made in ``muon``, and a batch that fits is found beforehand.
        "optim": DEFAULT_OPTIM if section.optim == MUON else section.optim,
        "optim_args": None if section.optim == MUON else section.optim_args,
        "auto_find_batch_size": False,
        "output_dir": str(checkpoints),
        "load_best_model_at_end": True,
        # Without this, early stopping starts to count again on resume.
        "restore_callback_states_from_checkpoint": True,
        # Trainer would report a loss of 0.0 for nan; HftuneTrainer stops instead.
        "logging_nan_inf_filter": False,
        "dataloader_pin_memory": not cpu,
        # Faster fp32 matrix products on GPUs that have them; fp32 sums are kept.
        "tf32": True if not cpu and is_torch_tf32_available() else None,
        "disable_tqdm": True,
        "remove_unused_columns": False,  # HftuneTrainer does it
        # Trainer would take every input whose name ends in "labels" for one that all examples must have.
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
    # Several GPUs without a launcher would become DataParallel: slow, and with other batch sizes than stated. There is
    # no public way to train on one of them from within the process.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    found = arguments.distributed_state.distributed_type
    if _requested("ACCELERATE_USE_FSDP") and found in (DistributedType.NO, DistributedType.MULTI_CPU):
        # accelerate would silently train whole copies.
        raise HftuneError(
            f"the launch requests FSDP, but on {arguments.device.type} accelerate shards nothing",
            hint="launch without it: accelerate launch --multi_gpu --num_processes N -m hftune …",
        )
    return arguments, notes


def _evaluation(section: TrainSection) -> dict[str, Any]:
    """Evaluate and save together, so that the best score always has its checkpoint."""
    every = section.evaluates_every
    strategy = "epoch" if every is None else "steps"
    return {
        "eval_strategy": strategy,
        "save_strategy": "best" if section.save_strategy == "best" else strategy,
        "eval_steps": every,
        "save_steps": section.save_steps or every or TrainingArguments.save_steps,
    }


def _scheduler(section: TrainSection) -> dict[str, Any] | None:
    """The arguments of the scheduler, tried out; HftuneTrainer turns a ratio into a number of steps."""
    settings = dict(section.lr_scheduler_kwargs or {})
    if section.lr_scheduler_type in BY_METRIC:
        # Their own default is that lower is better.
        mode = "max" if section.higher_is_better else "min"
        if settings.setdefault("mode", mode) != mode:
            raise HftuneError(
                f"train.lr_scheduler_kwargs has mode {settings['mode']}, but a "
                f"{'higher' if section.higher_is_better else 'lower'} {section.best_metric} is better",
                hint="leave mode out, or set train.greater_is_better",
            )
    if section.lr_scheduler_type == "greedy":
        # Its own default, 1e-3, is above most learning rates, which could then only rise.
        settings.setdefault("min_lr", (section.learning_rate or 0.0) / 100)
    if section.lr_scheduler_type == STABLE_DECAY:
        # transformers requires num_decay_steps, and decays along a cosine by default.
        settings = {"num_decay_steps": DECAY_RATIO, "decay_type": "linear", **settings}
    # Trainer would make the scheduler, and fail, after everything is prepared.
    steps = {"num_decay_steps": 1} if "num_decay_steps" in settings else {}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=section.learning_rate or 1.0)
    try:
        get_scheduler(section.lr_scheduler_type, optimizer, 1, 100, {**settings, **steps} or None)
    except (ValueError, TypeError) as error:
        raise HftuneError(
            f"lr_scheduler_type {section.lr_scheduler_type} refuses train.lr_scheduler_kwargs {settings}: {error}",
            hint="see the documentation of the schedulers in transformers for their arguments",
        ) from error
    return settings or None


def check_optimizer(name: str) -> None:
    """Refuse an optimizer whose package is missing, or that can't be resumed."""
    if name.endswith("_layerwise") or name in ("lomo", "adalomo") or name.startswith("schedule_free"):
        raise HftuneError(
            f"train.optim {name} keeps state that no checkpoint has, so the run could not be resumed",
            hint=f"use {DEFAULT_OPTIM} or adafactor",
        )
    for prefix, (module, package) in PACKAGES.items():
        if name.startswith(prefix) and importlib.util.find_spec(module) is None:
            raise HftuneError(
                f"train.optim {name} needs the package {package}, which is not installed", hint=f"pip install {package}"
            )


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


# ---- precision and compilation ----


def precision_for(precision: str | None, *, cpu: bool, launcher: str = "no") -> str:
    """fp32, bf16 or fp16: the dtype of the forward pass. On a CPU, bf16 is tried before it is used.

    Args:
        precision: fp32, bf16 or fp16 as the recipe sets it; None if it leaves the choice.
        cpu: Whether training runs on the CPU.
        launcher: The launch config's mixed_precision, which Trainer would follow silently.

    Raises:
        HftuneError: It does not work on this device, or the launch config contradicts the recipe.
    """
    source = f"train.{precision}"
    if launcher not in ("no", precision):
        if precision is not None or launcher not in ("bf16", "fp16"):
            stated = "left to the machine" if precision is None else precision
            raise HftuneError(
                f"the launch config has mixed_precision {launcher}, but the recipe's precision is {stated}",
                hint='write mixed_precision: "no" in the launch config, so that train.bf16 and train.fp16 decide',
            )
        precision, source = launcher, "the launch config's mixed_precision"
    if precision is None:
        return "bf16" if not cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported(False) else "fp32"
    lacking, hint = None, f"leave {source} out: fp32 on a CPU, bf16 on a GPU that has it"
    if precision == "bf16" and cpu:
        from hftune.machine import cpu_trial

        trial = cpu_trial("bf16")
        lacking = None if trial.works else str(trial)
        if trial.works_with:
            hint += f", or set {ISA_VARIABLE}={trial.works_with} for the whole command"
    elif precision == "bf16" and torch.cuda.is_available() and not torch.cuda.is_bf16_supported(False):
        lacking = f"{torch.cuda.get_device_name()} has no bf16"
    elif precision == "fp16" and cpu:
        lacking = "mixed fp16 needs a GPU"
    if lacking:
        raise HftuneError(f"{source} requests {precision}, but {lacking}", hint=hint)
    return precision


# ---- the launch ----


def _check_launch(section: TrainSection) -> None:
    """Refuse launches with settings that training or saving does not support."""
    for variable, name in UNSUPPORTED_LAUNCHES.items():
        if _requested(variable):
            raise HftuneError(
                f"the launch requests {name}, which hftune does not support",
                hint="use FSDP or DeepSpeed: recipes/accelerate holds config files",
            )
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if backend != "no" and not section.torch_compile:
        raise HftuneError(
            f"the launch config compiles the model (dynamo_backend {backend}), but train.torch_compile is off",
            hint="leave dynamo_config out of the launch config, or set train.torch_compile=true",
        )
    sharding = checkpoint_kind()
    if sharding is None:
        return
    fsdp = _requested("ACCELERATE_USE_FSDP")
    if fsdp and os.environ.get("FSDP_VERSION", "1") != "2":
        raise HftuneError(
            "the launch requests version 1 of FSDP, which flattens weights so that they have no names",
            hint="write fsdp_version: 2 in the launch config's fsdp_config, or pass --fsdp_version 2",
        )
    if fsdp and section.gradient_checkpointing and _requested("FSDP_ACTIVATION_CHECKPOINTING"):
        raise HftuneError(
            "train.gradient_checkpointing and the launch config's fsdp_activation_checkpointing do the same",
            hint="set train.gradient_checkpointing=false",
        )
    if section.optim == MUON:
        raise HftuneError(
            f"train.optim is muon, which needs whole matrices, but {sharding.split()[0]} shards them",
            hint="set train.optim=adamw_torch_fused, or launch without sharding",
        )


def checkpoint_kind() -> str | None:
    """How a checkpoint of this launch holds the optimizer's state; None for the plain file that one process writes."""
    if _requested("ACCELERATE_USE_FSDP"):
        return f"FSDP {os.environ.get('FSDP_STATE_DICT_TYPE', 'SHARDED_STATE_DICT')}"
    if _requested("ACCELERATE_USE_DEEPSPEED"):
        return f"DeepSpeed ZeRO-{os.environ.get('ACCELERATE_DEEPSPEED_ZERO_STAGE', '2')}"
    return None


def _requested(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() == "true"
