"""Cheap dropout has torch's distribution: rate, mean, gradient, determinism, and nothing outside training."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from training_case import collate, rows, tiny_bert
from transformers import BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from hftune.training.dropout import ATTENTION, CheapDropout, attention, dropout, install

pytestmark = pytest.mark.numeric

DRAWS = 1_000_000


@pytest.mark.parametrize("p", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_rate_and_mean_over_a_million_draws(p: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(DRAWS), p)
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / DRAWS) + 1 / 131_072
    assert abs(out.double().mean().item() - 1) < 5 * math.sqrt(p / (1 - p) / DRAWS)
    (scale,) = out[out != 0].unique().tolist()
    assert scale == pytest.approx(1 / (1 - p), rel=2e-4)


def test_the_four_elements_of_a_word_and_neighbors_are_independent() -> None:
    """Each element has bits of its own: no position drops more, and neighbors drop together as often as by chance."""
    torch.manual_seed(1)
    gone = (dropout(torch.ones(DRAWS), 0.1) == 0).double().view(-1, 4)
    spread = 5 * math.sqrt(0.1 * 0.9 / (DRAWS / 4))
    assert ((gone.mean(0) - 0.1).abs() < spread).all()
    flat = gone.view(-1)
    for distance in (1, 2, 3, 4, 8):
        together = (flat[:-distance] * flat[distance:]).mean().item()
        assert together == pytest.approx(0.01, abs=5 * math.sqrt(0.01 * 0.99 / DRAWS))


def test_rows_differ_and_calls_differ() -> None:
    torch.manual_seed(2)
    first, second = dropout(torch.ones(64, 64), 0.5), dropout(torch.ones(64, 64), 0.5)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_the_gradient_uses_the_same_mask() -> None:
    torch.manual_seed(3)
    values = torch.randn(7, 13, dtype=torch.float64, requires_grad=True)
    out = dropout(values, 0.3)
    out.sum().backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad * values.detach(), out.detach())
    torch.manual_seed(3)
    assert torch.autograd.gradcheck(_seeded, (values.detach().requires_grad_(),))


def _seeded(values: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return dropout(values, 0.3)


def test_seeded_by_torch_and_not_by_layout() -> None:
    base = torch.randn(6, 10)
    torch.manual_seed(4)
    first = dropout(base, 0.4)
    torch.manual_seed(4)
    assert torch.equal(first, dropout(base, 0.4))
    torch.manual_seed(4)
    assert torch.equal(first, dropout(base.t().contiguous().t(), 0.4))
    state = torch.get_rng_state()
    second = dropout(base, 0.4)
    torch.set_rng_state(state)
    assert torch.equal(second, dropout(base, 0.4))


def test_identity_where_nothing_is_dropped() -> None:
    values = torch.randn(5)
    before = torch.get_rng_state()
    assert dropout(values, 0.0) is values
    assert CheapDropout(0.5).eval()(values) is values
    assert torch.equal(CheapDropout(1.0).train()(values), torch.zeros(5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 3, 4)])
def test_shapes_and_types_are_kept(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    out = dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert out.shape == torch.Size(shape)
    assert out.dtype == dtype


def test_install_replaces_every_dropout_and_leaves_the_state_dict() -> None:
    model = tiny_bert()
    names = list(model.state_dict())
    plain = sum(type(module) is nn.Dropout for module in model.modules())
    assert plain == 8  # embeddings, three in each of two layers, classifier
    assert install(model) == plain
    assert sum(type(module) is nn.Dropout for module in model.modules()) == 0
    assert list(model.state_dict()) == names
    assert model.config._attn_implementation == ATTENTION
    assert install(model) == 0


def test_the_saved_model_knows_nothing_of_it(tmp_path: Any) -> None:
    model = tiny_bert()
    install(model)
    model.save_pretrained(tmp_path)
    assert ATTENTION not in (tmp_path / "config.json").read_text()
    again = BertForSequenceClassification.from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"


def test_outside_training_nothing_changes() -> None:
    batch = collate(rows(6, 3))
    stock, cheap = tiny_bert().eval(), tiny_bert().eval()
    install(cheap)
    with torch.no_grad():
        assert torch.equal(stock(**batch).logits, cheap(**batch).logits)


@pytest.mark.parametrize("build", [lambda: tiny_bert(0.0), lambda: _tiny_gpt(0.0)], ids=["bert", "gpt2"])
def test_loss_and_gradients_equal_stock_without_dropout(build: Any) -> None:
    batch = collate(rows(6, 3))
    grads = []
    for cheap in (False, True):
        model = build().train()
        if isinstance(model, GPT2LMHeadModel):
            batch["labels"] = batch["input_ids"]
        if cheap:
            install(model)
        loss = model(**batch).loss
        loss.backward()
        grads.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "added"])
def test_plain_attention_equals_sdpa(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate that rounds to nothing, the plain steps must give what torch's attention gives."""
    torch.manual_seed(5)
    query, key, value = (torch.randn(2, 4, 6, 8) for _ in range(3))
    layer = nn.Module()
    allowed = {
        "none": None,
        "padding": (torch.arange(6) < torch.tensor([[4], [6]]))[:, None, None, :].expand(2, 1, 6, 6),
        "causal": None,
        "added": torch.randn(2, 1, 6, 6),
    }[mask]
    plain, _ = attention(layer, query, key, value, allowed, dropout=1e-9, is_causal=mask == "causal")
    stock, _ = attention(layer, query, key, value, allowed, dropout=0.0, is_causal=mask == "causal")
    torch.testing.assert_close(plain, stock)


def test_attention_probabilities_are_dropped_at_the_rate() -> None:
    """Uniform attention over unit values gives the share of kept probabilities, times the scale."""
    torch.manual_seed(6)
    shape = (8, 4, 64, 64)
    out, _ = attention(
        nn.Module(), torch.zeros(shape), torch.zeros(shape), torch.ones(shape), None, dropout=0.1, is_causal=False
    )
    share = out[..., 0].double()
    assert share.mean().item() == pytest.approx(1, abs=5 * math.sqrt(0.1 / 0.9 / (8 * 4 * 64 * 64)))
    assert share.var().item() == pytest.approx(0.1 / 0.9 / 64, rel=0.15)


def test_training_with_it_still_drops_in_attention() -> None:
    """A model whose hidden dropout is off and whose attention dropout is on gives another loss each time."""
    model = tiny_bert(0.0)
    for module in model.modules():
        if type(module).__name__ == "BertSelfAttention":
            module.dropout.p = 0.5
    install(model)
    batch = collate(rows(6, 3))
    model.train()
    assert model(**batch).loss != model(**batch).loss


def _tiny_gpt(p: float) -> GPT2LMHeadModel:
    torch.manual_seed(8)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, resid_pdrop=p, embd_pdrop=p, attn_pdrop=p
        )
    )
