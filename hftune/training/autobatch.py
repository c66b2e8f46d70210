"""``train.auto_find_batch_size``: the largest batch that fits, found before training; every update keeps its rows.

A pass of ``train.per_device_train_batch_size`` rows is divided into two, four … equal ones, and
``train.gradient_accumulation_steps`` grows by the same
factor. The order of rows depends on the rows of an update alone, so each update has the rows that it would have had.
``hftune.training.assembly`` asks; what was found is sealed with each checkpoint, and a resumed run takes it from there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hftune.config.train import TrainSection
from hftune.errors import HftuneError, RunFailed
from hftune.training.checkpoints import listed, read_manifest
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import agreed, local_world_size, smallest
from hftune.training.memory import measured, ran_out
from hftune.training.room import free_memory
from hftune.training.trainer import HftuneTrainer
from hftune.training.trial import Trial

SPARE = 0.85
"""Share of the free memory of a machine that is used: others live there too."""


@dataclass(frozen=True)
class Sizes:
    """Rows of a pass in training and evaluation, and passes of an update; named as in the ``train`` section."""

    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    per_device_eval_batch_size: int

    @classmethod
    def of(cls, section: TrainSection) -> Sizes:
        """Those that the recipe states."""
        return cls(**{field.name: getattr(section, field.name) for field in dataclasses.fields(cls)})

    @classmethod
    def recorded(cls, checkpoints: Path) -> Sizes | None:
        """Those that a run began with; None where it has saved nothing yet."""
        for path in listed(checkpoints):
            try:
                settings = read_manifest(path)["settings"]
            except (ValueError, OSError):
                continue  # passed over by resume too, which says so
            names = [field.name for field in dataclasses.fields(cls)]
            if set(names) <= settings.keys():
                return cls(**{name: settings[name] for name in names})
        return None

    def section(self, section: TrainSection) -> TrainSection:
        """The ``train`` section with these sizes."""
        return section.model_copy(update=dataclasses.asdict(self))

    def inputs(self, inputs: TrainingInputs, before: Sizes) -> TrainingInputs:
        """What a task prepared, with the companion rows divided as the labeled ones are."""
        companion, split = inputs.companion, before.per_device_train_batch_size // self.per_device_train_batch_size
        if companion is None or split == 1:
            return inputs
        divided = dataclasses.replace(companion, batch_size=companion.batch_size // split, split=split)
        return dataclasses.replace(inputs, companion=divided)


def sizes_that_fit(trainer: HftuneTrainer, inputs: TrainingInputs, section: TrainSection) -> tuple[Sizes, str]:
    """The sizes to train with, and a line that says so; all processes get the same.

    Args:
        trainer: As the recipe wants it.
        inputs: What it was built from.
        section: The recipe's ``train`` section.

    Raises:
        HftuneError: The launch shards the weights, so that one process alone can't tell what fits.
        RunFailed: Not even the smallest batch fits.
    """
    wanted = Sizes.of(section)
    if trainer.sharding:
        raise HftuneError(
            "train.auto_find_batch_size can't tell what fits where the weights are sharded (FSDP, DeepSpeed)",
            hint="leave it out, and lower train.per_device_train_batch_size by hand",
        )
    if found := agreed(Sizes.recorded(trainer.checkpoints.directory)):
        return found, f"auto batch: {found.per_device_train_batch_size} rows a pass, as the run began"
    trial = Trial(trainer, inputs)
    try:
        with trial.prepared():
            found = _found(trial, wanted)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise _nothing_fits(trial, "what training keeps beside the weights") from error
    return found, _in_words(wanted, found)


def _found(trial: Trial, wanted: Sizes) -> Sizes:
    beside = trial.beside
    rows = [
        wanted.per_device_train_batch_size // split for split in divisions(wanted.per_device_train_batch_size, beside)
    ]
    search = _on_cpu(trial) if trial.device.type == "cpu" else first_that_fits
    fits = smallest(
        search(rows, lambda size: trial.train(size, -(-size * beside // wanted.per_device_train_batch_size)))
    )
    if not fits:
        more = f" beside {beside} unlabeled ones, which have no smaller common part" if beside and rows[-1] > 1 else ""
        raise _nothing_fits(trial, f"a pass of {rows[-1]} row{'s' * (rows[-1] > 1)}{more}")
    most = wanted.per_device_eval_batch_size
    evaluated = smallest(search([most // 2**power for power in range(most.bit_length())], trial.evaluate))
    if not evaluated:
        raise _nothing_fits(trial, "an evaluation of one row")
    return Sizes(fits, wanted.gradient_accumulation_steps * (wanted.per_device_train_batch_size // fits), evaluated)


def divisions(batch_size: int, beside: int = 0) -> list[int]:
    """Into how many equal passes one can be divided: 1 first, then each at least twice the one before.

    Args:
        batch_size: Rows of the pass.
        beside: Companion rows in it, which are divided too; 0 where there are none.
    """
    whole, found = math.gcd(batch_size, beside), [1]
    for count in range(2, whole + 1):
        if whole % count == 0 and count >= 2 * found[-1]:
            found.append(count)
    return found


def first_that_fits(sizes: Sequence[int], attempt: Callable[[int], None]) -> int:
    """The first size, from large to small, at which a device does not run out of memory; 0 where all fail."""
    for size in sizes:
        try:
            attempt(size)
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
        else:
            return size
    return 0


def largest_within(sizes: Iterable[int], use: Callable[[int], int], room: int) -> int:
    """The largest size that needs no more than the room there is; 0 where the smallest needs more.

    From small to large, one row first: a size is tried only when those before it tell that it will fit. Memory grows in
    a line with the rows.
    """
    fits, before, last = 0, (0, 0), (0, 0)
    for size in sorted({1, *sizes}):
        slope = (last[1] - before[1]) / max(1, last[0] - before[0])
        if last[1] + slope * (size - last[0]) > room:
            break
        before, last = last, (size, use(size))
        if last[1] > room:
            break
        fits = size if size in sizes else fits
    return fits


def _on_cpu(trial: Trial) -> Callable[[Sequence[int], Callable[[int], None]], int]:
    """A search that asks how much memory is free instead of trying until the system ends the process."""
    room = int(SPARE * free_memory() / local_world_size()) - trial.reserve

    def search(sizes: Sequence[int], attempt: Callable[[int], None]) -> int:
        attempt(1)  # what libraries set aside once does not go with the rows
        return largest_within(sizes, lambda size: measured(lambda: attempt(size)), room)

    return search


def _nothing_fits(trial: Trial, what: str) -> RunFailed:
    return RunFailed(
        f"out of memory: not even {what} fits (the longest row has {trial.longest} tokens)",
        hint="lower data.max_seq_length, set train.gradient_checkpointing=true, or take a smaller model",
    )


def _in_words(wanted: Sizes, found: Sizes) -> str:
    if found == wanted:
        return f"auto batch: {found.per_device_train_batch_size} rows a pass fit"
    parts = []
    if found.per_device_train_batch_size != wanted.per_device_train_batch_size:
        parts.append(
            f"{wanted.per_device_train_batch_size} rows a pass do not fit, {found.per_device_train_batch_size} do; "
            f"train.gradient_accumulation_steps is {found.gradient_accumulation_steps} in place of "
            f"{wanted.gradient_accumulation_steps}, so that every update has the same rows"
        )
    if found.per_device_eval_batch_size != wanted.per_device_eval_batch_size:
        parts.append(
            f"evaluations take {found.per_device_eval_batch_size} rows in place of {wanted.per_device_eval_batch_size}"
        )
    return f"auto batch: {'; '.join(parts)}"
