"""minGPT as a model: its size, its start, its loss, GPT-2's weights, and generation up to the block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from facts import facts
from torch import Tensor
from trained_tokenizers import char_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, pipeline

from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM, from_gpt2, register

pytestmark = pytest.mark.numeric


def tiny(**settings: object) -> MinGPTForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 20, "block_size": 16, "hidden_size": 16, "num_hidden_layers": 2}
    return MinGPTForCausalLM(MinGPTConfig(num_attention_heads=2, **(shape | settings))).eval()


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 20, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [({}, 3_323_392), ({"attention": "rope"}, 3_290_624), ({"tie_word_embeddings": True}, 3_257_856)],
)
def test_default_shape_has_3_3_million_weights(settings: dict[str, object], parameters: int) -> None:
    model = MinGPTForCausalLM(MinGPTConfig(**settings))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_tied_embedding_is_one_tensor_and_stays_so(tmp_path: Path) -> None:
    model = tiny(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.token_embedding.weight
    model.save_pretrained(tmp_path)
    loaded = MinGPTForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.token_embedding.weight
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert tiny().lm_head.weight is not tiny().model.token_embedding.weight


def test_gpt2_initialization() -> None:
    torch.manual_seed(0)
    model = MinGPTForCausalLM(MinGPTConfig())
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
        else:
            residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            expected = 0.02 / (8**0.5) if residual else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.03), name


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_gpt2(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61,
        n_positions=40,
        n_embd=48,
        n_layer=3,
        n_head=4,
        n_inner=100,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    gpt2 = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms must matter too
    ours = from_gpt2(gpt2)
    assert not ours.training
    ids = torch.randint(0, 61, (3, 40))
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        theirs = gpt2(ids, attention_mask=mask, position_ids=positions, labels=ids)
        mine = ours(ids, attention_mask=mask, labels=ids)
    assert (mine.logits - theirs.logits)[mask == 1].abs().max() < 1e-5
    gpt2.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(from_gpt2(tmp_path).eval()(ids, attention_mask=mask).logits, mine.logits)
    greedy = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(ids[:, :20], **greedy), gpt2.generate(ids[:, :20], **greedy))


@pytest.mark.parametrize("setting", [{"activation_function": "relu"}, {"scale_attn_by_inverse_layer_idx": True}])
def test_gpt2_settings_without_counterpart_are_refused(setting: dict[str, object]) -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1, **setting))
    with pytest.raises(ValueError, match=f"{next(iter(setting))}.*GPT2LMHeadModel"):
        from_gpt2(gpt2)


@torch.no_grad()
def test_loss_is_the_mean_over_scored_next_tokens() -> None:
    model, ids = tiny(), tokens(2, 10)
    labels = ids.clone()
    labels[0, :6] = -100
    labels[1, 3] = -100
    output = model(ids, labels=labels)
    assert output.past_key_values is None
    log_probs = output.logits.log_softmax(-1)
    scored = [
        -log_probs[row, place - 1, labels[row, place]]
        for row in range(2)
        for place in range(1, 10)
        if labels[row, place] != -100
    ]
    assert len(scored) == 12
    torch.testing.assert_close(output.loss, torch.stack(scored).mean())
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=24).loss, output.loss / 2)


@torch.no_grad()
def test_logits_to_keep() -> None:
    model, ids = tiny(), tokens(2, 10)
    whole = model(ids).logits
    assert model(ids, logits_to_keep=1).logits.shape == (2, 1, 20)
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, whole[:, -3:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([2, 5])).logits, whole[:, [2, 5]])


@torch.no_grad()
def test_forward_outputs_and_inputs() -> None:
    model, ids = tiny(), tokens(2, 10)
    output = model(ids, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(model.lm_head(output.hidden_states[-1]), output.logits)
    embedded = model.model.token_embedding(ids)
    assert torch.equal(model(inputs_embeds=embedded).logits, output.logits)
    assert torch.equal(model(ids, return_dict=False)[0], output.logits)
    assert model(ids).past_key_values.get_seq_length() == 10
    assert model(ids, use_cache=False).past_key_values is None
    with pytest.raises(ValueError, match=facts("one of the two")):
        model()
    with pytest.raises(ValueError, match=facts("attention_mask", "(2, 9)", "(2, 10)")):
        model(ids, attention_mask=torch.ones(2, 9))


def one_step(folder: Path, batch_size: int, accumulation: int) -> tuple[dict[str, Tensor], float]:
    """One SGD step over the same four rows, all at once or in turns, by the stock Trainer."""
    rows = []
    for row, scored in zip(tokens(4, 12), (11, 2, 5, 9), strict=True):
        labels = row.clone()
        labels[: 12 - scored] = -100
        rows.append({"input_ids": row, "labels": labels})
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        learning_rate=0.5,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    model = tiny()
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    return dict(model.state_dict()), trainer.state.log_history[0]["loss"]


def test_gradient_accumulation_is_one_large_batch(tmp_path: Path) -> None:
    whole, whole_loss = one_step(tmp_path, batch_size=4, accumulation=1)
    parts, parts_loss = one_step(tmp_path, batch_size=1, accumulation=4)
    assert parts_loss == pytest.approx(whole_loss, abs=1e-4)
    start = tiny().state_dict()
    assert any(not torch.equal(start[name], whole[name]) for name in whole)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_generation_is_bounded_at_the_block(caplog: pytest.LogCaptureFixture) -> None:
    model, prompt = tiny(), tokens(1, 10)
    mask = torch.ones_like(prompt)
    with pytest.raises(ValueError, match=facts("6 new tokens")):
        model.generate(prompt, attention_mask=mask, max_new_tokens=7)
    with pytest.raises(ValueError, match=facts(16, 17)):
        model.generate(prompt, attention_mask=mask, max_length=17)
    with pytest.raises(ValueError, match=facts("15 tokens")):
        model.generate(tokens(1, 16), max_new_tokens=1)
    with pytest.raises(ValueError, match=facts(16, 17)):
        model(tokens(1, 17))
    cache = model(tokens(1, 16), use_cache=True).past_key_values
    with pytest.raises(ValueError, match=facts(16, 1)):
        model(tokens(1, 1), past_key_values=cache)
    assert model.generate(prompt, attention_mask=mask, max_new_tokens=6).shape == (1, 16)
    assert model.generate(prompt, attention_mask=mask).shape == (1, 16)
    assert model.generate(prompt, attention_mask=mask, max_length=12).shape == (1, 12)
    assert "max_length" not in caplog.text


def test_beam_search_and_several_samples() -> None:
    model, prompt = tiny(), tokens(2, 6)
    mask = torch.ones_like(prompt)
    beams = model.generate(prompt, attention_mask=mask, num_beams=3, num_return_sequences=2, max_new_tokens=5)
    plain = model.generate(
        prompt, attention_mask=mask, num_beams=3, num_return_sequences=2, max_new_tokens=5, use_cache=False
    )
    assert beams.shape == (4, 11) and torch.equal(beams, plain)


def test_text_generation_pipeline() -> None:
    register()
    tokenizer = char_tokenizer(["where was ada born⁇ in london"], block_size=32)
    model = tiny(vocab_size=len(tokenizer), block_size=32, pad_token_id=tokenizer.pad_token_id)
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    filled = generator("where", return_tensors=True)[0]["generated_token_ids"]
    assert len(filled) == 32  # no length asked for: up to the block, not transformers' 256
    settings = {"max_new_tokens": 5, "do_sample": False, "return_full_text": False}
    one_by_one = [generator(prompt, **settings)[0]["generated_text"] for prompt in ("where was", "in")]
    batch = generator(["where was", "in"], batch_size=2, **settings)
    assert [answer[0]["generated_text"] for answer in batch] == one_by_one


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 30, "num_attention_heads": 4}, ["multiple of num_attention_heads"]),
        ({"block_size": 0}, ["block_size is 0"]),
        ({"residual_dropout": 1.0}, ["below 1"]),
        ({"attention": "performer", "attention_dropout": 0.1}, ["attention_dropout"]),
        ({"attention": "rope", "hidden_size": 9, "num_attention_heads": 3}, ["odd"]),
        ({"attention": "linformer", "block_size": 32}, ["below block_size 32"]),
        ({"attention": "bigbird", "bigbird_window": 0}, ["at least 1"]),
    ],
)
def test_shapes_that_cannot_be_built_are_refused(settings: dict[str, object], message: list[str]) -> None:
    with pytest.raises(ValueError, match=facts(*message)):
        MinGPTConfig(**settings)


def test_unknown_attention_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=facts("'flash'", "vanilla, rope")):
        MinGPTForCausalLM(MinGPTConfig(attention="flash"))
