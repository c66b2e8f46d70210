"""Puts a trainer together from a recipe's ``train`` section and a task's inputs. Called by ``hftune.pipeline``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainingArguments
from transformers import logging as transformers_logging

from hftune.config.train import TrainSection
from hftune.errors import HftuneError
from hftune.machine import bf16_pays
from hftune.training import dropout, weights
from hftune.training.arguments import make_arguments
from hftune.training.autobatch import Sizes, sizes_that_fit
from hftune.training.budget import BudgetBatches
from hftune.training.callbacks import Clock, History, Progress
from hftune.training.checkpoints import Checkpoints
from hftune.training.companion import PairedBatches
from hftune.training.decay import adamw_for
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import agreed, share_cores, smallest
from hftune.training.matrices import block_matrices
from hftune.training.muon import muon_for
from hftune.training.progress import Listener, Silent
from hftune.training.sampler import RankBatches
from hftune.training.samples import Samples
from hftune.training.sharded import checkpoint_kind, refuse_what_breaks, refuse_whole_copies
from hftune.training.trainer import HftuneTrainer


def build(
    section: TrainSection,
    inputs: TrainingInputs,
    *,
    model: torch.nn.Module,
    tokenizer: Any,
    checkpoints: Path,
    history: Path,
    listener: Listener,
    must_match: Mapping[str, Any],
) -> HftuneTrainer:
    """Make the trainer of one run. Nothing is written yet.

    Args:
        section: The recipe's ``train`` section.
        inputs: What the task prepared.
        model: The network, with the weights that shall move requiring gradients.
        tokenizer: Goes along for special tokens; None where there is none.
        checkpoints: Directory of the run's checkpoints.
        history: The run's history.jsonl.
        listener: Who watches.
        must_match: Facts, as a JSON object, that must be the same when the run is resumed.

    Raises:
        HftuneError: A setting that this machine or the installed transformers can't honor.
    """
    _quiet_libraries()
    refuse_what_breaks(section)
    if not inputs.train_lengths:
        raise HftuneError("there are no training rows", hint="check the data with `hftune data check`")
    make = functools.partial(
        _made,
        model=model,
        tokenizer=tokenizer,
        checkpoints=checkpoints,
        history=history,
        listener=listener,
        must_match=must_match,
    )
    trainer, notes = make(section, inputs)
    if section.auto_batch:
        sizes, note = sizes_that_fit(trainer, inputs, section)
        notes.append(note)
        if sizes != Sizes.of(section):
            trainer, _ = make(sizes.section(section), sizes.inputs(inputs, Sizes.of(section)))
    for note in notes:
        trainer.listener.note(note)
    return trainer


def _made(
    section: TrainSection,
    inputs: TrainingInputs,
    *,
    model: torch.nn.Module,
    tokenizer: Any,
    checkpoints: Path,
    history: Path,
    listener: Listener,
    must_match: Mapping[str, Any],
) -> tuple[HftuneTrainer, list[str]]:
    """The trainer with exactly these sizes, and what the user should read about it."""
    arguments, notes = make_arguments(
        section,
        checkpoints=checkpoints,
        select_by=inputs.select_by,
        greater_is_better=inputs.greater_is_better,
        keep_columns=inputs.keep_columns,
    )
    listener = listener if arguments.process_index == 0 else Silent()
    refuse_whole_copies(arguments)
    if arguments.device.type == "cpu":
        share_cores()
        if section.fast_dropout and not arguments.torch_compile:
            dropout.install(model)
    clock = Clock()
    trainer = HftuneTrainer(
        model=model,
        arguments=arguments,
        inputs=inputs,
        tokenizer=tokenizer,
        batches=_batches(section, inputs, arguments),
        checkpoints=_checkpoints(section, arguments, len(inputs.train_lengths), model, must_match),
        history=History(history, clock),
        clock=clock,
        listener=listener,
        callbacks=[] if section.patience is None else [EarlyStoppingCallback(section.patience)],
        optimizer=_optimizer(section, model, arguments.device.type, decay_embeddings=inputs.decay_embeddings),
    )
    if section.optimizer == "muon" and arguments.device.type == "cpu":
        fast = trainer.optimizer_cls_and_kwargs[1]["bf16"]
        notes.append(f"Muon computes in {'bf16' if fast else 'fp32'} on this CPU")
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(trainer.history)
    trainer.add_callback(Progress(listener, inputs.select_by))
    if inputs.samples is not None:
        trainer.add_callback(Samples(inputs.samples, history, together=trainer.sharding is not None))
    return trainer, notes


def _optimizer(
    section: TrainSection, model: torch.nn.Module, device: str, *, decay_embeddings: bool
) -> tuple[Any, dict[str, Any]] | None:
    """Trainer's optimizer_cls_and_kwargs, or None for its own AdamW."""
    settings = {"lr": section.learning_rate, "weight_decay": section.weight_decay}
    if section.optimizer == "adamw":
        return None if decay_embeddings else ((lambda: adamw_for), settings)
    block_matrices(model)  # what can't be told apart is said before anything is written
    momentum = {} if section.momentum is None else {"momentum": section.momentum}
    # The fastest precision that works. Every process computes the same step, so all must take the same one.
    bf16 = bool(smallest(int(bf16_pays(device))))
    # Trainer calls the first with nothing, and what it gets from that with the model and the settings.
    return (lambda: muon_for), {**settings, **momentum, "bf16": bf16}


