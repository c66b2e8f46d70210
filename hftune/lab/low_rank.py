"""low-rank: Attention weights of a random model are close to low rank, so that a rank-k decomposition gives the output
in O(nkh), and training raises their rank; without softmax, projections C, D onto k = h tokens are exact.

P = softmax(QKᵀ/√h) is n × n, and PV costs n²h. With the singular value decomposition P = Σ_i σ_i u_i w_iᵀ cut after k
terms, the product in the right order costs 2nkh:

    P_k V = U_k (S_k (W_kᵀ V)),    |P − P_k| = (Σ_(i>k) σ_i²)^½,    |PV − P_k V| ≤ σ_(k+1) |V|

A randomly initialized model weights all earlier tokens nearly equally, and its P is close to the matrix of running
means, whose singular values fall fast. Close to low rank means here: a quarter of the n singular values give P with an
error of at most 10 %. The number that is needed grows much more slowly than n, so the claim is about long sequences (13
of 32 and 17 of 64, but 20 of 96 and 27 of 256). Training makes heads selective, which raises the rank to 1.6 to 2 times
that (45 of 128); sharply peaked weights over independent keys are the extreme case. Low rank is a property of what a
head does, not of softmax.

Without softmax the low rank is exact: QKᵀ has rank h at most. In Q (CK)ᵀ (DV) ≈ QKᵀV, the n tokens are projected on k
by C and D, both k × n. Taking the first k left singular vectors of K for both, KᵀCᵀDV = KᵀV exactly from k = h on,
since UUᵀK = K. Gaussian C = D with entries of variance 1/k are unbiased, E[CᵀD] = I, with an error that falls only like
1/√k. Computing the decomposition costs more than it saves: linformer learns its projections (arXiv:2006.04768).
"""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Counts, Drawing, Experiment, Numbers, chart, short
from hftune.lab.small_model import small_model
from hftune.lab.vectors import attention_weights, generator
from hftune.models.mingpt.attention_base import Layout
from hftune.runs.figures import BLUE, GREEN, ORANGE, Line

SHARP = 6.0  # factor on the logits of the peaked weights
SMALL_ERROR = 0.1
"""The relative error of P up to which a rank is enough."""


class LowRankSettings(Section):
    """The model and the ranks."""

    steps: int = Field(200, ge=1)
    """Training steps of the trained model; the random one is not trained."""
    length: int = Field(128, ge=96, le=512)
    """Tokens n in the sequence; in a shorter one the random model's rank is no small part of n."""
    ranks: Counts = (1, 2, 4, 8, 16, 32, 64, 96)
    """Ranks k, growing; those above ``length`` are ignored."""

    @model_validator(mode="after")
    def _some_rank_fits(self) -> Self:
        if self.ranks[0] > self.length // 4:
            raise ValueError(f"the least rank must be at most a quarter of the length, {self.length // 4}")
        return self


def measure(settings: LowRankSettings, seed: int) -> Numbers:
    """Singular values and errors of P for a trained model, a random one and sharp weights; and C, D without softmax."""
    ranks = [rank for rank in settings.ranks if rank <= settings.length]
    found: Numbers = {"length": settings.length, "ranks": ranks}
    heads: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for name, steps in (("random", 0), ("trained", settings.steps)):
        made = small_model(steps, settings.length, seed)
        heads = _heads(made.model, made.unseen[None, : settings.length])
        found[name] = _over_heads([_cut(weights, value, ranks) for weights, _, _, value in heads])
        if steps:
            found["loss"] = [made.first_loss, made.last_loss]
    width = heads[0][1].shape[-1]
    source = generator(seed)
    query, key, value = (torch.randn(settings.length, width, generator=source, dtype=torch.float64) for _ in range(3))
    sharp = attention_weights(query, key, scale=SHARP / width**0.5)
    found["sharp"] = _over_heads([_cut(sharp, value, ranks)])
    projected = [_projected(query, key, value, ranks, source) for _, query, key, value in heads]
    return found | {"head_size": width, "without_softmax": _over_heads(projected)}


