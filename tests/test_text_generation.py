"""Writing: what transformers' own generate writes, probabilities that add up, draws that depend on the seed alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error
from tokenizers.processors import TemplateProcessing
from trained_tokenizers import char_tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
)

from hftune.errors import HftuneError
from hftune.files import write_json
from hftune.models import decoding
from hftune.models.causal import load_causal_lm, load_saved_lm, save_causal_lm
from hftune.models.generator import Sampling, TextGenerator, encode_prompt
from hftune.models.settings import ModelSection
from hftune.models.tokenizers import train_tokenizer

pytestmark = pytest.mark.numeric

TEXT = "the cat saw a bird and the dog ran home again, and then the bird saw the cat."
PROMPTS = ["the cat", "a bird and the dog ran home", "then", "the dog"]


@pytest.fixture(scope="module", params=["gpt2", "mingpt"])
def writer(request: pytest.FixtureRequest) -> TextGenerator:
    """Random weights, large enough that one token has the highest probability."""
    tokenizer = train_tokenizer("bpe", lambda: [TEXT] * 3, 275)
    torch.manual_seed(3)
    if request.param == "gpt2":
        shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 48, "bos_token_id": 0, "eos_token_id": 0}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), initializer_range=0.4, **shape))
    else:
        section = ModelSection(model_name_or_path="scratch:mingpt-tiny", attention="rope", block_size=48)
        model = load_causal_lm(section, tokenizer).model
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(4)
    return TextGenerator(model.eval(), tokenizer)


def test_greedy_writes_what_transformers_writes(writer: TextGenerator) -> None:
    for prompt in PROMPTS:
        ids = torch.tensor([writer.tokenizer(prompt)["input_ids"]])
        made = writer.model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)[0, ids.shape[1] :]
        ((one,),) = writer.generate([prompt], Sampling(max_new_tokens=12))
        assert one.text == writer.decode(made.tolist()) and one.tokens == len(made)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_continuation_reads_on_from_its_prompt(kind: str) -> None:
    tokenizer = train_tokenizer(kind, lambda: [TEXT] * 3, {"bpe": 275, "wordpiece": 50, "unigram": 24}[kind])
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=4, n_layer=1, n_head=1))
    writer, ids = TextGenerator(model, tokenizer), tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    for cut in range(1, len(ids)):
        assert writer.decode(ids[:cut]) + writer.decode(ids[cut:], after=ids[:cut]) == writer.decode(ids)
    ((one,),) = writer.generate(["the cat saw"], Sampling(max_new_tokens=5))
    assert writer.decode([*writer.encode("the cat saw"), *_written(writer)]) == f"the cat saw{one.text}"


def _written(writer: TextGenerator) -> list[int]:
    received: list[int] = []
    writer.generate(["the cat saw"], Sampling(max_new_tokens=5), on_token=lambda ids: received.append(ids[-1]))
    return received


def test_a_batch_writes_what_each_prompt_writes_alone(writer: TextGenerator) -> None:
    for sampling in (Sampling(max_new_tokens=10), Sampling(max_new_tokens=10, temperature=1.3, seed=5)):
        together = writer.generate(PROMPTS, sampling, samples=2, batch_size=3)
        for number, prompt in enumerate(PROMPTS):
            alone = [
                writer.generate([prompt], sampling, first=number, first_sample=sample)[0][0].text for sample in range(2)
            ]
            assert [one.text for one in together[number]] == alone


def test_the_log_probability_is_the_models_own(writer: TextGenerator) -> None:
    ((one,),) = writer.generate(["the cat"], Sampling(max_new_tokens=6, temperature=0.7, top_k=20, seed=2))
    received: list[int] = []
    again = Sampling(max_new_tokens=6, temperature=0.7, top_k=20, seed=2)
    writer.generate(["the cat"], again, on_token=lambda ids: received.append(ids[-1]))
    prompt = writer.tokenizer("the cat")["input_ids"]
    with torch.inference_mode():
        scores = writer.model(torch.tensor([prompt + received])).logits[0].float().log_softmax(-1)
    expected = sum(float(scores[len(prompt) - 1 + place, token]) for place, token in enumerate(received))
    assert one.log_probability == pytest.approx(expected, abs=1e-3) and len(received) == one.tokens


def test_draws_depend_on_the_seed_and_leave_torch_alone(writer: TextGenerator) -> None:
    state = torch.get_rng_state()

    def texts(seed: int) -> list[str]:
        made = writer.generate(["the cat"], Sampling(max_new_tokens=8, temperature=1.5, seed=seed), samples=4)
        return [one.text for one in made[0]]

    assert texts(1) == texts(1) and texts(1) != texts(2)
    assert len(set(texts(1))) > 1, "samples differ"
    assert torch.equal(torch.get_rng_state(), state)


def test_narrow_draws_are_greedy(writer: TextGenerator) -> None:
    greedy = writer.generate(PROMPTS, Sampling(max_new_tokens=8))
    for narrow in (
        Sampling(8, top_k=1),
        Sampling(8, top_p=1e-6),
        Sampling(8, temperature=1e-3),
        Sampling(8, temperature=1e-42),
    ):
        assert [row[0].text for row in writer.generate(PROMPTS, narrow)] == [row[0].text for row in greedy]


def test_draws_follow_the_probabilities(writer: TextGenerator) -> None:
    ids = torch.tensor([writer.tokenizer("the cat")["input_ids"]])
    with torch.inference_mode():
        shares = writer.model(ids).logits[0, -1].float().softmax(-1)
    received: list[int] = []
    sampling = Sampling(1, temperature=1.0)
    writer.generate(["the cat"], sampling, samples=2000, batch_size=2000, on_token=lambda new: received.append(new[-1]))
    likely = int(shares.argmax())
    assert received.count(likely) / 2000 == pytest.approx(float(shares[likely]), abs=0.05)
    received.clear()
    nucleus = Sampling(1, top_p=0.5)
    writer.generate(["the cat"], nucleus, samples=500, batch_size=500, on_token=lambda new: received.append(new[-1]))
    ordered = shares.sort(descending=True)
    inside = int((ordered.values.cumsum(0) < 0.5).sum()) + 1
    assert set(received) <= set(ordered.indices[:inside].tolist())


def test_a_penalty_keeps_from_repeating(writer: TextGenerator) -> None:
    received: list[int] = []
    strong = Sampling(max_new_tokens=12, repetition_penalty=1e6)
    writer.generate(["the cat"], strong, on_token=lambda ids: received.append(ids[-1]))
    assert len(set(received)) == len(received) and not set(received) & set(writer.tokenizer("the cat")["input_ids"])


def test_the_context_is_refused_or_slides(writer: TextGenerator) -> None:
    with hftune_error(48) as caught:
        writer.generate(["the cat"], Sampling(max_new_tokens=60))
    assert "--sliding-window" in caught.value.hint
    with hftune_error(48):
        writer.generate([TEXT * 9], Sampling())
    wide = Sampling(max_new_tokens=60, sliding_window=True, temperature=1.0, seed=1)
    ((one,), (other,)) = writer.generate(["the cat", TEXT * 9], wide)
    assert (one.tokens == 60 or one.ended) and (other.tokens == 60 or other.ended)
    assert writer.generate(["a"], Sampling())[0][0].tokens <= 47, "what fits, where nobody says"


def test_bad_settings_are_refused(writer: TextGenerator) -> None:
    wrong = [Sampling(temperature=0.0), Sampling(temperature=-1.0), Sampling(top_k=0), Sampling(top_p=1.5)]
    wrong += [Sampling(repetition_penalty=0.0), Sampling(max_new_tokens=0), Sampling(temperature=float("nan"))]
    wrong += [Sampling(temperature=float("inf")), Sampling(repetition_penalty=float("inf"))]
    for sampling in wrong:
        with pytest.raises(HftuneError):
            writer.generate(["the"], sampling)
    with pytest.raises(HftuneError, match="UTF-8"):
        writer.generate(["\udcff"], Sampling())
    assert writer.generate([""], Sampling(max_new_tokens=2))[0][0].prompt == "", "an empty prompt begins a document"


def test_rows_that_end_leave_their_batch(writer: TextGenerator) -> None:
    """Every second token is an end here, so that rows end at different times."""
    short = TextGenerator(writer.model, writer.tokenizer)
    short._ends = frozenset(range(0, len(writer.tokenizer), 2))
    drawn = Sampling(max_new_tokens=10, temperature=1.0, seed=4)
    together = [one for (one,) in short.generate(PROMPTS * 3, drawn)]
    alone = [short.generate([prompt], drawn, first=place)[0][0] for place, prompt in enumerate(PROMPTS * 3)]
    assert [(one.text, one.tokens) for one in together] == [(one.text, one.tokens) for one in alone]
    assert len({one.tokens for one in together}) > 1 and all(one.ended for one in together if one.tokens < 10)
    assert [one.log_probability for one in together] == pytest.approx([one.log_probability for one in alone], abs=1e-3)


@pytest.mark.parametrize("samples", [1, 3])
def test_what_prompts_begin_with_is_run_once(
    writer: TextGenerator, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"the cat saw a bird and {rest}" for rest in ("the dog", "the bird saw the cat.", "a")][: 4 - samples]
    drawn = Sampling(max_new_tokens=10, temperature=1.0, seed=4)
    run: list[int] = []
    real = type(writer.model).forward

    def counted(self: Any, *args: Any, **inputs: Any) -> Any:
        run.append(inputs["input_ids"].numel())
        return real(self, *args, **inputs)

    monkeypatch.setattr(decoding, "_arguments", lambda model: {"position_ids", "logits_to_keep"})
    monkeypatch.setattr(type(writer.model), "forward", counted)
    together = [one for made in writer.generate(prompts, drawn, samples=samples) for one in made]
    spent, run[:] = sum(run), []
    monkeypatch.setattr(decoding, "MIN_SHARED", 1000)
    apart = [one for made in writer.generate(prompts, drawn, samples=samples) for one in made]
    assert spent < sum(run)
    assert [one.text for one in together] == [one.text for one in apart]
    assert [one.log_probability for one in together] == pytest.approx([one.log_probability for one in apart], abs=1e-3)


def test_what_a_tokenizer_puts_around_a_text() -> None:
    tokenizer = train_tokenizer("bpe", lambda: [TEXT] * 3, 275, special_tokens=("<s>",))
    tokenizer.bos_token = "<s>"
    backend = tokenizer.backend_tokenizer
    ends = [(tokenizer.eos_token, tokenizer.eos_token_id), ("<s>", tokenizer.bos_token_id)]
    backend.post_processor = TemplateProcessing(
        single=f"<s> $A {tokenizer.eos_token}", pair="$A $B", special_tokens=ends
    )
    plain = tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert tokenizer("the cat")["input_ids"] == [tokenizer.bos_token_id, *plain, tokenizer.eos_token_id]
    assert encode_prompt(tokenizer, "the cat", None) == [tokenizer.bos_token_id, *plain], "no end before what follows"
    assert encode_prompt(tokenizer, "the cat", True) == [tokenizer.eos_token_id, *plain], "as texts are packed"
    assert encode_prompt(tokenizer, "the cat", False) == plain
    assert encode_prompt(tokenizer, "", False) == [tokenizer.eos_token_id]
    assert encode_prompt(tokenizer, "", None) == [tokenizer.bos_token_id]


def test_characters_that_the_model_does_not_know_are_reported() -> None:
    tokenizer = char_tokenizer(["abc "], block_size=16)
    model = load_causal_lm(ModelSection(model_name_or_path="scratch:mingpt-tiny", block_size=16), tokenizer).model
    with hftune_error("a☃"):
        TextGenerator(model, tokenizer).generate(["a☃"], Sampling())


def test_the_command_reads_files_and_writes_jsonl(
    here: Path, writer: TextGenerator, hftune: Callable[..., tuple[int, str, str]]
) -> None:
    save_causal_lm(writer.model, writer.tokenizer, here / "model", task="clm")
    (here / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    drawn = ("--max-new-tokens", "4", "--temperature", "1", "--samples", "2", "--seed", "7")
    code, _, err = hftune("generate", "model", "--file", "prompts.txt", "--output", "out.jsonl", *drawn)
    assert code == 0, err
    rows = [json.loads(line) for line in (here / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["prompt"] for row in rows] == [prompt for prompt in PROMPTS for _ in range(2)]
    assert [row["sample"] for row in rows] == [0, 1] * 4
    assert all(row["log_probability"] < 0 and 1 <= row["tokens"] <= 4 for row in rows)
    assert hftune("generate", "model", "--file", "prompts.txt", "--output", "out.jsonl")[0] == 2
    for bad in (("--temperature", "0"), ("--samples", "3"), ("--file", "nowhere.txt")):
        code, _, err = hftune("generate", "model", *bad)
        assert code == 2 and "→" in err
    code, out, err = hftune("generate", "model", "--prompt", "日 é \x1b[2J", "--max-new-tokens", "1")
    assert code == 0 and "日 é \\u001b[2J" in out and "\x1b" not in out, err
    code, _, err = hftune("generate", "nosuchrun")
    assert code == 2 and "nosuchrun" in err and "--model" not in err


@pytest.mark.parametrize(
    ("facts", "head", "output", "hint"),
    [
        ({"task": "mlm"}, BertForMaskedLM, "masked language model", "fill-mask"),
        ({}, BertForMaskedLM, "masked language model", "fill-mask"),
        ({"task": "joint", "labels": ["a", "b"]}, BertForMaskedLM, "is a classifier", "hftune predict model"),
        ({}, BertForSequenceClassification, "is a classifier", "hftune predict model"),
    ],
)
def test_a_model_that_does_not_write_is_refused(
    here: Path, facts: dict[str, Any], head: Any, output: str, hint: str
) -> None:
    tokenizer = train_tokenizer("wordpiece", lambda: [TEXT] * 3, 60, exact=False)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    head(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained("model")
    tokenizer.save_pretrained("model")
    if facts:
        write_json(here / "model" / "hftune.json", {"version": 1, **facts})
    section = ModelSection(model_name_or_path="model")
    for load in (lambda: load_saved_lm("model"), lambda: load_causal_lm(section, tokenizer)):
        with pytest.raises(HftuneError, match=output) as caught:
            load()
        assert hint in caught.value.hint


def test_an_encoder_that_was_made_a_decoder_writes(here: Path) -> None:
    tokenizer = train_tokenizer("wordpiece", lambda: [TEXT] * 3, 60, exact=False)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertLMHeadModel(BertConfig(vocab_size=len(tokenizer), is_decoder=True, **shape)).save_pretrained("model")
    tokenizer.save_pretrained("model")
    model, loaded, _ = load_saved_lm("model")
    assert TextGenerator(model, loaded).generate(["the cat"], Sampling(max_new_tokens=2))[0][0].tokens
