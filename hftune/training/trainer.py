"""The subclass of HF Trainer, for reproducible runs.

It has its own batch order, evaluates examples sorted by length, computes the loss as a mean over the examples of a
step, stops on a loss that is not finite and after a signal, saves checkpoints that are complete or absent, and restores
the best weights exactly.

Private names of transformers used here: ``_load_from_checkpoint``, ``_save_optimizer_and_scheduler`` and the argument
``_internal_call`` of ``save_model`` (and ``TrainingArguments._n_gpu`` in ``arguments``). tests/test_private_api.py
names the one that a new version has removed.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object, save_fsdp_optimizer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerState, TrainingArguments, set_seed
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import (
    EvalLoopOutput,
    RemoveColumnsCollator,
    TrainOutput,
    align_special_tokens,
    unwrap_peft_model,
)

from hftune.errors import HftuneError, RunFailed
from hftune.files import read_json, write_json
from hftune.progress import ProgressReporter
from hftune.training.callbacks import Flow, History, StopRequest
from hftune.training.checkpoints import (
    PROGRESS,
    STATE,
    Checkpoints,
    load_weights,
    newest_complete,
    save_weights,
    step_of,
)
from hftune.training.inputs import IGNORED, RankBatches, TrainingInputs, longest_first
from hftune.training.launch import local_world_size
from hftune.training.memory import LOWER_EVALUATION, out_of_memory


class HftuneTrainer(Trainer):  # type: ignore[misc]
    """Trainer of one run; made by ``build``."""

    model: Any
    compute_metrics: Any

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
        progress: ProgressReporter,
        callbacks: list[TrainerCallback],
        optimizer: tuple[Any, dict[str, Any]] | None = None,
    ) -> None:
        """The model's own loss must be a mean over the examples of a batch."""
        base = unwrap_peft_model(model)
        if not hasattr(base, "accepts_loss_kwargs"):
            # Heads take **kwargs but ignore num_items_in_batch, so Trainer would not divide by the accumulation steps
            # (transformers#47688).
            base.accepts_loss_kwargs = False
        self.inputs, self.batches, self.checkpoints = inputs, batches, checkpoints
        self.history, self.clock, self.progress = history, history.clock, progress
        self.stop, self.saved_step = StopRequest(), -1
        self.broken: tuple[str, ...] = ()
        """Names of checkpoints that were found damaged when this run was resumed."""
        self._resumed: Mapping[str, Any] = {}  # progress.json of the checkpoint
        self._order: np.ndarray | None = None
        self._losses: list[Tensor] = []  # of the micro-batches of this step
        self._grad_norm: Any = None
        self._weight, self._agreed_stop, self._saving_since = 1.0, 0, -1.0
        # The same as remove_unused_columns, which Trainer applies in its own data loaders. Ours replace those, so it is
        # done in the collator, which both of ours use.
        columns = [*inspect.signature(base.forward).parameters, "label", "label_ids", "labels"]
        super().__init__(
            model=model,
            args=arguments,
            data_collator=inputs.collator if inputs.keep_columns else RemoveColumnsCollator(inputs.collator, columns),
            train_dataset=inputs.train,
            eval_dataset=inputs.validation,
            processing_class=tokenizer,
            compute_loss_func=inputs.loss,
            compute_metrics=inputs.compute_metrics,
            preprocess_logits_for_metrics=inputs.preprocess_logits,
            callbacks=[Flow(self), *callbacks],
            optimizer_cls_and_kwargs=optimizer,
        )

    def create_accelerator_and_postprocess(self) -> None:
        """Keep the gradient norm, which Trainer does not pass to callbacks."""
        super().create_accelerator_and_postprocess()
        clip = self.accelerator.clip_grad_norm_

        # accelerate unscales fp16 gradients within this call, so the norm is that of the real gradients.
        def clip_and_keep(*args: Any, **kwargs: Any) -> Any:
            norm = clip(*args, **kwargs)
            self._grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            return self._grad_norm

        self.accelerator.clip_grad_norm_ = clip_and_keep

    @property
    def sharding(self) -> str | None:
        """How the weights are sharded; None if every process has all of them."""
        if self.is_fsdp_enabled:
            return f"FSDP{self.accelerator.state.fsdp_plugin.fsdp_version}"
        if self.is_deepspeed_enabled:
            return f"DeepSpeed ZeRO-{self.accelerator.state.deepspeed_plugin.zero_stage}"
        return None

    @property
    def launched(self) -> dict[str, Any]:
        """Processes, device and effective batch size of this run, for environment.json."""
        setting, size = self.batches.limit
        return {
            "processes": self.args.world_size,
            "machines": max(1, self.args.world_size // local_world_size()),
            "device": self.args.device.type,
            "sharding": self.sharding,
            # Over all processes and accumulated micro-batches; the maximum where the tokens of a batch are limited.
            "effective_batch_size": self.batches.effective_batch_size,
            "max_tokens_per_batch": size if setting == "max_tokens_per_batch" else None,
        }

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, as Trainer will count them."""
        stated: int = self.args.max_steps
        return stated if stated > 0 else math.ceil(self.args.num_train_epochs * self.batches.steps)

    # ---- training ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, and restore the best weights; ``True`` resumes from the newest complete checkpoint."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(newest_complete(self.checkpoints.directory)[0] or "")
        checkpoint = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        self._resumed = {} if checkpoint is None else read_json(checkpoint / PROGRESS)
        if self.args.should_save:
            self.checkpoints.directory.mkdir(parents=True, exist_ok=True)
            self.history.rewind(-1 if checkpoint is None else step_of(checkpoint))
        # Each process draws other dropout masks. Seeded here and not when the trainer is made, because what is done in
        # between (finding a batch size) may draw random numbers. A checkpoint has its own random state.
        set_seed(self.args.seed + self.args.process_index)
        output_dir, save_strategy = self.args.output_dir, self.args.save_strategy
        if checkpoint is not None:
            self.args.eval_on_start = False  # was done before the first step, and is in history
        try:
            if checkpoint is not None and self._resumed["finished"]:
                # Trainer would continue a run that max_steps or early stopping has ended in the middle of an epoch.
                self.state = TrainerState.load_from_json(str(checkpoint / STATE))
                # What Trainer.train changes in the model's configuration, which is saved with the model.
                if self.processing_class is not None:
                    align_special_tokens(self.model, self.processing_class)
                self.begin_training()
                output = TrainOutput(self.state.global_step, 0.0, {})
            else:
                output = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        except Exception as error:
            if self._saving_since < 0:
                raise
            if isinstance(error, HftuneError):
                self.checkpoints.clear()
                raise
            raise self.checkpoints.failed(error, self.state.global_step) from error  # while Trainer was saving
        finally:
            self.args.output_dir, self.args.save_strategy = output_dir, save_strategy
            self.progress.end()
        if self.state.best_global_step and not self.stop_number and not self.sharding:
            load_weights(self.model, self.checkpoints.at(self.state.best_global_step))
        return output

    def begin_training(self) -> None:
        """Restore from the checkpoint what Trainer's own state does not have."""
        resumed = self._resumed
        self.clock.start(resumed.get("seconds", 0.0), resumed.get("other_seconds", 0.0))
        sums = resumed.get("loss", [0.0] * self.args.world_size)
        self._loss_sum = torch.tensor(sums[self.args.process_index], dtype=torch.float32, device=self.args.device)
        self._logged_step = resumed.get("logged", 0)
        if self.inputs.loss_components is not None:
            components = resumed.get("loss_components", {})
            self.inputs.loss_components.restore(components, self.args.process_index, self.args.device)

    def get_train_dataloader(self) -> Any:
        """Batches in our order; the sampler knows its own rank, so accelerate must not shard it again."""
        loader, device = self._loader(self.train_dataset, batch_sampler=self.batches), self.accelerator.device
        # Still accelerate's loader, not a plain one: on resume, Trainer skips the batches that were seen with
        # skip_first_batches, which reads the state of this class.
        return prepare_data_loader(loader, device, num_processes=1, process_index=0, put_on_device=True)

    def _loader(self, dataset: Any, **how: Any) -> DataLoader[Any]:
        names = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context")
        settings = {name: getattr(self.args, f"dataloader_{name}") for name in names}
        return DataLoader(dataset, collate_fn=self.data_collator, **settings, **how)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """The micro-batches of one step, and how many labels they have; repeated examples are not counted."""
        # Trainer counts the labels of the batches in an iterator. It gets one over copies, in which repeated examples
        # have no labels; the batches themselves keep them, because a loss over no label at all is nan.
        samples = list(itertools.islice(epoch_iterator, num_batches))
        first = self._index_in_epoch(0)
        counted = [s if self.batches.weight(first + i) else _without_labels(s) for i, s in enumerate(samples)]
        _, items = super().get_batch_samples(iter(counted), len(counted), device)
        if self.inputs.loss_components is not None:
            self.inputs.loss_components.begin_step()
        if self.inputs.auxiliary is not None:
            done = self.state.global_step / max(1, self.state.max_steps - 1)
            self.inputs.auxiliary.complete(samples, self.accelerator.gather, done)
        counting = [s for i, s in enumerate(samples) if self.batches.weight(first + i)]
        for entry, total in self.inputs.totals.items():
            count = torch.tensor([sum(len(sample[entry]) for sample in counting)], device=device)
            items_of_step = self.accelerator.gather(count).sum().clamp(min=1)
            for sample in samples:
                sample[total] = items_of_step
        # A short last batch can be without a single masked token; 0 of 0 would be nan.
        return samples, items.clamp(min=1) if isinstance(items, Tensor) else items

    def _index_in_epoch(self, within: int) -> int:
        """Number of a micro-batch in its epoch."""
        step: int = self.state.global_step
        return (step % self.batches.steps) * self.batches.accumulation + within

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch, weighted by its share of the step."""
        # Trainer averages the losses of micro-batches as if each had the same number of examples. The last one of an
        # epoch is shorter, and a process may have none left: see RankBatches.weight.
        self._weight = self.batches.weight(self._index_in_epoch(len(self._losses)))
        if self.inputs.loss_components is not None:
            self.inputs.loss_components.counts = self._weight > 0
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._weight = 1.0  # for evaluations
        self._losses.append(loss)
        self._loss_sum += loss
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss: a mean over examples is weighted; in a sum over num_items_in_batch, repeated examples count 0."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        counted = self.compute_loss_func is not None or self.model_accepts_loss_kwargs
        weight = float(self._weight > 0) if counted else self._weight
        if weight != 1.0:
            loss = loss * weight
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with our mean of the loss, which is exact after a resume, and with the components of the loss."""
        if "loss" in logs:
            # Trainer forgets the steps between its last log and the checkpoint: its first row after a resume would be
            # the mean of fewer steps.
            total = self.accelerator.gather(self._loss_sum.reshape(1)).mean().item()
            logs["loss"] = total / (self.state.global_step - self._logged_step)
            self._loss_sum.zero_()
            self._logged_step = self.state.global_step
            if self.inputs.loss_components is not None:
                logs |= self.inputs.loss_components.take(self.accelerator.gather)
        super().log(logs, start_time)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Trainer decays everything but biases and norms; language models leave embeddings out too."""
        names: list[str] = super().get_decay_parameter_names(model)
        if self.inputs.decay_embeddings:
            return names
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        named = model.named_parameters(remove_duplicate=False)  # tied weights have several names
        excluded = {name for name, value in named if id(value) in embeddings}
        return [name for name in names if name not in excluded]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule; num_decay_steps given as a ratio becomes a number here, where the number of steps is known."""
        stated = self.args.lr_scheduler_kwargs
        decay = (stated or {}).get("num_decay_steps")
        if decay:
            longest = max(0, num_training_steps - self.args.get_warmup_steps(num_training_steps))
            steps = min(round(decay * num_training_steps if decay < 1 else decay), longest)
            self.args.lr_scheduler_kwargs = {**stated, "num_decay_steps": steps}
        try:
            return super().create_scheduler(num_training_steps, optimizer)
        finally:
            self.args.lr_scheduler_kwargs = stated

    # ---- checks in every step ----

    @property
    def stop_number(self) -> int:
        """The signal on which all processes stop after this step; 0 for none."""
        return self.stop.signal_number if self.batches.world_size == 1 else self._agreed_stop

    def check_step(self) -> None:
        """Before the weights change: raise RunFailed if a loss or the gradient norm is not finite, agree on a stop.

        One check per step waits for the device once, where Trainer's own filter waits twice per micro-batch; several
        processes exchange one small message, so that all stop together.
        """
        losses, self._losses = torch.stack(self._losses), []
        # The fp16 scaler raises its factor until a gradient overflows, skips that step and lowers the factor again, so
        # an inf among the gradients is normal there. These losses are not scaled: they are checked in any case.
        norm = None if self.accelerator.scaler is not None else self._grad_norm
        norms = losses.new_zeros(1) if norm is None else torch.as_tensor(norm).to(losses).reshape(1)
        finite = torch.isfinite(torch.cat([losses, norms]))
        if self.batches.world_size == 1:
            failed = not bool(finite.all())
        else:
            flags = torch.stack([1.0 - finite.all().float(), losses.new_tensor(float(self.stop.signal_number))])
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            failed, self._agreed_stop = bool(flags[0]), int(flags[1])
        if failed:
            raise self._not_finite(losses, float(norms))

    def _not_finite(self, losses: Tensor, norm: float) -> RunFailed:
        epoch, first = self.state.global_step // self.batches.steps, self._index_in_epoch(0)
        batches = [self.batches.batch(epoch, first + i) for i in range(len(losses))]
        found = [(loss, batch) for loss, batch in zip(losses.tolist(), batches, strict=True) if not math.isfinite(loss)]
        if self.batches.world_size > 1:
            found = gather_object(found)
        what = f"the loss became {found[0][0]}" if found else f"the gradient became {norm}"
        rows = sorted({row for batch in ([batch for _, batch in found] or batches) for row in batch})
        shown = ", ".join(map(str, rows[:64])) + (" …" if len(rows) > 64 else "")
        newest, _ = newest_complete(self.checkpoints.directory)
        kept = f"the last good checkpoint is {newest.name}" if newest else "no checkpoint has been saved yet"
        return RunFailed(
            f"{what} at step {self.state.global_step + 1:,} (epoch {epoch + 1}), on the training examples {shown}; "
            f"{kept}",
            hint="lower train.learning_rate, raise train.warmup_steps, or look at those examples (counted from 0)",
        )

    # ---- evaluation ----

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Validation examples, or others, from long to short."""
        if eval_dataset is None or eval_dataset is self.eval_dataset:
            return self._from_long_to_short(self.eval_dataset, self.inputs.validation_lengths)
        return self.get_test_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset[Any]) -> DataLoader[Any]:
        """Examples to predict, from long to short."""
        rows: Any = test_dataset
        return self._from_long_to_short(rows, [len(row["input_ids"]) if "input_ids" in row else 1 for row in rows])

    def _from_long_to_short(self, dataset: Any, lengths: Sequence[int]) -> DataLoader[Any]:
        # Similar lengths together need little padding, and the longest first shows at once if memory is too small.
        self._order = longest_first(lengths)
        ordered = Subset(dataset, self._order.tolist())
        loader: DataLoader[Any] = self.accelerator.prepare(self._loader(ordered, batch_size=self.args.eval_batch_size))
        return loader

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate, and put predictions back into the order of the dataset."""
        assert self._order is not None, "set with the loader"
        back = np.argsort(self._order)
        compute = self.compute_metrics

        def in_order(outcome: EvalPrediction) -> Any:
            names = ("predictions", "label_ids", "inputs", "losses")
            return compute(EvalPrediction(**{name: _take(getattr(outcome, name), back) for name in names}))

        self.compute_metrics = in_order if compute else None
        try:
            output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.compute_metrics = compute
        return output._replace(predictions=_take(output.predictions, back), label_ids=_take(output.label_ids, back))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; the time is not counted as training's, and a new best score is always saved."""
        before, size = self.clock.seconds, self.args.per_device_eval_batch_size
        with out_of_memory(f"in an evaluation with train.per_device_eval_batch_size={size}", LOWER_EVALUATION):
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        for module in self.model.modules() if self.is_fsdp_enabled else ():
            # Without a backward pass FSDP leaves the weights gathered, and those are not the optimizer's.
            if isinstance(module, FSDPModule):
                module.reshard()
        self.clock.other_seconds += self.clock.seconds - before
        if self.is_in_train and self._is_best(metrics):  # before Trainer updates state.best_metric
            # If save_steps is a multiple of eval_steps, the best checkpoint would be missing.
            self.control.should_save = True
        return metrics

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        name, best = self.args.metric_for_best_model, self.state.best_metric
        if f"eval_{name}" not in metrics:
            known = sorted(key.removeprefix("eval_") for key in metrics)
            raise HftuneError(
                f"metric_for_best_model is {name!r}, which is not among the validation scores",
                hint=f"use one of: {', '.join(known)}",
            )
        higher, score = self.args.greater_is_better, metrics[f"eval_{name}"]
        if best is None:
            return not math.isnan(score)
        return bool(score > best if higher else score < best)

    # ---- checkpoints ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; in a checkpoint, only the weights that are trained.

        Trainer begins a checkpoint with this call, in all processes, and writes the other files into the same folder.
        """
        if not _internal_call:
            super().save_model(output_dir, _internal_call)
            return
        assert output_dir is not None, "Trainer names the folder"
        self._saving_since = self.clock.seconds
        components = self.inputs.loss_components
        self._sums = {
            "loss": self.accelerator.gather(self._loss_sum.reshape(1)).tolist(),
            "loss_components": {} if components is None else components.state(self.accelerator.gather),
        }
        if self.args.should_save:
            self.checkpoints.begin()
        self.accelerator.wait_for_everyone()
        if self.args.should_save or self.sharding:
            save_weights(self.model, Path(output_dir), write=self.args.should_save)

    def complete_checkpoint(self) -> None:
        """Move the checkpoint that Trainer has written into its place."""
        step, best = self.state.global_step, self.state.best_global_step
        self.accelerator.wait_for_everyone()
        # Trainer would restore the best weights by this path, inexactly for prompt methods, and record it.
        self.state.best_model_checkpoint = None
        if self.args.should_save:
            folder = self.checkpoints.staging / self.checkpoints.at(step).name
            self.state.save_to_json(str(folder / STATE))
            progress = {
                **self._sums,
                "logged": self._logged_step,
                "seconds": self.clock.seconds,
                "other_seconds": self.clock.other_seconds,
                "finished": self.control.should_training_stop,
            }
            write_json(folder / PROGRESS, progress)
            self.history.sync()
            self.checkpoints.commit(step, best)
            # A damaged one of the same step has just been replaced.
            broken = [name for name in self.broken if name != self.checkpoints.at(step).name]
            self.checkpoints.rotate(best, broken, newest=step)
            self.broken = ()
        self.accelerator.wait_for_everyone()
        self.saved_step = step
        self.clock.other_seconds += self.clock.seconds - self._saving_since
        self._saving_since = -1.0

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(self.model, Path(resume_from_checkpoint))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # With FSDP, Trainer would write all weights a second time, as a pickle.
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        plugin = self.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, self.accelerator, self.optimizer, self.model, output_dir)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)


def _without_labels(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**batch, "labels": torch.full_like(batch["labels"], IGNORED)} if "labels" in batch else batch


def _take(value: Any, rows: np.ndarray) -> Any:
    """The rows of an array, or of every array in a nested structure."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _take(part, rows) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_take(part, rows) for part in value)
    return value[rows]
