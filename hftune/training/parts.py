"""The parts of a loss that is a sum, so that history tells them apart. A task's loss adds, the trainer logs.

``PartsTrainer`` is a layer over Trainer; ``hftune.training.trainer`` is the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hftune.training.companion import Companion
from hftune.training.roworder import RowOrderTrainer


class LossParts:
    """Sums of each part since the last line of history, and over how many updates they go."""

    def __init__(self) -> None:
        """Empty."""
        self._sums: dict[str, Tensor] = {}
        self._in_update: set[str] = set()

    def begin_update(self) -> None:
        """What is added from here on belongs to another update."""
        self._in_update.clear()

    def add(self, name: str, share: Tensor) -> None:
        """Add one forward pass's share of the update's mean."""
        value = torch.stack([share.detach().float(), share.new_tensor(float(name not in self._in_update))])
        self._in_update.add(name)
        self._sums[name] = value if name not in self._sums else self._sums[name] + value

    def take(self, gather: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The mean of each part over the updates that had it, all processes together; begins anew."""
        means = {}
        for name, value in self._sums.items():
            every = gather(value.reshape(1, 2))  # (processes, 2)
            means[name] = float(every[:, 0].sum() / every[:, 1].mean())
        self._sums.clear()
        return means

    def state(self, gather: Callable[[Tensor], Tensor]) -> dict[str, list[list[float]]]:
        """What a checkpoint keeps: the sums of every process."""
        return {name: gather(value.reshape(1, 2)).tolist() for name, value in self._sums.items()}

    def restore(self, state: Mapping[str, list[list[float]]], process: int, device: torch.device) -> None:
        """Take up the sums of a checkpoint."""
        self._sums = {name: torch.tensor(values[process], device=device) for name, values in state.items()}


class PartsTrainer(RowOrderTrainer):
    """Trainer that logs the parts of the loss beside the loss, and tells companion rows what the whole update knows."""

    def __init__(self, *, parts: LossParts | None, companion: Companion | None, **kwargs: Any) -> None:
        """parts, companion: None where the task has none; the rest is the next layer's."""
        self.parts = parts
        self.companion = companion
        super().__init__(**kwargs)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """The passes of one update."""
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.parts is not None:
            self.parts.begin_update()
        if self.companion is not None:
            done = self.state.global_step / max(1, self.state.max_steps - 1)
            self.companion.complete(samples, self.accelerator.gather, done)
        return samples, items

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts to what is logged of training."""
        if self.parts is not None and "loss" in logs:
            logs = {**logs, **self.parts.take(self.accelerator.gather)}
        super().log(logs, start_time)

    def parts_state(self) -> dict[str, list[list[float]]]:
        """What a checkpoint keeps of the parts; asked for by all processes."""
        return {} if self.parts is None else self.parts.state(self.accelerator.gather)

    def restore_parts(self, state: Mapping[str, list[list[float]]]) -> None:
        """Take up what a checkpoint keeps."""
        if self.parts is not None:
            self.parts.restore(state, self.args.process_index, self.args.device)
