"""masking: A masked key gets exactly zero weight and zero gradient, in every attention variant; a finite bias in place
of −∞ leaks.

A mask sets logits to −∞ before softmax, and exp(−∞) = 0 exactly, not nearly. Then

    w_i = 0,    ∂c/∂v_i = w_i = 0,    ∂c/∂l_i = w_i (v_i − c) = 0

so that neither value nor key of the masked token has any effect. A finite bias b in place of −∞ leaves a weight in
proportion to e^b, which is exactly zero only once it underflows: at about b = −104 in single precision, −17 in half
precision.

Causal models mask the future and padding. Variants that never form the weights (performer's running state, bigbird's
and linformer's blocks) must have the same zeros. They are measured in a whole minGPT: the gradient of the outputs at
real, earlier positions with respect to the embeddings of later and of padded positions, and the weights themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, short, shrinking
from hftune.lab.vectors import attend, attention_weights, generator
from hftune.models.mingpt import ATTENTION, MinGPTConfig, MinGPTForCausalLM
from hftune.runs.figures import BLUE, ORANGE, Line


class MaskingSettings(Section):
    """The sequence, and the finite biases that are compared with −∞."""

    length: int = Field(24, ge=12, le=512)
    """Tokens in the sequence; blocks of bigbird and linformer are a few tokens, so that there are several."""
    padding: int = Field(3, ge=1, le=5)
    """Padding tokens on the left."""
    keys: int = Field(16, ge=2)
    """Keys of the query that is masked by finite biases."""
    biases: Annotated[tuple[float, ...], AfterValidator(shrinking)] = Field(
        (-1, -5, -10, -20, -40, -60, -80, -90, -100, -110, -120), min_length=2
    )
    """Finite biases in place of −∞, decreasing."""


def measure(settings: MaskingSettings, seed: int) -> Numbers:
    """Weight and gradient of masked tokens in every variant, and with finite biases."""
    single = {name: _leak(name, settings, seed) for name in ATTENTION}
    source = generator(seed)
    query = torch.randn(1, 1, 8, generator=source)
    keys, values = (torch.randn(1, settings.keys, 8, generator=source) for _ in range(2))
    finite = [_masked_key(query, keys, values, bias) for bias in settings.biases]
    return {
        "variants": single,
        "infinite": _masked_key(query, keys, values, -math.inf),
        "biases": list(settings.biases),
        "weights": [found["weight"] for found in finite],
        "gradients": [found["gradient"] for found in finite],
    }


def _leak(variant: str, settings: MaskingSettings, seed: int) -> dict[str, float]:
    """Largest gradient and weight of hidden tokens (future, padding), and the gradient of visible ones."""
    config = MinGPTConfig(
        attention=variant,
        vocab_size=16,
        block_size=settings.length,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        performer_features=16,
        bigbird_block=2,
        linformer_block=4,
        linformer_rank=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MinGPTForCausalLM(config).eval()
        embeddings = torch.randn(1, settings.length, 16, requires_grad=True)
    real = torch.ones(1, settings.length, dtype=torch.long)
    real[:, : settings.padding] = 0
    found = model(inputs_embeds=embeddings, attention_mask=real, output_attentions=True, use_cache=False)
    middle = (settings.padding + settings.length) // 2
    (gradient,) = torch.autograd.grad(found.logits[0, middle].square().sum(), embeddings)
    reach = gradient[0].abs().amax(dim=1)  # a norm would underflow: squares of small numbers
    hidden = torch.ones(settings.length, dtype=torch.bool)
    hidden[settings.padding : middle + 1] = False
    weights = torch.stack([layer[0, :, middle] for layer in found.attentions]).detach()  # [layers, H, S]
    return {
        "hidden_gradient": float(reach[hidden].max()),
        "hidden_weight": float(weights[..., hidden].abs().max()),
        "visible_gradient": float(reach[~hidden].max()),
    }


def _masked_key(query: Tensor, keys: Tensor, values: Tensor, bias: float) -> dict[str, float]:
    """Weight of the first key under a bias, and the gradient that reaches it."""
    mask = torch.zeros(1, 1, keys.shape[1])
    mask[..., 0] = bias
    leaf = keys.clone().requires_grad_()
    scale = query.shape[-1] ** -0.5
    output = attend(query, leaf, values, scale=scale, bias=mask)
    (gradient,) = torch.autograd.grad(output.sum(), leaf)
    weights = attention_weights(query, keys, scale=scale, bias=mask)
    return {"weight": float(weights[0, 0, 0]), "gradient": float(gradient[0, 0].abs().max())}


def statements(numbers: Numbers) -> dict[str, bool]:
    """Masked tokens get exactly zero in every variant, and more than zero with a finite bias."""
    variants = numbers["variants"]
    return (
        {
            f"{name}: hidden tokens get weight 0, exactly": found["hidden_weight"] == 0
            for name, found in variants.items()
        }
        | {
            f"{name}: hidden tokens get gradient 0, exactly": found["hidden_gradient"] == 0
            for name, found in variants.items()
        }
        | {
            "visible tokens do get a gradient": all(found["visible_gradient"] > 0 for found in variants.values()),
            "a bias of −∞ gives weight and gradient 0, exactly": numbers["infinite"] == {"weight": 0, "gradient": 0},
            "a small finite bias leaks": numbers["weights"][0] > 0 and numbers["gradients"][0] > 0,
            "the weight it leaves is in proportion to e^b": all(
                abs(math.log(after / before) / (low - high) - 1) < 0.01 for high, low, before, after in _steps(numbers)
            ),
        }
    )


def _steps(numbers: Numbers) -> Iterator[tuple[float, float, float, float]]:
    """Consecutive biases and their weights, where the sum hardly changes and single precision has all its digits."""
    found = [
        (bias, weight) for bias, weight in zip(numbers["biases"], numbers["weights"], strict=True) if -80 <= bias <= -5
    ]
    return ((high, low, before, after) for (high, before), (low, after) in pairwise(found))


def draw(numbers: Numbers) -> Drawing:
    """Weight and gradient against the bias."""
    lines = [
        Line("weight", numbers["biases"], numbers["weights"], BLUE, "o"),
        Line("gradient of the key", numbers["biases"], numbers["gradients"], ORANGE, "s"),
    ]
    return Drawing(
        chart(lines, x_label="bias in place of −∞", y_label="of the masked key", log_y=True),
        alt="Weight and gradient of a masked key against a finite bias: both fall exponentially until single "
        "precision underflows to zero.",
        caption="A finite bias leaves a weight in proportion to e^b, until single precision underflows to zero",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """Leaks, with −∞ and without."""
    variants = numbers["variants"].values()
    last = next((bias for bias, weight in zip(numbers["biases"], numbers["weights"], strict=True) if not weight), None)
    return [
        (
            f"largest weight of a hidden token, {len(variants)} variants",
            short(max(one["hidden_weight"] for one in variants)),
        ),
        ("largest gradient of a hidden token", short(max(one["hidden_gradient"] for one in variants))),
        ("least gradient of a visible token", short(min(one["visible_gradient"] for one in variants))),
        (f"weight with a bias of {short(numbers['biases'][0])}", short(numbers["weights"][0])),
        ("first bias whose weight is exactly 0", "none" if last is None else short(last)),
    ]


QUESTIONS = (
    "Why can a masked value still ruin the output if it is infinite or NaN?",
    "What happens to a query if all of its keys are masked, and what should happen?",
    "Which finite bias is safe in half precision, with numbers from about 6e−8 to 65,504?",
)
EXPERIMENT = Experiment(__doc__, MaskingSettings, measure, statements, draw, rows, QUESTIONS)