def _heads(model: Any, tokens: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """P [n, n], Q, K and V [n, h] of every head of a model, in double precision."""
    with torch.no_grad():
        seen = model(input_ids=tokens, output_attentions=True, output_hidden_states=True, use_cache=False)
        heads = []
        for block, state, weights in zip(model.model.blocks, seen.hidden_states, seen.attentions, strict=False):
            x = block.attention_norm(state)
            parts = block.attention.project(x, Layout.build(x, None, None, None))
            heads += list(zip(*(part[0].double() for part in (weights, *parts)), strict=True))
    return heads


def _cut(weights: Tensor, value: Tensor, ranks: list[int]) -> dict[str, list[float]]:
    """Relative errors of P and of PV at every rank, and the bound of the second."""
    left, singular, right = torch.linalg.svd(weights)
    exact = weights @ value
    errors: dict[str, list[float]] = {"singular_values": (singular / singular[0]).tolist()}
    errors |= {"weights": [], "output": [], "bound": []}
    for rank in ranks:
        output = left[:, :rank] @ (singular[:rank, None] * (right[:rank] @ value))  # 2nkh multiplications
        rest = singular[rank:]
        errors["weights"].append(float(rest.norm() / singular.norm()))
        errors["output"].append(float((output - exact).norm() / exact.norm()))
        errors["bound"].append(float(rest[0] * value.norm() / exact.norm()) if len(rest) else 0.0)
    return errors


def _projected(
    query: Tensor, key: Tensor, value: Tensor, ranks: list[int], source: torch.Generator
) -> dict[str, list[float]]:
    """Relative errors of Q (CK)ᵀ (DV) against QKᵀV, for singular vectors and for random C = D."""
    exact = query @ (key.T @ value)
    left = torch.linalg.svd(key, full_matrices=False).U  # [n, h]
    errors: dict[str, list[float]] = {"chosen": [], "random": []}
    for rank in ranks:
        gaussian = torch.randn(rank, len(key), generator=source, dtype=key.dtype) / rank**0.5
        for name, project in (("chosen", left.T[:rank]), ("random", gaussian)):
            output = query @ ((project @ key).T @ (project @ value))
            errors[name].append(float((output - exact).norm() / exact.norm()))
    return errors


def _over_heads(heads: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Element-wise means over heads."""
    return {
        name: [sum(values) / len(values) for values in zip(*(head[name] for head in heads), strict=True)]
        for name in heads[0]
    }


def statements(numbers: Numbers) -> dict[str, bool]:
    """Low rank in the random model, more in the others; exact without softmax from k = h on."""
    random, trained, sharp = (_enough(numbers[name]["singular_values"]) for name in ("random", "trained", "sharp"))
    quarter = numbers["length"] / 4
    kinds = [numbers[name] for name in ("random", "trained", "sharp")]
    below = [pair for kind in kinds for pair in zip(kind["output"], kind["bound"], strict=True)]
    free = numbers["without_softmax"]
    wide = [at for at, rank in enumerate(numbers["ranks"]) if rank >= numbers["head_size"]]
    return {
        "random model: close to low rank, a quarter of the rank gives P within 10 %": random <= quarter,
        "training raises the rank, to more than 1.5 times that of the random model": trained > 1.5 * random,
        "sharp weights have the highest rank, over 1.25 times that of the trained model": sharp > 1.25 * trained,
        "the output's error stays below σ_(k+1) |V|": all(found <= bound + 1e-9 for found, bound in below),
        "training reduced the loss": numbers["loss"][1] < 0.75 * numbers["loss"][0],
        "without softmax, chosen C and D are exact from k = h on": bool(wide)
        and all(free["chosen"][at] < 1e-9 for at in wide),
        "without softmax, random C and D are not": all(free["random"][at] > 1e-3 for at in wide),
    }


def _enough(singular_values: list[float]) -> int:
    """The least rank that gives P with an error of at most SMALL_ERROR, from mean singular values of the heads."""
    squares = torch.tensor(singular_values, dtype=torch.float64).square()
    left = 1 - squares.cumsum(0) / squares.sum()  # of the squared norm, after 1, 2, … terms
    return int((left > SMALL_ERROR**2).sum()) + 1


def _quarter(numbers: Numbers) -> int:
    """Index of the largest rank that is at most a quarter of the length."""
    return max(at for at, rank in enumerate(numbers["ranks"]) if rank <= numbers["length"] // 4)


def draw(numbers: Numbers) -> Drawing:
    """Error of P against k."""
    lines = [
        Line("random model", numbers["ranks"], numbers["random"]["weights"], BLUE, "o"),
        Line("trained model", numbers["ranks"], numbers["trained"]["weights"], ORANGE, "s"),
        Line("sharp weights", numbers["ranks"], numbers["sharp"]["weights"], GREEN, "^"),
    ]
    return Drawing(
        chart(lines, x_label="rank k", y_label="error of P, relative", log_x=True, power=2, from_zero=True),
        alt="Error of P cut at rank k: it falls fast for the random model, a little slower for the trained one, and "
        "slowly for sharp weights.",
        caption=f"Weights of {numbers['length']} tokens, mean over heads: the rank depends on what a head does",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At a quarter of the rank; cost; the softmax-free case."""
    place = _quarter(numbers)
    rank, length, width = numbers["ranks"][place], numbers["length"], numbers["head_size"]
    free = numbers["without_softmax"]
    spectra = [numbers[name]["singular_values"] for name in ("random", "trained", "sharp")]
    greater = [sum(value > 0.01 for value in values) for values in spectra]
    enough = [_enough(values) for values in spectra]
    return [
        ("rank that gives P within 10 %, random", f"{enough[0]} of {length}"),
        ("the same, trained", f"{enough[1]} of {length}"),
        ("the same, sharp weights", f"{enough[2]} of {length}"),
        ("singular values over 1 % of the first, random", f"{greater[0]} of {length}"),
        ("the same, trained", f"{greater[1]} of {length}"),
        ("the same, sharp weights", f"{greater[2]} of {length}"),
        (f"error of P at k = {rank} of {length}, random", short(numbers["random"]["weights"][place])),
        ("the same, trained", short(numbers["trained"]["weights"][place])),
        ("the same, sharp weights", short(numbers["sharp"]["weights"][place])),
        (f"error of PV at k = {rank}, trained", short(numbers["trained"]["output"][place])),
        ("multiplications, 2nkh against n²h", f"{2 * length * rank * width:,} / {length**2 * width:,}"),
        ("loss before and after training", f"{numbers['loss'][0]:.2f} → {numbers['loss'][1]:.2f}"),
        (f"no softmax, chosen C, D, k = {rank} (h = {width})", short(free["chosen"][place], 2)),
        (f"no softmax, random C, D, k = {rank}", short(free["random"][place], 2)),
    ]


QUESTIONS = (
    "Which P has full rank with equal singular values, and which useful head has such a P?",
    "Why does the decomposition save nothing in practice, and what does linformer do about it?",
    "Why is the same C, D exact for every query without softmax, and not with it?",
)
EXPERIMENT = Experiment(__doc__, LowRankSettings, measure, statements, draw, rows, QUESTIONS)
