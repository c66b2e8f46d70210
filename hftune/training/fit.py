"""Make the trainer of a run, train from the start or from a checkpoint, and restore the best weights."""

from __future__ import annotations

import copy
import logging
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments
from transformers import logging as transformers_logging
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from hftune.errors import HftuneError, RunFailed
from hftune.pickles import weights_only
from hftune.progress import ProgressReporter
from hftune.training import dropout
from hftune.training.arguments import checkpoint_kind, make_arguments
from hftune.training.callbacks import Clock, History, ReportProgress, Samples, stopped
from hftune.training.checkpoints import (
    Checkpoints,
    check_checkpoint,
    fault,
    frozen_fingerprint,
    listed,
    load_weights,
    newest_complete,
    read_manifest,
)
from hftune.training.inputs import PairedBatches, RankBatches, TokenBatches, TrainingInputs
from hftune.training.launch import agreed, is_main_process, share_cores, smallest
from hftune.training.memory import out_of_memory, peak_memory, sizes_that_fit
from hftune.training.muon import block_matrices, blocks, muon_for
from hftune.training.settings import MUON, TrainSection
from hftune.training.trainer import HftuneTrainer

EVAL_SIZE = "per_device_eval_batch_size"
SIDE = {"cpu": 256, "cuda": 8192, "mps": 4096}
"""Rows and columns of the matrices whose product is fastest, by kind of device."""
MIN_PRODUCTS = 4
MEASURED_SECONDS = 0.1
MIN_SECONDS = 1.0
"""Shorter trainings have no MFU: it would be that of the first steps only."""


# ---- the trainer ----


def build(
    section: TrainSection,
    inputs: TrainingInputs,
    *,
    model: torch.nn.Module,
    tokenizer: Any,
    checkpoints: Path,
    history: Path,
    progress: ProgressReporter,
    must_match: Mapping[str, Any],
) -> HftuneTrainer:
    """Make the trainer of one run. Nothing is written yet.

    Args:
        section: The recipe's ``train`` section.
        inputs: What the task prepared.
        model: The model; the weights to train require gradients.
        tokenizer: For its special tokens; None if there is none.
        checkpoints: Directory of the run's checkpoints.
        history: The run's history.jsonl.
        progress: Progress callback.
        must_match: What must be the same when the run is resumed; a JSON object.

    Raises:
        HftuneError: A setting that this machine or the installed transformers can't honor.
    """
    _quiet_libraries()
    if not inputs.train_lengths:
        raise HftuneError("there are no training examples", hint="check the data with `hftune data check`")
    others = (model, tokenizer, checkpoints, history, progress, must_match)
    trainer, notes = _make_trainer(section, inputs, *others)
    _refuse_late_evaluation(section, trainer)
    if section.auto_find_batch_size:
        sizes, note = sizes_that_fit(trainer, section)
        notes.append(note)
        lowered = section.model_copy(update=sizes)
        if lowered != section:
            split = section.per_device_train_batch_size // lowered.per_device_train_batch_size
            # Each part of a micro-batch gets its part of the auxiliary examples.
            auxiliary = None if inputs.auxiliary is None else inputs.auxiliary.divided(split)
            trainer, _ = _make_trainer(lowered, replace(inputs, auxiliary=auxiliary), *others)
    for note in notes:
        trainer.progress.note(note)
    return trainer


