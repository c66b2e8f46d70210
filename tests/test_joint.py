"""``hftune joint`` and the masked language model alone, from data to artifact, and what both refuse before training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from facts import mentions
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hftune.data.corpus import load_texts
from hftune.data.load import load
from hftune.data.settings import CorpusData, JointData, LabeledData
from hftune.data.unlabeled import load_joint_data, seen_among
from hftune.errors import HftuneError
from hftune.evaluation.language import masked_scores, unigram_scores
from hftune.files import read_json, read_jsonl
from hftune.hub.card import usage
from hftune.hub.contents import published_files
from hftune.models.classifier import load_sequence_classifier
from hftune.models.masked import load_joint as load_joint_model
from hftune.models.settings import ModelSection
from hftune.pipeline.dry_run import dry_run
from hftune.pipeline.train import TrainingJob, assemble
from hftune.progress import ProgressReporter
from hftune.recipe import load_recipe
from hftune.runs.directory import RunDir
from hftune.tasks.settings import JointTask
from hftune.training.fit import fit

pytestmark = pytest.mark.numeric

Run = Callable[..., tuple[int, str, str]]
LINES = 30


def plain_lines(count: int = LINES, seed: int = 7) -> list[str]:
    return [f"{text}, quite" for _, text in tiny.rows(count, seed)]


@pytest.fixture
def folder(here: Path) -> Path:
    tiny.csv_folder(here / "data")
    (here / "more.txt").write_text("\n".join(plain_lines()), encoding="utf-8")
    return here


SETTINGS: dict[str, Any] = {
    "data.dataset_name": "data",
    "model.vocab_size": 300,
    "train.max_steps": 4,
    "train.eval_steps": 2,
    "train.per_device_train_batch_size": 8,
    "train.logging_steps": 1,
}


def trained(kind: str, folder: Path, **changes: Any) -> TrainingJob:
    """A training without scores and verification."""
    recipe = load_recipe(None, {**SETTINGS, "task.kind": kind, **changes})
    job = assemble(recipe, RunDir(folder), ProgressReporter())
    fit(job.trainer)
    return job


@pytest.mark.renders
def test_from_flags_to_a_classifier_and_a_masked_language_model(folder: Path, hftune: Run) -> None:
    leaked = tiny.rows(16, 2)[3][1].upper()
    (folder / "more.txt").write_text("\n".join([*plain_lines(), f"so {leaked}", r"a line\nbreak"]), encoding="utf-8")
    flags = ("--unlabeled", "more.txt", "--mlm-alpha", "0.5", "--mlm-batch-size", "4", "--output", "run", "--json")
    code, out, err = hftune("joint", "--data", "data", *tiny.QUICK, *flags, "--set", "train.logging_steps=2")
    assert code == 0, err
    assert mentions(err, "1 of the 16", "unlabeled")
    metrics = json.loads(out)
    assert metrics["verified"] and metrics["task"] == "joint"
    assert metrics["data"]["rows"] == {"train": 40, "validation": 16, "test": 16, "unlabeled": LINES + 2}
    rows = [row for row in read_jsonl(folder / "run/history.jsonl") if "split" not in row]
    for row in rows:
        assert row["loss"] == pytest.approx(row["classification_loss"] + 0.5 * row["mlm_loss"], rel=1e-5)
    assert {path.name for path in (folder / "run/plots").iterdir()} >= {"loss.png", "mlm-loss.png"}
    model = folder / "run/model"
    assert {path.name for path in (model / "mlm").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert read_json(model / "config.json")["architectures"] == ["BertForSequenceClassification"]
    assert {f"mlm/{path.name}" for path in (model / "mlm").iterdir()} <= published_files(model)[0].keys()
    card = (model / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text-classification" in card and 'subfolder="mlm"' in card
    output = pipeline("text-classification", model=str(model))("the food was great")[0]
    assert output["label"] in ("good", "bad")
    filled = pipeline("fill-mask", model=str(model / "mlm"))("the food was [MASK] on day 3")
    assert len(filled) == 5

    _, info = AutoModelForMaskedLM.from_pretrained(model / "mlm", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(model)
    again = load_joint_model(ModelSection(model_name_or_path="run"), tokenizer, ("bad", "good"))
    assert again.fresh_modules == (), "training goes on with both heads"
    head = load_file(model / "mlm/model.safetensors")
    for name, value in again.model.mlm_head.state_dict().items():
        kept = head.get(f"cls.{name}", value if "decoder" in name else None)
        assert torch.equal(value, kept), name


def test_a_weight_of_0_is_classification_bit_for_bit(folder: Path) -> None:
    plain = trained("classify", folder / "plain")
    none = trained("joint", folder / "none", **{"data.unlabeled": "more.txt", "task.mlm_alpha": 0.0})
    some = trained("joint", folder / "some", **{"data.unlabeled": "more.txt", "task.mlm_alpha": 0.5})
    expected, got = plain.applied.model.state_dict(), none.applied.model.state_dict()
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert any("plain classification" in note for note in none.facts.notes)
    histories = [(folder / name / "history.jsonl").read_text() for name in ("plain", "none", "some")]
    timeless = [[{**row, "seconds": 0} for row in map(json.loads, text.splitlines())] for text in histories]
    assert timeless[0] == timeless[1] != timeless[2]
    assert len(some.tokenizer) > len(plain.tokenizer), "a scratch vocabulary knows the unlabeled words"


def test_two_stages(folder: Path) -> None:
    first = trained("mlm", folder / "mlm", **{"data.dataset_name": "more.txt", "task.max_seq_length": 16})
    assert isinstance(first.facts.rows["validation"], int)
    model = folder / "saved"
    first.task.save(first.applied.model, first.tokenizer, first.data, model)
    probe = first.task.probe(first.data)
    expected = first.task.outputs(first.applied.model, first.tokenizer, probe)["mlm"]
    assert np.allclose(first.task.reload_outputs(model, probe)["mlm"], expected, rtol=1e-5)
    evaluation = first.task.evaluate(model, first.data, ["validation"], ProgressReporter())
    assert set(evaluation.splits["validation"]) == {"loss", "perplexity", "accuracy"}
    history = read_jsonl(folder / "mlm/history.jsonl")
    scored = [row for row in history if row.get("split") == "validation"]
    assert min(row["perplexity"] for row in scored) == pytest.approx(
        evaluation.splits["validation"]["perplexity"], rel=1e-4
    )
    assert first.task.baselines(first.data, ["validation"])["unigram"]["validation"]["perplexity"] < 300

    # The baseline of other text counts tokens of the model's vocabulary, not of one that is trained on that text.
    (folder / "other.txt").write_text("".join(f"zq{number} is a word\n" for number in range(40)))
    other = type(first.task)(load_recipe(None, {"task.kind": "mlm", "data.dataset_name": str(folder / "other.txt")}))
    data = other.load_data()
    other.evaluate(model, data, ["validation"], ProgressReporter())
    assert other.load_tokenizer(data).get_vocab() == first.tokenizer.get_vocab()

    how = usage(read_json(model / "config.json"), adapter=False, pairs=False)
    assert how.pipeline_tag == "fill-mask" and "[MASK]" in how.snippet
    section = ModelSection(model_name_or_path=str(model))
    second = load_sequence_classifier(section, first.tokenizer, ("bad", "good")).model
    weights = load_file(model / "model.safetensors")
    shared = [name for name in second.state_dict() if name in weights]
    assert len(shared) > 30 and all(torch.equal(second.state_dict()[name], weights[name]) for name in shared)
    both = load_joint_model(section, first.tokenizer, ("bad", "good"))
    assert "cls" not in both.fresh_modules, "the head is the first stage's"
    dense = "cls.predictions.transform.dense.weight"
    assert torch.equal(both.model.state_dict()[dense], weights[dense])
    plain = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    assert type(plain).__name__ == "BertForSequenceClassification"


def test_texts_of_labeled_data(folder: Path) -> None:
    corpus = load_texts(CorpusData(dataset_name="data", documents="labeled", validation_size=0.1))
    assert [len(part) for part in (corpus.train, corpus.validation, corpus.test or ())] == [40, 16, 16]
    assert corpus.train[0] == tiny.rows(1, 0)[0][1]
    reviews = load_texts(CorpusData(dataset_name="reviews", validation_size=0.0))
    assert (len(reviews.train), len(reviews.validation)) == (5000, 500)
    assert not any("\\n" in text for text in reviews.train), "a spelled line break is one"


def test_texts_of_pairs_that_were_read_are_counted(here: Path) -> None:
    rows = ["text,text_pair,label"]
    rows += [f"is house {number} red,House {number // 2} has a color.,{'yn'[number % 2]}" for number in range(40)]
    (here / "pairs.csv").write_text("\n".join(rows), encoding="utf-8")
    found = load_joint_data(JointData(dataset_name="pairs.csv", unlabeled="train"))
    passages = {name: set(part["text_pair"]) for name, part in found.named.items()}
    expected = {
        name: sum(text in passages["train"] for text in found.named[name]["text_pair"])
        for name in ("validation", "test")
    }
    assert found.leaks() == expected and all(expected.values())


def test_which_unlabeled_texts() -> None:
    everything = load_joint_data(JointData(dataset_name="reviews", max_train_samples=50))
    assert len(everything.train) == 50 and len(everything.unlabeled.texts) == 5000
    assert everything.leaks() == {}
    plain = load(LabeledData(dataset_name="reviews", max_train_samples=50))
    assert plain.fingerprints == everything.fingerprints, "methods that are compared train on the same 50"
    assert set(plain.train["text"]) < set(
        load(LabeledData(dataset_name="reviews", max_train_samples=200)).train["text"]
    )
    own = load_joint_data(JointData(dataset_name="reviews", max_train_samples=50, unlabeled="train"))
    assert len(own.unlabeled.texts) == 4000, "all training texts, whatever data.max_train_samples says"
    few = load_joint_data(
        JointData(dataset_name="reviews", max_train_samples=50, max_unlabeled_samples=100)
    ).unlabeled.texts
    fewer = load_joint_data(
        JointData(dataset_name="reviews", max_train_samples=50, max_unlabeled_samples=20)
    ).unlabeled.texts
    assert len(few) == 100 and set(fewer) < set(few) < set(everything.unlabeled.texts)


def test_lines_or_blocks() -> None:
    """line_by_line and block_size mean what they mean in Hugging Face's examples."""
    for settings, blocks, longest in (
        ({}, None, 100),
        ({"block_size": 32}, 32, 100),
        ({"line_by_line": True}, None, 100),
        ({"line_by_line": True, "block_size": 32}, None, 32),
        ({"line_by_line": False}, 100, 100),
        ({"line_by_line": False, "block_size": 32}, 32, 100),
    ):
        data = JointData(max_seq_length=100, **settings)
        assert data.blocks == blocks
        assert blocks is not None or data.line_length == longest


