"""scaling: Without 1/√d the variance of the logits grows like d, one weight takes nearly all and the gradient shrinks;
with it both variances are the same at every width.

For q and k with independent components of mean 0 and variance 1, q·k is a sum of d products of variance 1:

    Var(q·k) = d,    Var(q·k / √d) = 1

Softmax passes ∂L/∂l_i = w_i (g_i − Σ_j w_j g_j) back to the logits, with g_i = v_i·∂L/∂c. When logits are √d apart one
weight is nearly 1 and the others nearly 0, so that every factor w_i (…) is nearly 0. The rest comes from
samples in which the two best logits happen to differ by about 1 or less: a share of the order 1/√d.

The gradient of the logits is measured as that of a bias of zeros that is added to them.
"""

from __future__ import annotations

import math

import torch
from matplotlib.ticker import StrMethodFormatter
from pydantic import Field

from hftune.config.section import Section
from hftune.lab.experiment import Counts, Drawing, Experiment, Numbers, short, slope
from hftune.lab.vectors import attend, attention_weights, gaussian, generator
from hftune.runs.figures import BLUE, ORANGE, Line, draw_line, legend, new_figure, style


class ScalingSettings(Section):
    """Widths and samples."""

    dimensions: Counts = (4, 8, 16, 32, 64, 128, 256)
    """Widths d of queries and keys, growing."""
    keys: int = Field(16, ge=2)
    """Number of keys."""
    samples: int = Field(400, ge=50)
    """Samples of a query and its keys."""


def measure(settings: ScalingSettings, seed: int) -> Numbers:
    """Variance of logits and of their gradient against d, with and without 1/√d."""
    found: Numbers = {"dimensions": list(settings.dimensions)}
    kinds = ("plain", "scaled")
    logit_variance: dict[str, list[float]] = {kind: [] for kind in kinds}
    gradient_variance: dict[str, list[float]] = {kind: [] for kind in kinds}
    greatest_weight: dict[str, list[float]] = {kind: [] for kind in kinds}
    for dimension in settings.dimensions:
        source = generator(seed)
        query = gaussian(settings.samples, 1, dimension, source=source)
        keys = gaussian(settings.samples, settings.keys, dimension, source=source)
        # The gradient g_i that arrives at value i has variance 1 for every d: the values are these numbers.
        signal = gaussian(settings.samples, settings.keys, 1, source=source)
        for kind, scale in zip(kinds, (1.0, 1 / math.sqrt(dimension)), strict=True):
            bias = torch.zeros(settings.samples, 1, settings.keys, dtype=keys.dtype, requires_grad=True)
            output = attend(query, keys, signal, scale=scale, bias=bias)
            (gradient,) = torch.autograd.grad(output.sum(), bias)
            weight = attention_weights(query, keys, scale=scale)
            logit_variance[kind].append(float((scale * query @ keys.transpose(1, 2)).var()))
            gradient_variance[kind].append(float(gradient.var()))
            greatest_weight[kind].append(float(weight.amax(dim=-1).mean()))
    found |= {
        "logit_variance": logit_variance,
        "gradient_variance": gradient_variance,
        "greatest_weight": greatest_weight,
        "logit_slope": slope(settings.dimensions, logit_variance["plain"]),
        "gradient_slope": slope(settings.dimensions, gradient_variance["plain"]),
    }
    return found


def statements(numbers: Numbers) -> dict[str, bool]:
    """Growth in one case, constancy in the other."""
    logits, gradients = numbers["logit_variance"], numbers["gradient_variance"]
    weight = numbers["greatest_weight"]
    return {
        "without 1/√d the variance of the logits grows like d": abs(numbers["logit_slope"] - 1) < 0.15,
        "with 1/√d it stays 1": all(abs(found - 1) < 0.25 for found in logits["scaled"]),
        "without 1/√d the gradient shrinks as d grows": gradients["plain"][-1] < 0.5 * gradients["plain"][0],
        "with 1/√d it does not, at any width": all(
            0.7 < one / gradients["scaled"][0] < 1.4 for one in gradients["scaled"]
        ),
        "without 1/√d one weight takes nearly all, with it none does": weight["plain"][-1]
        > 0.9
        > 2 * weight["scaled"][-1],
    }


def draw(numbers: Numbers) -> Drawing:
    """Variance of the logits above, of their gradient below."""
    figure = new_figure(height=4.2)
    upper, lower = figure.subplots(2, 1, sharex=True)
    style(upper, "", "variance of logits")
    style(lower, "width d of queries and keys", "of their gradient")
    for axes, variance in ((upper, numbers["logit_variance"]), (lower, numbers["gradient_variance"])):
        draw_line(axes, Line("unscaled", numbers["dimensions"], variance["plain"], ORANGE, "s"))
        draw_line(axes, Line("divided by √d", numbers["dimensions"], variance["scaled"], BLUE, "o"))
    upper.set_yscale("log")
    lower.set_xscale("log", base=2)
    lower.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    lower.set_ylim(bottom=0)
    upper.minorticks_off()
    legend(upper)
    return Drawing(
        figure,
        alt="Variances against d: without scaling that of the logits rises like d and that of the gradient falls; with "
        "scaling both are flat.",
        caption="Without 1/√d the logits grow and the gradient of the logits shrinks; with it both are constant",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At the greatest d."""
    d = numbers["dimensions"][-1]
    return [
        (f"variance of the logits, d = {d}", short(numbers["logit_variance"]["plain"][-1])),
        ("the same, divided by √d", short(numbers["logit_variance"]["scaled"][-1])),
        ("variance of the logits ∝ dᵖ: fitted p", short(numbers["logit_slope"])),
        ("variance of the gradient ∝ dᵖ: fitted p", short(numbers["gradient_slope"])),
        (f"mean greatest weight, d = {d}", short(numbers["greatest_weight"]["plain"][-1])),
        ("the same, logits divided by √d", short(numbers["greatest_weight"]["scaled"][-1])),
    ]


QUESTIONS = (
    "Why √d and not d? What would dividing by d do to softmax in a wide head?",
    "The argument holds for random queries and keys. What can training do about the scale of the logits?",
    "Which part of the gradient remains without the scaling, and from which samples does it come?",
)
EXPERIMENT = Experiment(__doc__, ScalingSettings, measure, statements, draw, rows, QUESTIONS)
