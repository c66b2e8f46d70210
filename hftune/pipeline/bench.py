"""Speed of the same training steps on every device of this machine: of a minGPT, or of a classifier and its data.

On the CPU with 1, 2, 4, … threads up to the number of cores; on a GPU if there is one; in fp32 and, if a trial shows
that it is faster, in bf16; eager and compiled. Weights, tokens and steps are the same each time.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from hftune.errors import HftuneError
from hftune.files import write_json
from hftune.machine import cpu_trial, find_compiler
from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.portability import cpu_model, cpu_seconds
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe
from hftune.runs.environment import versions
from hftune.runs.figures import BLUE, MUTED, new_figure, save, style
from hftune.tasks import task_class
from hftune.training.fit import matmul_peak
from hftune.training.launch import threads_for
from hftune.training.memory import forget_peak, peak_memory

BATCH_SIZE = 16
WARM_UP_STEPS = 2  # the first of them compiles
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PACKAGES = ("torch", "transformers", "peft", "accelerate", "tokenizers")
COLUMNS = ("device", "dtype", "compiled", "steps/s", "tokens/s", "of the peak", "memory", "first step")


@dataclass(frozen=True)
class DeviceSetup:
    """One way to run the steps."""

    device: str
    threads: int | None
    """None on a GPU."""
    precision: str
    compiled: bool

    @property
    def place(self) -> str:
        """The device with its number of threads."""
        return self.device if self.threads is None else f"cpu, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def __str__(self) -> str:
        return f"{self.place}, {self.precision}{', compiled' if self.compiled else ''}"


@dataclass(frozen=True)
class DeviceSpeed:
    """What was measured with one setup, or why it failed."""

    setup: DeviceSetup
    steps_per_second: float = 0.0
    tokens_per_second: float = 0.0
    cpu_seconds_per_step: float = 0.0
    """CPU time of all threads; compared with the wall time it shows how busy the machine was with other work."""
    share_of_peak: float = 0.0
    """Model FLOPs per second as a share of the fastest matrix product with the same device, threads and dtype."""
    peak_memory_mb: float = 0.0
    first_step_seconds: float = 0.0
    """Includes compilation."""
    loss: float = 0.0
    """Of the last step; equal for all setups except for rounding."""
    failed: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For --json and devices.json."""
        return asdict(self.setup) | {name: value for name, value in asdict(self).items() if name != "setup"}

    def cells(self) -> list[str]:
        """One line of the table, in the order of COLUMNS."""
        first = [self.setup.place, self.setup.precision, "yes" if self.setup.compiled else "no"]
        if self.failed:
            return [*first, self.failed, "", "", "", ""]
        return [
            *first,
            f"{self.steps_per_second:.2f}",
            f"{self.tokens_per_second:,.0f}",
            f"{self.share_of_peak:.2f}",
            f"{self.peak_memory_mb:,.0f} MB",
            f"{self.first_step_seconds:.1f} s",
        ]


def describe_machine() -> dict[str, Any]:
    """Processor, threads, versions and the load before anything is measured."""
    installed = versions()
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(psutil.getloadavg()[0], 1),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
    }


@dataclass(frozen=True)
class Workload:
    """What every setup trains: the same weights and the same batches, so that a wrong setup shows in its loss."""

    name: str
    make: Callable[[], PreTrainedModel]
    """Always the same weights, on the CPU."""
    batches: Callable[[], Iterator[Mapping[str, Tensor]]]
    """Always the same batches; they never end."""
    flops: Callable[[PreTrainedModel, Mapping[str, Tensor]], float]
    """FLOPs of the training step of a batch."""


