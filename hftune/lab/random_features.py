"""random-features: If the attention weight is near zero, positive random features have a small fraction of the error
of trigonometric ones; orthogonal draws have less variance than independent ones.

Softmax attention needs exp(q·k). With w ~ N(0, I), two estimates of it are unbiased, each a mean over m draws:

    trigonometric   e^((|q|² + |k|²)/2) · cos(w·(q − k))        bounded, any sign
    positive        e^(w·q − |q|²/2) · e^(w·k − |k|²/2)         positive, unbounded

Their mean squared errors for independent draws are

    trigonometric   e^(|q + k|²) e^(−2 q·k) (1 − e^(−|q − k|²))² / 2m
    positive        e^(|q + k|²) e^(2 q·k) (1 − e^(−|q + k|²)) / m

so that if q and k point in opposite directions and the weight should be near zero, the positive error vanishes with
the kernel, while the trigonometric error is largest and has both signs: some weights are negative. If q and k agree,
it is the other way round; but there are few such keys and many of the others (arXiv:2009.14794).

Draws that are orthogonal to each other within each group of d have the same mean, and a smaller error. Both features
use the project's own ``log_features`` and ``orthogonal_gaussian``, with the vectors scaled back by its d^¼.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, growing, short
from hftune.lab.vectors import generator
from hftune.models.mingpt.attention_performer import log_features, orthogonal_gaussian
from hftune.runs.figures import BLUE, ORANGE, Line
from hftune.runs.formatting import percent


class RandomFeatureSettings(Section):
    """Two vectors of one length at several angles, and the draws."""

    dimension: int = Field(8, ge=2)
    """Width d of the vectors; as many features are drawn."""
    norm: float = Field(1.5, gt=0, le=2)
    """Length of query and key, each with its share of softmax's 1/√d."""
    orthogonal_norm: float = Field(0.7, gt=0, le=1)
    """Their length in the comparison of orthogonal with independent draws; errors of longer ones vary too much."""
    angles: Annotated[tuple[Annotated[float, Field(gt=0, lt=180)], ...], AfterValidator(growing)] = Field(
        (15, 30, 45, 60, 75, 90, 105, 120, 135, 150, 165), min_length=2
    )
    """Angles between query and key in degrees, growing."""
    draws: int = Field(6000, ge=500)
    """How often d features are drawn."""


def measure(settings: RandomFeatureSettings, seed: int) -> Numbers:
    """Root mean squared errors, relative to exp(q·k), of both features at every angle; and of orthogonal draws."""
    size, source = settings.dimension, generator(seed)
    shape = (settings.draws, size, size)
    independent = torch.randn(shape, generator=source)
    orthogonal = orthogonal_gaussian(settings.draws * size, size, source).view(shape)
    found: Numbers = {"angles": list(settings.angles), "kernel": [], "features": size}
    series: dict[str, list[float]] = {
        name: []
        for name in ("positive", "trigonometric", "positive_predicted", "trigonometric_predicted", "negative_share")
    }
    for angle in settings.angles:
        query, key = _pair(settings.norm, angle, size)
        kernel = math.exp(float(query @ key))
        errors = _errors(query, key, independent)
        found["kernel"].append(kernel)
        for name, value in (errors | _predicted(query, key, size)).items():
            series[name].append(value)
    query, key = _pair(settings.orthogonal_norm, 90, size)
    apart, together = _errors(query, key, independent), _errors(query, key, orthogonal)
    ratio = {name: (together[name] / apart[name]) ** 2 for name in ("positive", "trigonometric")}
    return found | series | {"orthogonal_over_independent": ratio}


def _pair(norm: float, angle: float, size: int) -> tuple[Tensor, Tensor]:
    query, key = torch.zeros(size), torch.zeros(size)
    query[0] = norm
    key[0], key[1] = norm * math.cos(math.radians(angle)), norm * math.sin(math.radians(angle))
    return query, key


