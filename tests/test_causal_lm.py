"""A causal language model: every token predicted once, perplexities that can be checked by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from facts import hftune_error, mentions
from training_case import Case
from transformers import GPT2Config, GPT2LMHeadModel

from hftune import methods
from hftune.cli.tables import score_table
from hftune.data.corpus import stream_corpus
from hftune.data.settings import CorpusData
from hftune.errors import HftuneError
from hftune.evaluation.language import count_tokens, ngram_scores, text_scores
from hftune.hub.card import usage
from hftune.methods.bitfit import BitfitMethod
from hftune.methods.head import HeadMethod
from hftune.methods.ia3 import Ia3Method
from hftune.methods.lora import LoraMethod
from hftune.methods.prefix import PrefixMethod
from hftune.models.causal import NextTokenBatches, load_causal_lm, load_saved_lm, save_causal_lm
from hftune.models.settings import ModelSection
from hftune.models.tokenizers import train_tokenizer
from hftune.pipeline.train import RunResult, assemble, train
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir
from hftune.tasks import tokens as packing
from hftune.tasks.causal_lm import score_split
from hftune.tasks.tokens import Blocks, pack

pytestmark = [pytest.mark.numeric, pytest.mark.renders]

WORDS = ("the", "cat", "dog", "saw", "a", "bird", "and", "ran", "home", "again")


def lines(count: int, seed: int) -> str:
    draw = np.random.default_rng(seed)
    return "".join(" ".join(draw.choice(WORDS, size=8)) + ".\n" for _ in range(count))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three splits."""
    made = tmp_path_factory.mktemp("corpus")
    for name, count in (("train", 150), ("valid", 12), ("test", 10)):
        (made / f"{name}.txt").write_text(lines(count, len(name)), encoding="utf-8")
    return made


def recipe(folder: Path, **settings: Any) -> Recipe:
    values = {
        "data.dataset_name": str(folder),
        "model.model_name_or_path": "scratch:mingpt-tiny",
        "model.vocab_size": 300,
        "model.block_size": 32,
        "task.max_new_tokens": 6,
        "train.max_steps": 12,
        "train.eval_steps": 6,
        "train.per_device_train_batch_size": 8,
        "train.logging_steps": 1,
    }
    return load_recipe(None, values | settings, task="clm")


# ---- packing ----


@pytest.mark.parametrize("tokens", [3, 8, 9, 15, 16, 100])
@pytest.mark.parametrize(("block", "stride"), [(8, None), (8, 3), (8, 7), (4, 1)])
def test_every_token_but_the_first_is_predicted_exactly_once(tokens: int, block: int, stride: int | None) -> None:
    row = np.arange(tokens)
    blocks = Blocks(row, block, stride, rest=True)
    seen = []
    for number, inside in enumerate(blocks.predicted):
        ids = blocks[number]["input_ids"]
        assert len(ids) == blocks.lengths[number]
        seen += ids[inside[: len(ids)]].tolist()
    assert seen == list(range(1, tokens))
    whole = Blocks(row, block)
    assert all(len(whole[number]["input_ids"]) == block for number in range(len(whole))), "no padding in training"
    with pytest.raises(IndexError):
        whole[len(whole)]


def test_a_batch_predicts_what_is_new_in_each_block() -> None:
    blocks = Blocks(np.arange(10, 20), 6, 3, rest=True)
    batch = NextTokenBatches(0)([blocks[0], blocks[1], blocks[2]])
    assert batch["labels"].tolist() == [
        [-100, 11, 12, 13, 14, 15],
        [-100, -100, -100, 16, 17, 18],
        [-100, -100, -100, 19, -100, -100],
    ]
    assert batch["input_ids"][2].tolist() == [16, 17, 18, 19, 0, 0]
    with hftune_error("stride"):
        Blocks(np.arange(9), 4, 4)