def test_seen_among() -> None:
    others = ["The food  was great, really.", "nothing here", "good"]
    texts = ["the FOOD was great, really", "good", "goo", "nothing here good", "the food was great, reall"]
    # The third is too short to be looked for inside others; the fourth spans two of them.
    assert seen_among(zip(texts, strict=True), others) == 3
    pairs = [("is it red", "nothing here"), ("the food was great, really.", "nothing"), ("is it red", "nothing")]
    assert seen_among(pairs, others) == 2, "either text of a pair"


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (("--unlabeled", "empty.txt"), ["has no text"], ["give"]),
        (("--unlabeled", "binary.txt"), ["binary"], ["convert"]),
        (("--unlabeled", "missing.txt"), ["'missing.txt'"], ["train"]),
        (("--unlabeled", "reviws"), ["'reviws'"], ["mean 'reviews'"]),
        (("--unlabeled", "short.txt"), ["3 examples", "batch of 8"], ["--mlm-batch-size"]),
        (("--unlabeled", "more.txt", "--max-unlabeled-samples", "99"), ["99"], ["at most 30"]),
        (("--unlabeled", "more.txt", "--mlm-alpha", "-1"), ["task.mlm_alpha", "got -1 "], ["schema"]),
        (
            ("--unlabeled", "more.txt", "--mlm-probability", "1"),
            ["task.mlm_probability", "got 1 "],
            ["schema"],
        ),
        (("--unlabeled", "more.txt", "--block-size", "513"), ["513 tokens"], ["--block-size 512"]),
        (
            ("--unlabeled", "more.txt", "--method", "head"),
            ["method head", "frozen"],
            ["full"],
        ),
        (("--unlabeled", "more.txt", "--method", "lora"), ["method lora"], ["full"]),
        (("--model", "scratch:mingpt"), ["mingpt"], [""]),
    ],
)
def test_refused_before_training(
    folder: Path, hftune: Run, flags: tuple[str, ...], message: list[str], hint: list[str]
) -> None:
    (folder / "empty.txt").write_text("\n\n")
    (folder / "binary.txt").write_bytes(b"PK\x03\x04zip")
    (folder / "short.txt").write_text("one\ntwo\nthree\n")
    code, _, err = hftune("joint", "--data", "data", *tiny.BRIEF, *flags, "--output", "run")
    assert code == 2, err
    reported = " ".join(err.split())
    assert mentions(reported, *message, *hint), err
    assert not (folder / "run").exists()


