"""Looks at every update before the weights move: is the loss a number, has somebody asked to stop.

One look an update costs one wait for the device, in place of the two waits a forward pass of Trainer's own filter, and
on several processes one small message, so that all stop together. Used by ``hftune.training.trainer``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerState

from hftune.errors import RunFailed
from hftune.training.checkpoints import newest_complete
from hftune.training.sampler import RankBatches
from hftune.training.stopping import StopRequest

SHOWN_ROWS = 64


class Watch:
    """Losses of the update that is under way, and what was agreed at its end."""

    def __init__(self, batches: RankBatches) -> None:
        """batches: they tell which rows a forward pass held."""
        self.batches = batches
        self.losses: list[Tensor] = []
        self._agreed_stop = 0

    def stop_number(self, stop: StopRequest) -> int:
        """The signal on which all processes stop after this update; 0 for none."""
        return stop.signal_number if self.batches.world_size == 1 else self._agreed_stop

    def check(self, norm: Any, state: TrainerState, stop: StopRequest, checkpoints: Path) -> None:
        """Raise RunFailed when a loss or the gradient norm of this update is not finite; else begin the next.

        Args:
            norm: Norm of the gradient of the update; None where it may be infinite.
            state: Trainer's state before the update.
            stop: The requests to stop that this process has got.
            checkpoints: Where the run's checkpoints lie.
        """
        losses, self.losses = torch.stack(self.losses), []
        norms = losses.new_zeros(1) if norm is None else torch.as_tensor(norm).to(losses).reshape(1)
        finite = torch.isfinite(torch.cat([losses, norms]))
        if self.batches.world_size == 1:
            bad = not bool(finite.all())
        else:
            flags = torch.stack([1.0 - finite.all().float(), losses.new_tensor(float(stop.signal_number))])
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            bad, self._agreed_stop = bool(flags[0]), int(flags[1])
        if bad:
            self._fail(losses, float(norms), state, checkpoints)

    def _fail(self, losses: Tensor, norm: float, state: TrainerState, checkpoints: Path) -> None:
        epoch, update = divmod(state.global_step, self.batches.updates)
        first = update * self.batches.accumulation
        hurt = [i for i, loss in enumerate(losses.tolist()) if not torch.isfinite(torch.tensor(loss))]
        found = [(i, float(losses[i]), self.batches.batch(epoch, first + i)) for i in hurt]
        if self.batches.world_size > 1:
            found = gather_object(found)
        if found:
            what = f"the loss became {found[0][1]}"
            rows = sorted({row for _, _, batch in found for row in batch})
        else:
            what = f"the gradient became {norm}"
            rows = sorted(row for i in range(len(losses)) for row in self.batches.batch(epoch, first + i))
        shown = ", ".join(map(str, rows[:SHOWN_ROWS])) + (" …" if len(rows) > SHOWN_ROWS else "")
        left, _ = newest_complete(checkpoints)
        kept = f"the last good checkpoint is {left.name}" if left else "no checkpoint had been saved yet"
        raise RunFailed(
            f"{what} at update {state.global_step + 1:,} (epoch {epoch + 1}), on the training rows {shown}; {kept}",
            hint="lower train.learning_rate, raise train.warmup_steps, or look at those rows (counted from 0)",
        )
