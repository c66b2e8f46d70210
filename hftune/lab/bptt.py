"""bptt: The gradient of a linear RNN by the closed form equals autograd's, and its norm at the first state is ρ^T: it
vanishes or explodes with the length.

h_t = W h_(t−1) + U x_t for t = 1 … T, and L = ½ |h_T − y|². With the error δ = h_T − y, the chain rule multiplies δ
by one factor Wᵀ per step, and every step contributes to the gradient of W:

    ∂L/∂h_t = (Wᵀ)^(T−t) δ
    ∂L/∂W = Σ_t (Wᵀ)^(T−t) δ h_(t−1)ᵀ,    ∂L/∂U = Σ_t (Wᵀ)^(T−t) δ x_tᵀ

For W = ρ R with R orthogonal, every factor stretches by exactly ρ, so that |∂L/∂h_0| = ρ^T |δ|: it vanishes for ρ < 1,
explodes for ρ > 1, and is constant only for ρ = 1. In attention the path between any two tokens is one step, not T.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Counts, Drawing, Experiment, Numbers, chart, short
from hftune.lab.vectors import gaussian, generator, orthonormal
from hftune.runs.figures import MARKERS, SERIES, Line


class BpttSettings(Section):
    """Size of the network, factors ρ and lengths."""

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
    """All states [T + 1, size], including the first."""
    states = [start]
    for x in inputs:
        states.append(recurrent @ states[-1] + inner @ x)
    return torch.stack(states)


def closed_form(recurrent: Tensor, states: Tensor, inputs: Tensor, error: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of W, U and h_0 by the sums above, with explicit powers of Wᵀ and no backward pass."""
    steps = len(inputs)
    powers = [torch.linalg.matrix_power(recurrent.T, steps - step) for step in range(steps + 1)]
    carried = torch.stack([power @ error for power in powers])  # [T + 1, size]: ∂L/∂h_t
    return carried[1:].T @ states[:-1], carried[1:].T @ inputs, carried[0]


def statements(numbers: Numbers) -> dict[str, bool]:
    """Closed form and autograd agree; the norm is ρ^T."""
    pairs = [
        (found, radius**length)
        for radius, line in zip(numbers["radii"], numbers["norm_ratio"], strict=True)
        for length, found in zip(numbers["lengths"], line, strict=True)
    ]
    return {
        "the closed form is autograd's gradient, to 10 digits": numbers["greatest_difference"] < 1e-10,
        "the gradient at the first state is ρ^T times the error": all(
            math.isclose(found, predicted, rel_tol=1e-8) for found, predicted in pairs
        ),
    }


def draw(numbers: Numbers) -> Drawing:
    """Norm against length for each ρ."""
    lines = [
        Line(f"ρ = {short(radius)}", numbers["lengths"], line, color, marker)
        for radius, line, color, marker in zip(numbers["radii"], numbers["norm_ratio"], SERIES, MARKERS, strict=False)
    ]
    return Drawing(
        chart(lines, x_label="steps T", y_label="|∂L/∂h₀| / |δ|", log_y=True),
        alt="Norm of the gradient against the number of steps: straight lines on a logarithmic scale, down for ρ below "
        "1, flat for 1, up above 1.",
        caption="The gradient grows or falls exponentially with the length, except for ρ = 1",
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


QUESTIONS = (
    "Which factor appears once for every step, and what would a tanh around each state add to it?",
    "Gradient clipping solves one of the two problems. Which one, and why not the other?",
    "How many such factors are between two tokens in a transformer layer?",
)
EXPERIMENT = Experiment(__doc__, BpttSettings, measure, statements, draw, rows, QUESTIONS)
