"""bptt: the gradient of a linear recurrent network in closed form, and why its norm explodes or vanishes with length.

h_t = W h_(t−1) + U x_t for t = 1 … T, and L = ½ |h_T − y|². With the error δ = h_T − y, the chain rule carries δ
back through one factor Wᵀ a step, and W gets a share at each:

    ∂L/∂h_t = (Wᵀ)^(T−t) δ
    ∂L/∂W = Σ_t (Wᵀ)^(T−t) δ h_(t−1)ᵀ,    ∂L/∂U = Σ_t (Wᵀ)^(T−t) δ x_tᵀ

For W = ρ R with R orthogonal, every factor stretches by exactly ρ, so that |∂L/∂h_0| = ρ^T |δ|: it vanishes for ρ < 1,
explodes for ρ > 1, and only ρ = 1 keeps it. Attention has a path of one step between any two tokens instead of T.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, short, violated
from hftune.lab.series import Counts
from hftune.lab.vectors import gaussian, generator, orthonormal
from hftune.runs.figures import MARKERS, SERIES, Line


class BpttSettings(Section):
    """Sizes of the network, its radius and the lengths."""

    size: int = Field(8, ge=2)
    """Width of state and inputs."""
    radii: tuple[Annotated[float, Field(gt=0, le=2)], ...] = Field(
        (0.8, 0.95, 1.0, 1.05, 1.2), min_length=1, max_length=6
    )
    """Factors ρ by which W stretches every vector."""
    lengths: Counts = (1, 5, 10, 20, 30, 40, 50)
    """Steps T, growing."""


def measure(settings: BpttSettings, seed: int) -> Numbers:
    """For each ρ and T: closed form against autograd, and the norm of the gradient at the first state."""
    source = generator(seed)
    rotation = orthonormal(settings.size, settings.size, source)
    inner = gaussian(settings.size, settings.size, source=source) / math.sqrt(settings.size)
    inputs = gaussian(max(settings.lengths), settings.size, source=source)
    target, start = gaussian(2, settings.size, source=source)
    worst = 0.0
    ratios: list[list[float]] = []
    for radius in settings.radii:
        line = []
        for length in settings.lengths:
            leaves = [tensor.clone().requires_grad_() for tensor in (radius * rotation, inner, start)]
            states = unrolled(leaves[0], leaves[1], leaves[2], inputs[:length])
            error = states[-1] - target
            by_autograd = torch.autograd.grad(error.square().sum() / 2, leaves)
            by_formula = closed_form(leaves[0].detach(), states.detach(), inputs[:length], error.detach())
            for found, formula in zip(by_autograd, by_formula, strict=True):
                worst = max(worst, float((found - formula).norm() / found.norm()))
            line.append(float(by_autograd[2].norm() / error.detach().norm()))
        ratios.append(line)
    return {
        "radii": list(settings.radii),
        "lengths": list(settings.lengths),
        "greatest_difference": worst,
        "norm_ratio": ratios,
    }


def unrolled(recurrent: Tensor, inner: Tensor, start: Tensor, inputs: Tensor) -> Tensor:
    """All states [T + 1, size], the first included."""
    states = [start]
    for x in inputs:
        states.append(recurrent @ states[-1] + inner @ x)
    return torch.stack(states)


def closed_form(recurrent: Tensor, states: Tensor, inputs: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of W, U and h_0 by the sums above, each power of Wᵀ on its own and not by walking back."""
    steps = len(inputs)
    powers = [torch.linalg.matrix_power(recurrent.T, steps - step) for step in range(steps + 1)]
    carried = torch.stack([power @ error for power in powers])  # [T + 1, size]: ∂L/∂h_t
    return carried[1:].T @ states[:-1], carried[1:].T @ inputs, carried[0]


def check(numbers: Numbers) -> list[str]:
    """Closed form and autograd agree; the norm is ρ^T."""
    pairs = [
        (found, radius**length)
        for radius, line in zip(numbers["radii"], numbers["norm_ratio"], strict=True)
        for length, found in zip(numbers["lengths"], line, strict=True)
    ]
    return violated(
        {
            "the closed form is autograd's gradient, to 10 digits": numbers["greatest_difference"] < 1e-10,
            "the gradient at the first state is ρ^T times the error": all(
                math.isclose(found, predicted, rel_tol=1e-8) for found, predicted in pairs
            ),
        }
    )


def draw(numbers: Numbers) -> Drawing:
    """Norm against length for each ρ."""
    lines = [
        Line(f"ρ = {short(radius)}", numbers["lengths"], line, color, marker)
        for radius, line, color, marker in zip(numbers["radii"], numbers["norm_ratio"], SERIES, MARKERS, strict=False)
    ]
    figure = chart(lines, x_label="steps T", y_label="|∂L/∂h₀| / |δ|", log_y=True)
    return Drawing(
        figure,
        alt="Norm of the gradient against the number of steps: straight lines on a logarithmic scale, down for ρ below "
        "1, flat for 1, up above 1.",
        caption="Exponential in the length, one way or the other; only ρ = 1 keeps the gradient",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """Agreement, and the norm at the greatest length."""
    last = numbers["lengths"][-1]
    return [
        ("closed form against autograd, relative", short(numbers["greatest_difference"], 2)),
        *(
            (f"|∂L/∂h₀| / |δ| after {last} steps, ρ = {short(radius)}", short(line[-1]))
            for radius, line in zip(numbers["radii"], numbers["norm_ratio"], strict=True)
        ),
    ]


EXPERIMENT = Experiment(
    name="bptt",
    claim="The gradient of a linear RNN by the closed form equals autograd's, and its norm at the first state is ρ^T: "
    "it vanishes or explodes with the length.",
    mathematics=__doc__,
    settings=BpttSettings,
    measure=measure,
    check=check,
    draw=draw,
    rows=rows,
    questions=(
        "Which factor appears once for every step, and what would a tanh around each state add to it?",
        "Clipping cures one of the two troubles. Which one, and why not the other?",
        "How many such factors lie between two tokens in a transformer layer?",
    ),
)
