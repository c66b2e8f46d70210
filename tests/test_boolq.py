"""BoolQ: its file formats, ``hftune boolq`` under a method, the artifacts, and the study of all methods."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error, mentions

from hftune.config.document import RecipeError
from hftune.data import load as datasets
from hftune.data.settings import LabeledData
from hftune.errors import HftuneError
from hftune.hub.contents import published_files
from hftune.methods import METHODS
from hftune.recipe import load_recipe

Hftune = Callable[..., tuple[int, str, str]]

# A model of a few thousand weights, trained for a few steps.
QUICK = (
    *("--set", "model.vocab_size=300", "--set", "train.max_steps=3", "--set", "train.eval_steps=3"),
    *("--batch-size", "8", "--max-length", "48"),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows whose answer is in the passage."""
    return [
        {
            "question": f"is house {seed} {number} red",
            "title": f"House {number}",
            "passage": f"House {seed} {number} was built long ago. It is {'red' if number % 3 else 'blue'}.",
            "answer": bool(number % 3),
        }
        for number in range(count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The original release: train and validation."""
    write(tmp_path / "boolq" / "train.jsonl", questions(60, 1))
    write(tmp_path / "boolq" / "dev.jsonl", questions(18, 2))
    return tmp_path / "boolq"


def test_the_original_files(folder: Path) -> None:
    splits = datasets.load(LabeledData(dataset_name=str(folder)))
    assert splits.is_pair and splits.labels == ("false", "true")
    assert (len(splits.train), len(splits.validation)) == (54, 18)
    assert splits.test is not None and len(splits.test) == 6, "test is cut from train"
    assert any("test" in note for note in splits.notes)
    assert splits.validation[1]["text"] == "is house 2 1 red"
    assert splits.validation[1]["text_pair"].endswith("It is red.")
    assert splits.labels[splits.validation[1]["label"]] == "true"


def test_the_files_of_superglue(tmp_path: Path) -> None:
    def renamed(rows: list[dict[str, Any]], labeled: bool = True) -> list[dict[str, Any]]:
        kept = [{"question": row["question"], "passage": row["passage"], "idx": i} for i, row in enumerate(rows)]
        return [{**new, "label": old["answer"]} if labeled else new for new, old in zip(kept, rows, strict=True)]

    write(tmp_path / "BoolQ" / "train.jsonl", renamed(questions(30, 1)))
    write(tmp_path / "BoolQ" / "val.jsonl", renamed(questions(9, 2)))
    write(tmp_path / "BoolQ" / "test.jsonl", renamed(questions(9, 3), labeled=False))
    splits = datasets.load(LabeledData(dataset_name=str(tmp_path / "BoolQ")))
    assert splits.is_pair and splits.labels == ("false", "true")
    assert splits.test is not None and splits.test["label"] == [-1] * 9
    assert splits.train[0]["text"].startswith("is house") and "built long ago" in splits.train[0]["text_pair"]


def test_the_embedded_sample() -> None:
    splits = datasets.load(LabeledData(dataset_name="boolq-mini"))
    assert splits.is_pair and splits.labels == ("false", "true")
    assert len(splits.validation) == 800 and splits.test is not None
    assert 0.58 < sum(splits.train["label"]) / len(splits.train) < 0.66


@pytest.mark.parametrize("model", ["mini", "bert-base-cased", "roberta-base", "tinybert"])
def test_there_is_a_recipe_for_every_method(model: str) -> None:
    for kind in METHODS:
        recipe = load_recipe(f"boolq/{model}", {"method.kind": kind}, task="classify")
        assert recipe.method.kind == kind
        assert recipe.data.truncation == "only_second"
        assert recipe.data.dataset_name == ("boolq-mini" if model == "mini" else "google/boolq")
        if kind in ("prefix", "prompt"):
            assert recipe.method.positions == 128
        assert recipe.data.max_seq_length + recipe.method.positions <= 512
        train = recipe.train
        if model == "mini":
            expected = (7e-4 if kind == "full" else recipe.method.scratch_learning_rate, 12.0, None)
        elif kind == "head":
            expected = (2e-3, 20.0, None)
        elif kind == "full":
            expected = {
                "tinybert": (1e-4, 5.0, None),
                "bert-base-cased": (3e-5, 4.0, None),
                "roberta-base": (2e-5, 10.0, 3),
            }[model]
        else:
            expected = (recipe.method.pretrained_learning_rate, 10.0, 3)
        assert (train.learning_rate, train.num_train_epochs, train.early_stopping_patience) == expected


def test_what_a_recipe_states_by_method_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("by_method:\n  prefx:\n    train: {num_train_epochs: 2}\n", encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.source) == ("by_method.prefx", f"{path}:2") and "prefix" in problem.hint
    path.write_text("by_method:\n  lora:\n    train:\n      num_train_epochs: many\n", encoding="utf-8")
    assert load_recipe(path).train.num_train_epochs == 8.0, "of another method"
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, {"method.kind": "lora"})
    assert [(one.path, one.source) for one in caught.value.problems] == [("train.num_train_epochs", f"{path}:4")]
    assert load_recipe(path, {"method.kind": "lora", "train.num_train_epochs": 2}).train.num_train_epochs == 2.0
    path.write_text("by_method: 3\n", encoding="utf-8")
    with hftune_error("settings by method"):
        load_recipe(path)


def test_an_adapter_from_the_command_to_its_answers(folder: Path, here: Path, hftune: Hftune) -> None:
    code, out, err = hftune(
        *("boolq", "--method", "prefix", "--data", str(folder), "--output", "run", "--json", *QUICK),
        *("--set", "method.num_virtual_tokens=4"),
    )
    assert code == 0, err
    metrics = json.loads(out)
    assert metrics["verified"] is True and metrics["labels"] == ["false", "true"]
    assert metrics["parameters"]["formula"] == "2·L·n·d + 2d+2"
    assert metrics["parameters"]["trainable"] == 2 * 2 * 4 * 128 + 2 * 128 + 2
    assert set(metrics["splits"]) == {"validation", "test"}

    code, out, err = hftune("evaluate", "run", "--split", "validation", "--json")
    assert code == 0, err
    assert json.loads(out)["splits"]["validation"]["accuracy"] == pytest.approx(
        metrics["splits"]["validation"]["accuracy"]
    )
    row = json.loads((here / "run" / "predictions" / "validation.jsonl").read_text(encoding="utf-8").splitlines()[0])
    write(here / "ask.jsonl", [{"text": row["text"], "text_pair": row["text_pair"]}, *questions(18, 2)])
    code, out, err = hftune("predict", "run", "--file", "ask.jsonl")
    assert code == 0, err
    reported = [json.loads(line) for line in out.splitlines()]
    assert len(reported) == 19 and reported[0] == reported[1], "question and passage are what training took them for"
    assert reported[0]["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    asked = [json.loads(line) for line in (here / "ask.jsonl").read_text(encoding="utf-8").splitlines()][1:]
    with (here / "ask.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("passage", "question"), *((one["passage"], one["question"]) for one in asked)])
    code, out, err = hftune("predict", "run", "--file", "ask.csv")
    assert code == 0 and [json.loads(line) for line in out.splitlines()] == reported[1:], err
    code, _, err = hftune("predict", "run", "--file", "ask.csv", "--output", "answers.csv")
    assert code == 0, err
    with (here / "answers.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [one["label"] for one in table] == [one["label"] for one in reported[1:]]
    assert float(table[0]["probability of true"]) == reported[1]["probabilities"]["true"]
    code, _, err = hftune("predict", "run", "--file", "ask.csv", "--output", "answers.xlsx")
    assert code == 2 and mentions(err, ".xlsx", "answers.csv") and not (here / "answers.xlsx").exists()
    (here / "ask.csv").write_text("id,answer,when\n7,yes,today\n", encoding="utf-8")
    code, _, err = hftune("predict", "run", "--file", "ask.csv")
    assert code == 2 and mentions(err, "ask.csv", "line 2", "text", "id, answer, when")
    (here / "ask.xlsx").write_bytes(b"PK")
    code, _, err = hftune("predict", "run", "--file", "ask.xlsx")
    assert code == 2 and mentions(err, "ask.xlsx", "csv")
    code, out, err = hftune("predict", "run", row["text"], "--pair", row["text_pair"])
    assert code == 0 and json.loads(out)["label"] == row["label"], err
    code, _, err = hftune("predict", "run", "is the sky green")
    assert code == 2 and '--pair "second text"' in err and "jsonl" in err
    write(here / "bad.jsonl", [{"question": 7, "passage": "The sky is blue."}])
    code, _, err = hftune("predict", "run", "--file", "bad.jsonl")
    assert code == 2 and mentions(err, "bad.jsonl", "line 1", "'question'", "string")
    write(here / "bad.jsonl", [{"id": "7", "answer": True, "when": "today"}])
    code, _, err = hftune("predict", "run", "--file", "bad.jsonl")
    assert code == 2 and mentions(err, "text", "id, answer, when")
    assert mentions((here / "run" / "model" / "README.md").read_text("utf-8"), "tokens", "pair")

    sent, left_out = published_files(here / "run" / "model")
    assert left_out == []
    assert {"adapter_config.json", "adapter_model.safetensors", "base/model.safetensors", "base/config.json"} <= set(
        sent
    )
    code, _, err = hftune("classify", "--model", "run", "--data", str(folder), "--output", "again")
    assert code == 2 and "adapter" in err


def test_merging_makes_a_plain_checkpoint(folder: Path, here: Path, hftune: Hftune) -> None:
    from transformers import pipeline

    common = ("boolq", "--data", str(folder), *QUICK)
    code, _, err = hftune(*common, "--method", "lora", "--merge", "--output", "run")
    assert code == 0, err
    names = {path.name for path in (here / "run" / "model").iterdir()}
    assert "model.safetensors" in names and "adapter_config.json" not in names
    row = json.loads((here / "run" / "predictions" / "validation.jsonl").read_text(encoding="utf-8").splitlines()[0])
    answer = pipeline("text-classification", model=str(here / "run" / "model"), top_k=None)(
        {"text": row["text"], "text_pair": row["text_pair"]}
    )
    assert {one["label"]: one["score"] for one in answer} == pytest.approx(row["probabilities"], abs=1e-4)
    code, _, err = hftune(*common, "--method", "prefix", "--merge", "--output", "no")
    assert code == 2 and "method.merge" in err and "lora" in err
    assert not (here / "no").exists()


def test_what_is_refused_before_training(folder: Path, here: Path, hftune: Hftune) -> None:
    data = ("--data", str(folder), "--set", "model.vocab_size=300")
    code, _, err = hftune("boolq", "--method", "prefix", "--max-length", "400", *data)
    assert code == 2 and "--max-length 384 or --set method.num_virtual_tokens=112" in err
    assert "data.max_seq_length 400" in err and "method.num_virtual_tokens 128" in err and "528" in err
    code, _, err = hftune("boolq", "--method", "prefix", "--set", "train.gradient_checkpointing=true", *data)
    assert code == 2 and "gradient_checkpointing" in err
    code, _, err = hftune("boolq", "--method", "prefx", *data)
    assert code == 2 and mentions(err, "mean 'prefix'")
    code, _, err = hftune("boolq", "--method", "full", "--max-length", "6", *data)
    assert code == 2 and "data.truncation" in err and "--max-length" in err
    assert not (here / "runs").exists() or not list((here / "runs").iterdir())


def test_a_pretrained_model_is_not_trained_like_random_weights(
    here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipes that stand in are made for fresh weights; at their learning rate a pretrained model collapses."""
    from hftune.config.shipped import find_study
    from hftune.pipeline import request
    from hftune.studies.plan import grid, recipe_for
    from hftune.studies.request import make_plan, read_values

    seen: list[Any] = []
    real = request.resolve_recipe

    def resolve(*given: Any, **more: Any) -> None:
        seen.append(real(*given, **more))
        raise HftuneError("enough", hint="nothing is trained here")

    monkeypatch.setattr(request, "resolve_recipe", resolve)
    for arguments, expected in (
        (("--model", "some/model"), (5e-5, 3.0, "only_second")),
        (("--model", "some/model", "--method", "lora", "--epochs", "2"), (5e-4, 2.0, "only_second")),
        (("--model", "some/model", "--lr", "1e-4", "--set", "train.num_train_epochs=5"), (1e-4, 5.0, "only_second")),
        (("--model", "scratch:tinybert"), (7e-4, 12.0, "only_second")),
        ((), (7e-4, 12.0, "only_second")),
    ):
        hftune("boolq", *arguments)
        recipe = seen.pop()
        assert (recipe.train.learning_rate, recipe.train.num_train_epochs, recipe.data.truncation) == expected, (
            arguments
        )

    sets = {"model.model_name_or_path": "some/model", "train.learning_rate": None, "train.num_train_epochs": None}
    plan = make_plan({**read_values(find_study("boolq-methods"))[0], "set": sets}, "the study")
    rates = {recipe.method.kind: recipe.train for recipe in (recipe_for(plan, one, 1) for one in grid(plan))}
    assert (rates["full"].learning_rate, rates["lora"].learning_rate) == (5e-5, 5e-4)
    assert {train.num_train_epochs for train in rates.values()} == {3.0}


def test_all_methods_are_one_study(here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch) -> None:
    from hftune.cli import boolq as command
    from hftune.config.shipped import find_study
    from hftune.studies.plan import check, grid, recipe_for
    from hftune.studies.request import read_plan

    plan = read_plan(find_study("boolq-methods"))
    check(plan)
    assert [recipe_for(plan, setting, 1).method.kind for setting in grid(plan)] == [
        kind for kind in METHODS if kind in plan.grid["method.kind"]
    ]
    given: dict[str, Any] = {}
    monkeypatch.setattr(command, "run_study", lambda **arguments: given.update(arguments))
    code, _, err = hftune(
        "boolq", "--method", "all", "--model", "some/model", "--seed", "4", "--max-train-samples", "50", "-j", "2"
    )
    assert code == 0, err
    assert (given["study"], given["seeds"], given["jobs"]) == ("boolq-methods", "4", 2)
    assert given["grid"] == [f"method.kind={','.join(METHODS)}"]
    assert given["settings"] == {"model.model_name_or_path": "some/model", "data.max_train_samples": 50}
    assert given["sets"] == ["train.learning_rate=null", "train.num_train_epochs=null"]
    assert given["dry_run"] is False
    assert hftune("boolq", "--method", "all", "--dry-run")[0] == 0 and given["dry_run"] is True
    for flag in (("--merge",), ("--push-to-hub",), ("--hub-model-id", "a/b")):
        code, _, err = hftune("boolq", "--method", "all", *flag)
        assert code == 2 and flag[0] in err
    assert hftune("boolq", "--method", "lora, head")[0] == 0 and given["grid"] == ["method.kind=lora,head"]
    code, _, err = hftune("boolq", "--method", "lora,hed")
    assert code == 2 and "got 'hed'" in err and mentions(err, "mean 'head'") and "learning rate" not in err
    code, _, err = hftune("boolq", "--method", "lora", "--jobs", "2")
    assert code == 2 and "--jobs" in err and "--method all" in err
