"""Memory: out-of-memory errors, peak memory, available memory, and the largest batch size that fits.

``train.auto_find_batch_size`` finds the largest batch that fits into memory before training. A micro-batch of
``train.per_device_train_batch_size`` examples is divided into two, four … equal ones, and
``train.gradient_accumulation_steps`` grows by the same factor. The order of examples depends on the effective batch
size alone, so each step has the examples that it would have had. What was found is kept with each checkpoint, and a
resumed run takes it from there.

Trainer's own ``auto_find_batch_size`` (``accelerate.utils.find_executable_batch_size``) lowers the batch in the middle
of training, which changes the examples of each step, and only after an error. A CPU raises none: the system kills the
process, so its need has to be measured beforehand.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from accelerate.utils import send_to_device
from accelerate.utils.memory import clear_device_cache
from torch import nn

from hftune.errors import HftuneError, RunFailed
from hftune.portability import memory_limits, peak_resident_bytes
from hftune.training.checkpoints import listed, read_manifest
from hftune.training.inputs import AuxiliaryKey, longest_first
from hftune.training.launch import agreed, local_world_size, smallest
from hftune.training.settings import TrainSection

if TYPE_CHECKING:
    from hftune.training.trainer import HftuneTrainer

logger = logging.getLogger(__name__)

LOWER_EVALUATION = (
    "start a new run with a lower train.per_device_eval_batch_size, which gives the same scores, or with "
    "--auto-find-batch-size; with thousands of labels, also use fewer validation examples: scores need examples × "
    "labels"
)
PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
CGROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Folder of a hierarchy (version 2 has one for all) → limit, usage, and the part of the usage that is cached files."""
_EARLIER = [0]
"""The peak before the last work that was measured separately."""
USABLE = 0.85
"""Fraction of the available memory of a machine that is used: other processes need some."""
SLACK = 0.04
"""Fraction of a GPU that is left free: fragmented memory can't be used."""
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")
"""The settings that ``train.auto_find_batch_size`` changes; each checkpoint has them."""


@contextmanager
def out_of_memory(where: str, hint: str) -> Iterator[None]:
    """Turn out-of-memory errors into one that names the activity and the setting to lower."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        # torch has a class of its own for a full GPU only. Its CPU allocator raises a plain RuntimeError, and a fork or
        # a memory map that fails raises OSError.
        if not ran_out(error):
            raise
        first = (str(error) or repr(error)).splitlines()[0]
        raise RunFailed(f"out of memory {where}: {first}", hint=hint) from error


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out; some libraries leave only the message to tell."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)


# ---- the peak ----


def forget_peak() -> None:
    """Reset the peak, so that it is not that of an earlier run of the same process."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    _EARLIER[0] = 0
    _forget_own_peak()


def _forget_own_peak() -> None:
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)  # returns freed memory to the system, which counts it as held otherwise
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # sets the peak to what is held now
        except (OSError, AttributeError) as error:  # a locked-down machine, or a C library without malloc_trim
            logger.debug("peak memory is that of the whole process: %s", error)


def peak_memory() -> int:
    """Peak memory in bytes since ``forget_peak``: on the GPU if there is one, else by this process.

    Where the system can't forget a peak (macOS, Windows), it is the peak since the process started.
    """
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return max(_EARLIER[0], _own_peak())


def measured(work: Callable[[], None]) -> int:
    """Bytes that a function takes at its peak, in addition to what this process held before."""
    _EARLIER[0] = max(_EARLIER[0], _own_peak())
    _forget_own_peak()
    before = int(psutil.Process().memory_info().rss)
    work()
    return max(0, _own_peak() - before)


def _own_peak() -> int:
    status = PROCESS / "status"  # on Linux only
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return peak_resident_bytes()


# ---- what is available ----


def available_memory() -> int:
    """Bytes that this process can allocate within the limits of the machine, its container and ``ulimit``.

    On a CPU, allocations succeed beyond the available memory, and the system then kills the process, so the need has to
    be known beforehand. Containers and batch systems set limits that the figures of the machine do not show.
    """
    return max(0, min([int(psutil.virtual_memory().available), *_within_limits(), *_within_groups()]))


def _within_limits() -> Iterator[int]:
    """What ``ulimit`` leaves: -v counts all addresses, -d what can be written to."""
    held = psutil.Process().memory_info()._asdict()
    used = {"address_space": held["vms"], "data": held.get("data", held["rss"])}
    for name, limit in memory_limits().items():
        yield limit - used[name]


def _within_groups() -> Iterator[int]:
    """What the control groups of this process leave, its own and those above it (Docker, Kubernetes, Slurm)."""
    membership = PROCESS / "cgroup"
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        name = "memory" if "memory" in controllers.split(",") else controllers
        if name not in CGROUP_FILES:
            continue
        root = CGROUPS / name
        own = root / path.lstrip("/")
        # In a container the path may be that of the host, while the container's own group is mounted as the root.
        for folder in (own, *own.parents):
            if root in (folder, *folder.parents):
                yield from _within_group(folder, *CGROUP_FILES[name])


