"""single-head: With keys N(μ_i, αI) the query β(μ_a + μ_b) gives the average; with Σ_a = αI + ½ μ_a μ_aᵀ the output
is mostly close to one of v_a and v_b.

New keys are drawn for every sample, k_i ~ N(μ_i, Σ_i) around orthonormal means, and the query is made for the
means: q = β(μ_a + μ_b). The output depends on the difference of two logits, which is Gaussian with mean 0:

    share of v_a = w_a / (w_a + w_b) = σ(q·(k_a − k_b))

With Σ_i = αI its variance is 4αβ², small for small α, and the output stays near ½(v_a + v_b). With
Σ_a = αI + ½ μ_a μ_aᵀ the key keeps its direction and varies in length, and the variance is

    Var q·(k_a − k_b) = β² (½ + 4α)

The greater β, the more often the output is one of the two values and not their average. The share is beyond
0.9 or below 0.1 with probability 2 Φ(−ln 9 / (β √(½ + 4α))).
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from hftune.lab.experiment import Drawing, Experiment, KeySettings, Numbers, short
from hftune.lab.vectors import attention_weights, gaussian, generator, orthonormal
from hftune.runs.figures import BLUE, ORANGE, legend, new_figure, style
from hftune.runs.formatting import percent

BINS = 20
CLEAR = 0.9
"""Share from which the output counts as one value alone."""


class NoisyKeySettings(KeySettings):
    """Keys that vary from sample to sample."""

    alpha: float = Field(1e-4, gt=0, le=0.1)
    """Variance α of every key in every direction."""
    beta: float = Field(10.0, gt=0)
    """Scale β of the query."""
    samples: int = Field(4000, ge=100)
    """How often keys are drawn."""


def draw_keys(settings: NoisyKeySettings, source: torch.Generator, *, stretched: bool) -> tuple[Tensor, Tensor]:
    """Means [n, d], and samples of the keys [samples, n, d]; the first key's length varies where stretched."""
    means = orthonormal(settings.keys, settings.dimension, source)
    noise = gaussian(settings.samples, settings.keys, settings.dimension, source=source)
    keys = means + math.sqrt(settings.alpha) * noise
    if stretched:
        lengths = math.sqrt(0.5) * gaussian(settings.samples, 1, source=source)
        keys[:, 0] += lengths * means[0]
    return means, keys


def weights(query: Tensor, keys: Tensor) -> Tensor:
    """Attention weights [samples, n] of one query over each sample's keys."""
    return attention_weights(query.expand(len(keys), 1, -1), keys)[:, 0]


def measure(settings: NoisyKeySettings, seed: int) -> Numbers:
    """Distribution of the share of v_a over samples, with fixed and with varying length."""
    found: Numbers = {"samples": settings.samples}
    for name, stretched, variance in (("still", False, 0.0), ("stretched", True, 0.5)):
        means, keys = draw_keys(settings, generator(seed), stretched=stretched)
        weight = weights(settings.beta * (means[0] + means[1]), keys)
        share = weight[:, 0] / weight[:, :2].sum(dim=1)
        deviation = settings.beta * math.sqrt(variance + 4 * settings.alpha)
        found[name] = {
            "mean": float(share.mean()),
            "deviation": float(share.std()),
            "only_a": float((share > CLEAR).double().mean()),
            "only_b": float((share < 1 - CLEAR).double().mean()),
            "one_value_predicted": math.erfc(math.log(CLEAR / (1 - CLEAR)) / deviation / math.sqrt(2)),
            "histogram": (torch.histc(share, BINS, 0, 1) / settings.samples).tolist(),
        }
    return found


def statements(numbers: Numbers) -> dict[str, bool]:
    """Narrow in one case, two-sided in the other, as often as predicted."""
    still, stretched = numbers["still"], numbers["stretched"]
    predicted = stretched["one_value_predicted"]
    noise = math.sqrt(predicted * (1 - predicted) / numbers["samples"])
    one_value = stretched["only_a"] + stretched["only_b"]
    return {
        "with Σ = αI the output stays near the average": still["deviation"] < 0.1,
        "with Σ = αI neither value takes over": still["only_a"] + still["only_b"] < 0.01,
        "both center on one half": all(abs(one["mean"] - 0.5) < 0.05 for one in (still, stretched)),
        "with a varying length the spread is at least 4 times as large": stretched["deviation"]
        > 4 * still["deviation"],
        "in most samples the output is nearly one value": one_value > 0.5,
        "both values are reached": min(stretched["only_a"], stretched["only_b"]) > 0.2,
        "it is one value as often as predicted": abs(one_value - predicted) < 5 * noise + 0.01,
    }


def draw(numbers: Numbers) -> Drawing:
    """Two histograms of the share."""
    figure = new_figure()
    axes = figure.subplots()
    style(axes, "share of v_a in the output", "share of samples")
    edges = torch.linspace(0, 1, BINS + 1).tolist()
    for name, label, color in (("still", "Σ = αI", BLUE), ("stretched", "length of k_a varies", ORANGE)):
        heights = numbers[name]["histogram"]
        axes.stairs(heights, edges, color=color, linewidth=1.6, label=label)
        axes.stairs(heights, edges, color=color, fill=True, alpha=0.18)
    legend(axes)
    one_value = numbers["stretched"]["only_a"] + numbers["stretched"]["only_b"]
    return Drawing(
        figure,
        alt="Histogram of the share of v_a: one narrow peak at one half for fixed keys; two peaks at 0 and 1 when the "
        f"length varies, with {percent(one_value)} of the samples beyond 0.9 or below 0.1.",
        caption="The same query: an average of two values, or one of them at random",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """Spread, and how often one value wins."""
    still, stretched = numbers["still"], numbers["stretched"]
    return [
        ("spread of the share, Σ = αI", short(still["deviation"])),
        ("spread of the share, varying length", short(stretched["deviation"])),
        ("samples with nearly only v_a", percent(stretched["only_a"])),
        ("samples with nearly only v_b", percent(stretched["only_b"])),
        ("either, predicted", percent(stretched["one_value_predicted"])),
    ]


QUESTIONS = (
    "Why does a smaller β reduce the spread, and what is lost?",
    "Why is noise in directions orthogonal to the query harmless?",
    "The mean over samples is still ½(v_a + v_b). Why does that not help the next layer?",
)
EXPERIMENT = Experiment(__doc__, NoisyKeySettings, measure, statements, draw, rows, QUESTIONS)
