"""The same training steps of a minGPT on every device there is. Called by ``hftune bench devices``.

On the processor with one thread and more, up to one a core; on a GPU where there is one; in fp32 and, where a
trial shows that it pays, bf16; as it is and compiled. Weights, tokens and updates are the same each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from hftune.bench.case import Stopwatch
from hftune.bench.operations import token_operations
from hftune.machine import cpu_trial
from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.training.arguments import has_compiler
from hftune.training.launch import threads_for
from hftune.training.memory import forget_peak, peak_memory
from hftune.training.utilization import matmul_peak

WARM = 2
"""Steps before the clock starts; compiling happens in the first."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Setting:
    """One way to run the steps."""

    device: str
    threads: int | None
    """None on a GPU."""
    precision: str
    compiled: bool

    def __str__(self) -> str:
        """For whoever waits."""
        threads = "" if self.threads is None else f", threads: {self.threads}"
        return f"{self.device}{threads}, {self.precision}{', compiled' if self.compiled else ''}"


@dataclass(frozen=True)
class Size:
    """How large the model and its batches are."""

    layers: int = 4
    heads: int = 8
    width: int = 256
    length: int = 128
    rows: int = 16
    vocabulary: int = 256


@dataclass(frozen=True)
class Measured:
    """What one setting reached, or why it could not run."""

    setting: Setting
    steps_per_second: float = 0.0
    tokens_per_second: float = 0.0
    cpu_seconds_per_step: float = 0.0
    """Processor time of all threads: beside the wall time it tells how busy the machine was with other things."""
    share_of_peak: float = 0.0
    """Of the matrix product that this device, with these threads and numbers, was measured to do best."""
    peak_memory_mb: float = 0.0
    first_step_seconds: float = 0.0
    """With compiling, where that is asked for."""
    loss: float = 0.0
    """Of the last step: the same work gives the same loss, but for rounding."""
    failed: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For --json and devices.json."""
        return {**asdict(self.setting), **{key: value for key, value in asdict(self).items() if key != "setting"}}


def settings() -> tuple[list[Setting], list[str]]:
    """Every way there is on this machine, and what is missing."""
    notes, found = [], []
    if not torch.accelerator.is_available():
        notes.append("there is no GPU here (neither CUDA nor MPS): the processor alone is measured")
    compiles = [False, True] if has_compiler() else [False]
    if len(compiles) == 1:
        notes.append("there is no C++ compiler: nothing is compiled")
    for device, threads in _places():
        fast = device != "cpu" or cpu_trial("bf16").pays
        if not fast:
            notes.append(f"{cpu_trial('bf16')}: only fp32 is measured")
        for precision in ("fp32", "bf16") if fast else ("fp32",):
            found += [Setting(device, threads, precision, compiled) for compiled in compiles]
    return found, list(dict.fromkeys(notes))


def measure(setting: Setting, steps: int, size: Size | None = None) -> Measured:
    """Run the steps in one way; what torch can't do on this device comes back as ``failed``."""
    before = torch.get_num_threads()
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    torch.compiler.reset()
    try:
        return _measure(setting, steps, size or Size())
    except Exception as error:  # compilers and half-supported devices fail in many ways; the others go on
        return Measured(setting, failed=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
    finally:
        torch.set_num_threads(before)


def _measure(setting: Setting, steps: int, size: Size) -> Measured:
    device, number = torch.device(setting.device), TYPES[setting.precision]
    forget_peak()
    model, batches = _model(size).to(device).train(), _tokens(size, steps + WARM)
    operations = token_operations(model, size.length)
    if setting.compiled:
        model.compile()
    step = _stepper(model, device, number)
    began = time.perf_counter()
    step(next(batches))
    _wait(device)
    first = time.perf_counter() - began
    for _ in range(WARM - 1):
        step(next(batches))
    _wait(device)
    watch, loss = Stopwatch(), torch.zeros(())
    with watch.running():
        for batch in batches:
            loss = step(batch)
        _wait(device)
    memory = peak_memory()
    tokens = steps * size.rows * size.length / watch.wall
    return Measured(
        setting,
        steps_per_second=round(steps / watch.wall, 4),
        tokens_per_second=round(tokens, 1),
        cpu_seconds_per_step=round(watch.cpu / steps, 4),
        share_of_peak=round(tokens * operations / matmul_peak(device, number), 4),
        peak_memory_mb=round(memory / 2**20, 1),
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


def _model(size: Size) -> PreTrainedModel:
    torch.manual_seed(0)
    return MinGPTForCausalLM(
        MinGPTConfig(
            vocab_size=size.vocabulary,
            block_size=size.length,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
        )
    )


def _tokens(size: Size, steps: int) -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randint(size.vocabulary, (size.rows, size.length), generator=draw)


def _stepper(model: Module, device: torch.device, number: torch.dtype) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(ids: Tensor) -> Tensor:
        ids = ids.to(device)
        with torch.autocast(device.type, dtype=number, enabled=number != torch.float32):
            loss: Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _wait(device: torch.device) -> None:
    """A GPU is still at work when Python has gone on."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
