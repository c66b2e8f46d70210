"""``--dry-run``: everything a run does before training, one batch forward and backward, and what the rest would cost.

Nothing is trained and nothing stays on disk. Called by ``hftune.cli.train``.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from hftune.config.recipe import Recipe
from hftune.pipeline import Job, assemble
from hftune.runs.directory import RunDir
from hftune.training.progress import Listener, Silent

TIMED_STEPS = 3


@dataclass(frozen=True)
class Estimate:
    """What the recipe resolves to and what it would cost on this machine."""

    task: str
    data: str
    rows: dict[str, int]
    model: str
    method: str
    device: str
    trainable_parameters: int
    total_parameters: int
    updates: int
    loss_of_first_batch: float
    seconds_per_update: float
    estimated_minutes: float
    estimated_memory_gb: float

    def as_dict(self) -> dict[str, Any]:
        """For the terminal and --json."""
        return asdict(self)


def dry_run(recipe: Recipe, listener: Listener | None = None) -> Estimate:
    """Try a recipe out without training it.

    Raises:
        HftuneError: Whatever a real run would have raised before training.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = assemble(recipe, RunDir(Path(folder)), listener or Silent())
        trainer = job.trainer
        loader = trainer.get_train_dataloader()
        per_epoch = max(1, len(loader) // recipe.train.accumulation)
        updates = recipe.train.max_steps or max(1, round(per_epoch * (recipe.train.epochs or 1)))
        loss, seconds = _time_batches(job, loader)
    per_update = seconds * recipe.train.accumulation
    return Estimate(
        task=recipe.task.kind,
        data=job.facts.source,
        rows=dict(job.facts.rows),
        model=recipe.model.name,
        method=recipe.method.kind,
        device=str(trainer.args.device),
        trainable_parameters=job.applied.parameters.trainable,
        total_parameters=job.applied.parameters.total,
        updates=updates,
        loss_of_first_batch=round(loss, 4),
        seconds_per_update=round(per_update, 4),
        estimated_minutes=round(updates * per_update / 60, 2),
        estimated_memory_gb=round(_memory_gb(job), 2),
    )


def _time_batches(job: Job, loader: Any) -> tuple[float, float]:
    """Loss of the first batch, and seconds of the quickest of a few: the first one pays for warming up."""
    model, losses, seconds = job.trainer.model, [], []
    model.train()
    for number, batch in enumerate(loader):
        if number == TIMED_STEPS:
            break
        began = time.perf_counter()
        loss = job.trainer.compute_loss(model, job.trainer._prepare_inputs(batch))
        loss.backward()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - began)
    model.zero_grad()
    return losses[0], min(seconds)


def _memory_gb(job: Job) -> float:
    """Peak so far, plus two optimiser moments for every weight that moves."""
    moments = 8 * job.applied.parameters.trainable
    if job.trainer.args.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated() + moments) / 2**30
    return float(psutil.Process().memory_info().rss + moments) / 2**30
