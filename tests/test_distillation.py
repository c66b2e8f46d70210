"""General distillation: words across tokenizers, the loss by hand, the cache against the teacher, what is saved."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crash_case import recipe, train_session, write_data
from facts import hftune_error
from safetensors.torch import load_file
from tiny_teacher import WIDTH, teacher_tokenizer, write_teacher
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    pipeline,
)

from hftune import cache
from hftune.data.words import chunks, word_spans
from hftune.files import read_json, read_jsonl
from hftune.models.alignment import Aligned, align
from hftune.models.distilled import PROJECTION, BertDistilled
from hftune.models.joint import IGNORED
from hftune.models.teacher import LONGEST, Teacher, open_teacher, teacher_section
from hftune.models.tokenizers import train_tokenizer
from hftune.pipeline.dry_run import dry_run
from hftune.pipeline.train import assemble, train
from hftune.progress import ProgressReporter
from hftune.runs.directory import RunDir
from hftune.tasks import teacher_outputs
from hftune.tasks.distill_encoder import DistillCollator, EncoderDistillationLoss
from hftune.tasks.teacher_outputs import LiveOutputs, stored_outputs
from hftune.training.callbacks import LossComponents

pytestmark = pytest.mark.numeric

KIND = "distill_encoder"
HOSTILE = [
    "The cafe\u0301 was great, don't you think?",
    "na\u00efve co\u00adop x\u200by \u0301 \u200b",
    "日本語のテキスト and English混ぜ",
    "😀👍🏽 family 👨\u200d👩\u200d👧 done",
    "a\x00b\x07c\x1cd \ufeffend",
    "half \ud83d surrogate \ude00",
    "नमस्ते दुनिया ภาษาไทย",
    "[MASK] [CLS] <mask> ##ing ⁇",
    "ﬁne ℡ Ⅷ ½ İstanbul ẞ",
    "\u0301\u0302\u200d",
    "word " * 60,
    "x" * 300,
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def teacher(home: Path) -> Teacher:
    return Teacher(open_teacher(teacher_section(str(home / "teacher"), None, trust=False)))


# ---- words ----


def shown(text: str) -> list[str]:
    return [text[first:last] for first, last in word_spans(text)]


def test_words_of_hostile_text() -> None:
    assert shown("Don't stop!") == ["Don", "'", "t", "stop", "!"]
    assert shown("cafe\u0301 co\u00adop 3.14") == ["cafe\u0301", "co\u00adop", "3", ".", "14"]
    assert shown("日本go") == ["日", "本", "go"]
    assert shown("हि") == ["हि"]
    assert shown("a\x1cb") == ["a", "b"], "a separator"
    assert shown(" \t\n") == []
    for text in HOSTILE:
        spans = word_spans(text)
        assert (spans[:, 0] < spans[:, 1]).all() and (spans[1:, 0] >= spans[:-1, 1]).all()
        outside = set(range(len(text))) - {place for first, last in spans for place in range(first, last)}
        assert all(text[place].isspace() for place in outside)


def test_pieces_are_as_long_as_each_other_and_cut_between_words() -> None:
    made = list(chunks(["one two three four five, six", "", " \n", "alone", "half \ud83d"], 3))
    assert made == ["one two", "three four five", ", six", "alone", "half \ufffd"]
    sizes = [len(word_spans(piece)) for piece in chunks(["word " * 100], 30)]
    assert sizes == [25] * 4


# ---- words and tokens ----


def tokenizers_of(texts: list[str]) -> dict[str, Any]:
    made = {
        f"{family} {kind}": train_tokenizer(kind, lambda: texts, 400, family=family, exact=False)
        for family, kind in (("bert", "wordpiece"), ("roberta", "bpe"), ("roberta", "unigram"))
    }
    return {**made, "letters": teacher_tokenizer()}


def by_hand(tokenizer: Any, text: str, max_length: int) -> dict[int, list[int]]:
    """Word → its tokens, one text and one token at a time."""
    encoded = tokenizer(
        text, truncation=True, max_length=max_length, return_offsets_mapping=True, split_special_tokens=True
    )
    offsets, spans = encoded["offset_mapping"], word_spans(text)
    reached = max(last for _, last in offsets)
    found: dict[int, list[int]] = {}
    for number, (first, last) in enumerate(spans):
        tokens = [t for t, (begin, end) in enumerate(offsets) if begin < end and begin < last and end > first]
        if tokens and not (len(offsets) >= max_length and last > reached):
            found[number] = tokens
    return found


def pairs(aligned: Aligned, row: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for token, word in zip(*aligned.text(row)[1:], strict=True):
        found.setdefault(int(word), []).append(int(token))
    return found


@pytest.mark.parametrize("max_length", [16, 512])
def test_words_of_two_tokenizers_are_the_same_words(max_length: int) -> None:
    texts = list(chunks(HOSTILE, 80))
    for name, tokenizer in tokenizers_of(texts).items():
        aligned = align(tokenizer, texts, max_length)
        assert len(aligned) == len(texts)
        for row, text in enumerate(texts):
            found = pairs(aligned, row)
            assert found == by_hand(tokenizer, text, max_length), (name, text)
            assert list(found) == sorted(found)
            ids = tokenizer(text, truncation=True, max_length=max_length, split_special_tokens=True)["input_ids"]
            assert aligned.text(row)[0].tolist() == ids, (name, text)


def test_a_word_that_a_tokenizer_strips_or_cuts_off_has_no_vector() -> None:
    tokenizer = teacher_tokenizer()
    stripped = align(tokenizer, ["so \u0301 it"], 32)
    assert set(pairs(stripped, 0)) == {0, 2}
    cut = align(tokenizer, ["ab cde fg"], 6)  # [CLS] a ##b c ##d [SEP]
    assert pairs(cut, 0) == {0: [1, 2]}
    whole = align(tokenizer, ["ab cd"], 6)
    assert pairs(whole, 0) == {0: [1, 2], 1: [3, 4]}
    assert whole.first_words().tolist() == [0, 1, 1, 2, 2, 0]


# ---- the teacher, live and cached ----


def test_the_teacher_gives_the_means_over_tokens(teacher: Teacher, home: Path) -> None:
    text = "ab, c"
    words, vectors, sentence = LiveOutputs(teacher, [text])[0]
    model = AutoModel.from_pretrained(home / "teacher").eval()
    with torch.no_grad():
        hidden = model(**teacher.tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    expected = torch.stack([hidden[1:3].mean(0), hidden[3], hidden[4]])
    assert words.tolist() == [0, 1, 2]
    np.testing.assert_allclose(vectors, expected.numpy(), rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(sentence, hidden.mean(0).numpy(), rtol=2e-3, atol=1e-3)
    assert vectors.dtype == np.float16 and vectors.shape == (3, WIDTH)


def test_the_cache_equals_the_live_teacher_and_survives_being_killed(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    monkeypatch.setattr(teacher_outputs, "SHARD_BYTES", 700)
    texts = list(chunks(HOSTILE, 80))
    read: list[int] = []
    original, kills = Teacher._batch, 3

    def counting(self: Teacher, batch: Any) -> Any:
        read.append(len(batch))
        if len(read) == kills:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(Teacher, "_batch", counting)
    with pytest.raises(KeyboardInterrupt):
        stored_outputs(teacher, {"train": texts}, ProgressReporter())
    kept = list((tmp_path / "teacher").glob("[0-9a-f]*"))
    assert len(kept) == kills - 1, "each whole shard stays"
    kills, before = -1, len(read)
    stored = stored_outputs(teacher, {"train": texts}, ProgressReporter())["train"]
    shards = len(list((tmp_path / "teacher").glob("[0-9a-f]*")))
    assert shards > 4 and len(read) - before == shards - len(kept)
    before = len(read)
    again = stored_outputs(teacher, {"train": texts}, ProgressReporter())["train"]
    assert len(read) == before, "nothing is computed again"
    monkeypatch.undo()
    live = LiveOutputs(teacher, texts)
    for row in range(len(texts)):
        for one in (stored[row], again[row]):
            assert one.words.tolist() == live[row].words.tolist()
            np.testing.assert_allclose(one.vectors, live[row].vectors, rtol=2e-3, atol=1e-3)
            np.testing.assert_allclose(one.sentence, live[row].sentence, rtol=2e-3, atol=1e-3)


def test_a_cache_that_does_not_fit_is_refused_before_anything_is_computed(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    texts = [f"some text {number}" for number in range(50)]
    monkeypatch.setattr(teacher_outputs.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 100))
    with hftune_error("GB free", "HFTUNE_CACHE"):
        stored_outputs(teacher, {"train": texts}, ProgressReporter())
    monkeypatch.undo()
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    monkeypatch.setenv("HFTUNE_CACHE_GB", "0.000001")
    with hftune_error("HFTUNE_CACHE_GB"):
        stored_outputs(teacher, {"train": texts}, ProgressReporter())
    assert not list(tmp_path.glob("teacher/*"))


def test_entries_in_use_stay_in_the_cache(teacher: Teacher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    stored = stored_outputs(teacher, {"train": ["one text"]}, ProgressReporter())["train"]
    (entry,) = (tmp_path / "teacher").glob("[0-9a-f]*")
    os.utime(entry / cache.INDEX, (1, 1))
    monkeypatch.setattr(teacher_outputs, "TOUCHED_SECONDS", -1.0)
    assert len(stored[0].words) == 2
    monkeypatch.setenv("HFTUNE_CACHE_GB", "0")
    cache.delete_oldest()
    assert entry.is_dir()


# ---- the loss ----


def student(distance: str = "cosine") -> BertDistilled:
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    torch.manual_seed(0)
    model = BertDistilled(config)
    model.add_projection(3, distance)
    return model.eval()


def batch(numbers: list[int]) -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(0)
    rows = [
        {
            "input_ids": [1, 5 + number, 6, 7, 2][: 5 - number % 2],
            "labels": [IGNORED, 9, IGNORED, 8, IGNORED][: 5 - number % 2],
            "tokens": np.array([1, 2, 2, 3][: 4 - number % 2], dtype=np.uint16),
            "words": np.array([0, 0, 1, 1][: 4 - number % 2]),
            "vectors": draw.normal(size=(2, 3)).astype(np.float16),
            "sentence": draw.normal(size=3).astype(np.float16),
        }
        for number in range(3)
    ]
    return DistillCollator(0)([rows[number] for number in numbers])


@pytest.mark.parametrize("distance", ["cosine", "mse"])
def test_the_loss_by_hand(distance: str, home: Path) -> None:
    model, inputs = student(distance), batch([0, 1])
    section: Any = recipe(
        home, KIND, **{"task.mlm_weight": 0.5, "task.word_weight": 2.0, "task.sentence_weight": 3.0}
    ).task
    labels = inputs.pop("labels")
    loss = EncoderDistillationLoss(section, LossComponents())(model(**inputs), labels)

    nats, words, sentences = [], [], []
    for row in range(2):
        size = 5 - row
        ids = inputs["input_ids"][row, :size]
        with torch.no_grad():
            hidden = model.bert(input_ids=ids[None]).last_hidden_state[0]
            logits = model.cls(hidden)
        chosen = labels[row, :size] != IGNORED
        nats += cross_entropy(logits[chosen], labels[row, :size][chosen], reduction="none").tolist()
        second = [2, 3] if row == 0 else [2]
        for place, tokens in enumerate(([1, 2], second)):
            words.append(far(model, hidden[tokens].mean(0), inputs["word_targets"][2 * row + place], distance))
        sentences.append(far(model, hidden.mean(0), inputs["sentence_targets"][row], distance))
    expected = 0.5 * np.mean(nats) + 2.0 * np.mean(words) + 3.0 * np.mean(sentences)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def far(model: BertDistilled, vector: torch.Tensor, wanted: torch.Tensor, distance: str) -> float:
    with torch.no_grad():
        ours = model.projection(vector).double().numpy()
    theirs = wanted.double().numpy()
    if distance == "cosine":
        return 1 - float(ours @ theirs / math.sqrt((ours @ ours) * (theirs @ theirs)))
    theirs = (theirs - theirs.mean()) / math.sqrt(theirs.var() + 1e-5)
    return float(((ours - theirs) ** 2).mean())


def test_parts_of_a_step_add_up_to_the_whole_step() -> None:
    model = student()
    whole = batch([0, 1, 2])
    whole.pop("labels")
    together = model(**whole)
    totals = {"num_items_in_batch": 6, "word_items": 6, "sentence_items": 3}
    parts = []
    for numbers in ([0, 1], [2]):
        part = batch(numbers)
        part.pop("labels")
        parts.append(model(**part, **totals))
    for name in ("mlm_loss", "word_loss", "sentence_loss"):
        assert sum(part[name] for part in parts).item() == pytest.approx(together[name].item(), rel=1e-5), name


def test_accumulation_makes_the_same_steps(home: Path, tmp_path: Path) -> None:
    settings = {"train.max_steps": 3, "model.dropout": 0.0, "train.logging_steps": 1}
    train_session(recipe(home, KIND, **settings), tmp_path / "whole")
    few = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4}
    train_session(recipe(home, KIND, **settings, **few), tmp_path / "parts")
    names = ("loss", "mlm_loss", "word_loss", "sentence_loss")
    one, two = (
        [[row[name] for name in names] for row in read_jsonl(tmp_path / run / "history.jsonl") if "mlm_loss" in row]
        for run in ("whole", "parts")
    )
    assert len(one) == 3
    np.testing.assert_allclose(one, two, rtol=2e-4)


# ---- a run ----


@pytest.fixture(scope="module")
def run(home: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(recipe(home, KIND, **{"task.whole_word_mask": True}), tmp_path_factory.mktemp("runs") / "run").run


def test_a_run_learns_and_saves_a_plain_masked_language_model(run: RunDir, home: Path) -> None:
    model = run.model
    assert read_json(model / "config.json")["architectures"] == ["BertForMaskedLM"]
    assert not [name for name in load_file(model / "model.safetensors") if "projection" in name]
    assert load_file(model / PROJECTION)["weight"].shape == (WIDTH, 128)
    _, info = BertForMaskedLM.from_pretrained(model, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert AutoModel.from_pretrained(model).config.hidden_size == 128
    assert pipeline("fill-mask", model=str(model))("the [MASK] sat on the mat")[0]["score"] > 0
    metrics = run.read_metrics()
    assert metrics["verified"] and metrics["selection"]["metric"] == "agreement"
    evaluated = [row for row in read_jsonl(run.history) if row.get("split") == "validation"]
    assert evaluated[-1]["agreement"] > evaluated[0]["agreement"] > -1
    # The saved model, loaded again, agrees with its teacher as the one in training did.
    scores = metrics["splits"]["validation"]
    assert scores["agreement"] == pytest.approx(metrics["selection"]["score"], abs=1e-4)
    assert scores["sentence_agreement"] == pytest.approx(max(row["sentence_agreement"] for row in evaluated), abs=0.05)
    best = next(row for row in evaluated if row["step"] == metrics["selection"]["step"])
    assert scores["perplexity"] == pytest.approx(best["perplexity"], rel=1e-3)
    assert set(metrics["baselines"]) == {"unigram"}
    assert read_json(model / "hftune.json")["teacher"] == "teacher"


def test_classification_and_joint_training_continue_from_it(run: RunDir, home: Path, tmp_path: Path) -> None:
    for task in ("classify", "joint"):
        changes = {"model.model_name_or_path": str(run.path), "model.vocab_size": 4000, "train.max_steps": 1}
        job = assemble(recipe(home, task, **changes), RunDir(tmp_path / task), ProgressReporter())
        ours = BertForMaskedLM.from_pretrained(run.model).state_dict()
        theirs = job.applied.model.state_dict()
        same = [name for name in ours if name in theirs and torch.equal(ours[name], theirs[name])]
        assert "bert.encoder.layer.0.attention.self.query.weight" in same
        assert ("cls.predictions.transform.dense.weight" in same) == (task == "joint")


def test_a_dry_run_reads_with_the_live_teacher(home: Path) -> None:
    before = len(cache.cache_usage())
    found = dry_run(recipe(home, KIND, **{"task.max_words": 5}))
    assert found.loss_of_first_batch > 0 and len(cache.cache_usage()) == before


# ---- refused ----


def test_a_changed_teacher_is_refused_on_resume_before_it_reads_anything(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = tmp_path / "changing"
    write_teacher(changing)
    wanted = recipe(home, KIND, **{"task.teacher": str(changing), "train.max_steps": 1})
    train_session(wanted, tmp_path / "run")
    shutil.rmtree(changing)
    write_teacher(changing, seed=1)
    monkeypatch.setattr(Teacher, "_batch", None)
    with hftune_error("data.teacher"):
        assemble(wanted, RunDir(tmp_path / "run"), ProgressReporter())


def refused(home: Path, tmp_path: Path, **changes: Any) -> None:
    assemble(recipe(home, KIND, **changes), RunDir(tmp_path / "refused"), ProgressReporter())


def test_what_is_no_teacher(home: Path, tmp_path: Path) -> None:
    gpt = tmp_path / "gpt"
    GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=8, n_layer=1, n_head=2)).save_pretrained(gpt)
    teacher_tokenizer().save_pretrained(gpt)
    with hftune_error("gpt2", "not an encoder"):
        refused(home, tmp_path, **{"task.teacher": str(gpt)})
    with hftune_error("random weights"):
        teacher_section("scratch:bert-tiny", None, trust=False)
    with hftune_error("no folder"):
        refused(home, tmp_path, **{"task.teacher": str(tmp_path / "missing")})
    with hftune_error("word_weight"):
        refused(home, tmp_path, **{"task.word_weight": 0, "task.sentence_weight": 0})
    with hftune_error("fewer than one batch of 500"):
        refused(home, tmp_path, **{"train.per_device_train_batch_size": 500})


def test_half_precision_and_incomplete_teachers(home: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    AutoModel.from_pretrained(home / "teacher", dtype=torch.float16).save_pretrained(half)
    teacher_tokenizer().save_pretrained(half)
    opened = open_teacher(teacher_section(str(half), None, trust=False))
    assert {value.dtype for value in Teacher(opened).model.parameters()} == {torch.float32}
    assert opened.max_length == 96 < LONGEST
    config = BertConfig.from_pretrained(home / "teacher", num_hidden_layers=2)
    config.save_pretrained(half)
    with hftune_error("encoder are missing"):
        Teacher(open_teacher(teacher_section(str(half), None, trust=False)))


def test_code_of_a_teacher_needs_consent_on_the_command_line(home: Path, tmp_path: Path) -> None:
    from hftune.config.values import refuse_unasked

    wanted = recipe(home, KIND, **{"task.trust_teacher_code": True})
    with hftune_error("--trust-teacher-code"):
        refuse_unasked(wanted, set())
    refuse_unasked(wanted, {"task.trust_teacher_code"})
    coded = write_teacher(tmp_path / "coded")
    config = read_json(coded / "config.json")
    config |= {"model_type": "strange", "auto_map": {"AutoConfig": "strange.Strange"}}
    (coded / "config.json").write_text(json.dumps(config))
    (coded / "strange.py").write_text("raise SystemExit('it ran')")
    with hftune_error("--trust-teacher-code"):
        open_teacher(teacher_section(str(coded), None, trust=False))


def test_models_that_share_no_words(home: Path, tmp_path: Path) -> None:
    # A tokenizer whose normalizer strips everything covers nothing.
    blind = write_teacher(tmp_path / "blind")
    made = json.loads((blind / "tokenizer.json").read_text())
    made["normalizer"] = {"type": "Replace", "pattern": {"Regex": "."}, "content": ""}
    (blind / "tokenizer.json").write_text(json.dumps(made))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(blind / "tokenizer.json"), pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    tokenizer.save_pretrained(blind)
    with hftune_error("share no words"):
        refused(home, tmp_path, **{"task.teacher": str(blind)})


def test_the_command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from hftune.cli.commands import app

    monkeypatch.chdir(home)
    brief = ("--set", "train.max_steps=1", "--set", "model.vocab_size=300", "--set", "task.baselines=false", "--json")
    arguments = ["distill", "--teacher", "teacher", "--corpus", "lines.txt", "--batch-size", "8", "--output"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "run"), *brief], prog_name="hftune")
    assert done.exit_code == 0, done.output
    assert RunDir.open(tmp_path / "run").read_metrics()["task"] == KIND
    both = CliRunner().invoke(app, ["distill", "--data", "labeled", "--corpus", "lines.txt"], prog_name="hftune")
    assert both.exit_code == 2 and "--corpus" in both.output and "--data" in both.output
