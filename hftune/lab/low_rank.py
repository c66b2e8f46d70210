"""low-rank: how near attention weights are to a matrix of low rank, and what that would save.

P = softmax(QKᵀ/√h) is n × n, and PV costs n²h. With the singular value decomposition P = Σ_i σ_i u_i w_iᵀ cut after k
terms, the product in the right order costs 2nkh:

    P_k V = U_k (S_k (W_kᵀ V)),    |P − P_k| = (Σ_(i>k) σ_i²)^½,    |PV − P_k V| ≤ σ_(k+1) |V|

A fresh model weighs all earlier tokens nearly alike, and its P is near the matrix of running means, whose singular
values fall fast. Training makes heads choose, which raises the rank; sharply peaked weights over independent keys show
where that ends. So low rank is a property of what a head does, not of softmax.

Without softmax the low rank is exact: QKᵀ has rank h at most. In Q (CK)ᵀ (DV) ≈ QKᵀV, the n tokens are projected on k
by C and D, both k × n. Taking the first k left singular vectors of K for both, KᵀCᵀDV = KᵀV exactly from k = h on,
since UUᵀK = K. Gaussian C = D with entries of variance 1/k are right on average, E[CᵀD] = I, with an error that falls
only like 1/√k. Computing the decomposition costs more than it saves: linformer learns its projections instead.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, short, violated
from hftune.lab.series import Counts
from hftune.lab.small_model import small_model
from hftune.lab.vectors import generator
from hftune.models.mingpt.attention_base import Layout
from hftune.runs.figures import BLUE, GREEN, ORANGE, Line

SHARP = 6.0
"""How many times longer than usual the logits of the peaked weights are."""


class LowRankSettings(Section):
    """The model, and the ranks to cut at."""

    steps: int = Field(200, ge=1)
    """Updates the trained model gets; the random one gets none."""
    length: int = Field(128, ge=16, le=512)
    """Tokens n in the sequence."""
    ranks: Counts = (1, 2, 4, 8, 16, 32, 64, 96)
    """Ranks k, growing; those above ``length`` are left out."""

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
    identity = torch.eye(settings.length, dtype=torch.float64)
    sharp = F.scaled_dot_product_attention(query[None], key[None], identity[None], scale=SHARP / width**0.5)[0]
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
    """Relative errors of P and of PV at every rank, and how near the second is to its bound."""
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
    """Relative errors of Q (CK)ᵀ (DV) against QKᵀV, for chosen and for random C = D."""
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
    """Means over heads, place by place."""
    return {
        name: [sum(values) / len(values) for values in zip(*(head[name] for head in heads), strict=True)]
        for name in heads[0]
    }


def check(numbers: Numbers) -> list[str]:
    """Low rank in the models, not in sharp weights; exact without softmax from k = h on."""
    place = _quarter(numbers)
    kinds = [numbers[name] for name in ("random", "trained", "sharp")]
    below = [pair for kind in kinds for pair in zip(kind["output"], kind["bound"], strict=True)]
    free = numbers["without_softmax"]
    wide = [at for at, rank in enumerate(numbers["ranks"]) if rank >= numbers["head_size"]]
    return violated(
        {
            "at a quarter of the rank P of the random model is off by less than 15 %": kinds[0]["weights"][place]
            < 0.15,
            "at a quarter of the rank P of the trained model is off by less than 25 %": kinds[1]["weights"][place]
            < 0.25,
            "training raises the rank": kinds[1]["weights"][place] > kinds[0]["weights"][place],
            "sharp weights are not of low rank": kinds[2]["weights"][place] > 1.5 * kinds[1]["weights"][place],
            "the output's error stays below σ_(k+1) |V|": all(found <= bound + 1e-9 for found, bound in below),
            "the training did train": numbers["loss"][1] < 0.75 * numbers["loss"][0],
            "without softmax, chosen C and D are exact from k = h on": bool(wide)
            and all(free["chosen"][at] < 1e-9 for at in wide),
            "without softmax, random C and D are not": all(free["random"][at] > 1e-3 for at in wide),
        }
    )


def _quarter(numbers: Numbers) -> int:
    """The place of the greatest rank that is at most a quarter of the length."""
    return max(at for at, rank in enumerate(numbers["ranks"]) if rank <= numbers["length"] // 4)


def draw(numbers: Numbers) -> Drawing:
    """Error of P against k."""
    lines = [
        Line("random model", numbers["ranks"], numbers["random"]["weights"], BLUE, "o"),
        Line("trained model", numbers["ranks"], numbers["trained"]["weights"], ORANGE, "s"),
        Line("sharp weights", numbers["ranks"], numbers["sharp"]["weights"], GREEN, "^"),
    ]
    figure = chart(lines, x_label="rank k", y_label="error of P, relative", log_x=True, power=2)
    figure.axes[0].set_ylim(bottom=0)
    return Drawing(
        figure,
        alt="Error of P cut at rank k: it falls fast for the random model, a little slower for the trained one, and "
        "slowly for sharp weights.",
        caption=f"Weights of {numbers['length']} tokens, mean over heads: low rank comes from what a head does",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At a quarter of the rank; cost; the softmax-free case."""
    place = _quarter(numbers)
    rank, length, width = numbers["ranks"][place], numbers["length"], numbers["head_size"]
    free = numbers["without_softmax"]
    greater = [
        sum(value > 0.01 for value in numbers[name]["singular_values"]) for name in ("random", "trained", "sharp")
    ]
    return [
        ("singular values over 1 % of the first: random", str(greater[0])),
        ("the same, trained", str(greater[1])),
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


EXPERIMENT = Experiment(
    name="low-rank",
    claim="Attention weights of random and trained models are close to low rank, so that a rank-k decomposition gives "
    "the output in O(nkh); without softmax projections C, D on k = h tokens are exact.",
    mathematics=__doc__,
    settings=LowRankSettings,
    measure=measure,
    check=check,
    draw=draw,
    rows=rows,
    questions=(
        "What would P have to do to be of full rank with equal singular values, and which useful head does that?",
        "Why does the decomposition save nothing in practice, and what does linformer do about it?",
        "Why is the same C, D exact for every query without softmax, and not with it?",
    ),
)
