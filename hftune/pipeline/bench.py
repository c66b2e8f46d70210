"""Speed of the same minGPT training steps on every device of this machine.

On the CPU with 1, 2, 4, … threads up to the number of cores; on a GPU if there is one; in fp32 and, if a trial shows
that it is faster, in bf16; eager and compiled. Weights, tokens and steps are the same each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from hftune.files import write_json
from hftune.machine import cpu_trial, find_compiler
from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.portability import cpu_model, cpu_seconds
from hftune.runs.environment import versions
from hftune.runs.figures import BLUE, MUTED, new_figure, save, style
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


def flops_per_token(model: PreTrainedModel, length: float) -> float:
    """FLOPs of one training step of a causal model: six per weight, without embeddings, and causal attention."""
    weights = int(model.num_parameters(exclude_embeddings=True))
    return 6 * weights + 6 * int(model.config.num_hidden_layers) * int(model.config.hidden_size) * length


def device_setups() -> tuple[list[DeviceSetup], list[str]]:
    """Every setup that this machine offers, and notes about what is missing."""
    notes, found = [], []
    if not torch.accelerator.is_available():
        notes.append("no GPU (neither CUDA nor MPS): only the CPU is measured")
    compiles = [False, True] if find_compiler() else [False]
    if len(compiles) == 1:
        notes.append("no C++ compiler: compiled models are not measured")
    for device, threads in _places():
        fast = device != "cpu" or cpu_trial("bf16").pays
        if not fast:
            notes.append(f"{cpu_trial('bf16')}: only fp32 is measured")
        for precision in ("fp32", "bf16") if fast else ("fp32",):
            found += [DeviceSetup(device, threads, precision, compiled) for compiled in compiles]
    return found, list(dict.fromkeys(notes))


def measure(
    setup: DeviceSetup, steps: int, config: MinGPTConfig | None = None, batch_size: int = BATCH_SIZE
) -> DeviceSpeed:
    """Run the steps of a minGPT with one setup; an error of torch on this device is returned in ``failed``."""
    before = torch.get_num_threads()
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    torch.compiler.reset()  # or the compiled code of another setup would be used again
    try:
        return _measure(setup, steps, config or MinGPTConfig(), batch_size)
    except Exception as error:  # compilers and half-supported devices fail in many ways; the other setups still run
        return DeviceSpeed(setup, failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
    finally:
        torch.set_num_threads(before)


def write_device_report(
    folder: Path, machine: dict[str, Any], speeds: Sequence[DeviceSpeed], notes: Sequence[str]
) -> Path:
    """Write devices.json and devices.png; returns the path of the plot."""
    results = [speed.as_dict() for speed in speeds]
    write_json(folder / "devices.json", {"machine": machine, "notes": list(notes), "results": results})
    return save(_plot(speeds), folder / "devices.png")


def _measure(setup: DeviceSetup, steps: int, config: MinGPTConfig, batch_size: int) -> DeviceSpeed:
    device, dtype = torch.device(setup.device), DTYPES[setup.precision]
    forget_peak()
    # The same weights and tokens in every setup, so that a setup that computes something else shows in its loss.
    torch.manual_seed(0)
    model = MinGPTForCausalLM(config).to(device).train()
    batches = _batches(config, batch_size, steps + WARM_UP_STEPS)
    flops = flops_per_token(model, config.block_size)
    if setup.compiled:
        model.compile()
    step = _stepper(model, device, dtype)
    began = time.perf_counter()
    step(next(batches))
    _synchronize(device)
    first = time.perf_counter() - began
    for _ in range(WARM_UP_STEPS - 1):
        step(next(batches))
    _synchronize(device)
    wall, cpu, loss = time.perf_counter(), cpu_seconds(), torch.zeros(())
    for batch in batches:
        loss = step(batch)
    _synchronize(device)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    tokens_per_second = steps * batch_size * config.block_size / wall
    return DeviceSpeed(
        setup,
        steps_per_second=round(steps / wall, 4),
        tokens_per_second=round(tokens_per_second, 1),
        cpu_seconds_per_step=round(cpu / steps, 4),
        peak_memory_mb=round(peak_memory() / 2**20, 1),
        share_of_peak=round(tokens_per_second * flops / matmul_peak(device, dtype), 4),
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


def _batches(config: MinGPTConfig, batch_size: int, count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randint(config.vocab_size, (batch_size, config.block_size), generator=generator)  # (B, T)


def _stepper(model: Module, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(ids: Tensor) -> Tensor:
        ids = ids.to(device)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            loss: Tensor = model(input_ids=ids, labels=ids).loss
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