def _batches(section: TrainSection, inputs: TrainingInputs, arguments: TrainingArguments) -> RankBatches:
    settings: dict[str, Any] = {
        "rows": len(inputs.train_lengths),
        "batch_size": section.batch_size,
        "accumulation": section.accumulation,
        "world_size": arguments.world_size,
        "rank": arguments.process_index,
        "seed": section.seed,
        "lengths": (inputs.epoch_lengths or inputs.train_lengths) if section.bucket_by_length else None,
        "changing": inputs.epoch_lengths is not None,
    }
    if section.tokens_per_batch is not None:
        _refuse_budget(section, inputs)
        return BudgetBatches(tokens=section.tokens_per_batch, **settings)
    if inputs.companion is None:
        return RankBatches(**settings)
    return PairedBatches(companion=inputs.companion, bucketed=section.bucket_by_length, **settings)


def _refuse_budget(section: TrainSection, inputs: TrainingInputs) -> None:
    """Say where a token budget can't be kept."""
    reason = None
    if not section.bucket_by_length:
        reason = "train.bucket_by_length is off, and a budget is filled with rows of like length"
    elif inputs.epoch_lengths is not None:
        reason = "this task makes other rows in each epoch, so that the number of batches would change"
    elif inputs.companion is not None:
        reason = "joint training pairs each batch with unlabeled rows"
    if reason is not None:
        raise HftuneError(f"train.tokens_per_batch is set, but {reason}", hint="leave it out: set train.batch_size")


def _checkpoints(
    section: TrainSection,
    arguments: TrainingArguments,
    rows: int,
    model: torch.nn.Module,
    must_match: Mapping[str, Any],
) -> Checkpoints:
    """The checkpoints, sealed with all that a resumed run must share with the one that saved them."""
    settings = {
        "batch_size": section.batch_size,
        "tokens_per_batch": section.tokens_per_batch,
        "accumulation": section.accumulation,
        "processes": arguments.world_size,
        "sharding": checkpoint_kind(),
        "seed": section.seed,
        "rows": rows,
        "precision": "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32",
        "frozen_weights": weights.frozen_fingerprint(model),
        # Found and not stated, so that a resumed run must find it here.
        **({"eval_batch_size": section.eval_batch_size} if section.auto_batch else {}),
    }
    settings = {**settings, **must_match}
    _refuse_other_machines_data(settings, agreed(settings))
    return Checkpoints(Path(arguments.output_dir), section.keep_checkpoints, settings)


def _refuse_other_machines_data(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Processes on several machines may find other files under the same name."""
    other = sorted(name for name in theirs if mine.get(name) != theirs[name])
    if other:
        raise HftuneError(
            f"this process finds other {', '.join(other)} than the main process: {mine[other[0]]} in place of "
            f"{theirs[other[0]]}",
            hint="give every machine the same data, model and cache, or a folder that they share",
        )


def _quiet_libraries() -> None:
    """What the libraries have to say goes to ``logging``; only the command line writes to the terminal."""
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    transformers_logging.disable_progress_bar()
    library = logging.getLogger("datasets")  # propagates already, and writes to the terminal as well
    for handler in [one for one in library.handlers if type(one) is logging.StreamHandler]:
        library.removeHandler(handler)