def _make_trainer(
    section: TrainSection,
    inputs: TrainingInputs,
    model: torch.nn.Module,
    tokenizer: Any,
    checkpoints: Path,
    history: Path,
    progress: ProgressReporter,
    must_match: Mapping[str, Any],
) -> tuple[HftuneTrainer, list[str]]:
    """The trainer with exactly these batch sizes, and lines for the user."""
    arguments, notes = make_arguments(section, checkpoints=checkpoints)
    progress = progress if arguments.process_index == 0 else ProgressReporter()
    if arguments.device.type == "cpu":
        share_cores()
        if section.fast_dropout and not arguments.torch_compile:
            dropout.install(model)
    rows = History(history, Clock())
    patience = section.early_stopping_patience
    callbacks: list[TrainerCallback] = [] if patience is None else [EarlyStoppingCallback(patience)]
    trainer = HftuneTrainer(
        model=model,
        arguments=arguments,
        inputs=inputs,
        tokenizer=tokenizer,
        batches=_batches(section, inputs, arguments),
        checkpoints=_checkpoints(section, arguments, len(inputs.train_lengths), model, must_match),
        history=rows,
        progress=progress,
        callbacks=[*callbacks, rows, ReportProgress(progress, section.best_metric)],
        optimizer=_muon(section, model, arguments.device.type) if section.optim == MUON else None,
    )
    if section.optim == MUON and arguments.device.type == "cpu":
        fast = trainer.optimizer_cls_and_kwargs[1]["bf16"]
        notes.append(f"Muon computes in {'bf16' if fast else 'fp32'} on this CPU")
    trainer.remove_callback(PrinterCallback)  # it prints every log to standard output
    if inputs.samples is not None:
        trainer.add_callback(Samples(inputs.samples, rows, all_processes=trainer.sharding is not None))
    return trainer, notes


def _muon(section: TrainSection, model: torch.nn.Module, device: str) -> tuple[Any, dict[str, Any]]:
    """Muon as Trainer's optimizer_cls_and_kwargs."""
    from hftune.machine import bf16_pays

    block_matrices(model)  # an architecture whose matrices can't be split is refused before anything is written
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
    delay = section.passed_on.get("eval_delay", 0)
    by_epoch = section.evaluates_every is None
    length = trainer.total_steps / trainer.batches.steps if by_epoch else trainer.total_steps
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
        for wrong, reason in (
            (not by_length, f"train_sampling_strategy is {section.train_sampling_strategy}, not group_by_length"),
            (inputs.epoch_lengths is not None, "this task makes other examples, and so other batches, in each epoch"),
            (inputs.auxiliary is not None, "joint training pairs each batch with unlabeled examples"),
        ):
            if wrong:
                raise HftuneError(
                    f"train.max_tokens_per_batch can't be used here: {reason}",
                    hint="leave it out: set train.per_device_train_batch_size",
                )
        return TokenBatches(tokens=section.max_tokens_per_batch, **settings)
    if inputs.auxiliary is None:
        return RankBatches(**settings)
    return PairedBatches(auxiliary=inputs.auxiliary, bucketed=by_length, **settings)


def _checkpoints(
    section: TrainSection,
    arguments: TrainingArguments,
    rows: int,
    model: torch.nn.Module,
    must_match: Mapping[str, Any],
) -> Checkpoints:
    """The checkpoints, with all that a resumed run must share with the one that saved them."""
    # A resumed run is bit for bit the interrupted one only if all of this is the same. What the recipe states is
    # compared before (run_session); here is also what was found: processes, dtype, batch size, frozen weights, tokens.
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
        "frozen_weights": frozen_fingerprint(model),
        # Found and not stated, so that a resumed run must find it here.
        **({EVAL_SIZE: getattr(section, EVAL_SIZE)} if section.auto_find_batch_size else {}),
        **must_match,
    }
    main = agreed(settings)
    other = sorted(name for name in main if settings.get(name) != main[name])
    if other:  # processes on several machines may find other files under the same name
        raise HftuneError(
            f"this process has a different {', '.join(other)} than the main process: {settings[other[0]]} instead of "
            f"{main[other[0]]}",
            hint="give every machine the same data, model and cache, or a folder that they share",
        )
    return Checkpoints(Path(arguments.output_dir), section.save_total_limit, settings)


def _quiet_libraries() -> None:
    """Send the output of the libraries to ``logging``; only the command line writes to the terminal."""
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    transformers_logging.disable_progress_bar()
    library = logging.getLogger("datasets")  # propagates already, and writes to the terminal as well
    for handler in [one for one in library.handlers if type(one) is logging.StreamHandler]:
        library.removeHandler(handler)


# ---- training ----