def _errors(query: Tensor, key: Tensor, draws: Tensor) -> dict[str, float]:
    """Errors relative to the kernel over all draws [R, m, d], and how often the trigonometric estimate is negative."""
    rows = draws.flatten(0, 1)
    size = len(query)
    shared = size**0.25  # log_features divides by it
    positive = (log_features(query * shared, rows) + log_features(key * shared, rows)).exp()
    outer = math.exp(float(query.square().sum() + key.square().sum()) / 2)
    trigonometric = outer * torch.cos(rows @ (query - key))
    exact = math.exp(float(query @ key))
    means = [estimate.view(draws.shape[:2]).double().mean(dim=1) for estimate in (positive, trigonometric)]
    relative = [float((mean / exact - 1).square().mean().sqrt()) for mean in means]
    return {
        "positive": relative[0],
        "trigonometric": relative[1],
        "negative_share": float((means[1] < 0).double().mean()),
    }


def _predicted(query: Tensor, key: Tensor, count: int) -> dict[str, float]:
    """The errors by the formulas above, divided by the kernel."""
    together, apart = float((query + key).square().sum()), float((query - key).square().sum())
    inner = float(query @ key)
    trigonometric = math.exp(together - 2 * inner) * (1 - math.exp(-apart)) ** 2 / (2 * count)
    positive = math.exp(together + 2 * inner) * (1 - math.exp(-together)) / count
    return {
        "positive_predicted": math.sqrt(positive) / math.exp(inner),
        "trigonometric_predicted": math.sqrt(trigonometric) / math.exp(inner),
    }


def statements(numbers: Numbers) -> dict[str, bool]:
    """Positive features are far better at the widest angle and worse at the narrowest; orthogonal draws are better."""
    exact = zip(numbers["trigonometric"], numbers["trigonometric_predicted"], strict=True)
    ratio = numbers["orthogonal_over_independent"]
    return {
        "near zero weight, positive features have a tenth of the error": numbers["trigonometric"][-1]
        > 10 * numbers["positive"][-1],
        "near zero weight, positive features err by less than half the weight": numbers["positive"][-1] < 0.5,
        "near zero weight, trigonometric weights are often negative": numbers["negative_share"][-1] > 0.2,
        "if query and key agree, trigonometric features are better": numbers["trigonometric"][0]
        < numbers["positive"][0],
        "trigonometric errors are as predicted, within 20 %": all(abs(x / y - 1) < 0.2 for x, y in exact),
        # At other angles rare large draws dominate the error, too few of them in a sample of this size.
        "the positive error near zero weight is as predicted, within 20 %": abs(
            numbers["positive"][-1] / numbers["positive_predicted"][-1] - 1
        )
        < 0.2,
        "orthogonal draws have less variance, positive features": ratio["positive"] < 0.95,
        "orthogonal draws have less variance, trigonometric features": ratio["trigonometric"] < 0.95,
    }


def draw(numbers: Numbers) -> Drawing:
    """Relative error against the kernel."""
    lines = [
        Line("trigonometric", numbers["kernel"], numbers["trigonometric"], ORANGE, "s"),
        Line("positive", numbers["kernel"], numbers["positive"], BLUE, "o"),
    ]
    return Drawing(
        chart(lines, x_label="exp(q·k)", y_label="error relative to exp(q·k)", log_x=True, log_y=True),
        alt="Relative error against the kernel: as the kernel approaches zero, the error of trigonometric features "
        "grows and that of positive ones falls; they cross near 1.",
        caption="Most weights are small: there positive features are accurate and trigonometric ones are not",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At the widest angle, and the gain of orthogonal draws."""
    ratio = numbers["orthogonal_over_independent"]
    return [
        (f"exp(q·k) at {short(numbers['angles'][-1])}°", short(numbers["kernel"][-1])),
        ("there: relative error, positive", short(numbers["positive"][-1])),
        ("there: the same, predicted", short(numbers["positive_predicted"][-1])),
        ("there: relative error, trigonometric", short(numbers["trigonometric"][-1])),
        ("there: the same, predicted", short(numbers["trigonometric_predicted"][-1])),
        ("there: trigonometric estimates below zero", percent(numbers["negative_share"][-1])),
        ("variance, orthogonal / independent, positive", short(ratio["positive"])),
        ("variance, orthogonal / independent, trigonometric", short(ratio["trigonometric"])),
    ]


QUESTIONS = (
    "Why does the accuracy at small weights matter more for attention than the accuracy at large ones?",
    "What happens to the normalized weights if estimates can be negative?",
    "Both estimates are unbiased. In what do they differ?",
)
EXPERIMENT = Experiment(__doc__, RandomFeatureSettings, measure, statements, draw, rows, QUESTIONS)