def _within_group(folder: Path, limit: str, usage: str, cached: str) -> Iterator[int]:
    try:
        most, used, stat = ((folder / name).read_text(encoding="utf-8") for name in (limit, usage, "memory.stat"))
        counts = dict(line.split() for line in stat.splitlines())
        if most.strip().isdigit():
            # Files that were read stay in memory while there is space, and go as soon as there is not.
            yield int(most) - int(used) + int(counts.get(cached, 0))
    except (OSError, ValueError):
        return  # the root has no limit, and not every system shows every group


# ---- the batch size that fits ----


def sizes_that_fit(trainer: HftuneTrainer, section: TrainSection) -> tuple[dict[str, int], str]:
    """The values of ``SIZES`` to train with, the same in all processes, and a line for the user."""
    if trainer.sharding:
        raise HftuneError(
            "train.auto_find_batch_size can't find out what fits if the weights are sharded (FSDP, DeepSpeed)",
            hint="leave it out, and lower train.per_device_train_batch_size yourself",
        )
    if found := agreed(_recorded(trainer.checkpoints.directory)):
        return found, f"auto_find_batch_size: {found['per_device_train_batch_size']}, as the run began"
    probe = MemoryProbe(trainer)
    try:
        with probe.prepared():
            found = _find(probe, section)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise _nothing_fits(probe, "what training keeps in addition to the weights") from error
    before = {name: getattr(section, name) for name in SIZES}
    changes = [f"{name} {before[name]} → {found[name]}" for name in SIZES if found[name] != before[name]]
    if not changes:
        return found, f"auto_find_batch_size: {found['per_device_train_batch_size']} fits"
    return found, f"auto_find_batch_size: {', '.join(changes)}; the effective batch size stays the same"


def _recorded(checkpoints: Path) -> dict[str, int] | None:
    """The sizes that a run began with; None if it has saved nothing yet."""
    for path in listed(checkpoints):
        with suppress(ValueError, OSError):  # damaged: skipped by resume too, with a warning
            settings = read_manifest(path)["settings"]
            if settings.keys() >= set(SIZES):
                return {name: settings[name] for name in SIZES}
    return None


