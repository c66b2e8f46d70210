"""What each attention variant is meant to compute, against its definition written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hftune.lab.complexity import measure_costs
from hftune.lab.experiment import slope
from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.models.mingpt.attention_base import Layout, VanillaAttention
from hftune.models.mingpt.attention_bigbird import BigBirdAttention, block_table
from hftune.models.mingpt.attention_linformer import LinformerAttention
from hftune.models.mingpt.attention_performer import causal_favor, log_features, orthogonal_gaussian
from hftune.models.mingpt.attention_rope import rotate
from hftune.models.mingpt.attention_synthesizer import SynthesizerAttention

pytestmark = pytest.mark.numeric


def heads(length: int, size: int = 8, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(scale * torch.randn(2, 2, length, size, generator=generator) for _ in range(3))  # type: ignore[return-value]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v


def test_vanilla_is_causal_softmax() -> None:
    q, k, v = heads(17)
    layer = VanillaAttention(MinGPTConfig(hidden_size=16, num_attention_heads=2), 0)
    expected = softmax_attention(q, k, v, torch.ones(17, 17, dtype=torch.bool).tril())
    torch.testing.assert_close(layer.attend(q, k, v), expected)


@pytest.mark.parametrize("padding", [False, True])
def test_vanilla_runs_the_fused_kernel_on_cpu(padding: bool) -> None:
    layer = VanillaAttention(MinGPTConfig(hidden_size=32, num_attention_heads=2), 0).train()
    x = torch.randn(3, 20, 32, requires_grad=True)
    mask = torch.ones(3, 20, dtype=torch.long) if padding else None
    if mask is not None:
        mask[0, :7] = 0
    with torch.profiler.profile() as profile:
        layer(x, Layout.build(x, mask, None, None))[0].sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names
    assert "aten::_scaled_dot_product_attention_math" not in names


@pytest.mark.parametrize(("learning", "kernel"), [(True, torch.float32), (False, torch.bfloat16)])
def test_on_a_cpu_bf16_training_attends_in_fp32(
    learning: bool, kernel: torch.dtype, monkeypatch: pytest.MonkeyPatch, cpu_bf16: None
) -> None:
    layer = VanillaAttention(MinGPTConfig(hidden_size=32, num_attention_heads=2), 0)
    x = torch.randn(3, 20, 32)
    exact = layer(x, Layout.build(x, None, None, None))[0]
    formats = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **settings: bool) -> Tensor:
        y = scaled_dot_product_attention(q, k, v, **settings)
        formats.append(y.dtype)
        return y

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", watched)
    with torch.set_grad_enabled(learning), torch.autocast("cpu", torch.bfloat16):
        y = layer(x, Layout.build(x, None, None, None))[0]
    assert formats == [kernel]
    assert y.dtype == torch.bfloat16 and y.requires_grad == learning
    torch.testing.assert_close(y.float(), exact, atol=5e-3, rtol=5e-2)


def test_rotation_keeps_lengths_and_knows_distances_only() -> None:
    q, k, _ = heads(1)
    assert torch.equal(rotate(q, torch.tensor([[0]]), 10_000.0), q)

    def product(at_q: int, at_k: int) -> Tensor:
        turned_q = rotate(q, torch.tensor([[at_q]]), 10_000.0)
        torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
        return (turned_q * rotate(k, torch.tensor([[at_k]]), 10_000.0)).sum(-1)

    torch.testing.assert_close(product(9, 4), product(105, 100), atol=1e-4, rtol=1e-4)
    assert (product(9, 4) - product(9, 5)).abs().max() > 1e-2


def test_rotation_turns_the_first_pair_by_one_radian_a_step() -> None:
    x = torch.zeros(1, 1, 1, 4)
    x[..., 0] = 1.0
    turned = rotate(x, torch.tensor([[2]]), 100.0)
    torch.testing.assert_close(turned[0, 0, 0], torch.tensor([math.cos(2.0), 0.0, math.sin(2.0), 0.0]))
    slow = rotate(x.roll(1, dims=-1), torch.tensor([[2]]), 100.0)  # second pair: 100^(-1/2) as fast
    torch.testing.assert_close(slow[0, 0, 0], torch.tensor([0.0, math.cos(0.2), 0.0, math.sin(0.2)]))


@torch.no_grad()
def test_rope_model_depends_on_distances_between_positions_only() -> None:
    torch.manual_seed(0)
    config = MinGPTConfig(
        attention="rope", hidden_size=16, num_attention_heads=2, num_hidden_layers=1, initializer_range=0.5
    )
    model = MinGPTForCausalLM(config).eval()
    assert model.model.position_embedding is None
    ids, positions = torch.randint(0, 256, (2, 12)), torch.arange(12)[None]
    logits = model(ids).logits
    torch.testing.assert_close(model(ids, position_ids=positions + 50).logits, logits, atol=1e-3, rtol=1e-3)
    assert (model(ids, position_ids=positions * 2).logits - logits).abs().max() > 0.05


def test_synthesizer_is_its_formula_and_ignores_other_tokens_scores() -> None:
    config = MinGPTConfig(hidden_size=16, num_attention_heads=2, block_size=12, attention="synthesizer")
    layer = SynthesizerAttention(config, 0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
    x = torch.randn(1, 12, 16, generator=torch.Generator().manual_seed(3))
    y, weights = layer(x, Layout.build(x, None, None, None), want_weights=True)
    hidden = torch.relu(x @ layer.hidden.weight.T + layer.hidden.bias)  # [1, 12, 16]
    values = x @ layer.value.weight.T + layer.value.bias
    mixed = torch.zeros(12, 16)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        for t in range(12):
            scores = hidden[0, t, part] @ layer.score_weight[head, :, : t + 1] + layer.score_bias[: t + 1]
            row = scores.softmax(0)
            torch.testing.assert_close(weights[0, head, t, : t + 1], row)
            mixed[t, part] = row @ values[0, : t + 1, part]
    torch.testing.assert_close(y[0], mixed @ layer.out.weight.T + layer.out.bias, atol=1e-4, rtol=1e-4)


def favor_reference(q: Tensor, k: Tensor, v: Tensor, projection: Tensor) -> Tensor:
    """Positive features in double precision with nothing done for stability."""
    features = (log_features(x, projection).double().exp() for x in (q, k))
    weights = torch.einsum("bhtm,bhsm->bhts", *features).tril()
    return (weights / weights.sum(-1, keepdim=True) @ v.double()).float()


def test_chunked_favor_is_the_plain_sum() -> None:
    q, k, v = heads(50)
    projection = orthogonal_gaussian(32, 8, torch.Generator().manual_seed(0))
    expected = favor_reference(q, k, v, projection)
    logs = log_features(q, projection), log_features(k, projection)
    for chunk in (1, 7, 64):
        torch.testing.assert_close(causal_favor(*logs, v, chunk=chunk), expected, atol=2e-4, rtol=2e-3)


def test_favor_stays_finite_where_plain_features_vanish() -> None:
    """Keys of length 60 have features of e^-600; the peak of each key keeps them in range, gradients too."""
    q, k, v = heads(40, scale=30.0)
    k.requires_grad_()
    projection = orthogonal_gaussian(32, 8, torch.Generator().manual_seed(0))
    assert log_features(k, projection).exp().min() == 0
    y = causal_favor(log_features(q, projection), log_features(k, projection), v, chunk=16)
    y.sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(k.grad).all()
    assert y.abs().max() <= v.abs().max() * 1.001  # still a mean of values


def performer_error(features: int, draws: int = 12) -> float:
    q, k, v = heads(48, scale=0.4)
    exact = softmax_attention(q, k, v, torch.ones(48, 48, dtype=torch.bool).tril())
    errors = []
    for seed in range(draws):
        projection = orthogonal_gaussian(features, 8, torch.Generator().manual_seed(seed))
        y = causal_favor(log_features(q, projection), log_features(k, projection), v)
        errors.append(((y - exact).square().mean() / exact.square().mean()).sqrt().item())
    return sum(errors) / len(errors)


def test_performer_error_shrinks_as_features_grow() -> None:
    errors = [performer_error(features) for features in (8, 64, 512, 4096)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02
    assert errors[1] / errors[-1] > 5  # Monte Carlo: 64 times the features, an eighth of the error


def test_random_rows_are_orthogonal_within_groups_and_gaussian_in_length() -> None:
    rows = orthogonal_gaussian(4096, 16, torch.Generator().manual_seed(0))
    assert rows.shape == (4096, 16)
    gram = rows[:16] @ rows[:16].T
    assert (gram - gram.diagonal().diag()).abs().max() < 1e-4
    torch.testing.assert_close(rows.square().sum(1).mean(), torch.tensor(16.0), atol=0.3, rtol=0)
    torch.testing.assert_close(rows.mean(), torch.tensor(0.0), atol=0.01, rtol=0)


def test_bigbird_sees_its_table_and_nothing_else() -> None:
    config = MinGPTConfig(hidden_size=16, num_attention_heads=2, block_size=66, attention="bigbird", bigbird_block=4)
    layer = BigBirdAttention(config, 1)
    q, k, v = heads(63)
    allowed = torch.zeros(63, 63, dtype=torch.bool)
    for t in range(63):
        for block in layer.table[t // 4].tolist():
            allowed[t, max(block, 0) * 4 : (block + 1) * 4 if block >= 0 else 0] = True
    allowed &= torch.ones(63, 63, dtype=torch.bool).tril()
    torch.testing.assert_close(layer.attend(q, k, v), softmax_attention(q, k, v, allowed))


def test_bigbird_table_has_window_global_and_random_blocks_once_each() -> None:
    config = MinGPTConfig(block_size=320, attention="bigbird", bigbird_block=16)  # 20 blocks
    table = block_table(config, layer_index=0)
    assert len(table) == 20
    for block, row in enumerate(table):
        seen = [entry for entry in row if entry >= 0]
        assert len(row) == 6 and len(set(seen)) == len(seen) == min(block + 1, 6)
        assert all(entry <= block for entry in seen)
        assert {0, *range(max(0, block - 2), block + 1)} <= set(seen)
    assert table != block_table(config, layer_index=1)
    longer = block_table(MinGPTConfig(block_size=640, attention="bigbird", bigbird_block=16), layer_index=0)
    assert longer[:20] == table


def test_linformer_sees_own_block_and_summaries_of_complete_blocks() -> None:
    config = MinGPTConfig(
        hidden_size=16,
        num_attention_heads=2,
        block_size=20,
        attention="linformer",
        linformer_block=5,
        linformer_rank=3,
    )
    layer = LinformerAttention(config, 0)
    layer.init_parameters(config)
    q, k, v = heads(18)
    y = layer.attend(q, k, v)
    for t in range(18):
        block = t // 5
        start = block * 5
        keys, values = k[:, :, start : t + 1], v[:, :, start : t + 1]
        if block:
            to_k = layer.compress_keys[:block].reshape(start, 3).T / math.sqrt(block)
            to_v = layer.compress_values[:block].reshape(start, 3).T / math.sqrt(block)
            keys = torch.cat((to_k @ k[:, :, :start], keys), dim=2)
            values = torch.cat((to_v @ v[:, :, :start], values), dim=2)
        expected = scaled_dot_product_attention(q[:, :, t : t + 1], keys, values)
        torch.testing.assert_close(y[:, :, t : t + 1], expected)


def test_slope_is_the_exponent() -> None:
    assert slope([128, 256, 512], [1.0, 4.0, 16.0]) == pytest.approx(2.0)
    assert slope([100, 200], [3.0, 6.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError):
        slope([128], [1.0])


def test_kept_memory_grows_as_claimed() -> None:
    """Bytes, unlike seconds, are the same every time: the linear variants are linear in them too."""
    costs = measure_costs([512, 1024], ["vanilla", "synthesizer", "performer", "bigbird"], seconds_each=0.0)
    assert all(cost.seconds > 0 for cost in costs)
    grown = {
        name: slope(*zip(*((c.length, c.saved_bytes) for c in costs if c.variant == name), strict=True))
        for name in ("vanilla", "synthesizer", "performer", "bigbird")
    }
    assert grown["vanilla"] == pytest.approx(1.0, abs=0.1)  # the fused kernel keeps no T × T matrix
    assert 1.75 < grown["synthesizer"] < 2.05
    assert grown["performer"] == pytest.approx(1.0, abs=0.1)
    assert grown["bigbird"] == pytest.approx(1.0, abs=0.1)
