"""The only maker of ``TrainingArguments``: the ``train`` section in, Trainer's own names out.

Called by ``hftune.training.assembly``. Nothing is ever pushed through Trainer, so no token comes near its pickles.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils import is_torch_tf32_available

from hftune.child_process import ISA_VARIABLE
from hftune.config.train import TrainSection
from hftune.errors import HftuneError
from hftune.machine import cpu_trial
from hftune.suggest import did_you_mean
from hftune.training.extra import checked_extra
from hftune.training.launch import on_cpu

OPTIMIZERS = {"adamw": "adamw_torch_fused", "muon": "adamw_torch_fused"}
"""Trainer's names. Muon is made by ``hftune.training.muon``, and what Trainer reads here does not come to pass."""
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant_with_warmup",
    "hold": "warmup_stable_decay",
}
DECAY = 0.6


def make_arguments(
    section: TrainSection, *, checkpoints: Path, select_by: str, greater_is_better: bool, keep_columns: bool = False
) -> tuple[TrainingArguments, list[str]]:
    """Translate the ``train`` section.

    Args:
        section: How to train; learning rate and epochs are filled in by then.
        checkpoints: The run's checkpoint directory.
        select_by: The validation score that chooses the best checkpoint.
        greater_is_better: Whether more of it is better.
        keep_columns: Whether collators get columns that the model does not take.

    Returns:
        The arguments, and lines that the user should read (a setting that could not be honored).

    Raises:
        HftuneError: The device lacks what was asked for, or ``train.extra`` is not right.
    """
    assert section.learning_rate is not None and section.epochs is not None, "a recipe states both as numbers"
    cpu = on_cpu(section.device)
    notes: list[str] = []
    _refuse_compiling_unasked(section)
    chosen = number_format(section.precision, cpu=cpu, launcher=os.environ.get("ACCELERATE_MIXED_PRECISION", "no"))
    if chosen == "bf16" and cpu and not cpu_trial("bf16").pays:
        notes.append(f"{cpu_trial('bf16')}; train.precision=auto would train in fp32")
    fields = {
        **_rhythm(section),
        "bf16": chosen == "bf16",
        "fp16": chosen == "fp16",
        "output_dir": str(checkpoints),
        "num_train_epochs": section.epochs,
        "max_steps": section.max_steps or -1,
        "per_device_train_batch_size": section.batch_size,
        "per_device_eval_batch_size": section.eval_batch_size,
        "gradient_accumulation_steps": section.accumulation,
        "learning_rate": section.learning_rate,
        "optim": OPTIMIZERS[section.optimizer],
        **_schedule(section),
        "warmup_steps": section.warmup,
        "weight_decay": section.weight_decay,
        "max_grad_norm": section.max_grad_norm,
        "load_best_model_at_end": True,
        "metric_for_best_model": select_by,
        "greater_is_better": greater_is_better,
        # Without this, early stopping forgets on resume how long it has waited.
        "restore_callback_states_from_checkpoint": True,
        # Trainer would report a loss of 0.0 for nan; the trainer here stops instead.
        "logging_nan_inf_filter": False,
        "torch_compile": section.compile and _can_compile(cpu, notes),
        "gradient_checkpointing": section.gradient_checkpointing,
        "use_cpu": cpu,
        "dataloader_num_workers": section.workers,
        "dataloader_pin_memory": not cpu,
        # Faster fp32 matrix products on GPUs that have them; fp32 sums are kept.
        "tf32": True if not cpu and is_torch_tf32_available() else None,
        "seed": section.seed,
        "data_seed": section.seed,
        "report_to": _trackers(section.report_to),
        "disable_tqdm": True,
        "remove_unused_columns": not keep_columns,
        # Trainer would take every input whose name ends so for a label that all rows must have.
        "label_names": ["labels"],
        **checked_extra(section.extra),
    }
    try:
        arguments = TrainingArguments(**fields)
    except (ValueError, TypeError, ImportError) as error:
        raise HftuneError(
            f"transformers refuses these settings: {error}",
            hint="check train.extra and train.precision, or leave them out",
        ) from error
    # Several GPUs without a launcher would become DataParallel: slow, and other batch sizes than asked for.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments, notes


def _schedule(section: TrainSection) -> dict[str, Any]:
    """The schedule by Trainer's names; the trainer turns a share of the updates into their number when it knows it."""
    fields: dict[str, Any] = {"lr_scheduler_type": SCHEDULES[section.schedule]}
    if section.schedule == "hold":
        if "lr_scheduler_kwargs" in section.extra:
            raise HftuneError(
                "train.extra.lr_scheduler_kwargs is what train.decay already says", hint="set train.decay instead"
            )
        fields["lr_scheduler_kwargs"] = {"num_decay_steps": section.decay or DECAY, "decay_type": "linear"}
    return fields


def _rhythm(section: TrainSection) -> dict[str, Any]:
    """Evaluate and save together, so that the best score always has its checkpoint."""
    strategy = "epoch" if section.eval_steps is None else "steps"
    steps = {} if section.eval_steps is None else {"eval_steps": section.eval_steps, "save_steps": section.eval_steps}
    return {
        "eval_strategy": strategy,
        "save_strategy": strategy,
        "logging_strategy": "steps",
        "logging_steps": section.log_steps,
        **steps,
    }


def _refuse_compiling_unasked(section: TrainSection) -> None:
    """The launch config can turn torch.compile on behind the recipe's back."""
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if backend != "no" and not section.compile:
        raise HftuneError(
            f"the launch config compiles the model (dynamo_backend {backend}), but train.compile is off",
            hint="leave dynamo_config out of the launch config, or set train.compile=true",
        )


def number_format(precision: str, *, cpu: bool, launcher: str = "no") -> str:
    """fp32, bf16 or fp16: the number format of the forward pass. On a CPU, bf16 is tried before it is used.

    Args:
        precision: The recipe's ``train.precision``.
        cpu: Whether training runs on the processor.
        launcher: The launch config's mixed_precision, which Trainer would take in silence; auto follows it.

    Raises:
        HftuneError: It does not work on this device, or the launch config says something else.
    """
    if launcher != "no" and launcher != precision:
        if precision != "auto" or launcher not in ("bf16", "fp16"):
            raise HftuneError(
                f"the launch config says mixed_precision {launcher}, but train.precision is {precision!r}",
                hint='write mixed_precision: "no" in the launch config, so that train.precision decides',
            )
        precision = launcher
    if precision == "auto":
        return "bf16" if not cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported(False) else "fp32"
    lacking, hint = None, "use train.precision=auto: fp32 on a CPU, bf16 on a GPU that has it"
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
        raise HftuneError(f"train.precision is {precision!r}, but {lacking}", hint=hint)
    return precision


def _can_compile(cpu: bool, notes: list[str]) -> bool:
    """Inductor builds C++ for a CPU and Triton kernels for a GPU; without a compiler the run goes on uncompiled."""
    if cpu and not has_compiler():
        notes.append("train.compile is on, but there is no C++ compiler: the model runs uncompiled, which is slower")
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
