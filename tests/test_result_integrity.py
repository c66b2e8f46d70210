"""Where a result could quietly mean something else than it seems: foreign heads, training rows in a test, idle keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from facts import hftune_error, mentions
from tiny import QUICK, csv_folder, rows, write_csv
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from hftune.errors import HftuneError
from hftune.models.classifier import Classifier, load_sequence_classifier
from hftune.models.load import PRESETS
from hftune.models.settings import ModelSection
from hftune.recipe import load_recipe
from hftune.tasks.classification import stream

pytestmark = pytest.mark.numeric

Hftune = Callable[..., tuple[int, str, str]]


def tiny_bert(folder: Path, labels: list[str]) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=5,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.classifier.bias += 3
    model.save_pretrained(folder)
    BertTokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize(("labels", "kept"), [(["bad", "good"], True), (["good", "bad"], False), (["a", "b"], False)])
def test_a_head_is_kept_only_for_the_labels_it_was_trained_for(labels: list[str], kept: bool, tmp_path: Path) -> None:
    saved = tiny_bert(tmp_path / "model", ["bad", "good"])
    section = ModelSection(model_name_or_path=str(tmp_path / "model"))
    torch.manual_seed(0)
    loaded = load_sequence_classifier(section, BertTokenizer(), labels)
    assert torch.equal(loaded.model.classifier.bias, saved.classifier.bias) is kept
    assert ("classifier" in loaded.fresh_modules) is not kept
    assert torch.equal(loaded.model.bert.pooler.dense.weight, saved.bert.pooler.dense.weight)
    assert loaded.model.config.id2label == dict(enumerate(labels))


def test_a_scratch_tokenizer_comes_out_the_same_every_time(tmp_path: Path) -> None:
    texts = [text for _, text in rows(200, 0)]
    for preset in PRESETS.values():
        first, second = (preset.train_tokenizer(texts, 300).get_vocab() for _ in range(2))
        assert first == second


def test_training_rows_are_not_scored_as_a_test(here: Path, hftune: Hftune) -> None:
    write_csv(here / "one.csv", list(rows(60, 0)), ("label", "text"))
    code, _, err = hftune("classify", "--data", "one.csv", "--output", "run", *QUICK)
    assert code == 0, err
    code, _, err = hftune("evaluate", "run", "--data", "one.csv", "--split", "test")
    assert (code, "--split: all" in err) == (2, True)
    code, _, err = hftune("evaluate", "run", "--data", "one.csv")
    assert (code, mentions(err, "48 of these 60")) == (0, True)
    # A run outlives its data: other data can still be scored, and what is unknown is reported.
    (here / "one.csv").rename(here / "other.csv")
    code, _, err = hftune("evaluate", "run", "--data", "other.csv")
    assert code == 0 and mentions(err, "trained", "texts"), err
    code, _, err = hftune("evaluate", "run")
    assert code == 2 and mentions(err, "own data") and "--data" in err


def test_a_model_of_single_texts_refuses_pairs_and_the_other_way_round(tmp_path: Path) -> None:
    model = tiny_bert(tmp_path / "model", ["bad", "good"])
    for reads_pairs, pairs in ((False, ["b"]), (True, None)):
        classifier = Classifier(model, BertTokenizer(), ("bad", "good"), 8, "longest_first", reads_pairs)
        with hftune_error("single", "pairs"):
            classifier.logits(["a"], pairs)
    with hftune_error("second text"):
        list(stream(classifier, [{"text": "a", "text_pair": "b"}, {"text": "a"}]))


def test_another_method_does_not_inherit_the_learning_rate() -> None:
    full = load_recipe("classify/reviews")
    head = load_recipe("classify/reviews", {"method.kind": "head"})
    assert full.train.learning_rate == 7e-4
    assert head.train.learning_rate == head.method.scratch_learning_rate
    assert (
        load_recipe("classify/reviews", {"method.kind": "head", "train.learning_rate": 0.5}).train.learning_rate == 0.5
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"model.model_name_or_path": "bert-base-cased", "model.vocab_size": 900},
        {"model.model_name_or_path": "scratch:bert-tiny", "model.model_revision": "main"},
        {"hub.hub_private_repo": True},
        {"method.kind": "prefix", "method.encoder_hidden_size": 8},
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(HftuneError):
        load_recipe(overrides=settings)


@pytest.mark.parametrize(
    ("settings", "higher"),
    [
        ({}, True),
        ({"train.metric_for_best_model": "loss"}, False),
        ({"train.metric_for_best_model": "ece"}, False),
        ({"train.metric_for_best_model": "ece", "train.greater_is_better": True}, True),
    ],
)
def test_lower_is_better_where_it_is(settings: dict[str, object], higher: bool) -> None:
    assert load_recipe(overrides=settings).train.higher_is_better is higher


def test_a_group_is_one_recipe_in_a_folder_of_its_own(here: Path, hftune: Hftune) -> None:
    data = str(csv_folder(here / "data"))
    command = ("classify", "--data", data, "--output", "group", *QUICK)
    assert hftune(*command, "--seeds", "1")[0] == 0
    code, _, err = hftune(*command, "--seeds", "2", "--lr", "0.1")
    assert (code, "--resume" in err) == (2, True), err
    code, _, err = hftune(*command, "--seeds", "2", "--lr", "0.1", "--resume")
    assert (code, "learning_rate" in err) == (2, True), err
    code, _, err = hftune("classify", "--data", data, "--output", "group/seed-1", "--seeds", "3", *QUICK)
    assert (code, "seed-1" in err) == (2, True), err


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ask.txt", b"fine\n\n", ["ask.txt, line 2: empty"]),
        ("ask.txt", b"fine\n\0\1\n", ["ask.txt", "line 2", "zero byte"]),
        ("ask.jsonl", b'{"text": "fine"}\n{"text": " "}\n', ["ask.jsonl", "line 2", "'text'", "empty"]),
        ("ask.csv", b"text,n\nfine,1\n,2\n", ["ask.csv", "line 3", "'text'", "empty"]),
        ("ask.tsv", b"text\tn\n\t2\n", ["ask.tsv", "line 2", "'text'", "empty"]),
    ],
)
def test_rows_without_a_text_are_not_labeled(
    name: str, content: bytes, expected: list[str], here: Path, hftune: Hftune
) -> None:
    model = tiny_bert(here / "model", ["bad", "good"])
    Classifier(model, BertTokenizer(), ("bad", "good"), 8, "longest_first", False).save(here / "saved")
    (here / name).write_bytes(content)
    code, _, err = hftune("predict", "saved", "--file", name)
    assert code == 2 and mentions(err, *expected), err


def test_a_byte_order_mark_is_no_part_of_the_text(here: Path, hftune: Hftune) -> None:
    model = tiny_bert(here / "model", ["bad", "good"])
    Classifier(model, BertTokenizer(), ("bad", "good"), 8, "longest_first", False).save(here / "saved")
    for name in ("ask.txt", "ask.csv"):
        (here / name).write_bytes(b"\xef\xbb\xbf" + (b"text\r\n" if name == "ask.csv" else b"") + b"fine\r\n")
        code, out, err = hftune("predict", "saved", "--file", name)
        assert code == 0 and json.loads(out)["text"] == "fine", err


def test_a_model_that_another_version_saved_is_refused(tmp_path: Path) -> None:
    model = tiny_bert(tmp_path / "model", ["bad", "good"])
    Classifier(model, BertTokenizer(), ("bad", "good"), 8, "longest_first", False).save(tmp_path / "model")
    metadata = tmp_path / "model" / "hftune.json"
    stored = json.loads(metadata.read_text())
    assert stored.pop("version") == 1
    for other in (stored, {**stored, "version": 2}):
        metadata.write_text(json.dumps(other))
        with hftune_error("version 1"):
            Classifier.load(str(tmp_path / "model"))
    metadata.unlink()
    assert Classifier.load(str(tmp_path / "model")).labels == ("bad", "good"), "a model of another tool"