def _find(probe: MemoryProbe, section: TrainSection) -> dict[str, int]:
    # A GPU refuses what does not fit. On a CPU the system would kill the process that takes too much, so what it needs
    # is measured against what is available before anything is tried; the processes of a launch share it.
    on_cpu = probe.device.type == "cpu"
    limit = int(USABLE * available_memory() / local_world_size()) - probe.reserve if on_cpu else 0

    def largest(sizes: Sequence[int], attempt: Callable[[int], None]) -> int:
        """The largest size that fits in every process."""
        if not on_cpu:
            return smallest(first_that_fits(sizes, attempt))
        attempt(1)  # what libraries allocate once does not grow with the examples
        return smallest(largest_within(sizes, lambda size: measured(lambda: attempt(size)), limit))

    full, auxiliary = section.per_device_train_batch_size, probe.auxiliary
    sizes = [full // split for split in divisions(full, auxiliary)]
    fits = largest(sizes, lambda size: probe.train(size, -(-size * auxiliary // full)))
    if not fits:
        more = f" with {auxiliary} auxiliary ones, which have no smaller common divisor" if auxiliary else ""
        raise _nothing_fits(probe, f"a batch of size {sizes[-1]}{more if sizes[-1] > 1 else ''}")
    most = section.per_device_eval_batch_size
    evaluated = largest([most // 2**power for power in range(most.bit_length())], probe.evaluate)
    if not evaluated:
        raise _nothing_fits(probe, "an evaluation of one example")
    accumulation = section.gradient_accumulation_steps * (full // fits)
    return dict(zip(SIZES, (fits, accumulation, evaluated), strict=True))


def divisions(batch_size: int, auxiliary: int = 0) -> list[int]:
    """Into how many equal parts a micro-batch can be divided: 1 first, then each at least twice the one before.

    Its auxiliary examples, if there are any, are divided too: each part has the mixture of the whole.
    """
    whole, found = math.gcd(batch_size, auxiliary), [1]
    for count in range(2, whole + 1):
        if whole % count == 0 and count >= 2 * found[-1]:
            found.append(count)
    return found


def first_that_fits(sizes: Sequence[int], attempt: Callable[[int], None]) -> int:
    """The first size, from large to small, at which a device does not run out of memory; 0 if all fail."""
    for size in sizes:
        # Not accelerate's find_executable_batch_size: it lets a MemoryError through, and takes a call that cuDNN does
        # not support for a lack of memory.
        try:
            attempt(size)
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
        else:
            return size
    return 0


def largest_within(sizes: Iterable[int], use: Callable[[int], int], limit: int) -> int:
    """The largest size that needs no more than ``limit`` bytes; 0 if the smallest needs more.

    From small to large, one example first: a size is tried only if those before it show that it will fit. Memory grows
    linearly with the examples.
    """
    fits, before, last = 0, (0, 0), (0, 0)  # the last two: (examples, bytes)
    for size in sorted({1, *sizes}):
        slope = (last[1] - before[1]) / max(1, last[0] - before[0])  # bytes per example
        if last[1] + slope * (size - last[0]) > limit:
            break
        before, last = last, (size, use(size))
        if last[1] > limit:
            break
        fits = size if size in sizes else fits
    return fits


def _nothing_fits(probe: MemoryProbe, what: str) -> RunFailed:
    return RunFailed(
        f"out of memory: not even {what} fits (the longest example has {probe.longest} tokens)",
        hint="lower data.max_seq_length, set train.gradient_checkpointing=true, or take a smaller model",
    )


class MemoryProbe:
    """Runs the longest examples through a model as training and evaluation would, and restores its state."""

    def __init__(self, trainer: HftuneTrainer) -> None:
        self.trainer, self.inputs = trainer, trainer.inputs
        self.device: torch.device = trainer.args.device
        self.model: nn.Module = trainer.model
        inputs = self.inputs
        lengths = inputs.train_lengths if inputs.epoch_lengths is None else inputs.epoch_lengths(0)
        self._train = longest_first(lengths).tolist()
        self._validation = longest_first(inputs.validation_lengths).tolist()
        self._auxiliary = [] if inputs.auxiliary is None else longest_first(inputs.auxiliary.lengths).tolist()

    @property
    def longest(self) -> int:
        """Tokens of the longest training example."""
        return max(self.inputs.train_lengths)

    @property
    def auxiliary(self) -> int:
        """Auxiliary examples per micro-batch; 0 if the task has none."""
        return 0 if self.inputs.auxiliary is None else self.inputs.auxiliary.batch_size

    @property
    def reserve(self) -> int:
        """Bytes that training needs in addition to weights, gradients and activations.

        AdamW keeps two numbers per weight, a checkpoint copies the weights on a CPU, several processes exchange
        gradients through a copy.
        """
        trained: int = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)
        return trained * (2 + (self.device.type == "cpu") + int(self.trainer.args.world_size > 1))

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Allocate what training allocates: gradients, and on a device the optimizer's reserve. The model is restored.

        The random state is not restored: training is seeded when it begins.
        """
        buffers = [(value, value.clone()) for value in self.model.buffers()]  # a forward may count in them
        was_training = self.model.training
        args = self.trainer.args
        if args.gradient_checkpointing:  # as Trainer does when training begins
            settings = dict(args.gradient_checkpointing_kwargs or {})
            chosen = {name: settings.pop(name) for name in ("every_n_layers", "offload") if name in settings}
            self.trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings or None, **chosen)
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
            if self.inputs.loss_components is not None:
                self.inputs.loss_components.take(lambda value: value)  # its sums are not those of a step
            clear_device_cache()

    def _hold(self) -> torch.Tensor | None:
        """Allocate the reserve, and some slack, on a device that refuses when it is full."""
        if self.device.type == "cpu":
            return None
        slack = int(SLACK * torch.cuda.mem_get_info(self.device)[1]) if self.device.type == "cuda" else 0
        return torch.empty(self.reserve + slack, dtype=torch.uint8, device=self.device)

    def train(self, examples: int, auxiliary: int = 0) -> None:
        """Forward and backward of one micro-batch."""
        clear_device_cache()
        changing = self.inputs.epoch_lengths is not None
        keys: list[Any] = [(0, row) if changing else row for row in self._train[:examples]]
        keys += [AuxiliaryKey(0, row) for row in self._auxiliary[:auxiliary]]
        batch = self._batch(self.trainer.train_dataset, keys)
        if (data := self.inputs.auxiliary) is not None:
            # The beginning or the end of training, whichever takes more memory: a loss of weight 0 is not computed.
            data.complete([batch], lambda value: value, max((0.0, 1.0), key=data.weight))
        self.model.train()
        with self.trainer.accelerator.autocast():
            loss = self.trainer.compute_loss(self.model, batch)
        self.trainer.accelerator.backward(loss)

    def evaluate(self, examples: int) -> None:
        """One batch of an evaluation, with what is kept of its outputs."""
        clear_device_cache()
        batch = self._batch(self.trainer.eval_dataset, self._validation[:examples])
        self.model.eval()
        with self.trainer.accelerator.autocast():
            _, outputs, labels = self.trainer.prediction_step(self.model, batch, prediction_loss_only=False)
        if self.trainer.preprocess_logits_for_metrics is not None:
            self.trainer.preprocess_logits_for_metrics(outputs, labels)

    def _batch(self, dataset: Any, keys: list[Any]) -> dict[str, Any]:
        return dict(
            send_to_device(dict(self.trainer.data_collator([dataset[key] for key in keys])), self.trainer.args.device)
        )
