"""Bad requests: a clear error before any training, exit code 2, nothing left behind."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import mentions
from sample_study import plant_study
from tiny import BRIEF, QUICK, csv_folder, write_csv

from hftune.studies.plan import Plan

Hftune = Callable[..., tuple[int, str, str]]

VOCABULARY = {
    word: number
    for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "food", "was", "good"])
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "train.learning_rte=1"], ["train.learning_rte", "learning_rate"]),
        (["--set", "train.lr_scheduler_type=liner"], ["train.lr_scheduler_type", "linear"]),
        (["--set", "train.warmup_stepz=3"], ["train.warmup_stepz", "train.warmup_steps"]),
        (["--set", "train.load_best_model_at_end=false"], ["train.load_best_model_at_end", "always restored"]),
        (["--method", "fulll"], ["full"]),
        (["--model", "scratch:bert-tinny"], ["bert-tiny"]),
        (["--model", "nobody/nothing"], ["scratch:bert-tiny"]),
        (["--model", "./no-such-folder"], ["no-such-folder"]),
        (["--set", "data.max_seq_length=600"], ["600", "512"]),
        (["--set", "train.metric_for_best_model=acuracy"], ["acuracy", "accuracy"]),
        (["--set", "task.metrics=[no_such_metric]"], ["no_such_metric"]),
        (["--metric_for_best_model", "top_k_accuracy"], ["top_k_accuracy", "2 labels", "accuracy"]),
        (["--set", "task.class_weights={good: 1}"], ["bad"]),
        (["--set", "data.truncation=only_second"], ["pairs"]),
        (["--label-column", "stars"], ["stars", "label"]),
        (["--set", "train.fp16=true"], ["fp16"]),
        (["--resume"], ["--output"]),
        (["--seed", "1", "--seeds", "1,2"], ["--seed"]),
        (["--max-train-samples", "4000"], ["4,000", "40"]),
    ],
)
def test_a_bad_request(arguments: list[str], says: list[str], here: Path, hftune: Hftune) -> None:
    data = str(csv_folder(here / "data"))
    brief = BRIEF if "--model" in arguments else QUICK
    code, out, err = hftune("classify", "--data", data, *brief, *arguments)
    assert (code, out) == (2, ""), err
    assert "→" in err, "every error has a hint"
    for word in says:
        assert word in err
    assert not list((here / "runs").glob("*")) if (here / "runs").exists() else True


def test_data_that_is_not_there(here: Path, hftune: Hftune) -> None:
    code, _, err = hftune("classify", "--data", "nothing.csv")
    assert (code, "nothing.csv" in err) == (2, True)


def test_labels_of_validation_that_train_does_not_have(here: Path, hftune: Hftune) -> None:
    data = csv_folder(here / "data")
    write_csv(data / "validation.csv", [("ugly", "a text"), ("bad", "another")], ("label", "text"))
    code, _, err = hftune("classify", "--data", str(data))
    assert (code, "ugly" in err) == (2, True)


def test_a_recipe_that_builds_python_objects(here: Path, hftune: Hftune) -> None:
    (here / "evil.yaml").write_text("data: !!python/object/apply:os.system ['touch owned']\n", encoding="utf-8")
    code, _, _ = hftune("classify", "--recipe", "evil.yaml")
    assert code == 2
    assert not (here / "owned").exists()


def test_a_checkpoint_without_a_tokenizer_or_with_another_one(here: Path, hftune: Hftune) -> None:
    """transformers makes up an empty tokenizer where there is none, and every word would be unknown."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertForSequenceClassification(config).save_pretrained("model")
    BertTokenizer(vocab=VOCABULARY).save_pretrained("words")
    command = ("classify", "--data", str(csv_folder(here / "data")), "--model", "model", *BRIEF, "--dry-run")
    code, _, err = hftune(*command)
    assert code == 2 and "no tokenizer" in err and "--tokenizer" in err
    code, _, err = hftune(*command, "--tokenizer", "words")
    assert code == 0, err
    BertTokenizer(vocab=VOCABULARY).save_pretrained("model")
    swapped = {**VOCABULARY, "food": VOCABULARY["was"], "was": VOCABULARY["food"]}
    BertTokenizer(vocab=swapped).save_pretrained("others")
    code, _, err = hftune(*command, "--tokenizer", "others")
    assert code == 2 and mentions(" ".join(err.split()), "vocabulary", "checkpoint")


def test_disk_full_while_saving_loses_no_finished_checkpoint(
    here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hftune.models.classifier import Classifier

    def full(self: Classifier, folder: Path, **facts: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    command = ("classify", "--data", str(csv_folder(here / "data")), "--output", "run", *QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "save", full)
        code, _, err = hftune(*command)
    assert code == 1
    assert "space" in err.lower()
    assert list((here / "run" / "checkpoints").glob("checkpoint-*/manifest.json"))
    code, _, err = hftune(*command, "--resume")
    assert code == 0, err
    assert json.loads((here / "run" / "metrics.json").read_text(encoding="utf-8"))["verified"] is True


def test_a_saved_model_that_answers_differently_fails_the_run(
    here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from hftune.models.classifier import Classifier

    save = Classifier.save

    def spoilt(self: Classifier, folder: Path, **facts: Any) -> None:
        with torch.no_grad():
            self.model.classifier.bias += 1
        save(self, folder, **facts)

    monkeypatch.setattr(Classifier, "save", spoilt)
    code, _, err = hftune("classify", "--data", str(csv_folder(here / "data")), "--output", "run", *QUICK)
    assert code == 1
    assert mentions(err, "model", "trained")
    assert not (here / "run" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run"], ["nothing to label"]),
        (["nowhere/at/all", "text"], ["folder", "nowhere/at/all"]),
        (["run", "text", "--file", "x"], ["--file"]),
        (["run", "text", "--pair", "a", "--pair", "b"], ["--pair"]),
    ],
)
def test_bad_predict(
    arguments: list[str], expected: list[str], here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    code, _, err = hftune("predict", *arguments)
    if expected == ["nothing to label"]:
        # The runner gives an empty, piped standard input: there is nothing in it to label either.
        assert code == 2
        return
    assert code == 2 and mentions(err, *expected), err


def test_a_study_is_not_a_run(here: Path, hftune: Hftune) -> None:
    plan = Plan(grid={"train.learning_rate": [0.001, 0.01]})
    plant_study(here / "study", plan, {"learning_rate=0.001": 0.7, "learning_rate=0.01": 0.8})
    for command in (["predict", "study", "text"], ["evaluate", "study"]):
        code, _, err = hftune(*command)
        assert code == 2 and mentions(err, "study is a study")
        assert "study/runs/learning_rate=0.01/seed-1" in err
    code, _, err = hftune("report", "nope")
    assert code == 2 and mentions(err, "run or a study", "nope")


def test_a_mistyped_split_is_refused_before_anything_is_loaded(here: Path, hftune: Hftune) -> None:
    code, _, err = hftune("evaluate", "nobody/nothing", "--split", "tset")
    assert code == 2 and mentions(err, "split 'tset'") and mentions(err, "mean 'test'")
