"""Drives a trainer to its best weights: from the start, or on from the newest complete checkpoint.

Called by ``hftune.pipeline``.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, set_seed

from hftune.errors import HftuneError, RunFailed
from hftune.pickles import weights_only
from hftune.training.checkpoints import (
    fault,
    listed,
    newest_complete,
    read_manifest,
    refuse_changed,
    refuse_unsafe,
    step_of,
)
from hftune.training.memory import out_of_memory, peak_memory
from hftune.training.saved_state import check_saved_state
from hftune.training.stopping import stopped
from hftune.training.trainer import HftuneTrainer
from hftune.training.utilization import model_flops_utilization


@dataclass(frozen=True)
class Fitted:
    """A training that came to its end, with the best weights back in the model."""

    seconds: float
    """Wall time of training over all sittings, evaluations and saves included."""
    examples_per_second: float
    """Training rows a second, evaluations and saves left out."""
    steps: int
    """Updates that were made."""
    metric: str
    best_step: int
    best_score: float
    mfu: float | None = None
    """Share of the device's measured peak that went into the model's arithmetic; None where it can't be told."""
    memory: int = 0
    """The most bytes that were held, from the reading of the data on."""
    batch_size: int = 0
    """Rows of a pass on one device, as they were: train.auto_find_batch_size may have lowered them."""
    accumulation: int = 0
    """Passes of an update."""

    def speed(self) -> dict[str, float | None]:
        """As it stands in metrics.json."""
        return {
            "train_seconds": round(self.seconds, 3),
            "examples_per_second": round(self.examples_per_second, 3),
            "steps": self.steps,
            "batch_size": self.batch_size,
            "accumulation": self.accumulation,
            "mfu": None if self.mfu is None else round(self.mfu, 4),
            "peak_memory_gb": round(self.memory / 2**30, 3),
        }

    def selection(self) -> dict[str, Any]:
        """As it stands in metrics.json."""
        return {"metric": self.metric, "step": self.best_step, "score": self.best_score}


def fit(trainer: HftuneTrainer, resume: bool | Path = False) -> Fitted:
    """Train, or go on, and leave the best weights in the model.

    Args:
        trainer: From ``build``.
        resume: Go on from the newest complete checkpoint, or from the one at this path.

    Raises:
        HftuneError: The checkpoint does not belong to this run.
        RunFailed: A loss that is no number, a full disk, too little memory.
        Interrupted: A signal asked for an end; all is saved.
    """
    main = trainer.args.should_save
    if main:
        trainer.checkpoints.recover()
    trainer.accelerator.wait_for_everyone()
    checkpoint = _checkpoint(trainer, resume)
    if main:
        if checkpoint is not None and resume is True and not trainer.broken:
            # A kill may have come after a checkpoint was in its place and before those went that it replaces.
            trainer.checkpoints.rotate(read_manifest(checkpoint)["best"])
        trainer.checkpoints.directory.mkdir(parents=True, exist_ok=True)
        trainer.history.rewind(step_of(checkpoint) if checkpoint else -1)
    trainer.accelerator.wait_for_everyone()
    trainer.take_apart()
    trainer.add_callback(_AtStart(trainer, checkpoint))
    # Each process drops out other units; a checkpoint brings its own random state.
    set_seed(trainer.args.seed + trainer.args.process_index)
    try:
        with trainer.stop.listening(), out_of_memory(*_what_to_lower(trainer)), weights_only():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except BaseException as error:
        if trainer.args.world_size > 1:
            traceback.clear_frames(error.__traceback__)  # they hold the wrapped model, see _unwrap
        raise
    finally:
        trainer.pop_callback(_AtStart)
        trainer.listener.end()
        _unwrap(trainer)
    if trainer.stop.signal_number:  # it came after the last update, when there was no next one to stop at
        last = f"after the last update, {trainer.state.global_step:,}; everything is saved"
        raise stopped(trainer.stop.signal_number, last)
    trainer.put_together()
    return _fitted(trainer)


def ready(trainer: HftuneTrainer) -> None:
    """Make ``trainer.train()`` train as ``fit`` does, for callers who drive the trainer themselves.

    Raises:
        HftuneError: The launch shards the weights, which ``fit`` takes apart and puts together.
    """
    if trainer.sharding:
        raise HftuneError(
            f"this launch shares the weights out with {trainer.sharding}, which a trainer driven by hand can't",
            hint="use hftune.train, or launch with data parallelism",
        )
    if trainer.args.should_save:
        trainer.checkpoints.directory.mkdir(parents=True, exist_ok=True)
    trainer.add_callback(_ByHand(trainer))


