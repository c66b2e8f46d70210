"""complexity: time and memory against length for every attention variant, as fitted powers of the length.

For n tokens and heads of width h, forward and backward of one layer take

    vanilla, rope           n² h         every query meets every key; the fused kernel keeps no n × n matrix: memory n h
    synthesizer             n² h         scores for every pair are made, and kept for backward: memory n²
    performer, m features   n m h        sums over the past are a running state [m, h]
    bigbird, linformer      n b h        a fixed number b of keys or summaries for every query

A cost c · n^p is a straight line of slope p on logarithmic axes; p is fitted by least squares. Projections and fixed
costs of a call are linear or constant, so that measured slopes lie a little below 2 and 1 and near them only for long
sequences. Processor time of one thread is measured, the least of several runs: a busy machine changes little.
"""

from __future__ import annotations

from typing import Annotated, Self

import torch
from pydantic import AfterValidator, Field, model_validator

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, short, violated
from hftune.lab.series import growing
from hftune.models.mingpt import ATTENTION
from hftune.models.mingpt.cost import measure as measure_cost
from hftune.models.mingpt.cost import slope
from hftune.runs.figures import MARKERS, SERIES, Line

TIME_POWER = {"vanilla": 2, "rope": 2, "synthesizer": 2, "performer": 1, "bigbird": 1, "linformer": 1}
MEMORY_POWER = {"vanilla": 1, "rope": 1, "synthesizer": 2, "performer": 1, "bigbird": 1, "linformer": 1}
BETWEEN = 1.4
"""What tells a slope near 2 from one near 1."""


class ComplexitySettings(Section):
    """Lengths to measure at, and how long."""

    lengths: Annotated[tuple[Annotated[int, Field(ge=64)], ...], AfterValidator(growing)] = Field(
        (512, 1024, 2048, 4096), min_length=2
    )
    """Tokens in the sequence, growing; where there are three or more, slopes are fitted without the first."""
    hidden_size: int = Field(32, ge=2)
    """Width of the layer."""
    heads: int = Field(1, ge=1)
    """Heads of the layer."""
    seconds_each: float = Field(0.25, gt=0)
    """Processor time spent on each variant and length, after the warm-up."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"{self.heads} heads of even width do not fit into hidden_size {self.hidden_size}")
        return self


def measure(settings: ComplexitySettings, seed: int) -> Numbers:
    """Seconds and bytes of every variant at every length, and the fitted powers."""
    threads = torch.get_num_threads()
    # With several, the time they wait for each other would be counted as well.
    torch.set_num_threads(1)
    try:
        costs = measure_cost(
            settings.lengths,
            ATTENTION,
            hidden_size=settings.hidden_size,
            heads=settings.heads,
            seconds_each=settings.seconds_each,
            seed=seed,
        )
    finally:
        torch.set_num_threads(threads)
    seconds = {name: [cost.seconds for cost in costs if cost.variant == name] for name in ATTENTION}
    saved = {name: [cost.saved_bytes for cost in costs if cost.variant == name] for name in ATTENTION}
    start = 1 if len(settings.lengths) > 2 else 0
    longer = settings.lengths[start:]
    return {
        "lengths": list(settings.lengths),
        "seconds": seconds,
        "saved_bytes": saved,
        "time_power": {name: slope(longer, spent[start:]) for name, spent in seconds.items()},
        "memory_power": {name: slope(longer, kept[start:]) for name, kept in saved.items()},
    }


def check(numbers: Numbers) -> list[str]:
    """Quadratic variants are clearly steeper than linear ones; bytes depend on no machine and are held closer."""
    time, memory = numbers["time_power"], numbers["memory_power"]
    steep = min(power for name, power in time.items() if TIME_POWER[name] == 2)
    flat = max(power for name, power in time.items() if TIME_POWER[name] == 1)
    return violated(
        {
            "the time of every quadratic variant grows faster than that of every linear one": steep > flat + 0.1,
            "quadratic variants: time grows faster than length^1.4": steep > BETWEEN,
            "linear variants: time grows slower than length^1.4": flat < BETWEEN,
        }
        | {
            f"{name}: memory grows like length^{MEMORY_POWER[name]}": abs(power - MEMORY_POWER[name]) < 0.3
            for name, power in memory.items()
        }
    )


def draw(numbers: Numbers) -> Drawing:
    """Time against length."""
    lines = [
        Line(name, numbers["lengths"], [1000 * second for second in seconds], color, marker)
        for (name, seconds), color, marker in zip(numbers["seconds"].items(), SERIES, MARKERS, strict=False)
    ]
    figure = chart(lines, x_label="tokens", y_label="milliseconds", log_x=True, log_y=True, power=2)
    fitted = ", ".join(f"{name} {power:.2f}" for name, power in numbers["time_power"].items())
    return Drawing(
        figure,
        alt=f"Processor time against length on logarithmic axes; fitted slopes: {fitted}.",
        caption="Processor time of one layer, forward and backward; the slope is the power of the length",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """The fitted powers."""
    time, memory, longest = numbers["time_power"], numbers["memory_power"], numbers["lengths"][-1]
    powers = [(f"{name}: power of time, memory", f"{time[name]:.2f}, {memory[name]:.2f}") for name in time]
    seconds = [
        (f"{name}, {longest:,} tokens", f"{short(1000 * spent[-1])} ms")
        for name, spent in numbers["seconds"].items()
        if name in ("vanilla", "performer")
    ]
    return powers + seconds


EXPERIMENT = Experiment(
    name="complexity",
    claim="Time grows with the square of the length for vanilla, rope and synthesizer and linearly for performer, "
    "bigbird and linformer; memory is quadratic only for the variant that keeps its weights.",
    mathematics=__doc__,
    settings=ComplexitySettings,
    measure=measure,
    check=check,
    draw=draw,
    rows=rows,
    questions=(
        "From which length on is each linear variant really cheaper than vanilla on this machine?",
        "Why does exact attention need only linear memory here, although it has quadratic time?",
        "What do performer, bigbird and linformer each give up for their slope?",
    ),
)
