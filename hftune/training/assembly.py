"""Puts a trainer together from a recipe's ``train`` section and a task's inputs. Called by ``hftune.pipeline``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments
from transformers import logging as transformers_logging

from hftune.config.train import MUON, TrainSection
from hftune.errors import HftuneError
from hftune.machine import bf16_pays
from hftune.training import dropout, weights
from hftune.training.arguments import make_arguments
from hftune.training.autobatch import Sizes, sizes_that_fit
from hftune.training.budget import BudgetBatches
from hftune.training.callbacks import Clock, History, Progress
from hftune.training.checkpoints import Checkpoints
from hftune.training.companion import PairedBatches
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import agreed, share_cores, smallest
from hftune.training.matrices import block_matrices
from hftune.training.muon import muon_for
from hftune.training.progress import Listener, Silent
from hftune.training.sampler import RankBatches
from hftune.training.samples import Samples
from hftune.training.sharded import checkpoint_kind, refuse_what_breaks, refuse_whole_copies
from hftune.training.trainer import HftuneTrainer

EVAL_SIZE = "per_device_eval_batch_size"


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
    _refuse_late_evaluation(section, trainer)
    if section.auto_find_batch_size:
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
    arguments, notes = make_arguments(section, checkpoints=checkpoints, keep_columns=inputs.keep_columns)
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
        callbacks=_early_stopping(section),
        optimizer=_muon(section, model, arguments.device.type) if section.optim == MUON else None,
        decay_embeddings=inputs.decay_embeddings,
    )
    if section.optim == MUON and arguments.device.type == "cpu":
        fast = trainer.optimizer_cls_and_kwargs[1]["bf16"]
        notes.append(f"Muon computes in {'bf16' if fast else 'fp32'} on this CPU")
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(trainer.history)
    trainer.add_callback(Progress(listener, section.best_metric))
    if inputs.samples is not None:
        trainer.add_callback(Samples(inputs.samples, history, together=trainer.sharding is not None))
    return trainer, notes


def _early_stopping(section: TrainSection) -> list[TrainerCallback]:
    patience = section.early_stopping_patience
    return [] if patience is None else [EarlyStoppingCallback(patience)]


def _muon(section: TrainSection, model: torch.nn.Module, device: str) -> tuple[Any, dict[str, Any]]:
    """Muon as Trainer's optimizer_cls_and_kwargs."""
    block_matrices(model)  # an architecture whose matrices can't be told apart is refused before anything is written
    settings = {
        "lr": section.learning_rate,
        "weight_decay": section.weight_decay,
        "betas": (section.adam_beta1, section.adam_beta2),
        "eps": section.adam_epsilon,
        # The fastest dtype that works. Every process computes the same step, so all must take the same one.
        "bf16": bool(smallest(int(bf16_pays(device)))),
    }
    if section.muon_momentum is not None:
        settings["momentum"] = section.muon_momentum
    # Trainer calls the first without arguments, and what that returns with the model and the settings.
    return (lambda: muon_for), settings


def _refuse_late_evaluation(section: TrainSection, trainer: HftuneTrainer) -> None:
    """Without any evaluation no checkpoint could be selected."""
    delay = section.passed_on.get("eval_delay", 0)
    by_epoch = section.evaluates_every is None
    length = trainer.total_steps / trainer.batches.updates if by_epoch else trainer.total_steps
    if delay > length:
        raise HftuneError(
            f"train.eval_delay is {delay:g} {'epochs' if by_epoch else 'steps'}, and training ends after {length:g}",
            hint="lower it: the best checkpoint is selected by an evaluation",
        )


def _batches(section: TrainSection, inputs: TrainingInputs, arguments: TrainingArguments) -> RankBatches:
    by_length = section.train_sampling_strategy == "group_by_length"
    settings: dict[str, Any] = {
        "rows": len(inputs.train_lengths),
        "batch_size": section.per_device_train_batch_size,
        "accumulation": section.gradient_accumulation_steps,
        "world_size": arguments.world_size,
        "rank": arguments.process_index,
        "seed": section.order_seed,
        "lengths": (inputs.epoch_lengths or inputs.train_lengths) if by_length else None,
        "shuffle": section.train_sampling_strategy != "sequential",
        "changing": inputs.epoch_lengths is not None,
    }
    if section.max_tokens_per_batch is not None:
        _refuse_budget(section, inputs)
        return BudgetBatches(tokens=section.max_tokens_per_batch, **settings)
    if inputs.companion is None:
        return RankBatches(**settings)
    return PairedBatches(companion=inputs.companion, bucketed=by_length, **settings)


def _refuse_budget(section: TrainSection, inputs: TrainingInputs) -> None:
    """Say where a token budget can't be kept."""
    reason = None
    if section.train_sampling_strategy != "group_by_length":
        reason = f"train.train_sampling_strategy is {section.train_sampling_strategy}, and it needs group_by_length"
    elif inputs.epoch_lengths is not None:
        reason = "this task makes other rows in each epoch, so that the number of batches would change"
    elif inputs.companion is not None:
        reason = "joint training pairs each batch with unlabeled rows"
    if reason is not None:
        raise HftuneError(
            f"train.max_tokens_per_batch is set, but {reason}",
            hint="leave it out: set train.per_device_train_batch_size",
        )


def _checkpoints(
    section: TrainSection,
    arguments: TrainingArguments,
    rows: int,
    model: torch.nn.Module,
    must_match: Mapping[str, Any],
) -> Checkpoints:
    """The checkpoints, sealed with all that a resumed run must share with the one that saved them."""
    settings = {
        "per_device_train_batch_size": section.per_device_train_batch_size,
        "max_tokens_per_batch": section.max_tokens_per_batch,
        "gradient_accumulation_steps": section.gradient_accumulation_steps,
        "processes": arguments.world_size,
        "sharding": checkpoint_kind(),
        "seed": section.seed,
        "data_seed": section.order_seed,
        "rows": rows,
        "precision": "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32",
        "frozen_weights": weights.frozen_fingerprint(model),
        # Found and not stated, so that a resumed run must find it here.
        **({EVAL_SIZE: getattr(section, EVAL_SIZE)} if section.auto_find_batch_size else {}),
    }
    settings = {**settings, **must_match}
    _refuse_other_machines_data(settings, agreed(settings))
    return Checkpoints(Path(arguments.output_dir), section.save_total_limit, settings)


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