def test_documents_are_packed_with_ends_between_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("the cat\na <|endoftext|> b\nthe dog\n", encoding="utf-8")
    corpus = stream_corpus(CorpusData(dataset_name=str(tmp_path / "text.txt"), validation_size=0.0))
    tokenizer = train_tokenizer("bpe", lambda: [lines(20, 0)], 270)
    split, facts = corpus.named["train"], corpus.facts["train"]
    packed = pack(split, facts, tokenizer, tokenizer.eos_token_id)
    assert tokenizer.decode(packed.tokens.tolist()) == (
        "<|endoftext|>the cat<|endoftext|>a <|endoftext|> b<|endoftext|>the dog<|endoftext|>"
    )
    assert (packed.tokens == tokenizer.eos_token_id).sum() == 4, "what only looks like an end is text"
    assert isinstance(packed.tokens, np.memmap) and packed.tokens.dtype == np.uint16

    tokenizer.unk_token = tokenizer.eos_token  # as GPT-2 has it
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    assert pack(split, facts, tokenizer, tokenizer.eos_token_id).unknown == 0, "an end of text is not unknown"
    monkeypatch.undo()

    monkeypatch.setattr(packing, "PORTION", 3)
    parts = [part.tolist() for part in packed.portions()]
    assert parts[0] + [token for part in parts[1:] for token in part[1:]] == packed.tokens.tolist()

    def never(*_: Any) -> Any:
        raise AssertionError("tokenized again")

    monkeypatch.setattr(packing, "_tokenized", never)
    assert pack(split, facts, tokenizer, tokenizer.eos_token_id).fingerprint == packed.fingerprint
    other = train_tokenizer("bpe", lambda: [lines(20, 1)], 280)
    with pytest.raises(AssertionError, match="tokenized again"):
        pack(split, facts, other, other.eos_token_id)


# ---- scores ----


def test_scores_by_hand() -> None:
    found = text_scores(4 * math.log(2), 3, 4, words=2, size=8)
    expected = {"loss": math.log(2), "perplexity": 2.0, "word_perplexity": 4.0, "bits_per_byte": 0.5, "accuracy": 0.75}
    assert found == pytest.approx(expected)


def test_counting_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    train_tokens = np.array([0, 1, 2, 1, 2, 1, 0], dtype=np.uint16)
    counts = count_tokens([[train_tokens]], 3)
    assert counts.single.tolist() == [1, 3, 2]
    assert dict(zip(counts.pairs.tolist(), counts.times.tolist(), strict=True)) == {1: 1, 3: 1, 5: 2, 7: 2}
    scores = ngram_scores(counts, np.array([0, 1, 2]), words=1, size=2)
    unigram = -math.log((3 + 1) / 9) - math.log((2 + 1) / 9)
    assert scores["unigram"]["loss"] == pytest.approx(unigram / 2)
    bigram = -math.log((1 + 5 * 4 / 9) / (1 + 5)) - math.log((2 + 5 * 3 / 9) / (3 + 5))
    assert scores["bigram"]["loss"] == pytest.approx(bigram / 2)
    assert scores["bigram"]["bits_per_byte"] == pytest.approx(bigram / math.log(2) / 2)
    monkeypatch.setattr("hftune.evaluation.language.CHUNK", 2)
    again = count_tokens([[train_tokens[:3]], [train_tokens[2:5]], [train_tokens[4:]]], 3)
    assert again.pairs.tolist() == counts.pairs.tolist() and again.times.tolist() == counts.times.tolist()
    assert ngram_scores(again, np.array([0, 1, 2]), words=1, size=2)["bigram"] == pytest.approx(scores["bigram"])