class Fitted(NamedTuple):
    """A finished training, with the best weights back in the model: two parts of metrics.json."""

    speed: dict[str, Any]
    """Seconds are those of all sessions, evaluations and checkpoints included; examples per second are without these.
    ``mfu`` is None if it can't be measured; the peak of memory is that since the data were loaded. The batch size is
    per device, as it was: train.auto_find_batch_size may have lowered it."""
    selection: dict[str, Any]
    """Metric, step and score of the best checkpoint."""


def fit(trainer: HftuneTrainer, resume: bool | Path = False) -> Fitted:
    """Train, or resume, and restore the best weights.

    Args:
        trainer: From ``build``.
        resume: Resume from the newest complete checkpoint, or from the one at this path.

    Raises:
        HftuneError: The checkpoint does not belong to this run.
        RunFailed: A loss that is not finite, a full disk, too little memory.
        Interrupted: A signal stopped the run; everything is saved.
    """
    # The main process moves and removes folders; the others must not read them before it has finished.
    main = trainer.args.should_save
    if main:
        trainer.checkpoints.recover()
    trainer.accelerator.wait_for_everyone()
    checkpoint = _checkpoint(trainer, resume)
    if main and checkpoint is not None and resume is True and not trainer.broken:
        # A kill may have come when a checkpoint was in its place and the ones that it replaces were not yet removed.
        trainer.checkpoints.rotate(read_manifest(checkpoint)["best"])
    trainer.accelerator.wait_for_everyone()
    whole = _shard_copy(trainer)
    try:
        with trainer.stop.listening(), out_of_memory(*_what_to_lower(trainer)), weights_only():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except BaseException as error:
        if trainer.args.world_size > 1:
            traceback.clear_frames(error.__traceback__)  # they hold the wrapped model, see _unwrap
        raise
    finally:
        _unwrap(trainer)
    if number := trainer.stop_number or trainer.stop.signal_number:
        state = trainer.state
        raise stopped(number, f"after step {state.global_step:,} of {state.max_steps:,}; everything is saved")
    _restore_whole(trainer, whole)
    return _fitted(trainer)


def _what_to_lower(trainer: HftuneTrainer) -> tuple[str, str]:
    """The setting that memory depends on, and settings for the same effective batch size with less memory."""
    setting, size = trainer.batches.limit
    smaller = (
        f"train.{setting}={max(1, size // 2)} train.gradient_accumulation_steps={trainer.batches.accumulation * 2}"
    )
    if setting == "max_tokens_per_batch":
        hint = (
            f"start a new run with {smaller}, whose steps have about as many examples; "
            "train.gradient_checkpointing=true saves more"
        )
    else:
        hint = (
            "start a new run with --auto-find-batch-size, which finds a batch that fits and makes the same steps, or "
            f"with {smaller}; a lower data.max_seq_length or train.gradient_checkpointing=true saves more"
        )
    return f"with train.{setting}={size}", hint


def _unwrap(trainer: HftuneTrainer) -> None:
    """Release what accelerate trains through: autocast, and the wrapper of several processes.

    Autocast would stay on the model's forward, and the model in memory would differ from the one that is saved.
    A wrapper that outlives the process group takes the group down with it while it holds Python's lock, and torch's
    gloo threads may be waiting for that lock: the process would hang at its very end.
    """
    trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    if trainer.args.world_size == 1:
        return
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()


def _shard_copy(trainer: HftuneTrainer) -> torch.nn.Module | None:
    """With FSDP or DeepSpeed no process holds all weights: keep the model, and train a copy, which will be sharded.

    Checkpoints hold gathered weights, the same file as always. At the end the best of them are loaded into the model
    that was kept, which is saved, scored and verified like any other.
    """
    if not trainer.sharding:
        return None
    whole = None
    if is_main_process():
        whole = trainer.model
        trainer.model = trainer.model_wrapped = copy.deepcopy(whole)
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin is not None and plugin.transformer_cls_names_to_wrap is None:
        # transformers also names BERT's embeddings, and accelerate then shards the words' twice, which fails.
        plugin.transformer_cls_names_to_wrap = sorted({type(block).__name__ for _, block in blocks(trainer.model)})
    return whole


