"""Muon follows its definition, for the right weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from facts import hftune_error
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DebertaConfig,
    DebertaModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXModel,
    ModernBertConfig,
    ModernBertModel,
    T5Config,
    T5Model,
)

from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.training.muon import block_matrices, muon_for, orthogonalize

pytestmark = pytest.mark.numeric

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TINY = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "block_size": 8}


def mingpt(**changed: Any) -> Any:
    torch.manual_seed(3)
    return MinGPTForCausalLM(MinGPTConfig(**{**TINY, **changed}))


def with_gradients(model: nn.Module, seed: int = 5) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


# ---- the definition ----


def spectrum(rows: int, cols: int, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(rows, len(values)))
    v, _ = torch.linalg.qr(torch.randn(cols, len(values)))
    return u, v, u @ values.diag() @ v.mT


@pytest.mark.parametrize(("rows", "cols"), [(24, 24), (16, 40), (40, 16)])
def test_singular_values_become_one_and_vectors_stay(rows: int, cols: int) -> None:
    u, v, matrix = spectrum(rows, cols, torch.logspace(0, -1.5, min(rows, cols)))
    made = orthogonalize(torch.stack([matrix, 1000 * matrix]))
    torch.testing.assert_close(made[0], made[1], rtol=1e-4, atol=1e-4)  # the size of a gradient does not matter
    core = u.mT @ made[0] @ v  # diagonal where the singular vectors are the matrix's own
    assert (core - core.diagonal().diag()).abs().max() < 1e-3
    assert core.diagonal().min() > 0.65 and core.diagonal().max() < 1.25
    assert (core.diagonal() - 1).abs().mean() < 0.2
    exact = u @ v.mT
    assert nn.functional.cosine_similarity(made[0].flatten(), exact.flatten(), dim=0) > 0.98


def test_the_short_way_for_wide_matrices_is_the_long_way() -> None:
    """Also where a gradient has directions that it hardly speaks of: ten thousandths of the largest, and nothing."""
    _, _, wide = spectrum(16, 64, torch.cat([torch.logspace(0, -4, 12), torch.zeros(4)]))
    made = orthogonalize(wide[None])[0]
    torch.testing.assert_close(made.double(), plain_polar(wide), rtol=0, atol=2e-3)


def test_bf16_is_computed_in_bf16_and_comes_close(cpu_bf16: None) -> None:
    _, _, wide = spectrum(16, 64, torch.linspace(1.0, 0.1, 16))
    rough = orthogonalize(wide[None].bfloat16())[0]
    assert rough.dtype == torch.bfloat16
    assert (rough.double() - plain_polar(wide)).norm() < 0.1 * plain_polar(wide).norm()


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert torch.equal(orthogonalize(torch.zeros(1, 4, 6)), torch.zeros(1, 4, 6))


def plain_polar(matrix: Tensor) -> Tensor:
    """Five Newton-Schulz steps on one matrix in float64, in the order in which they are written on paper."""
    x: Tensor = matrix.double() / matrix.double().norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
    return x


def test_steps_equal_a_plain_reference() -> None:
    """Three steps on a fused q, k, v: each third on its own, with momentum, Nesterov, scale and decoupled decay."""
    model = mingpt()
    weight = model.model.blocks[0].attention.qkv.weight
    up = model.model.blocks[1].mlp.up.weight
    optimizer = muon_for(model, lr=0.03, weight_decay=0.5, momentum=0.9)
    expected = {one: one.detach().double() for one in (weight, up)}
    held = {one: torch.zeros_like(expected[one]) for one in expected}
    for step in range(3):
        with_gradients(model, seed=step)
        optimizer.step()
        for one, parts in ((weight, 3), (up, 1)):
            gradient = one.grad.double()
            held[one] = 0.9 * held[one] + 0.1 * gradient
            ahead = 0.9 * held[one] + 0.1 * gradient
            polar = torch.cat([plain_polar(part) for part in ahead.chunk(parts)])
            rows, cols = one.shape[0] // parts, one.shape[1]
            expected[one] = expected[one] * (1 - 0.03 * 0.5) - 0.03 * 0.2 * math.sqrt(max(rows, cols)) * polar
    for one, wanted in expected.items():
        torch.testing.assert_close(one.detach().double(), wanted, rtol=1e-4, atol=1e-5)


def test_a_step_is_as_large_as_adamw_would_take() -> None:
    """One learning rate suits both groups because the root mean square of a step is about 0.2 of it."""
    model = with_gradients(mingpt())
    matrices = [(matrix, matrix.parameter.detach().clone()) for matrix in block_matrices(model)]
    muon_for(model, lr=1.0, weight_decay=0.0).step()
    for matrix, before in matrices:
        moved = (matrix.parameter.detach() - before).square().mean().sqrt()
        assert 0.12 < moved < 0.28, matrix.name


def test_queries_keys_and_values_are_orthogonalized_apart() -> None:
    """A gradient of queries a million times that of the values leaves the values' step as it is."""
    steps = []
    for factor in (1.0, 1e6):
        model = with_gradients(mingpt())
        weight = model.model.blocks[0].attention.qkv.weight
        before = weight.detach().clone()
        weight.grad[:16] *= factor
        muon_for(model, lr=1.0, weight_decay=0.0).step()
        steps.append(weight.detach() - before)
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-3, atol=1e-4)