def test_perplexity_is_that_of_transformers(folder: Path) -> None:
    corpus = stream_corpus(CorpusData(dataset_name=str(folder), validation_size=0.0))
    tokenizer = train_tokenizer("bpe", corpus.named["train"].texts, 290, exact=False)
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape)).eval()
    settings = {"batch_size": 5, "progress": ProgressReporter()}
    scores, items, packed = score_split(model, tokenizer, corpus, "test", block=40, stride=None, **settings)
    tokens = torch.tensor(packed.tokens.tolist())
    nats = 0.0
    with torch.inference_mode():
        for start in range(0, len(tokens) - 1, 39):
            ids = tokens[start : start + 40][None]
            nats += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
    total = len(tokens) - 1
    text = (folder / "test.txt").read_text(encoding="utf-8")
    assert scores["loss"] == pytest.approx(nats / total, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(nats / total), rel=1e-5)
    assert scores["word_perplexity"] == pytest.approx(math.exp(nats / len(text.split())), rel=1e-4)
    size = len(text.replace("\n", "").encode())
    assert scores["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert sum(item["loss"] * item["tokens"] for item in items) == pytest.approx(nats, rel=1e-5)
    assert sum(item["bytes"] for item in items) == pytest.approx(size)
    assert sum(item["tokens"] for item in items) == total
    more, *_ = score_split(model, tokenizer, corpus, "test", block=40, stride=10, **settings)
    nats = 0.0
    with torch.inference_mode():
        for token in range(1, len(tokens)):
            # The first block that reaches the token predicts it; blocks begin ten tokens apart.
            start = 10 * max(0, -(-(token - 39) // 10))
            nats -= float(model(tokens[start:token][None]).logits[0, -1].log_softmax(-1)[tokens[token]])
    assert more["loss"] == pytest.approx(nats / total, rel=1e-5)


# ---- weights ----


@pytest.mark.parametrize("name", ["scratch:mingpt-tiny", "scratch:gpt2-tiny"])
@pytest.mark.parametrize("section", [LoraMethod(r=2), Ia3Method(), BitfitMethod()], ids=lambda one: one.kind)
def test_a_method_moves_what_it_should_and_is_saved_whole(name: str, section: Any, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bpe", lambda: [lines(20, 0)], 270)
    base = ModelSection(model_name_or_path=name)
    torch.manual_seed(0)
    applied = methods.apply(load_causal_lm(base, tokenizer).model, section, ())
    ids = torch.tensor([tokenizer("the cat saw a bird")["input_ids"]])
    applied.model.train()
    applied.model(input_ids=ids, labels=ids).loss.backward()
    moving = {key: value for key, value in applied.model.named_parameters() if value.requires_grad}
    assert 0 < applied.parameters.trainable < applied.parameters.total / 4
    assert not [key for key in moving if "embedding" in key or "wte" in key or "lm_head" in key]
    if section.kind == "lora":
        assert applied.parameters.formula == "4·L·r·d"
    with torch.no_grad():
        for value in moving.values():
            value.add_(torch.randn_like(value) * 0.1)
    applied.model.eval()
    expected = applied.model(input_ids=ids).logits
    save_causal_lm(applied.model, tokenizer, tmp_path, base=base, task="clm")
    loaded, _, facts = load_saved_lm(str(tmp_path), device="cpu")
    assert facts["task"] == "clm"
    assert torch.allclose(loaded(input_ids=ids).logits, expected, atol=1e-5)


def test_the_card_of_an_adapter_shows_how_to_generate() -> None:
    found = usage({}, adapter=True, pairs=False, causal_lm=True)
    assert found.pipeline_tag == "text-generation" and "hftune generate" in found.snippet


def test_decay_is_for_matrices_only(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    case = Case(tmp_path, {"weight_decay": 0.1}, inputs={"decay_embeddings": False})
    decayed, rest = case.trainer(model).create_optimizer().param_groups
    names = {id(value): key for key, value in model.named_parameters()}
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert {names[id(one)].rsplit(".", 2)[-2] for one in decayed["params"]} == {"c_attn", "c_proj", "c_fc"}
    assert {"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight"} <= {
        names[id(one)] for one in rest["params"]
    }
    assert len(decayed["params"]) + len(rest["params"]) == len(names)


# ---- runs ----


@pytest.fixture(scope="module")
def result(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One run, whole."""
    settings = {"task.prompts": ["", "the cat"], "train.max_steps": 30, "train.eval_steps": 15}
    return train(recipe(folder, **settings, **{"train.learning_rate": 5e-3}), tmp_path_factory.mktemp("runs") / "run")


def test_scores_hang_together(result: RunResult, folder: Path) -> None:
    metrics = result.metrics
    assert metrics["verified"] and metrics["task"] == "clm"
    assert metrics["splits"]["validation"]["loss"] == pytest.approx(metrics["selection"]["score"], rel=1e-5)
    for split, file in (("validation", "valid.txt"), ("test", "test.txt")):
        scores, sizes = metrics["splits"][split], metrics["corpus"][split]
        text = (folder / file).read_text(encoding="utf-8")
        assert sizes["words"] == len(text.split()) and sizes["bytes"] == len(text) - text.count("\n")
        nats = scores["loss"] * sizes["tokens"]
        assert scores["bits_per_byte"] == pytest.approx(nats / math.log(2) / sizes["bytes"])
        assert scores["word_perplexity"] == pytest.approx(math.exp(nats / sizes["words"]))
        assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
        assert scores["loss"] < metrics["baselines"]["unigram"][split]["loss"]
        assert metrics["baselines"]["bigram"][split]["loss"] < metrics["baselines"]["unigram"][split]["loss"]


def test_samples_stand_in_history_and_report(result: RunResult) -> None:
    rows = [row for row in result.run.read_history() if row.get("split") == "samples"]
    assert [row["step"] for row in rows] == [15, 30]
    assert [sample["prompt"] for sample in rows[0]["samples"]] == ["", "the cat"]
    assert rows[0]["samples"] != rows[1]["samples"] and result.metrics["samples"] == rows[1]["samples"]
    page = result.run.report.read_text(encoding="utf-8")
    assert "step 15" in page and "word perplexity" in page and "perplexity" in page
    assert (result.run.path / "plots" / "score.png").is_file(), "the curve of perplexity"


def test_a_text_by_itself_is_scored_as_a_whole(
    result: RunResult, folder: Path, hftune: Callable[..., tuple[int, str, str]]
) -> None:
    path, text = str(result.run.path), str(folder / "test.txt")
    code, out, err = hftune("evaluate", path, "--data", text, "--json")
    assert code == 0, err
    reported = json.loads(out)
    assert reported["splits"]["all"] == pytest.approx(result.metrics["splits"]["test"], rel=1e-5)
    assert reported["baselines"] == {}, "counts of a text say nothing about that text"
    code, _, err = hftune("evaluate", path, "--data", text, "--split", "validation")
    assert code == 2 and mentions(err, "validation split") and "--split: all" in err


def test_the_run_is_scored_again_and_writes(result: RunResult, hftune: Callable[..., tuple[int, str, str]]) -> None:
    path = str(result.run.path)
    code, out, err = hftune("evaluate", path, "--split", "validation", "--json")
    assert code == 0, err
    reported = json.loads(out)
    assert reported["splits"]["validation"]["loss"] == pytest.approx(
        result.metrics["splits"]["validation"]["loss"], rel=1e-5
    )
    assert reported["baselines"]["bigram"]["validation"] == pytest.approx(
        result.metrics["baselines"]["bigram"]["validation"]
    )
    code, out, err = hftune("generate", path, "--prompt", "the cat", "--max-new-tokens", "5")
    row = json.loads(out)
    assert code == 0 and row["prompt"] == "the cat" and row["tokens"] <= 5 and row["log_probability"] < 0, err
    code, _, err = hftune("predict", path, "the cat")
    assert code == 2 and "hftune generate" in err


@pytest.mark.parametrize(
    ("settings", "expected", "hint"),
    [
        ({"task.block_size": 64}, ["has 32 positions"], "model.block_size=64"),
        ({"model.block_size": 4000, "task.block_size": 4000}, ["fewer than one block"], "block_size"),
        ({"train.metric_for_best_model": "accuarcy"}, ["train.metric_for_best_model"], "bits_per_byte"),
        (
            {"model.model_name_or_path": "scratch:bert-tiny", "model.block_size": None},
            ["next token"],
            "gpt2-tiny",
        ),
        ({"method.kind": "head"}, ["language models"], "lora"),
        ({"method.kind": "prefix"}, ["take positions"], "lora"),
        ({"task.stride": 40}, ["task.stride"], "31 or less"),
        ({"task.prompts": ("fine", "the cat " * 20)}, ["task.prompts: 'the cat"], "task.max_new_tokens"),
    ],
)
def test_what_does_not_fit_is_reported_before_training(
    folder: Path, tmp_path: Path, settings: dict[str, Any], expected: list[str], hint: str
) -> None:
    with pytest.raises(HftuneError) as caught:
        assemble(recipe(folder, **settings), RunDir(tmp_path), ProgressReporter())
    assert mentions(caught.value.message, *expected) and hint in caught.value.hint, str(caught.value)


def test_methods_that_take_context_are_refused_for_language_models_only() -> None:
    config = GPT2Config()
    for section in (HeadMethod(), PrefixMethod()):
        with hftune_error(section.kind):
            methods.check(section, config, causal=True)
    methods.check(HeadMethod(), config)


def test_a_tokenizer_from_a_folder_is_used(folder: Path, tmp_path: Path) -> None:
    train_tokenizer("bpe", lambda: [lines(20, 5)], 265).save_pretrained(tmp_path / "mine")
    named = {"model.tokenizer_name": str(tmp_path / "mine")}
    job = assemble(recipe(folder, **named), RunDir(tmp_path / "run"), ProgressReporter())
    assert job.applied.model.config.vocab_size == 265


def test_a_vocabulary_with_a_mask_ends_where_texts_do() -> None:
    tokenizer = train_tokenizer("bpe", lambda: [lines(20, 5)], 265, special_tokens=("<mask>",))
    tokenizer.mask_token = "<mask>"  # as RoBERTa has it
    model = load_causal_lm(ModelSection(model_name_or_path="scratch:mingpt-tiny"), tokenizer).model
    assert set(model.generation_config.eos_token_id) == {tokenizer.mask_token_id, tokenizer.eos_token_id}


def test_counting_has_a_command(folder: Path, hftune: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = hftune("baseline", "--corpus", str(folder), "--set", "model.vocab_size=300", "--json")
    assert code == 0, err
    found = json.loads(out)["baselines"]
    assert found["bigram"]["test"]["bits_per_byte"] < found["unigram"]["test"]["bits_per_byte"] < 8
    code, _, err = hftune("baseline", "--corpus", str(folder), "--answer", "Rome")
    assert code == 2 and all(flag in err for flag in ("--answer", "--corpus", "--data"))


def test_the_vocabulary_of_counts_is_reported(
    folder: Path, tmp_path: Path, hftune: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = hftune("baseline", "--corpus", str(folder), "--set", "model.vocab_size=300")
    assert code == 0 and mentions(err, "byte-level BPE", 300) and " kB" in out, err
    train_tokenizer("bpe", lambda: [lines(20, 5)], 265).save_pretrained(tmp_path / "mine")
    code, _, err = hftune("baseline", "--corpus", str(folder), "--tokenizer", str(tmp_path / "mine"))
    assert code == 0 and "vocab_size" not in err, "nobody set it"


def test_large_figures_are_short() -> None:
    scores = {"perplexity": 99.5, "word_perplexity": 53487767.6092}
    table = score_table({"splits": {"validation": scores}, "baselines": {}})
    assert [list(column.cells) for column in table.columns[2:]] == [["99.5000"], ["5.35e+07"]]
