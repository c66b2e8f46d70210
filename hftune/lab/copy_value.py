"""copy: A query aligned with one key, scaled up, copies that key's value: the error falls exponentially in the scale.

Keys k_1 … k_n are unit vectors and the query is q = β k_j. The weight of value i is the softmax of the logits:

    w_i = exp(q·k_i) / Σ_l exp(q·k_l),    q·k_j = β,    q·k_i = β cos θ_i

For orthonormal keys every other logit is 0, so that the weight of the others and the error are known exactly:

    1 − w_j = (n − 1) / (e^β + n − 1),    |c − v_j| = (1 − w_j) · |mean of the other values − v_j|

For keys in random directions the nearest one, at cosine ρ, decides: 1 − w_j ≤ (n − 1) e^(−β(1 − ρ)). The query
must be longer, and the error is still exponential in β.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hftune.lab.experiment import (
    ROUNDING,
    Drawing,
    Experiment,
    KeySettings,
    Numbers,
    Scales,
    chart,
    equal,
    falling,
    short,
)
from hftune.lab.vectors import attend, gaussian, generator, orthonormal
from hftune.runs.figures import BLUE, ORANGE, Line


class CopySettings(KeySettings):
    """Keys, values and the lengths of the query."""

    dimension: int = Field(16, ge=3)
    """Width of keys and values; at least as many as keys, so that the keys can be orthogonal."""
    scales: Scales = (0.5, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    """Lengths β of the query, growing."""


def measure(settings: CopySettings, seed: int) -> Numbers:
    """The error of the copy for each length of the query, with orthonormal keys and with random directions."""
    source = generator(seed)
    values = gaussian(settings.keys, settings.dimension, source=source)
    square = orthonormal(settings.keys, settings.dimension, source)
    random = F.normalize(gaussian(settings.keys, settings.dimension, source=source), dim=-1)
    others = values[1:].mean(dim=0) - values[0]
    rest = [(settings.keys - 1) / (math.exp(beta) + settings.keys - 1) for beta in settings.scales]
    cosine = float((random[1:] @ random[0]).max())
    widest = float((values[1:] - values[0]).norm(dim=1).max())
    return {
        "scales": list(settings.scales),
        "orthonormal": _errors(square, values, settings.scales),
        "closed_form": [share * float(others.norm()) for share in rest],
        "random": _errors(random, values, settings.scales),
        "bound": [(settings.keys - 1) * math.exp(-beta * (1 - cosine)) * widest for beta in settings.scales],
        "nearest_cosine": cosine,
    }


def _errors(keys: Tensor, values: Tensor, scales: tuple[float, ...]) -> list[float]:
    queries = torch.tensor(scales, dtype=keys.dtype)[:, None] * keys[0]  # [β, d]
    errors: list[float] = (attend(queries, keys, values) - values[0]).norm(dim=1).tolist()
    return errors


def statements(numbers: Numbers) -> dict[str, bool]:
    """Exponential in β, as in the closed form."""
    below = zip(numbers["random"], numbers["bound"], strict=True)
    return {
        "the error falls with every longer query": falling(numbers["orthonormal"]) and falling(numbers["random"]),
        "with orthonormal keys the error is the closed form": equal(numbers["orthonormal"], numbers["closed_form"]),
        "with random keys the error stays below the bound": all(found <= bound + ROUNDING for found, bound in below),
        "the longest query copies to 6 digits (orthonormal keys)": numbers["orthonormal"][-1] < 1e-6,
    }


def draw(numbers: Numbers) -> Drawing:
    """Error against β."""
    lines = [
        Line("orthonormal keys", numbers["scales"], numbers["orthonormal"], BLUE, "o"),
        Line("random directions", numbers["scales"], numbers["random"], ORANGE, "s"),
    ]
    last = short(numbers["orthonormal"][-1], 2)
    return Drawing(
        chart(lines, x_label="length β of the query", y_label="distance from the value", log_y=True),
        alt=f"Error of the copy against β: straight lines down on a logarithmic scale, to {last} for orthonormal keys.",
        caption="The error falls exponentially in β, more slowly if other keys are close to the selected one",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """The two ends of the curves."""
    first, last = short(numbers["scales"][0]), short(numbers["scales"][-1])
    return [
        (f"error at β = {first}, orthonormal keys", short(numbers["orthonormal"][0])),
        (f"error at β = {last}, orthonormal keys", short(numbers["orthonormal"][-1])),
        (f"the same by the closed form, β = {last}", short(numbers["closed_form"][-1])),
        (f"error at β = {last}, random directions", short(numbers["random"][-1])),
        ("cosine of the nearest other key", short(numbers["nearest_cosine"])),
    ]


QUESTIONS = (
    "Why does doubling the number of keys cost only a little more β, while a nearer neighbor costs much more?",
    "What does the query have to look like to copy nothing, that is, to weight all values equally?",
    "Why can no finite query copy a value exactly, and when does it not matter?",
)
EXPERIMENT = Experiment(__doc__, CopySettings, measure, statements, draw, rows, QUESTIONS)