def _restore_whole(trainer: HftuneTrainer, whole: torch.nn.Module | None) -> None:
    if trainer.is_deepspeed_enabled:
        unset_hf_deepspeed_config()  # models that are loaded later are not sharded
    if whole is not None:
        trainer.model = trainer.model_wrapped = whole
        if trainer.state.best_global_step:
            load_weights(whole, trainer.checkpoints.at(trainer.state.best_global_step))


def _checkpoint(trainer: HftuneTrainer, resume: bool | Path) -> Path | None:
    """The checkpoint to resume from; all processes find the same one."""
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
        found, skipped = newest_complete(store.directory)
        trainer.broken = tuple(line.partition(":")[0] for line in skipped)
        for line in skipped:
            trainer.progress.warn(f"skipped a damaged checkpoint, {line}")
        if found is not None:
            trainer.progress.note(f"resuming from {found.name}")
        elif skipped:
            trainer.progress.warn("no complete checkpoint is left: training starts from the beginning")
        else:
            trainer.progress.note("no complete checkpoint: training starts from the beginning")
    else:
        if listed(store.directory):
            raise HftuneError(
                f"{store.directory} holds checkpoints of an earlier training",
                hint="continue from them with --resume, or take another output directory",
            )
        found = None
    if found:
        stops_early = any(isinstance(one, EarlyStoppingCallback) for one in trainer.callback_handler.callbacks)
        check_checkpoint(found, store.settings, trainer.total_steps, stops_early=stops_early)
    return found


def _fitted(trainer: HftuneTrainer) -> Fitted:
    state, clock, args = trainer.state, trainer.clock, trainer.args
    if not state.best_global_step:
        raise RunFailed(
            f"no evaluation gave a finite {args.metric_for_best_model}, so no checkpoint could be selected",
            hint="see history.jsonl, or select by another score: train.metric_for_best_model=loss",
        )
    # Examples per second of training alone, so that evaluating more often does not look slower.
    working = max(clock.seconds - clock.other_seconds, 1e-9)
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    # The operations are those of all processes, the peak is that of one.
    mfu = model_flops_utilization(state.total_flos / args.world_size, working, args.device, dtype)
    speed = {
        "train_seconds": round(clock.seconds, 3),
        "examples_per_second": round(trainer.batches.examples_seen(state.global_step) / working, 3),
        "steps": state.global_step,
        "batch_size": trainer.batches.batch_size,
        "accumulation": trainer.batches.accumulation,
        "mfu": None if mfu is None else round(mfu, 4),
        "peak_memory_gb": round(peak_memory() / 2**30, 3),
    }
    best = {"metric": args.metric_for_best_model, "step": state.best_global_step, "score": float(state.best_metric)}
    return Fitted(speed, best)


# ---- model FLOPs utilization (MFU) ----
#
# Model FLOPs are six per weight and token (two forward, four backward), embeddings excluded, as Trainer counts them: a
# convention, and too high where frozen weights need no gradient. The peak is measured here, with the matrix product
# that suits the device best, because no table has the peak of every CPU.


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of the fastest of several matrix products.

    On a CPU it is that of one thread times the number of threads: threads that share a product wait for each other
    wherever other processes use the cores too, and even the fastest product then shows a tenth of the peak.
    """
    threads = torch.get_num_threads()
    side = SIDE.get(device.type, 1024)
    left = torch.ones(side, side, device=device, dtype=dtype)
    best, done, end = float("inf"), 0, time.perf_counter() + MEASURED_SECONDS
    torch.set_num_threads(1)
    try:
        while done < MIN_PRODUCTS or time.perf_counter() < end:
            began = time.perf_counter()
            float((left @ left)[0, 0])  # reading a number waits for the device
            best, done = min(best, time.perf_counter() - began), done + 1
    finally:
        torch.set_num_threads(threads)
    return (threads if device.type == "cpu" else 1) * 2 * side**3 / best


def model_flops_utilization(flops: float, seconds: float, device: torch.device, dtype: torch.dtype) -> float | None:
    """Fraction of the measured peak; None if nothing was counted, training was too short, or the peak not reached."""
    if flops <= 0 or seconds < MIN_SECONDS:
        return None
    share = flops / seconds / matmul_peak(device, dtype)
    return share if share <= 1 else None