def test_what_is_reported_of_the_rows_and_of_the_first_batch(folder: Path) -> None:
    received: list[str] = []

    class Heard(ProgressReporter):
        def note(self, text: str) -> None:
            received.append(text)

    few = {key: value for key, value in SETTINGS.items() if key != "train.max_steps"}
    settings = {**few, "data.unlabeled": "more.txt", "data.max_seq_length": 8, "train.num_train_epochs": 1}
    losses = [
        dry_run(load_recipe(None, {**settings, **more}, task="joint"), progress=Heard()).loss_of_first_batch
        for more in ({"task.mlm_alpha": 0.1}, {"task.mlm_alpha": 1.0, "data.block_size": 8})
    ]
    assert losses[0] < losses[1] - 1, "the weight counts"
    assert any(mentions(text, f"{LINES} of {LINES}", "8 tokens", "--block-size") for text in received)
    assert any(text.startswith("unlabeled: ") and mentions(text, "blocks", "8 tokens") for text in received)
    assert any(mentions(text, "training rows", "8 tokens") for text in received)
    fit(assemble(load_recipe(None, settings, task="joint"), RunDir.create(folder / "run"), Heard()).trainer)
    assert any(text.startswith("only 5 steps in all") for text in received)


def test_weights_on_a_line() -> None:
    assert [JointTask(mlm_alpha=0.4).alpha_at(done) for done in (0, 0.5, 1)] == [0.4, 0.4, 0.4]
    falling = JointTask(mlm_alpha=1.0, mlm_alpha_end=0.0)
    assert [falling.alpha_at(done) for done in (0, 0.25, 1)] == [1.0, 0.75, 0.0]
    assert falling.reads_unlabeled and JointTask(mlm_alpha=0.0, mlm_alpha_end=1.0).reads_unlabeled
    assert not JointTask(mlm_alpha=0.0).reads_unlabeled


def test_an_architecture_without_a_masked_language_model_here() -> None:
    from transformers import DistilBertConfig

    from hftune.models.masked import check_family

    with pytest.raises(HftuneError, match="distilbert") as refused:
        check_family(DistilBertConfig(), "some/distilbert")
    assert "BERT or RoBERTa" in refused.value.hint


def test_scores_of_masked_tokens() -> None:
    scores = masked_scores(np.asarray([[2.0, 1, 2], [4.0, 0, 1]]))
    assert scores == {"loss": 2.0, "perplexity": pytest.approx(np.exp(2.0)), "accuracy": pytest.approx(1 / 3)}
    # Counts with one added to each of 4 tokens, the first of which is special: 0, 3, 2, 1.
    guess = unigram_scores(np.array([0, 1, 1, 2]), [[-100, 1, -100], [3, -100, -100]], [0], 4)
    assert guess["loss"] == pytest.approx(-(np.log(3 / 6) + np.log(1 / 6)) / 2)
    assert guess["accuracy"] == 0.5
