"""What every attention variant must keep, whichever it is: a new entry in ATTENTION is tested from that moment on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from trained_tokenizers import char_tokenizer

from hftune.models.causal import load_causal_lm, load_saved_lm, save_causal_lm
from hftune.models.mingpt import ATTENTION, MinGPTConfig, MinGPTForCausalLM
from hftune.models.settings import ModelSection

pytestmark = [pytest.mark.numeric, pytest.mark.parametrize("attention", list(ATTENTION))]

BLOCK_SIZE = 88  # above performer's chunk of 64, and no multiple of the other block lengths


def build(attention: str, **settings: object) -> MinGPTForCausalLM:
    torch.manual_seed(0)
    shape = {
        "vocab_size": 40,
        "block_size": BLOCK_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.3,  # weights large enough for attention to be far from uniform
        "pad_token_id": 0,
        "performer_features": 24,
        "bigbird_block": 4,
        "bigbird_window": 2,
        "linformer_block": 6,
        "linformer_rank": 3,
    }
    return MinGPTForCausalLM(MinGPTConfig(attention=attention, **(shape | settings))).eval()


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 40, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch with its mask."""
    width = max(len(row) for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[index, place], mask[index, place] = row, 1
    return ids, mask


@torch.no_grad()
def test_changing_a_token_changes_nothing_before_it(attention: str) -> None:
    model, ids = build(attention), tokens(2, BLOCK_SIZE)
    before = model(ids).logits
    for place in (1, 5, 6, 23, 63, 64, 70, BLOCK_SIZE - 1):
        changed = ids.clone()
        changed[:, place] = changed[:, place] % 39 + 1
        after = model(changed).logits
        assert torch.equal(before[:, :place], after[:, :place]), f"token {place} leaked into its past"
        assert not torch.equal(before[:, place], after[:, place])


@torch.no_grad()
def test_the_past_is_used(attention: str) -> None:
    """The mirror of causality: the last prediction depends on tokens that are not the last."""
    model, ids = build(attention), tokens(1, 30)
    last = model(ids).logits[:, -1]
    changed = ids.clone()
    changed[:, 27] = changed[:, 27] % 39 + 1
    assert (model(changed).logits[:, -1] - last).abs().max() > 1e-4
    changed = ids.clone()
    changed[:, 0] = changed[:, 0] % 39 + 1
    assert (model(changed).logits[:, -1] - last).abs().max() > 1e-4


def test_gradients_flow_to_every_parameter(attention: str) -> None:
    model, ids = build(attention).train(), tokens(2, BLOCK_SIZE)
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all() and parameter.grad.abs().max() > 0, name


@torch.no_grad()
@pytest.mark.parametrize("step", [1, 4])
def test_cache_equals_no_cache(attention: str, step: int) -> None:
    model, ids = build(attention), tokens(2, BLOCK_SIZE)
    whole = model(ids).logits
    first = model(ids[:, :20], use_cache=True)
    cache, pieces = first.past_key_values, [first.logits]
    for start in range(20, BLOCK_SIZE, step):
        pieces.append(model(ids[:, start : start + step], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=2e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(attention: str, side: str) -> None:
    model = build(attention)
    rows = [tokens(1, length, seed=length)[0] for length in (40, 9, 33)]
    ids, mask = padded(rows, side)
    logits = model(ids, attention_mask=mask).logits
    assert torch.isfinite(logits).all()
    for index, row in enumerate(rows):
        torch.testing.assert_close(logits[index][mask[index] == 1], model(row[None]).logits[0], atol=2e-4, rtol=1e-4)


def test_generate_in_left_padded_batches_with_and_without_cache(attention: str) -> None:
    model = build(attention)
    rows = [tokens(1, length, seed=length)[0] for length in (30, 7, 19)]
    ids, mask = padded(rows, "left")
    settings = {"max_new_tokens": 25, "do_sample": False}
    cached = model.generate(ids, attention_mask=mask, use_cache=True, **settings)
    plain = model.generate(ids, attention_mask=mask, use_cache=False, **settings)
    assert cached.shape == (3, 55)
    assert torch.equal(cached, plain)
    for index, row in enumerate(rows):
        alone = model.generate(row[None], attention_mask=torch.ones(1, len(row)), **settings)
        assert torch.equal(alone[0, len(row) :], cached[index, 30:])


@torch.no_grad()
def test_attention_weights_are_causal_and_make_the_output(attention: str) -> None:
    model = build(attention)
    rows = [tokens(1, length, seed=length)[0] for length in (21, 13)]
    ids, mask = padded(rows, "left")
    weights = model(ids, attention_mask=mask, output_attentions=True).attentions
    assert len(weights) == 2 and weights[0].shape == (2, 2, 21, 21)
    short = model(rows[1][None], output_attentions=True).attentions[1]
    assert short.triu(1).abs().max() == 0
    torch.testing.assert_close(weights[1][1, :, 8:, 8:], short[0], atol=1e-4, rtol=1e-4)
    if attention != "linformer":  # whose summaries mix values with any weights
        torch.testing.assert_close(short.sum(-1), torch.ones(1, 2, 13))
        assert short.min() >= 0


@torch.no_grad()
def test_save_and_load(attention: str, tmp_path: Path) -> None:
    model, ids = build(attention), tokens(2, 50)
    model.save_pretrained(tmp_path)
    torch.manual_seed(99)
    loaded, report = MinGPTForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert loaded.config.attention == attention
    assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_training_forward_has_no_graph_break(attention: str) -> None:
    model, ids = build(attention, num_hidden_layers=1).train(), tokens(2, 70)
    torch._dynamo.reset()  # compilations of the other variants count against one limit
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for mask in (None, torch.ones_like(ids)):
        loss = compiled(input_ids=ids, attention_mask=mask, labels=ids).loss
        torch.testing.assert_close(loss, model(ids, labels=ids).loss)


def test_gradient_checkpointing_gives_the_same_gradients(attention: str) -> None:
    model, ids = build(attention).train(), tokens(2, 30)
    model(ids, labels=ids).loss.backward()
    plain = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name], msg=name)


@torch.no_grad()
def test_dropout_acts_in_training_only(attention: str) -> None:
    dropout = {"embedding_dropout": 0.2, "residual_dropout": 0.2}
    if attention != "performer":
        dropout = {"attention_dropout": 0.3}
    model, ids = build(attention, **dropout), tokens(1, 30)
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_dropout_that_was_requested_is_trained_with_and_saved(attention: str, rate: float, tmp_path: Path) -> None:
    tokenizer = char_tokenizer(["abc"])
    section = ModelSection(model_name_or_path="scratch:mingpt-tiny", attention=attention, dropout=rate)
    model, ids = load_causal_lm(section, tokenizer).model.train(), torch.tensor([[3, 4, 5, 3]])
    assert torch.equal(model(ids).logits, model(ids).logits) == (rate == 0)
    save_causal_lm(model, tokenizer, tmp_path, task="span")
    config = load_saved_lm(str(tmp_path))[0].config
    assert (config.embedding_dropout, config.residual_dropout) == (rate, rate)
    assert config.attention_dropout == (0.0 if attention == "performer" else rate), "performer has no weights to drop"