def _what_to_lower(trainer: HftuneTrainer) -> tuple[str, str]:
    """The setting that training's memory goes with, and what makes the same updates with less."""
    batches = trainer.batches
    setting, size = batches.limit
    if setting != "per_device_train_batch_size":
        return (
            f"with train.{setting}={size}",
            f"begin anew with train.{setting}={max(1, size // 2)} "
            f"train.gradient_accumulation_steps={batches.accumulation * 2}, which "
            "makes updates of about the same rows; train.gradient_checkpointing=true saves more",
        )
    return (
        f"with train.per_device_train_batch_size={batches.batch_size}",
        f"begin anew with --auto-find-batch-size, which finds a batch that fits and makes the same updates; by hand: "
        f"train.per_device_train_batch_size={max(1, batches.batch_size // 2)} "
        f"train.gradient_accumulation_steps={batches.accumulation * 2}; "
        "a lower data.max_seq_length or train.gradient_checkpointing=true saves more",
    )


def _unwrap(trainer: HftuneTrainer) -> None:
    """Let go of what accelerate trains through: autocast, and the wrapper of several processes.

    Autocast stays on the model's forward otherwise, and the model in memory says something else than the one saved.
    A wrapper that outlives the process group takes the group down with it while it holds Python's lock, and torch's
    gloo threads may be waiting for that lock: the process would hang at its very end.
    """
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    if trainer.args.world_size == 1:
        return
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()


class _AtStart(TrainerCallback):  # type: ignore[misc]
    """Restores what Trainer resets when training begins."""

    def __init__(self, trainer: HftuneTrainer, checkpoint: Path | None) -> None:
        self.trainer = trainer
        self.checkpoint = checkpoint

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.restore_progress(self.checkpoint)


class _ByHand(TrainerCallback):  # type: ignore[misc]
    """What ``fit`` does around ``trainer.train()``, where the caller calls it."""

    def __init__(self, trainer: HftuneTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        trainer, step = self.trainer, self.trainer.state.global_step
        if step == 0:  # a checkpoint brings its own random state
            set_seed(trainer.args.seed + trainer.args.process_index)
        if trainer.args.should_save:
            trainer.history.rewind(step)
        trainer.restore_progress(trainer.checkpoints.at(step) if step else None)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.listener.end()


def _checkpoint(trainer: HftuneTrainer, resume: bool | Path) -> Path | None:
    """The checkpoint to go on from; all processes find the same one."""
    store = trainer.checkpoints
    if isinstance(resume, Path):
        reason = fault(resume)
        if reason:
            raise HftuneError(
                f"{resume} is not a complete checkpoint: {reason}",
                hint="leave the path out to take the newest complete one",
            )
        found: Path | None = resume
    elif resume:
        found, passed_over = newest_complete(store.directory)
        trainer.broken = tuple(line.partition(":")[0] for line in passed_over)
        for line in passed_over:
            trainer.listener.warn(f"passed over a broken checkpoint, {line}")
        if found is not None:
            trainer.listener.note(f"going on from {found.name}")
        elif passed_over:
            trainer.listener.warn("no complete checkpoint is left: what was trained is lost, and training begins anew")
        else:
            trainer.listener.note("no complete checkpoint: starting anew")
    else:
        if listed(store.directory):
            raise HftuneError(
                f"{store.directory} holds checkpoints of an earlier training",
                hint="go on from them with --resume, or take another output directory",
            )
        found = None
    if found:
        refuse_changed(found, store.settings)
        refuse_unsafe(found)
        stops_early = any(isinstance(one, EarlyStoppingCallback) for one in trainer.callback_handler.callbacks)
        check_saved_state(found, trainer.total_steps, stops_early=stops_early)
    return found


def _fitted(trainer: HftuneTrainer) -> Fitted:
    state, clock = trainer.state, trainer.clock
    if not state.best_global_step:
        raise RunFailed(
            f"no evaluation gave a finite {trainer.args.metric_for_best_model}, so no checkpoint could be chosen",
            hint="look at history.jsonl, or choose by another score: train.metric_for_best_model=loss",
        )
    batches = trainer.batches
    examples = batches.seen(state.global_step)
    working = max(clock.seconds - clock.aside, 1e-9)
    half = trainer.args.bf16 or trainer.args.fp16
    dtype = torch.float32 if not half else torch.bfloat16 if trainer.args.bf16 else torch.float16
    return Fitted(
        seconds=clock.seconds,
        examples_per_second=examples / working,
        # The operations are those of all processes, the peak is that of one.
        mfu=model_flops_utilization(state.total_flos / trainer.args.world_size, working, trainer.args.device, dtype),
        steps=state.global_step,
        metric=trainer.args.metric_for_best_model,
        best_step=state.best_global_step,
        best_score=float(state.best_metric),
        memory=peak_memory(),
        batch_size=batches.batch_size,
        accumulation=batches.accumulation,
    )
