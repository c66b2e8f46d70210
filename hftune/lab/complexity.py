"""complexity: Time grows with the square of the length for vanilla, rope and synthesizer and linearly for performer,
bigbird and linformer; memory is quadratic only for the variant that stores its weights.

For n tokens and heads of width h, forward and backward of one layer take

    vanilla, rope           n² h         every query meets every key; the fused kernel keeps no n × n matrix: memory n h
    synthesizer             n² h         scores for every pair are made, and kept for backward: memory n²
    performer, m features   n m h        sums over the past are a running state [m, h]
    bigbird, linformer      n b h        a fixed number b of keys or summaries for every query

A cost c · n^p is a straight line of slope p on logarithmic axes; p is fitted by least squares. Projections and fixed
costs of a call are linear or constant, so that slopes of short sequences are far below 2 and 1; those measured here
must be within 0.4 of 2 and within 0.3 of 1. The synthesizer is measured at a quarter of the lengths: longer, its n × n
matrices no longer fit into the processor's cache, and its time jumps. CPU time of one thread is measured, the minimum
of several runs: a busy machine changes little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, growing, short, slope
from hftune.models.mingpt import ATTENTION, MinGPTConfig
from hftune.models.mingpt.attention_base import CausalAttention, Layout
from hftune.models.mingpt.modeling_mingpt import attention_class
from hftune.runs.figures import MARKERS, SERIES, Line

TIME_POWER = {"vanilla": 2, "rope": 2, "synthesizer": 2, "performer": 1, "bigbird": 1, "linformer": 1}
MEMORY_POWER = {"vanilla": 1, "rope": 1, "synthesizer": 2, "performer": 1, "bigbird": 1, "linformer": 1}
TOLERANCE = {1: 0.3, 2: 0.4}
"""By how much a measured slope of time may differ from 1 or 2, in either direction."""
SHORTER = {"synthesizer": 4}
"""Variants that are measured at the lengths divided by this, so that their matrices fit into the cache."""


class ComplexitySettings(Section):
    """Lengths, size of the layer, and measuring time."""

    lengths: Annotated[tuple[Annotated[int, Field(ge=64)], ...], AfterValidator(growing)] = Field(
        (1024, 2048, 4096, 8192), min_length=2
    )
    """Tokens in the sequence, growing; a quarter of each for synthesizer. Of three or more the first is not fitted."""
    hidden_size: int = Field(32, ge=2)
    """Width of the layer."""
    heads: int = Field(1, ge=1)
    """Heads of the layer."""
    seconds_each: float = Field(0.25, gt=0)
    """CPU time spent on each variant and length, after the warm-up."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"{self.heads} heads of even width do not fit into hidden_size {self.hidden_size}")
        return self


