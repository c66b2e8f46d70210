"""multi-head: The mean of two heads with one query each has less than half the spread of one head that selects both
values.

The keys are those of single-head: μ_1 … μ_n orthonormal, Σ_a = αI + ½ μ_a μ_aᵀ, so that k_a ≈ ε μ_a, ε ~ N(1, ½).
Each head selects one value, q_1 = β μ_a and q_2 = β μ_b, and the output is the mean of the two:

    head 1:  logit of a is β ε, the others ≈ 0:  c_1 ≈ v_a unless ε is near 0 or below
    head 2:  logit of b is β, whatever ε is:     c_2 ≈ v_b always

Only head 1 can fail, and less often than half of the time: w_a < 0.9 needs β ε < ln(9 (n − 1)), up to the noise αI:

    P(head 1 fails) ≈ Φ((ln(9 (n − 1)) / β − 1) / √½)

which falls towards Φ(−√2) ≈ 8 % as β grows, while the head of single-head fails more and more often.
"""

from __future__ import annotations

import math

from pydantic import Field
from torch import Tensor

from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, short
from hftune.lab.single_head import CLEAR, NoisyKeySettings, draw_keys, weights
from hftune.lab.vectors import gaussian, generator
from hftune.runs.figures import BLUE, ORANGE, Line
from hftune.runs.formatting import percent


class MultiHeadSettings(NoisyKeySettings):
    """The noisy keys of single-head, with queries of several scales."""

    beta: float = Field(20.0, gt=0)
    """Scale β of the queries at which numbers are compared; the figure goes up to it."""
    steps: int = Field(10, ge=2)
    """Scales on the way to ``beta``, for the figure."""


def measure(settings: MultiHeadSettings, seed: int) -> Numbers:
    """The spread around ½(v_a + v_b) over samples, for one head and for two, at growing β."""
    source = generator(seed)
    means, keys = draw_keys(settings, source, stretched=True)
    values = gaussian(settings.keys, settings.dimension, source=source)
    betas = [settings.beta * (step + 1) / settings.steps for step in range(settings.steps)]
    one: list[Numbers] = []
    two: list[Numbers] = []
    failed = 0.0
    for beta in betas:
        both = weights(beta * (means[0] + means[1]), keys)
        first, second = weights(beta * means[0], keys), weights(beta * means[1], keys)
        one.append(_spread(both @ values, values))
        two.append(_spread((first + second) / 2 @ values, values))
        failed = float((first[:, 0] < CLEAR).double().mean())
    threshold = math.log(CLEAR / (1 - CLEAR) * (settings.keys - 1)) / settings.beta
    return {
        "betas": betas,
        "one_head": one,
        "two_heads": two,
        "ratio": one[-1]["rms"] / two[-1]["rms"],
        "first_head_fails": failed,
        "first_head_fails_predicted": 0.5 * math.erfc(1 - threshold),
        "samples": settings.samples,
    }


def _spread(outputs: Tensor, values: Tensor) -> Numbers:
    """Distance of the outputs [samples, d] from the average, in units of its distance from either value."""
    unit = (values[0] - values[1]).norm() / 2
    distance = (outputs - values[:2].mean(dim=0)).norm(dim=1) / unit
    return {"rms": float(distance.square().mean().sqrt()), "near": float((distance < 0.1).double().mean())}


def statements(numbers: Numbers) -> dict[str, bool]:
    """The spread shrinks, and head 1 fails as often as predicted."""
    one, two = numbers["one_head"][-1], numbers["two_heads"][-1]
    predicted = numbers["first_head_fails_predicted"]
    noise = math.sqrt(predicted * (1 - predicted) / numbers["samples"])
    return {
        "two heads have at most half the spread of one": numbers["ratio"] > 2,
        "two heads are near the average in most samples": two["near"] > 0.75,
        "one head is near the average in few samples": one["near"] < 0.25,
        "a greater β helps two heads": two["rms"] < numbers["two_heads"][0]["rms"],
        "the first head fails as often as predicted": abs(numbers["first_head_fails"] - predicted) < 5 * noise + 0.01,
    }


def draw(numbers: Numbers) -> Drawing:
    """Spread against β."""
    lines = [
        Line("one head, both keys", numbers["betas"], [at["rms"] for at in numbers["one_head"]], ORANGE, "s"),
        Line("two heads, a key each", numbers["betas"], [at["rms"] for at in numbers["two_heads"]], BLUE, "o"),
    ]
    return Drawing(
        chart(lines, x_label="scale β of the queries", y_label="distance from the average (rms)", from_zero=True),
        alt=f"Spread against β: one head stays high, two heads fall, finally to 1/{numbers['ratio']:.1f} of it.",
        caption="1 is the distance of either value from the average; a sharper query helps two heads only",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At the greatest β."""
    one, two = numbers["one_head"][-1], numbers["two_heads"][-1]
    beta = short(numbers["betas"][-1])
    return [
        (f"spread of one head, β = {beta}", short(one["rms"])),
        (f"spread of two heads, β = {beta}", short(two["rms"])),
        ("ratio of the two", short(numbers["ratio"])),
        ("samples near the average, one head", percent(one["near"])),
        ("samples near the average, two heads", percent(two["near"])),
        ("first head fails", percent(numbers["first_head_fails"])),
        ("first head fails, predicted", percent(numbers["first_head_fails_predicted"])),
    ]


QUESTIONS = (
    "Why does a greater β help two heads and not one?",
    "Which spread remains at very large β, and which samples cause it?",
    "Would two heads help if k_b varied in length as well, independently of k_a? And if both varied together?",
)
EXPERIMENT = Experiment(__doc__, MultiHeadSettings, measure, statements, draw, rows, QUESTIONS)
