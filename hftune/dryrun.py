"""``--dry-run``: everything a run does before training, one batch forward and backward, and what the rest would cost.

Nothing is trained and nothing stays on disk. Called by ``hftune.cli.train``.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hftune import hub
from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.pipeline import Job, assemble
from hftune.runs.directory import RunDir, in_use
from hftune.runs.naming import default_path
from hftune.training.launch import world_size
from hftune.training.memory import peak_memory
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
    compiling: str = "off"
    """Whether it pays, as far as a few batches tell."""

    def as_dict(self) -> dict[str, Any]:
        """For the terminal and --json."""
        return asdict(self)


def dry_run(recipe: Recipe, output: Path | None = None, listener: Listener | None = None) -> Estimate:
    """Try a recipe out without training it.

    Raises:
        HftuneError: Whatever a real run would have raised before training.
    """
    if world_size() > 1:
        raise HftuneError(
            f"--dry-run tries one process out, but a launcher has started {world_size()}",
            hint="leave the launcher out; hftune doctor --launch says what a launch would do",
        )
    if output is not None and in_use(output):
        RunDir.create(output)  # says what is in the way
    if recipe.hub.pushes:
        hub.check_access(recipe.hub, default_path(recipe).name if output is None else output.name)
    with tempfile.TemporaryDirectory() as folder:
        job = assemble(recipe, RunDir(Path(folder)), listener or Silent(), ahead=False)
        trainer, train = job.trainer, recipe.train
        loader = trainer.get_train_dataloader()
        per_epoch = max(1, len(loader) // train.gradient_accumulation_steps)
        updates = train.max_steps if train.max_steps > 0 else max(1, round(per_epoch * (train.num_train_epochs or 1)))
        loss, per_token = _time_batches(job, loader)
        per_pass = _time_head(job, loader) if job.applied.precomputed else None
        compiled = _time_compiled(job, loader) if trainer.args.torch_compile else None
    tokens, dev_tokens = sum(job.inputs.train_lengths), sum(job.inputs.validation_lengths)
    if per_pass is not None:
        # The frozen encoder runs once over all rows; from then on the head trains by itself.
        per_update = per_pass * train.gradient_accumulation_steps
        seconds = per_token * (tokens + dev_tokens) + updates * per_update
    else:
        per_update = per_token * tokens / per_epoch  # rows of a batch may differ in number
        every = train.evaluates_every or per_epoch
        evaluations = max(1, round(updates // every if every >= 1 else 1 / every))
        # A forward pass alone is about a third of one with its backward pass.
        seconds = updates * per_update + evaluations * per_token / 3 * dev_tokens
    return Estimate(
        task=recipe.task.kind,
        data=job.facts.source,
        rows=dict(job.facts.rows),
        model=recipe.model.model_name_or_path,
        method=recipe.method.kind,
        device=str(trainer.args.device),
        trainable_parameters=job.applied.parameters.trainable,
        total_parameters=job.applied.parameters.total,
        updates=updates,
        loss_of_first_batch=round(loss, 4),
        seconds_per_update=round(per_update, 4),
        estimated_minutes=round(seconds / 60, 2),
        estimated_memory_gb=round(_memory_gb(job), 2),
        compiling="off" if compiled is None else _break_even(per_token, *compiled, per_update, updates),
    )


def _time_batches(job: Job, loader: Any) -> tuple[float, float]:
    """Loss of the first batch, and seconds a token with its padding; the first batch, which warms up, is not timed."""
    trainer, losses, seconds, tokens = job.trainer, [], 0.0, 0
    trainer.model.train()
    for number, batch in enumerate(itertools.islice(itertools.cycle(loader), TIMED_STEPS + 1)):
        if trainer.companion is not None:
            trainer.companion.complete([batch], lambda value: value, done=0.0)
        began = time.perf_counter()
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))
        loss.backward()
        losses.append(float(loss.detach()))
        if number:
            seconds += time.perf_counter() - began
            tokens += batch["input_ids"].numel()
    trainer.model.zero_grad()
    return losses[0], seconds / tokens


def _time_head(job: Job, loader: Any) -> float:
    """Seconds of one forward and backward pass of a head over what the frozen encoder said; the first warms up."""
    parts, trainer, began = job.applied.precomputed, job.trainer, 0.0
    assert parts is not None, "asked for such a method only"
    batch = trainer._prepare_inputs(next(iter(loader)))
    features = parts.encode({name: value for name, value in batch.items() if name != "labels"}).unsqueeze(1)
    for number in range(TIMED_STEPS + 1):
        began = time.perf_counter() if number == 1 else began
        inputs = {"inputs_embeds": features, "labels": batch["labels"]}
        trainer.compute_loss(parts.trained, inputs).backward()
    return (time.perf_counter() - began) / TIMED_STEPS


def _time_compiled(job: Job, loader: Any) -> tuple[float, float]:
    """Seconds until the compiled model has seen a few batches, and seconds a token from then on."""
    began = time.perf_counter()
    job.trainer.model.compile()
    _time_batches(job, loader)  # the same batches as below: what is compiled for their lengths is not counted there
    return time.perf_counter() - began, _time_batches(job, loader)[1]


def _break_even(eager: float, spent: float, compiled: float, per_update: float, updates: int) -> str:
    """From which update on compiling has paid for itself.

    Args:
        eager: Seconds a token as it is.
        spent: Seconds that compiling took.
        compiled: Seconds a token when compiled.
        per_update: Seconds of an update as it is.
        updates: Of the whole run.
    """
    saved = per_update * (1 - compiled / eager)
    if saved <= 0:
        return f"does not pay: {compiled / eager:.2f} times the time of an update, after {spent:.0f} s of compiling"
    needed = math.ceil(spent / saved)
    verdict = "pays" if needed < updates else "does not pay"
    gain = f"{spent:.0f} s of compiling, {saved:.3f} s saved an update"
    return f"{verdict}: {gain}, even after {needed:,} updates; the run has {updates:,}"


def _memory_gb(job: Job) -> float:
    """Peak so far, plus two optimizer moments for every weight that moves."""
    return (peak_memory() + 8 * job.applied.parameters.trainable) / 2**30