def measure(settings: ComplexitySettings, seed: int) -> Numbers:
    """Seconds and bytes of every variant at every length, and the fitted powers."""
    threads = torch.get_num_threads()
    # With several threads, the time they wait for each other would count as well.
    torch.set_num_threads(1)
    try:
        costs = [
            cost
            for name in ATTENTION
            for cost in measure_costs(
                [length // SHORTER.get(name, 1) for length in settings.lengths],
                [name],
                hidden_size=settings.hidden_size,
                heads=settings.heads,
                seconds_each=settings.seconds_each,
                seed=seed,
            )
        ]
    finally:
        torch.set_num_threads(threads)
    seconds = {name: [cost.seconds for cost in costs if cost.variant == name] for name in ATTENTION}
    saved = {name: [cost.saved_bytes for cost in costs if cost.variant == name] for name in ATTENTION}
    lengths = {name: [cost.length for cost in costs if cost.variant == name] for name in ATTENTION}
    start = 1 if len(settings.lengths) > 2 else 0
    return {
        "lengths": lengths,
        "seconds": seconds,
        "saved_bytes": saved,
        "time_power": {name: slope(lengths[name][start:], spent[start:]) for name, spent in seconds.items()},
        "memory_power": {name: slope(lengths[name][start:], kept[start:]) for name, kept in saved.items()},
    }


@dataclass(frozen=True)
class AttentionCost:
    """Forward and backward of one attention layer at one length."""

    variant: str
    length: int
    seconds: float
    """Processor time of the cheapest repetition, all threads together: what else the machine does is not in it."""
    saved_bytes: int
    """Memory kept from forward to backward, inputs and weights included."""


def measure_costs(
    lengths: Iterable[int],
    variants: Iterable[str],
    *,
    hidden_size: int = 64,
    heads: int = 2,
    seconds_each: float = 0.5,
    seed: int = 0,
    progress: Callable[[AttentionCost], None] | None = None,
) -> list[AttentionCost]:
    """Time each variant at each length, one sequence at a time.

    Args:
        lengths: tokens in the sequence.
        variants: names in ``ATTENTION``.
        hidden_size: width of the layer.
        heads: heads of the layer.
        seconds_each: repeat until so much processor time is spent; at least one run after the warm-up.
        seed: for weights and inputs.
        progress: called with each result as it comes.
    """
    results = []
    for variant in variants:
        for length in lengths:
            layer, x, layout = _layer_and_input(variant, length, hidden_size, heads, seed)
            saved = _saved_bytes(layer, x, layout)  # also warms up
            best, spent, runs = math.inf, 0.0, 0
            while not runs or spent < seconds_each:
                start = time.process_time()
                _forward_backward(layer, x, layout)
                took = time.process_time() - start
                best, spent, runs = min(best, took), spent + took, runs + 1
            results.append(AttentionCost(variant, length, best, saved))
            if progress is not None:
                progress(results[-1])
    return results


def _layer_and_input(
    variant: str, length: int, hidden_size: int, heads: int, seed: int
) -> tuple[CausalAttention, Tensor, Layout]:
    config = MinGPTConfig(
        attention=variant,
        block_size=length,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_hidden_layers=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = attention_class(variant)(config, layer_index=0)
        layer.init_parameters(config)
        x = torch.randn(1, length, hidden_size, requires_grad=True)
    return layer, x, Layout.build(x, None, None, None)


def _forward_backward(layer: CausalAttention, x: Tensor, layout: Layout) -> None:
    y, _ = layer(x, layout)
    y.sum().backward()
    layer.zero_grad(set_to_none=True)
    x.grad = None


def _saved_bytes(layer: CausalAttention, x: Tensor, layout: Layout) -> int:
    """Bytes of the storages that autograd keeps, each counted once however many views of it are kept."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _forward_backward(layer, x, layout)
    return sum(storages.values())


def statements(numbers: Numbers) -> dict[str, bool]:
    """Slopes are near 1 and 2, neither steeper nor flatter; bytes are the same on every machine."""
    time, memory = numbers["time_power"], numbers["memory_power"]
    steep = min(power for name, power in time.items() if TIME_POWER[name] == 2)
    flat = max(power for name, power in time.items() if TIME_POWER[name] == 1)
    return (
        {"the time of every quadratic variant grows faster than that of every linear one": steep > flat + 0.1}
        | {
            f"{name}: time grows like length^{TIME_POWER[name]}, within {TOLERANCE[TIME_POWER[name]]}": abs(
                power - TIME_POWER[name]
            )
            < TOLERANCE[TIME_POWER[name]]
            for name, power in time.items()
        }
        | {
            f"{name}: memory grows like length^{MEMORY_POWER[name]}, within 0.3": abs(power - MEMORY_POWER[name]) < 0.3
            for name, power in memory.items()
        }
    )


def draw(numbers: Numbers) -> Drawing:
    """Time against length."""
    lines = [
        Line(name, numbers["lengths"][name], [1000 * second for second in seconds], color, marker)
        for (name, seconds), color, marker in zip(numbers["seconds"].items(), SERIES, MARKERS, strict=False)
    ]
    fitted = ", ".join(f"{name} {power:.2f}" for name, power in numbers["time_power"].items())
    return Drawing(
        chart(lines, x_label="tokens", y_label="milliseconds", log_x=True, log_y=True, power=2),
        alt=f"CPU time against length on logarithmic axes; fitted slopes: {fitted}.",
        caption="CPU time of one layer, forward and backward; the slope is the power of the length",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """The fitted powers."""
    time, memory, lengths = numbers["time_power"], numbers["memory_power"], numbers["lengths"]
    powers = [(f"{name}: power of time, memory", f"{time[name]:.2f}, {memory[name]:.2f}") for name in time]
    seconds = [
        (f"{name}, {lengths[name][-1]:,} tokens", f"{short(1000 * spent[-1])} ms")
        for name, spent in numbers["seconds"].items()
        if name in ("vanilla", "performer")
    ]
    return powers + seconds


QUESTIONS = (
    "From which length on is each linear variant faster than vanilla on this machine?",
    "Why does exact attention need only linear memory here, although it has quadratic time?",
    "What does each of performer, bigbird and linformer give up for its slope?",
)
EXPERIMENT = Experiment(__doc__, ComplexitySettings, measure, statements, draw, rows, QUESTIONS)