def random_tokens(config: MinGPTConfig | None = None, batch_size: int = BATCH_SIZE) -> Workload:
    """A minGPT on random tokens."""
    config = config or MinGPTConfig()

    def make() -> PreTrainedModel:
        torch.manual_seed(0)
        return MinGPTForCausalLM(config)

    def batches() -> Iterator[Mapping[str, Tensor]]:
        generator = torch.Generator().manual_seed(1)
        while True:
            ids = torch.randint(config.vocab_size, (batch_size, config.block_size), generator=generator)  # (B, T)
            yield {"input_ids": ids, "labels": ids}

    def flops(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> float:
        return batch["input_ids"].numel() * flops_per_token(model, config.block_size)

    return Workload(f"minGPT, random tokens, batch size {batch_size}", make, batches, flops)


def classifier(recipe: Recipe, progress: ProgressReporter | None = None) -> Workload:
    """The classifier of a recipe on its training examples, in their order."""
    progress = progress or ProgressReporter()
    set_seed(recipe.train.seed)
    task = task_class(recipe.task.kind)(recipe)
    task.check_request()
    data = task.load_data()
    rows = task.describe(data).rows["train"]
    tokenizer = task.load_tokenizer(data)
    inputs = task.prepare(data, tokenizer)
    for note in inputs.notes:
        progress.note(note)
    model = task.build_model(data, tokenizer).model
    takes = inspect.signature(model.forward).parameters
    size = min(recipe.train.per_device_train_batch_size, rows)

    def batches() -> Iterator[Mapping[str, Tensor]]:
        order = itertools.cycle(range(rows))
        while True:
            batch = inputs.collator([inputs.train[next(order)] for _ in range(size)])
            yield {name: value for name, value in batch.items() if name in takes}

    def flops(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> float:
        return (
            6.0 * batch["input_ids"].numel() * int(model.num_parameters(exclude_embeddings=True))
        )  # as Trainer counts

    name = f"{recipe.model.model_name_or_path}, {rows:,} examples of {recipe.data.dataset_name}, batch size {size}"
    return Workload(name, lambda: copy.deepcopy(model), batches, flops)


def flops_per_token(model: PreTrainedModel, length: float) -> float:
    """FLOPs of one training step of a causal model: six per weight, without embeddings, and causal attention."""
    weights = int(model.num_parameters(exclude_embeddings=True))
    return 6 * weights + 6 * int(model.config.num_hidden_layers) * int(model.config.hidden_size) * length


def device_setups(devices: Sequence[str] = ()) -> tuple[list[DeviceSetup], list[str]]:
    """Every setup that this machine offers on these devices (all by default), and notes about what is missing.

    Raises:
        HftuneError: This machine has no such device.
    """
    notes, found = [], []
    known = list(dict.fromkeys(device for device, _ in _places()))
    if missing := [device for device in devices if device not in known]:
        raise HftuneError(f"this machine has no device {missing[0]!r}", hint=f"use one of: {', '.join(known)}")
    if not torch.accelerator.is_available():
        notes.append("no GPU (neither CUDA nor MPS): only the CPU is measured")
    compiles = [False, True] if find_compiler() else [False]
    if len(compiles) == 1:
        notes.append("no C++ compiler: compiled models are not measured")
    for device, threads in _places():
        if devices and device not in devices:
            continue
        fast = device != "cpu" or cpu_trial("bf16").pays
        if not fast:
            notes.append(f"{cpu_trial('bf16')}: only fp32 is measured")
        for precision in ("fp32", "bf16") if fast else ("fp32",):
            found += [DeviceSetup(device, threads, precision, compiled) for compiled in compiles]
    return found, list(dict.fromkeys(notes))


def measure(setup: DeviceSetup, steps: int, workload: Workload | None = None) -> DeviceSpeed:
    """Run the steps of a workload with one setup; an error of torch on this device is returned in ``failed``."""
    before = torch.get_num_threads()
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    torch.compiler.reset()  # or the compiled code of another setup would be used again
    try:
        return _measure(setup, steps, workload or random_tokens())
    except Exception as error:  # compilers and half-supported devices fail in many ways; the other setups still run
        return DeviceSpeed(setup, failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
    finally:
        torch.set_num_threads(before)


def device_report(
    machine: dict[str, Any], workload: str, notes: Sequence[str], speeds: Sequence[DeviceSpeed]
) -> dict[str, Any]:
    """For --json and devices.json."""
    results = [speed.as_dict() for speed in speeds]
    return {"machine": machine, "workload": workload, "notes": list(notes), "results": results}


def write_device_report(folder: Path, report: Mapping[str, Any], speeds: Sequence[DeviceSpeed]) -> Path:
    """Write devices.json and devices.png; returns the path of the plot."""
    write_json(folder / "devices.json", report)
    return save(_plot(speeds), folder / "devices.png")


def _measure(setup: DeviceSetup, steps: int, workload: Workload) -> DeviceSpeed:
    device, dtype = torch.device(setup.device), DTYPES[setup.precision]
    forget_peak()
    model = workload.make().to(device).train()
    torch.manual_seed(0)  # of dropout
    # Batches are made before the clock starts: reading and padding are not work of the device.
    batches = list(itertools.islice(workload.batches(), steps + WARM_UP_STEPS))
    timed = batches[WARM_UP_STEPS:]
    flops = sum(workload.flops(model, batch) for batch in timed)
    tokens = sum(int(batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum()) for batch in timed)
    if setup.compiled:
        model.compile()
    step = _stepper(model, device, dtype)
    began = time.perf_counter()
    step(batches[0])
    _synchronize(device)
    first = time.perf_counter() - began
    for batch in batches[1:WARM_UP_STEPS]:
        step(batch)
    _synchronize(device)
    wall, cpu, loss = time.perf_counter(), cpu_seconds(), torch.zeros(())
    for batch in timed:
        loss = step(batch)
    _synchronize(device)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return DeviceSpeed(
        setup,
        steps_per_second=round(steps / wall, 4),
        tokens_per_second=round(tokens / wall, 1),
        cpu_seconds_per_step=round(cpu / steps, 4),
        peak_memory_mb=round(peak_memory() / 2**20, 1),
        share_of_peak=round(flops / wall / matmul_peak(device, dtype), 4),
        first_step_seconds=round(first, 2),
        loss=round(float(loss), 5),
    )


def _places() -> Iterator[tuple[str, int | None]]:
    cores, threads = threads_for(1), 1
    while threads < cores:
        yield "cpu", threads
        threads *= 2
    yield "cpu", cores
    if torch.accelerator.is_available():
        yield str(torch.accelerator.current_accelerator()), None


def _stepper(
    model: PreTrainedModel, device: torch.device, dtype: torch.dtype
) -> Callable[[Mapping[str, Tensor]], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(batch: Mapping[str, Tensor]) -> Tensor:
        inputs = {name: value.to(device) for name, value in batch.items()}
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            loss: Tensor = model(**inputs).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _synchronize(device: torch.device) -> None:
    # Work on a GPU is asynchronous: without this the clock stops before the work is done.
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _plot(speeds: Sequence[DeviceSpeed]) -> Figure:
    """Tokens per second of each setup that ran, with the share of the peak next to each bar."""
    ran = [speed for speed in speeds if not speed.failed]
    figure = new_figure(height=1.2 + 0.36 * len(ran))
    axes = figure.subplots()
    rows = range(len(ran))
    axes.barh(rows, [speed.tokens_per_second for speed in ran], color=BLUE, height=0.6)
    for row, speed in zip(rows, ran, strict=True):
        text = f" {speed.share_of_peak:.0%} of its peak"
        axes.annotate(text, (speed.tokens_per_second, row), va="center", color=MUTED, fontsize=8)
    axes.set_yticks(rows, [str(speed.setup) for speed in ran])
    axes.invert_yaxis()
    style(axes, "tokens per second", "")
    axes.margins(x=0.25)
    return figure