def test_conv1d_moves_as_the_linear_it_transposes() -> None:
    """GPT-2 keeps [in, out]: its fused q, k, v are cut along the other axis, and move as minGPT's do."""
    torch.manual_seed(1)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=16, n_layer=2, n_head=2))
    model = mingpt()
    pairs = [
        (gpt2.transformer.h[0].attn.c_attn.weight, model.model.blocks[0].attention.qkv.weight),
        (gpt2.transformer.h[1].mlp.c_proj.weight, model.model.blocks[1].mlp.down.weight),
    ]
    with_gradients(gpt2), with_gradients(model)
    for theirs, ours in pairs:
        theirs.data, theirs.grad = ours.detach().T.contiguous(), ours.grad.T.contiguous()
    for one in (gpt2, model):
        muon_for(one, lr=0.1, weight_decay=0.1).step()
    for theirs, ours in pairs:
        torch.testing.assert_close(theirs.detach().T, ours.detach(), rtol=1e-4, atol=1e-6)


def test_the_rest_moves_as_torch_adamw_moves_it() -> None:
    ours, theirs = mingpt(), mingpt()
    inside = {matrix.name for matrix in block_matrices(theirs)}
    rest = {name: one for name, one in theirs.named_parameters() if name.removesuffix(".weight") not in inside}
    assert {"model.token_embedding.weight", "lm_head.weight", "model.blocks.0.mlp.up.bias"} <= rest.keys()
    decayed = ["lm_head.weight"]  # not embeddings, norms and biases
    groups = [
        {"params": [rest[name] for name in decayed], "weight_decay": 0.3},
        {"params": [one for name, one in rest.items() if name not in decayed], "weight_decay": 0.0},
    ]
    mine, stock = muon_for(ours, lr=0.01, weight_decay=0.3), torch.optim.AdamW(groups, lr=0.01, fused=True)
    for step in range(3):
        with_gradients(ours, step), with_gradients(theirs, step)
        mine.step(), stock.step()
    moved = dict(ours.named_parameters())
    assert all(torch.equal(moved[name], one) for name, one in rest.items())


# ---- which weights ----


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "mingpt": (mingpt, {"attention.qkv": 3, "attention.out": 1, "mlp.up": 1, "mlp.down": 1}),
    "synthesizer": (
        lambda: mingpt(attention="synthesizer"),
        {"attention.hidden": 1, "attention.value": 1, "attention.out": 1, "mlp.up": 1, "mlp.down": 1},
    ),
    "bert": (
        lambda: BertModel(BertConfig(vocab_size=11, **SMALL)),
        {f"attention.self.{name}": 1 for name in ("query", "key", "value")}
        | {"attention.output.dense": 1, "intermediate.dense": 1, "output.dense": 1},
    ),
    "gpt2": (
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=11, n_positions=8, n_embd=16, n_layer=2, n_head=2, add_cross_attention=True)
        ),
        {"attn.c_attn": 3, "attn.c_proj": 1, "mlp.c_fc": 1, "mlp.c_proj": 1}
        | {"crossattention.c_attn": 2, "crossattention.q_attn": 1, "crossattention.c_proj": 1},
    ),
    "modernbert": (
        lambda: ModernBertModel(ModernBertConfig(vocab_size=11, pad_token_id=0, **SMALL)),
        {"attn.Wqkv": 3, "attn.Wo": 1, "mlp.Wi": 2, "mlp.Wo": 1},
    ),
    "torch": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2, enable_nested_tensor=False),
        {"self_attn": 3, "self_attn.out_proj": 1, "linear1": 1, "linear2": 1},
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_matrices_of_two_blocks_are_found(name: str) -> None:
    make, expected = ARCHITECTURES[name]
    model = make()
    found = block_matrices(model)
    assert len(found) == 2 * len(expected)
    for matrix in found:
        ends = [end for end in expected if matrix.name.endswith(f".{end}")]
        assert matrix.parts == expected[max(ends, key=len)], matrix.name
        assert matrix.parameter.ndim == 2
    with_gradients(model)
    before = {key: one.detach().clone() for key, one in model.named_parameters()}
    muon_for(model, lr=0.1, weight_decay=0.0).step()
    assert all(not torch.equal(before[key], one) for key, one in model.named_parameters()), "every weight moves"


def test_nested_and_shared_layers_are_taken_once() -> None:
    t5 = T5Model(T5Config(vocab_size=11, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2))
    names = [matrix.name for matrix in block_matrices(t5)]
    assert len(names) == len(set(names)) == 2 * 6 + 2 * 10
    assert not any("relative_attention_bias" in name for name in names)
    albert = AlbertModel(AlbertConfig(vocab_size=11, embedding_size=8, **SMALL))
    assert len(block_matrices(albert)) == 6  # all layers share one set


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: GPTNeoXModel(GPTNeoXConfig(vocab_size=11, **SMALL)), ["query_key_value (48 × 16)"]),
        (lambda: DebertaModel(DebertaConfig(vocab_size=11, **SMALL)), ["in_proj (48 × 16)"]),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4)])), ["no matrix"]),
    ],
    ids=["heads one by one", "deberta", "no blocks"],
)
def test_what_cannot_be_distinguished_is_refused(make: Callable[[], nn.Module], shown: list[str]) -> None:
    with hftune_error("train.optim is muon", *shown) as refused:
        muon_for(make(), lr=0.1, weight_decay=0.0)
    assert "adamw" in (refused.value.hint or "")


def test_frozen_weights_stay_out() -> None:
    model = mingpt()
    model.model.blocks[0].requires_grad_(False)
    optimizer = muon_for(model, lr=0.1, weight_decay=0.1)
    taken = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert taken == {id(one) for one in model.parameters() if one.requires_grad}
