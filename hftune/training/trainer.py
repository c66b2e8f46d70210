"""Trainer, with what it gets wrong for us put right and nothing else changed.

Batches come in our own order, evaluation goes by length and answers in row order, the loss is the mean over an update's
rows, a non-finite number ends the run, checkpoints are whole or absent, and the best weights come back exactly.
Made by ``hftune.training.assembly.build``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.trainer_utils import unwrap_peft_model

from hftune.errors import HftuneError
from hftune.files import read_json, write_json
from hftune.training.callbacks import Clock, History
from hftune.training.checkpoints import Checkpoints
from hftune.training.finite import Watch
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import Launched, local_world_size
from hftune.training.memory import LOWER_EVALUATION, out_of_memory
from hftune.training.progress import Listener
from hftune.training.sampler import RankBatches
from hftune.training.saved_state import PROGRESS
from hftune.training.sharded import ShardedTrainer
from hftune.training.stopping import StopRequest, stopped


class HftuneTrainer(ShardedTrainer):
    """One run's trainer; ``hftune.training.fitting.fit`` drives it."""

    def __init__(
        self,
        *,
        model: nn.Module,
        arguments: TrainingArguments,
        inputs: TrainingInputs,
        tokenizer: Any,
        batches: RankBatches,
        checkpoints: Checkpoints,
        history: History,
        clock: Clock,
        listener: Listener,
        callbacks: list[Any],
        optimizer: tuple[Any, dict[str, Any]] | None = None,
        decay_embeddings: bool = True,
    ) -> None:
        """Everything is made by ``build``; the model's own loss is taken to be a mean over the rows of a batch."""
        base = unwrap_peft_model(model)
        if not hasattr(base, "accepts_loss_kwargs"):
            # Heads take **kwargs but ignore num_items_in_batch, so Trainer would not divide by the accumulation.
            base.accepts_loss_kwargs = False
        self.batches = batches
        self.decay_embeddings = decay_embeddings
        self.checkpoints = checkpoints
        self.history = history
        self.clock = clock
        self.listener = listener
        self.stop = StopRequest()
        self.broken: tuple[str, ...] = ()
        """Names of checkpoints that were found broken when this run was resumed."""
        self._watch = Watch(batches)
        self._weight = 1.0
        self._finished = False
        self._epoch_over, self._saved_step = False, -1
        super().__init__(
            parts=inputs.parts,
            companion=inputs.companion,
            validation_lengths=inputs.validation_lengths,
            model=model,
            args=arguments,
            data_collator=inputs.collator,
            train_dataset=inputs.train,
            eval_dataset=inputs.validation,
            processing_class=tokenizer,
            compute_loss_func=inputs.loss,
            compute_metrics=inputs.compute_metrics,
            preprocess_logits_for_metrics=inputs.preprocess_logits,
            callbacks=callbacks,
            optimizer_cls_and_kwargs=optimizer,
        )

    @property
    def launched(self) -> Launched:
        """How many processes train, on what, and how many rows an update has."""
        world = self.args.world_size
        setting, size = self.batches.limit
        return Launched(
            processes=world,
            machines=max(1, world // local_world_size()),
            device=self.args.device.type,
            sharding=self.sharding,
            update_rows=self.batches.update_rows,
            batch_tokens=size if setting == "max_tokens_per_batch" else None,
        )

    # ---- training batches ----

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches in our order; the sampler knows its own rank, so accelerate must not shard it again."""
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
            batch_sampler=self.batches,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, description="training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )
        prepared: DataLoader[Any] = prepare_data_loader(
            loader, device=self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )
        return prepared

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """The passes of one update; rows that only fill up the last pass are not counted."""
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        first = self._pass_index(0)
        if items is not None and any(self.batches.has_repeats(first + i) for i in range(len(samples))):
            counted = [_unlabeled(s) if not self.batches.weight(first + i) else s for i, s in enumerate(samples)]
            items = self._get_num_items_in_batch(counted, device)
        # A short last batch can be without a single masked token; 0 of 0 would be nan.
        return samples, items.clamp(min=1) if isinstance(items, Tensor) else items

    def _pass_index(self, within: int) -> int:
        """Number of a forward pass in its epoch."""
        step: int = self.state.global_step
        return (step % self.batches.updates) * self.batches.accumulation + within

    # ---- loss ----

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one pass, weighted by its share of the update."""
        index = self._pass_index(len(self._watch.losses))
        self._weight = self.batches.weight(index)
        try:
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self._weight = 1.0
        self._watch.losses.append(loss)
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss; a mean over rows is weighted, a sum divided by num_items_in_batch only silenced for repeats."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        counted = self.compute_loss_func is not None or self.model_accepts_loss_kwargs
        weight = float(self._weight > 0) if counted else self._weight
        if weight != 1.0:
            loss = loss * weight
        return (loss, outputs) if return_outputs else loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Called once an update, before the weights move: the moment to look for nan and inf, and for a stop."""
        norm = super()._get_grad_norm(model, grad_norm)
        scaled = self.accelerator.scaler is not None  # fp16 meets inf as a matter of course and skips the step
        self._watch.check(None if scaled else norm, self.state, self.stop, self.checkpoints.directory)
        return norm

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Trainer decays everything but biases and norms; language models leave embeddings alone too."""
        names: list[str] = super().get_decay_parameter_names(model)
        if self.decay_embeddings:
            return names
        embeddings = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.Embedding)
            for parameter in module.parameters(recurse=False)
        }
        tied = {
            name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in embeddings
        }
        return [name for name in names if name not in tied]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule; a decay given as a share of all updates becomes their number, which is known only here."""
        stated = self.args.lr_scheduler_kwargs
        decay = (stated or {}).get("num_decay_steps")
        if not decay:
            return super().create_scheduler(num_training_steps, optimizer)
        longest = max(0, num_training_steps - self.args.get_warmup_steps(num_training_steps))
        steps = min(round(decay * num_training_steps if decay < 1 else decay), longest)
        self.args.lr_scheduler_kwargs = {**stated, "num_decay_steps": steps}
        try:
            return super().create_scheduler(num_training_steps, optimizer)
        finally:
            self.args.lr_scheduler_kwargs = stated  # as the recipe states it

    # ---- evaluation ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate, with its time kept apart from training's."""
        before, size = self.clock.seconds, self.args.per_device_eval_batch_size
        with out_of_memory(f"in an evaluation with train.per_device_eval_batch_size={size}", LOWER_EVALUATION):
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        self.clock.aside += self.clock.seconds - before
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        name = self.args.metric_for_best_model
        if f"eval_{name.removeprefix('eval_')}" not in metrics:
            known = sorted(key.removeprefix("eval_") for key in metrics)
            raise HftuneError(
                f"the best checkpoint is chosen by {name!r}, which is not among the validation scores",
                hint=f"use one of: {', '.join(known)}",
            )
        is_best = bool(super()._determine_best_metric(metrics, trial))
        if is_best:
            # With a save_steps that is a multiple of eval_steps, Trainer would look for a checkpoint that is not there.
            self.control.should_save = True
        return is_best

    # ---- the course of a run ----

    def _run_epoch(self, **kwargs: Any) -> None:
        if self._finished:
            self.control.should_training_stop = True
            return
        self._epoch_over = False
        super()._run_epoch(**kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """After each update, and once more after each epoch: the only places where a run stops on request."""
        step = self.state.global_step
        super()._maybe_log_save_evaluate(*args, **kwargs)
        number = self._watch.stop_number(self.stop)
        ends = float(self.state.epoch).is_integer() or self.control.should_training_stop
        if not number or (ends and not self._epoch_over):
            # Trainer comes by again right after the epoch's end, where an evaluation may still be due.
            self._epoch_over = ends
            return
        if self._saved_step != step:
            self._save_checkpoint(self.model, None)
        raise stopped(number, f"after update {step:,} of {self.state.max_steps:,}; everything is saved")

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        """Trainer remembers the best checkpoint by a path that may have moved; the step is enough."""
        where = super()._init_training_state(*args, **kwargs)
        if self.state.best_global_step:
            self.state.best_model_checkpoint = str(self.checkpoints.at(self.state.best_global_step))
        return where

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, as Trainer will count them."""
        stated: int = self.args.max_steps
        return stated if stated > 0 else ceil(self.args.num_train_epochs * self.batches.updates)

    def restore_progress(self, checkpoint: Path | None) -> None:
        """Take up what ``progress.json`` holds. Called when Trainer has just reset it, at the start of training."""
        if checkpoint is None:
            self.clock.start(0.0, 0.0)
            return
        progress = read_json(checkpoint / PROGRESS)
        self.args.eval_on_start = False  # that was before the first step, and is in history
        self.clock.start(progress["seconds"], progress["aside"])
        self._finished = progress["finished"]
        self._tr_loss.fill_(progress["loss"][self.args.process_index])
        self._globalstep_last_logged = progress["logged"]
        self.restore_parts(progress.get("parts", {}))

    # ---- checkpoints ----

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoints.staging)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Let Trainer write into the staging folder, then seal it and put it in its place."""
        before, step, best = self.clock.seconds, self.state.global_step, self.state.best_global_step
        main = self.args.should_save
        sums = {"loss": self.accelerator.gather(self._tr_loss.reshape(1)).tolist(), "parts": self.parts_state()}
        try:
            if main:
                self.checkpoints.begin()
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if main:
                self._write_progress(sums)
                self.history.sync()
                self.checkpoints.commit(step, best)
                # One that was found broken on resume may just have been written anew.
                self.checkpoints.rotate(best, [name for name in self.broken if name != self.checkpoints.at(step).name])
                self.broken = ()
        except HftuneError:
            self.checkpoints.clear()
            raise
        except Exception as error:
            raise self.checkpoints.failed(error, step) from error
        self.accelerator.wait_for_everyone()
        self.state.best_model_checkpoint = str(self.checkpoints.at(best)) if best else None
        self._saved_step = step
        self.clock.aside += self.clock.seconds - before

    def _write_progress(self, sums: Mapping[str, Any]) -> None:
        progress = {
            **sums,
            "logged": self._globalstep_last_logged,
            "seconds": self.clock.seconds,
            "aside": self.clock.aside,
            "finished": self.control.should_training_stop,
        }
        write_json(self.checkpoints.staging / self.checkpoints.at(self.state.global_step).name / PROGRESS, progress)


def _unlabeled(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {**batch, "labels": torch.full_like(batch["labels"], -100)}
