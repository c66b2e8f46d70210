"""``--dry-run``: everything a run does before training, a few batches, and an estimate of what the rest would cost.

Nothing is trained and nothing stays on disk.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import send_to_device

from hftune.errors import HftuneError
from hftune.pipeline.train import TrainingJob, assemble
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe
from hftune.runs.directory import RunDir, default_path, in_use
from hftune.runs.group import is_replaceable
from hftune.training.launch import world_size
from hftune.training.memory import peak_memory

TIMED_BATCHES = 3


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
    steps: int
    loss_of_first_batch: float
    seconds_per_step: float
    estimated_minutes: float
    estimated_memory_gb: float
    compiling: str = "off"
    """Whether compiling saves time, estimated from a few batches."""
    runs: int = 1
    """Number of seeds; estimated_minutes is for all of them."""

    def as_dict(self) -> dict[str, Any]:
        """For the terminal and --json."""
        return asdict(self)


def dry_run(
    recipe: Recipe, output: Path | None = None, progress: ProgressReporter | None = None, *, overwrite: bool = False
) -> Estimate:
    """Try a recipe without training.

    Args:
        recipe: What to try.
        output: The run directory that training would use.
        progress: Progress callback.
        overwrite: Whether training would move a run in output aside.

    Raises:
        HftuneError: Whatever a real run would have raised before training.
    """
    if world_size() > 1:
        raise HftuneError(
            f"--dry-run tries one process, but a launcher has started {world_size()}",
            hint="leave the launcher out; `hftune doctor --launch` shows what a launch would do",
        )
    if output is not None and in_use(output) and not (overwrite and is_replaceable(output)):
        RunDir.create(output)  # raises the error that a run would
    if recipe.hub.pushes:
        from hftune.hub.publish import check_access

        check_access(recipe.hub, default_path(recipe).name if output is None else output.name)
    with tempfile.TemporaryDirectory() as folder:
        job = assemble(recipe, RunDir(Path(folder)), progress or ProgressReporter(), ahead=False)
        times = _estimated_times(job, recipe)
    return Estimate(
        task=recipe.task.kind,
        data=job.facts.source,
        rows=dict(job.facts.rows),
        model=recipe.model.model_name_or_path,
        method=recipe.method.kind,
        device=str(job.trainer.args.device),
        trainable_parameters=job.applied.parameters.trainable,
        total_parameters=job.applied.parameters.total,
        # The peak so far, plus two optimizer moments for every trained parameter.
        estimated_memory_gb=round((peak_memory() + 8 * job.applied.parameters.trainable) / 2**30, 2),
        **times,
    )


def _estimated_times(job: TrainingJob, recipe: Recipe) -> dict[str, Any]:
    """Time some batches and extrapolate to the whole run; the fields of ``Estimate`` that follow."""
    train, loader = recipe.train, job.trainer.get_train_dataloader()
    per_epoch = max(1, len(loader) // train.gradient_accumulation_steps)
    steps = train.max_steps if train.max_steps > 0 else max(1, round(per_epoch * (train.num_train_epochs or 1)))
    loss, per_token = _time_batches(job, loader)
    tokens, validation_tokens = sum(job.inputs.train_lengths), sum(job.inputs.validation_lengths)
    if job.applied.precomputed is not None:
        # The frozen encoder runs once over all examples; from then on the head is trained alone.
        per_step = _time_head(job, loader) * train.gradient_accumulation_steps
        seconds = per_token * (tokens + validation_tokens) + steps * per_step
    else:
        per_step = per_token * tokens / per_epoch  # batches may differ in size
        every = train.evaluates_every or per_epoch
        evaluations = max(1, round(steps // every if every >= 1 else 1 / every))
        # A forward pass alone takes about a third of the time of one with its backward pass.
        seconds = steps * per_step + evaluations * per_token / 3 * validation_tokens
    compiling = "off"
    if job.trainer.args.torch_compile:
        compiling = _break_even(per_token, *_time_compiled(job, loader), per_step, steps)
    return {
        "steps": steps,
        "loss_of_first_batch": round(loss, 4),
        "seconds_per_step": round(per_step, 4),
        "estimated_minutes": round(seconds / 60, 2),
        "compiling": compiling,
    }


def _time_batches(job: TrainingJob, loader: Any) -> tuple[float, float]:
    """Loss of the first batch, and seconds per token with padding; the first batch, which warms up, is not timed."""
    trainer, losses, seconds, tokens = job.trainer, [], 0.0, 0
    trainer.model.train()
    for number, batch in enumerate(itertools.islice(itertools.cycle(loader), TIMED_BATCHES + 1)):
        if trainer.inputs.auxiliary is not None:
            trainer.inputs.auxiliary.complete([batch], lambda value: value, done=0.0)
        began = time.perf_counter()
        with trainer.compute_loss_context_manager():
            # A copy: the loss removes the labels, and the batch is used again.
            loss = trainer.compute_loss(trainer.model, send_to_device(dict(batch), trainer.args.device))
        loss.backward()
        losses.append(float(loss.detach()))
        if number:  # the first batch allocates memory and picks kernels
            seconds += time.perf_counter() - began
            tokens += batch["input_ids"].numel()
    trainer.model.zero_grad()
    return losses[0], seconds / tokens


def _time_head(job: TrainingJob, loader: Any) -> float:
    """Seconds of one forward and backward pass of a head over precomputed features; the first one warms up."""
    parts, trainer, began = job.applied.precomputed, job.trainer, 0.0
    assert parts is not None, "called for such a method only"
    batch = send_to_device(next(iter(loader)), trainer.args.device)
    features = parts.encode({name: value for name, value in batch.items() if name != "labels"}).unsqueeze(1)
    for number in range(TIMED_BATCHES + 1):
        began = time.perf_counter() if number == 1 else began
        inputs = {"inputs_embeds": features, "labels": batch["labels"]}
        trainer.compute_loss(parts.trained, inputs).backward()
    return (time.perf_counter() - began) / TIMED_BATCHES


def _time_compiled(job: TrainingJob, loader: Any) -> tuple[float, float]:
    """Seconds until the compiled model has seen a few batches, and seconds per token from then on."""
    began = time.perf_counter()
    job.trainer.model.compile()
    _time_batches(job, loader)  # the same batches as below: compiling for their lengths is not counted there
    return time.perf_counter() - began, _time_batches(job, loader)[1]


def _break_even(eager: float, spent: float, compiled: float, per_step: float, steps: int) -> str:
    """The step after which compiling saves time; ``eager`` and ``compiled`` are seconds per token, ``spent`` the
    seconds of compiling itself.
    """
    saved = per_step * (1 - compiled / eager)
    if saved <= 0:
        return f"does not save time: {compiled / eager:.2f} times the time per step, after {spent:.0f} s of compiling"
    needed = math.ceil(spent / saved)
    verdict = "saves time" if needed < steps else "does not save time"
    return (
        f"{verdict}: {spent:.0f} s of compiling, {saved:.3f} s saved per step, break-even after {needed:,} steps; the "
        f"run has {steps:,}"
    )
