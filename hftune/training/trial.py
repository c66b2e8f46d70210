"""Runs the longest rows through a model as training and evaluation would, to see whether they fit; leaves no trace.

Used by ``hftune.training.autobatch``, before training begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from torch import nn

from hftune.training.companion import Beside
from hftune.training.inputs import TrainingInputs
from hftune.training.sampler import longest_first
from hftune.training.trainer import HftuneTrainer

SLACK = 0.04
"""Share of a GPU that is left free: what is in pieces can't be used."""


class Trial:
    """The longest batches of one trainer."""

    def __init__(self, trainer: HftuneTrainer, inputs: TrainingInputs) -> None:
        """inputs: what the trainer was built from."""
        self.trainer = trainer
        self.inputs = inputs
        self.device: torch.device = trainer.args.device
        self.model: nn.Module = trainer.model
        lengths = inputs.train_lengths if inputs.epoch_lengths is None else inputs.epoch_lengths(0)
        self._train = longest_first(lengths).tolist()
        self._dev = longest_first(inputs.validation_lengths).tolist()
        self._beside = [] if inputs.companion is None else longest_first(inputs.companion.lengths).tolist()
        self._collate = trainer._get_collator_with_removed_columns(trainer.data_collator, description="training")

    @property
    def longest(self) -> int:
        """Tokens of the longest training row."""
        return max(self.inputs.train_lengths)

    @property
    def beside(self) -> int:
        """Companion rows in a pass; 0 where the task has none."""
        return 0 if self.inputs.companion is None else self.inputs.companion.batch_size

    @property
    def reserve(self) -> int:
        """Bytes that training needs beside weights, gradients and activations.

        AdamW keeps two numbers a weight, a save copies the weights on a CPU, several processes exchange gradients
        through a copy.
        """
        moving: int = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)
        copies = 2 + (self.device.type == "cpu") + int(self.trainer.args.world_size > 1)
        return moving * copies

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Hold what training holds: gradients, on a device the reserve too. The model comes out as it went in.

        Random draws are not given back: training is seeded when it begins.
        """
        buffers = [(value, value.clone()) for value in self.model.buffers()]
        was_training = self.model.training
        self._compute_activations_twice_if_asked()
        try:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            held = self._hold()
            yield
            del held
        finally:
            self.model.zero_grad(set_to_none=True)
            self.model.train(was_training)
            with torch.no_grad():
                for value, before in buffers:
                    value.copy_(before)
            if self.trainer.parts is not None:
                self.trainer.parts.take(lambda value: value)  # its sums are not those of an update
            clear_device_cache()

    def train(self, rows: int, beside: int = 0) -> None:
        """Forward and backward of one pass with so many rows, and companion rows beside them."""
        clear_device_cache()
        changing = self.inputs.epoch_lengths is not None
        keys: list[Any] = [(0, row) if changing else row for row in self._train[:rows]]
        keys += [Beside(0, row) for row in self._beside[:beside]]
        batch = self._batch(self.trainer.train_dataset, keys)
        if (companion := self.inputs.companion) is not None:
            companion.complete([batch], lambda value: value, max((0.0, 1.0), key=companion.weight))
        self.model.train()
        with self.trainer.accelerator.autocast():
            loss = self.trainer.compute_loss(self.model, batch)
        self.trainer.accelerator.backward(loss)

    def evaluate(self, rows: int) -> None:
        """One pass of an evaluation, with what is kept of its outputs."""
        clear_device_cache()
        batch = self._batch(self.trainer.eval_dataset, self._dev[:rows])
        self.model.eval()
        with self.trainer.accelerator.autocast():
            _, outputs, labels = self.trainer.prediction_step(self.model, batch, prediction_loss_only=False)
        if self.trainer.preprocess_logits_for_metrics is not None:
            self.trainer.preprocess_logits_for_metrics(outputs, labels)

    def _batch(self, dataset: Any, keys: list[Any]) -> dict[str, Any]:
        return dict(self.trainer._prepare_inputs(dict(self._collate([dataset[key] for key in keys]))))

    def _hold(self) -> torch.Tensor | None:
        """Take up the reserve, and some slack, on a device that says no when it is full."""
        if self.device.type == "cpu":
            return None
        slack = int(SLACK * torch.cuda.mem_get_info(self.device)[1]) if self.device.type == "cuda" else 0
        return torch.empty(self.reserve + slack, dtype=torch.uint8, device=self.device)

    def _compute_activations_twice_if_asked(self) -> None:
        """What Trainer does when training begins."""
        args = self.trainer.args
        if args.gradient_checkpointing:
            settings = dict(args.gradient_checkpointing_kwargs or {})
            chosen = {name: settings.pop(name) for name in ("every_n_layers", "offload") if name in settings}
            self.trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings or None, **chosen)
