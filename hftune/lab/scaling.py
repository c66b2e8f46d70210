"""scaling: the logits are divided by √d because without it they grow with d, and softmax stops passing gradients.

For q and k with independent components of mean 0 and variance 1, q·k is a sum of d products of variance 1:

    Var(q·k) = d,    Var(q·k / √d) = 1

Softmax passes ∂L/∂l_i = w_i (g_i − Σ_j w_j g_j) back to the logits, with g_i = v_i·∂L/∂c. When logits are √d apart one
weight is nearly 1 and the others nearly 0, so that every factor w_i (…) is nearly 0. What is left comes from the
draws in which the two best logits happen to be within about 1 of each other: a share of the order 1/√d.

The gradient of the logits is read off as that of a bias of zeros added to them.
"""

from __future__ import annotations

import math

import torch
from matplotlib.ticker import StrMethodFormatter
from pydantic import Field
from torch.nn import functional as F  # noqa: N812

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, short, violated
from hftune.lab.series import Counts
from hftune.lab.vectors import gaussian, generator
from hftune.models.mingpt.cost import slope
from hftune.runs.figures import BLUE, ORANGE, Line, draw_line, legend, new_figure, style


class ScalingSettings(Section):
    """Widths to compare, and how many draws of each."""

    dimensions: Counts = (4, 8, 16, 32, 64, 128, 256)
    """Widths d of queries and keys, growing."""
    keys: int = Field(16, ge=2)
    """Number of keys."""
    samples: int = Field(400, ge=50)
    """Draws of a query and its keys."""


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
        # The signal g that arrives at each value has variance 1, whatever d is: the values are its rows.
        signal = gaussian(settings.samples, settings.keys, 1, source=source)
        identity = torch.eye(settings.keys, dtype=keys.dtype).expand(settings.samples, -1, -1)
        for kind, scale in zip(kinds, (1.0, 1 / math.sqrt(dimension)), strict=True):
            bias = torch.zeros(settings.samples, 1, settings.keys, dtype=keys.dtype, requires_grad=True)
            output = F.scaled_dot_product_attention(query, keys, signal, attn_mask=bias, scale=scale)
            (gradient,) = torch.autograd.grad(output.sum(), bias)
            weight = F.scaled_dot_product_attention(query, keys, identity, scale=scale)
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


def check(numbers: Numbers) -> list[str]:
    """Growth in one case, constancy in the other."""
    logits, gradients = numbers["logit_variance"], numbers["gradient_variance"]
    weight = numbers["greatest_weight"]
    return violated(
        {
            "without 1/√d the variance of the logits grows like d": abs(numbers["logit_slope"] - 1) < 0.15,
            "with 1/√d it stays 1": all(abs(found - 1) < 0.25 for found in logits["scaled"]),
            "without 1/√d the gradient shrinks as d grows": gradients["plain"][-1] < 0.5 * gradients["plain"][0],
            "with 1/√d it does not": 0.5 < gradients["scaled"][-1] / gradients["scaled"][0] < 2,
            "without 1/√d one weight takes nearly all": weight["plain"][-1] > 0.9 > 2 * weight["scaled"][-1],
        }
    )


def draw(numbers: Numbers) -> Drawing:
    """Variance of the logits above, of their gradient below."""
    figure = new_figure(height=4.2)
    upper, lower = figure.subplots(2, 1, sharex=True)
    style(upper, "", "variance of logits")
    style(lower, "width d of queries and keys", "of their gradient")
    for axes, variance in ((upper, numbers["logit_variance"]), (lower, numbers["gradient_variance"])):
        draw_line(axes, Line("as they are", numbers["dimensions"], variance["plain"], ORANGE, "s"))
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
        caption="Without 1/√d the logits grow and the gradient of the logits shrinks; with it both stay where they are",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At the greatest d."""
    d = numbers["dimensions"][-1]
    return [
        (f"variance of the logits, d = {d}", short(numbers["logit_variance"]["plain"][-1])),
        ("the same, divided by √d", short(numbers["logit_variance"]["scaled"][-1])),
        ("fitted: variance of the logits ∝ d to the", short(numbers["logit_slope"])),
        ("fitted: variance of the gradient ∝ d to the", short(numbers["gradient_slope"])),
        (f"mean greatest weight, d = {d}", short(numbers["greatest_weight"]["plain"][-1])),
        ("the same, logits divided by √d", short(numbers["greatest_weight"]["scaled"][-1])),
    ]


EXPERIMENT = Experiment(
    name="scaling",
    claim="Without 1/√d the variance of the logits grows like d, one weight takes nearly all and the gradient shrinks; "
    "with it both variances stay the same at any width.",
    mathematics=__doc__,
    settings=ScalingSettings,
    measure=measure,
    check=check,
    draw=draw,
    rows=rows,
    questions=(
        "Why √d and not d? What would dividing by d do to softmax in a wide head?",
        "The argument holds for random queries and keys. What can training do about the scale of the logits?",
        "Which part of the gradient survives without the scaling, and from which draws does it come?",
    ),
)
