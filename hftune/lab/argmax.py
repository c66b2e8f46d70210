"""argmax: Attention by argmax selects one value and passes no gradient to queries and keys; straight-through passes
the gradient of softmax, and softmax with a falling temperature loses it.

With logits l_i = q·k_i, hard attention is c = v_m, m = argmax l. A small change of q or k does not
change the choice, so that c is piecewise constant in them:

    ∂c/∂q = 0,    ∂c/∂k_i = 0,    ∂c/∂v_i = 1 for i = m, else 0

Softmax at temperature τ has w = softmax(l/τ) and gradient ∂c/∂l_i = w_i (v_i − c) / τ. As τ → 0 it becomes the hard
choice: 1 − w_m ≈ e^(−g/τ) for a gap g between the two best logits, and the gradient e^(−g/τ)/τ vanishes too.

The straight-through estimator uses the hard output in the forward pass and the gradient of softmax in the backward
pass (arXiv:1308.3432). It is the gradient of another function: it is not zero, while the true gradient is.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hftune.lab.experiment import Drawing, Experiment, KeySettings, Numbers, chart, short, shrinking
from hftune.lab.vectors import attention_weights, gaussian, generator
from hftune.runs.figures import BLUE, ORANGE, Line


class ArgmaxSettings(KeySettings):
    """Keys, values and the temperatures of softmax."""

    temperatures: Annotated[tuple[Annotated[float, Field(gt=0)], ...], AfterValidator(shrinking)] = Field(
        (8, 4, 2, 1, 0.5, 0.25, 0.125, 0.0625), min_length=2
    )
    """Temperatures τ, decreasing."""
    gap: float = Field(1.0, gt=0)
    """Difference between the best logit and the second best."""
    step: float = Field(1e-6, gt=0)
    """Step of the query for the finite difference of the output."""


def measure(settings: ArgmaxSettings, seed: int) -> Numbers:
    """Output and gradients of hard, straight-through and soft attention on the same query, keys and values."""
    source = generator(seed)
    query = gaussian(1, settings.dimension, source=source) / settings.dimension**0.5
    keys = gaussian(settings.keys, settings.dimension, source=source)
    values = gaussian(settings.keys, settings.dimension, source=source)
    towards = gaussian(1, settings.dimension, source=source)
    logits = (query @ keys.T)[0]
    best = logits.topk(2).values
    picked = int(logits.argmax())
    keys[picked] += (settings.gap - (best[0] - best[1])) * query[0] / query.square().sum()
    inputs = (query, keys, values)
    hard = _gradients(_hard_weights, inputs, towards)
    soft = _gradients(_soft_weights, inputs, towards)
    through = _gradients(_straight_through, inputs, towards)
    moved = _hard_weights(query + settings.step * towards, keys) @ values - hard["output"]
    others = hard["value_gradient"][torch.arange(settings.keys) != picked]
    cooled = [_gradients(lambda q, k, t=tau: _soft_weights(q, k, t), inputs, towards) for tau in settings.temperatures]
    return {
        "gap": settings.gap,
        "temperatures": list(settings.temperatures),
        "hard": {
            "distance_from_value": float((hard["output"] - values[picked]).abs().max()),
            "query_gradient": float(hard["query_gradient"].norm()),
            "key_gradient": float(hard["key_gradient"].norm()),
            "picked_value_gradient": float(hard["value_gradient"][picked].norm()),
            "other_value_gradient": float(others.norm()),
            "moved": float(moved.norm()),
        },
        "straight_through": {
            "distance_from_hard": float((through["output"] - hard["output"]).abs().max()),
            "query_gradient": float(through["query_gradient"].norm()),
            "distance_from_soft_gradient": float((through["query_gradient"] - soft["query_gradient"]).norm()),
        },
        "soft": {
            "distance_from_hard": [float((at["output"] - hard["output"]).norm()) for at in cooled],
            "query_gradient": [float(at["query_gradient"].norm()) for at in cooled],
        },
    }


def _soft_weights(query: Tensor, keys: Tensor, temperature: float = 1.0) -> Tensor:
    return attention_weights(query, keys, scale=1 / temperature)


def _hard_weights(query: Tensor, keys: Tensor) -> Tensor:
    # The zero connects the result with query and keys, so that autograd has a path and returns gradients of zero.
    logits = query @ keys.T
    return F.one_hot(logits.argmax(dim=-1), len(keys)).to(keys.dtype) + 0 * logits


def _straight_through(query: Tensor, keys: Tensor) -> Tensor:
    soft = _soft_weights(query, keys)
    return _hard_weights(query, keys).detach() + soft - soft.detach()


def _gradients(weigh: object, inputs: tuple[Tensor, Tensor, Tensor], towards: Tensor) -> dict[str, Tensor]:
    assert callable(weigh)
    query, keys, values = (tensor.clone().requires_grad_() for tensor in inputs)
    output = weigh(query, keys) @ values
    found = torch.autograd.grad((output * towards).sum(), (query, keys, values))
    return dict(zip(("query_gradient", "key_gradient", "value_gradient"), found, strict=True)) | {
        "output": output.detach()
    }


def statements(numbers: Numbers) -> dict[str, bool]:
    """The gradient of hard attention is exactly zero; straight-through and temperature behave as claimed."""
    hard, through, soft = numbers["hard"], numbers["straight_through"], numbers["soft"]
    return {
        "argmax gives one of the values, exactly": hard["distance_from_value"] == 0,
        "argmax passes no gradient to the query": hard["query_gradient"] == 0,
        "argmax passes no gradient to the keys": hard["key_gradient"] == 0,
        "a small step of the query does not change the output": hard["moved"] == 0,
        "only the selected value gets a gradient": hard["picked_value_gradient"] > 0
        and hard["other_value_gradient"] == 0,
        "straight-through gives the same output": through["distance_from_hard"] < 1e-12,
        "straight-through passes the gradient of softmax": through["query_gradient"] > 0
        and through["distance_from_soft_gradient"] < 1e-12,
        "cold softmax is argmax, to 3 digits": soft["distance_from_hard"][-1] < 1e-3,
        "cold softmax loses its gradient": soft["query_gradient"][-1] < 0.05 * max(soft["query_gradient"]),
    }


def draw(numbers: Numbers) -> Drawing:
    """Distance and gradient against temperature."""
    x, soft = numbers["temperatures"], numbers["soft"]
    lines = [
        Line("distance from argmax", x, soft["distance_from_hard"], BLUE, "o"),
        Line("gradient of the query", x, soft["query_gradient"], ORANGE, "s"),
    ]
    return Drawing(
        chart(lines, x_label="temperature τ", y_label="norm", log_x=True, log_y=True, power=2),
        alt="Softmax against temperature: as the temperature falls, the output becomes that of argmax, and its "
        "gradient, after a peak, falls to zero.",
        caption="The gradient peaks between warm (smooth, but a mixture) and cold (a choice, but no gradient)",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """Gradients of the three kinds, and the ends of the curve."""
    hard, through, soft = numbers["hard"], numbers["straight_through"], numbers["soft"]
    cold = short(numbers["temperatures"][-1])
    return [
        ("argmax: gradient of query and keys", f"{short(hard['query_gradient'])} and {short(hard['key_gradient'])}"),
        ("argmax: gradient of the selected value", short(hard["picked_value_gradient"])),
        ("straight-through: gradient of the query", short(through["query_gradient"])),
        ("gap between the two best logits", short(numbers["gap"])),
        (f"softmax, τ = {cold}: distance from argmax", short(soft["distance_from_hard"][-1])),
        (f"softmax, τ = {cold}: gradient of the query", short(soft["query_gradient"][-1])),
    ]


QUESTIONS = (
    "Which parameters of a transformer would still learn under argmax attention, and which would not?",
    "Why is the gradient largest at a middle temperature?",
    "In what sense is the straight-through gradient wrong, and why can it still be useful?",
)
EXPERIMENT = Experiment(__doc__, ArgmaxSettings, measure, statements, draw, rows, QUESTIONS)
