"""The Python API: what the command line does, from rows in memory to a model on the Hub."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hub_client import Client
from safetensors.numpy import load_file

import hftune
from hftune import pipeline
from hftune.api import request as requests
from hftune.api import show, study
from hftune.api.request import in_python, resolve
from hftune.config import load_recipe
from hftune.data import load as load_data
from hftune.data.in_memory import InMemoryData, from_python, read_stored
from hftune.data.questions import load_questions
from hftune.files import read_json
from hftune.opening import refuse_other_recipe
from hftune.runs.directory import RunDir, with_data
from hftune.training.progress import Silent

Hftune = Callable[..., tuple[int, str, str]]
ROWS = [
    {"text": f"the {what} was {how} {number}", "label": label}
    for number in range(20)
    for what, how, label in (("food", "great", "good"), ("soup", "cold", "bad"))
]
FRAME = pd.DataFrame(ROWS)
QUICK: dict[str, Any] = {
    "model": "scratch:bert-tiny",
    "max_seq_length": 16,
    "vocab_size": 300,
    "per_device_train_batch_size": 8,
    "max_steps": 4,
    "eval_steps": 2,
}
SILENT = {**QUICK, "progress": False}


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, standing_proof: None) -> hftune.Run:
    """A finished run on a DataFrame; tests that change it take a copy."""
    return hftune.train(data=FRAME, output_dir=tmp_path_factory.mktemp("api") / "first", **SILENT)


@pytest.fixture
def copied(first: hftune.Run, here: Path) -> Path:
    shutil.copytree(first.path, here / "a")
    return here / "a"


# ---- one run ----


def test_the_scores_are_those_of_the_command_line(first: hftune.Run, here: Path, hftune: Hftune) -> None:
    FRAME.to_csv(here / "rows.csv", index=False)
    flags = [f"--{name}={value}" for name, value in QUICK.items()]
    code, _, err = hftune("classify", "--data", "rows.csv", *flags, "--output", "cli")
    assert code == 0, err
    of_cli, of_api = (read_json(path / "metrics.json") for path in (here / "cli", first.path))
    for name in ("splits", "baselines", "parameters", "labels", "selection", "calibration"):
        assert of_api[name] == of_cli[name], name
    assert of_api["data"]["fingerprints"] == of_cli["data"]["fingerprints"]
    assert weights(first.path) == weights(here / "cli")
    for name in ("predictions/test.jsonl", "predictions/validation.jsonl"):
        assert (first.path / name).read_bytes() == (here / "cli" / name).read_bytes()


def test_what_a_run_leaves(first: hftune.Run) -> None:
    stored = pd.read_parquet(first.path / "data" / "train.parquet")
    assert stored.to_dict("records") == ROWS
    assert {path.name for path in (first.path / "data").iterdir()} == {"train.parquet", ".hftune"}
    recipe = load_recipe(first.path)
    assert recipe.data.dataset_name == str(first.path / "data")
    assert recipe.train.bf16 is False and recipe.train.fp16 is False  # chosen, and stated
    command = read_json(first.path / "environment.json")["command"]
    assert command.startswith("hftune.train(data=<DataFrame>, model='scratch:bert-tiny'")
    assert not any("parquet" in path.name for path in (first.path / "model").iterdir())


def test_what_a_run_knows(first: hftune.Run) -> None:
    assert first.metrics == read_json(first.path / "metrics.json") and first.metrics["verified"] is True
    frame = first.predictions("test")
    assert list(frame.columns) == ["id", "text", "gold", "label", "p_bad", "p_good"] and len(frame) == 4
    assert np.allclose(frame["p_bad"] + frame["p_good"], 1, atol=1e-5)
    accuracy = float((frame["gold"] == frame["label"]).mean())
    assert accuracy == first.metrics["splits"]["test"]["accuracy"]
    assert list(first.history["step"]) == [2, 4] and first.recipe.train.max_steps == 4
    answers = first.predict(list(frame["text"]))
    assert [one.label for one in answers] == list(frame["label"])
    assert np.allclose([one.probabilities["bad"] for one in answers], frame["p_bad"], atol=1e-5)
    page = first.report()
    assert page.path == first.path / "report.html" and page._repr_html_().startswith("<iframe srcdoc=")
    assert type(first.plot("loss")).__name__ == "Figure"
    for wrong, said in (
        (lambda: first.predictions("tset"), "did you mean 'test'"),
        (lambda: first.plot("los"), "loss"),
    ):
        with pytest.raises(hftune.HftuneError) as error:
            wrong()
        assert said in error.value.hint


def test_evaluate_takes_rows_and_files(first: hftune.Run, here: Path) -> None:
    own = first.evaluate(split="test", progress=False)
    assert own.scores == first.metrics["splits"]["test"]
    rows = first.predictions("test")[["text", "gold"]].rename(columns={"text": "body", "gold": "y"})
    columns = {"text_column_name": "body", "label_column_name": "y"}
    given = first.evaluate(rows, progress=False, **columns)
    assert given.scores == own.scores and given.source == "rows in memory" and given.split == "all"
    rows.to_csv(here / "rows.csv", index=False)
    assert hftune.evaluate(first, here / "rows.csv", progress=False, **columns).scores == own.scores
    split = first.evaluate({"validation": rows}, "validation", progress=False, **columns)
    assert split.split == "validation" and split.scores == own.scores
    with pytest.raises(hftune.HftuneError, match="no argument has the name text_colum"):
        first.evaluate(rows, progress=False, text_colum="body")


def test_the_recipe_gives_the_run_again(first: hftune.Run, here: Path) -> None:
    again = hftune.train(first.path / "recipe.yaml", here / "again", progress=False)
    assert weights(again.path) == weights(first.path)
    assert again.metrics["splits"] == first.metrics["splits"]
    assert again.metrics["data"]["fingerprints"] == first.metrics["data"]["fingerprints"]
    assert not (again.path / "data").exists()  # it reads those of the first run


# ---- resuming ----


class StopsAt(Silent):
    def __init__(self, step: int) -> None:
        self.step = step

    def advance(self, done: int, facts: Any) -> None:
        if done == self.step:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_resumed_with_its_rows(first: hftune.Run, here: Path, standing_proof: None) -> None:
    with pytest.raises(hftune.Interrupted) as stop:
        hftune.train(data=FRAME, output_dir="a", **{**QUICK, "progress": StopsAt(3)})
    assert "output_dir='a' resume=True" in stop.value.hint
    with pytest.raises(hftune.HftuneError, match="begun with other data"):
        hftune.train(data=FRAME[:-2], output_dir="a", resume=True, **SILENT)
    with pytest.raises(hftune.HftuneError, match=r"train\.learning_rate"):
        hftune.train(output_dir="a", resume=True, lr=1.0, progress=False)
    (here / "a").rename(here / "b")  # its rows are found where they are now
    run = hftune.train(output_dir="b", resume=True, progress=False)
    assert weights(run.path) == weights(first.path)
    assert run.metrics["splits"] == first.metrics["splits"]


def test_a_complete_run_is_returned_unless_the_rows_differ(copied: Path) -> None:
    before = (copied / "metrics.json").stat().st_mtime_ns
    run = hftune.train(data=ROWS, output_dir=copied, resume=True, **SILENT)  # a list of the same rows as the DataFrame
    assert (run.path / "metrics.json").stat().st_mtime_ns == before
    with pytest.raises(hftune.HftuneError, match="begun with other data") as error:
        hftune.train(data=ROWS[::-1], output_dir=copied, resume=True, **SILENT)
    assert "output_dir" in error.value.hint


def test_the_dtype_of_a_run_is_taken_where_none_is_given(copied: Path) -> None:
    run = RunDir.open(copied)
    stated = run.read_recipe()
    unset = stated.model_copy(update={"train": stated.train.model_copy(update={"bf16": None, "fp16": None})})
    assert refuse_other_recipe(run, unset) == stated
    run.write_recipe(stated.model_copy(update={"train": stated.train.model_copy(update={"bf16": True})}))
    assert refuse_other_recipe(run, unset).train.precision == "bf16"
    with pytest.raises(hftune.HftuneError, match=r"train\.bf16: True → False"):
        refuse_other_recipe(run, stated)


def test_resuming_a_run_whose_recipe_leaves_the_dtype_to_the_machine(first: hftune.Run, copied: Path) -> None:
    stated = RunDir.open(copied).read_recipe()
    unset = stated.model_copy(update={"train": stated.train.model_copy(update={"bf16": None, "fp16": None})})
    (copied / "metrics.json").unlink()
    again = pipeline.train(unset, copied, resume=True)
    assert again.metrics["splits"] == first.metrics["splits"]
    assert again.run.read_recipe().train.bf16 is False


# ---- overwrite ----


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_overwrite_moves_a_run_aside(first: hftune.Run, copied: Path) -> None:
    heard = Heard()
    run = hftune.train("a", "a", overwrite=True, progress=heard, max_steps=2)  # the run itself is its recipe
    moved = copied.with_name("a-2")
    assert any(line.endswith("is now at a-2") for line in heard.lines)
    assert run.metrics["speed"]["steps"] == 2
    assert weights(moved) == weights(first.path) and hftune.load(moved).metrics == first.metrics
    for path in ("a", "a-2"):  # both name the rows where they are now
        assert load_recipe(path).data.dataset_name == "a-2/data"
    new = hftune.train(data=FRAME, output_dir="a", overwrite=True, **SILENT)
    assert load_recipe(new.path).data.dataset_name == "a/data" and weights(new.path) == weights(first.path)
    assert sorted(path.name for path in copied.parent.iterdir()) == ["a", "a-2", "a-3"]


def test_a_refused_request_leaves_the_old_run_in_its_place(copied: Path) -> None:
    before = everything(copied)
    with pytest.raises(hftune.HftuneError):  # found when the model is loaded
        hftune.train(data=FRAME, output_dir=copied, overwrite=True, **{**SILENT, "model": "scratch:bert-tinny"})
    assert [path.name for path in copied.parent.iterdir()] == ["a"] and everything(copied) == before


def test_what_overwrite_does_not_move(copied: Path, here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(hftune.HftuneError, match="is in use"):
        hftune.train(data=FRAME, output_dir="mine", overwrite=True, **SILENT)
    with RunDir.open(copied).locked(), pytest.raises(hftune.HftuneError, match="being used by"):
        hftune.train(data=FRAME, output_dir="a", overwrite=True, **SILENT)
    with pytest.raises(hftune.HftuneError, match="exclude each other"):
        hftune.train(data=FRAME, output_dir="a", overwrite=True, resume=True, **SILENT)
    assert sorted(path.name for path in here.iterdir()) == ["a", "mine"]


# ---- several seeds, studies ----


def test_seeds_make_a_group(first: hftune.Run, here: Path, standing_proof: None) -> None:
    group = hftune.train(data=FRAME, seeds=[1, 2], output_dir="g", **SILENT)
    assert [run.metrics["seed"] for run in group.runs] == [1, 2]
    assert (here / "g" / "data" / "train.parquet").is_file() and not (here / "g" / "seed-1" / "data").exists()
    assert weights(group.runs[0].path) == weights(first.path)
    losses = [run.metrics["splits"]["test"]["loss"] for run in group.runs]
    spread = group.metrics["splits"]["test"]["loss"]
    assert spread["mean"] == pytest.approx(np.mean(losses)) and spread["std"] == pytest.approx(np.std(losses, ddof=1))
    with pytest.raises(hftune.HftuneError, match="begun with other data"):
        hftune.train(data=FRAME[:-2], seeds=[1, 2], output_dir="g", resume=True, **SILENT)

    (here / "g" / "seed-2").rename(here / "alone")  # one setting, wherever its runs and their rows are
    found = hftune.compare(first, "alone", split="validation")
    assert len(found.compared.rows) == 1 and found.compared.rows[0].seeds == (1, 2)
    again = hftune.train(data=FRAME, seeds=[3], output_dir="g", overwrite=True, **SILENT)
    assert load_recipe("g-2/seed-1").data.dataset_name == "g-2/data" and len(again.runs) == 1


def planned(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **keywords: Any) -> Any:
    """The plan that a call of sweep makes."""

    class Planned(Exception):
        pass

    kept = []

    def carry_out(plan: Any, folder: Path, **_: Any) -> None:
        kept.append((plan, folder))
        raise Planned

    monkeypatch.setattr(study, "carry_out", carry_out)
    with pytest.raises(Planned):
        hftune.sweep(*arguments, progress=False, **keywords)
    return kept[0]


def test_the_plans_of_sweeps(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    plan, folder = planned(monkeypatch, "reviews-lr", seeds=[7], batch_size=4)
    shipped = study._stated("reviews-lr")[0]
    assert folder == Path("runs/reviews-lr") and plan.seeds == (7,) and list(plan.grid) == list(shipped["grid"])
    assert plan.set["train.per_device_train_batch_size"] == 4

    grid = {"lr": (1e-3, 1e-4), "how": {"all": {"method": "full"}, "less": {"method.kind": "lora", "r": 4}}}
    recipe = load_recipe(None, {"train.num_train_epochs": 2, "method.kind": "lora"})
    plan, folder = planned(monkeypatch, grid=grid, recipe=recipe, data=ROWS, model="scratch:bert-tiny", output_dir="s")
    assert plan.grid["train.learning_rate"] == [1e-3, 1e-4]
    assert plan.grid["how"] == {"all": {"method.kind": "full"}, "less": {"method.kind": "lora", "method.r": 4}}
    # What the recipe states goes into the plan; what only follows from its method does not.
    assert plan.set["train.num_train_epochs"] == 2 and "train.learning_rate" not in plan.set
    assert plan.set["data.dataset_name"] == "s/data"
    as_dict, _ = planned(monkeypatch, {"grid": {"method.kind": ["full"]}, "seeds": [4]}, recipe={"train": {"seed": 1}})
    assert as_dict.seeds == (4,) and as_dict.set["train.seed"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "nothing to vary"),
        ({"grid": {"learning_rat": [1]}}, "no setting has the name learning_rat"),
        ({"grid": {"lr": 1e-3}}, "list of values"),
        ({"grid": {"lr": [1e-3]}, "seed": 3}, "seed can't be set"),
        ({"grid": {"lr": [1e-3]}, "jobs": 0}, "whole number"),
        ({"study": "reviews-lrr"}, "no study"),
        ({"grid": {"lr": ["much"]}}, "train.learning_rate"),
        ({"grid": {"lr": [1e-3]}, "data": []}, "empty list"),
        ({"grid": {"lr": [1e-3]}, "recipe": {"model": {"trust_remote_code": True}}}, "no file can decide"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refused_studies(here: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(hftune.HftuneError) as error:
        hftune.sweep(progress=False, **arguments)
    assert said in str(error.value) and everything(here) == []


# ---- driving the trainer oneself ----


def test_the_trainer_of_prepare_trains_as_train_does(first: hftune.Run, here: Path, standing_proof: None) -> None:
    prepared = hftune.prepare(data=FRAME, output_dir="p", **SILENT)
    assert {name: len(rows) for name, rows in prepared.datasets.items()} == first.metrics["data"]["rows"]
    assert prepared.datasets["train"].column_names == ["text", "label"]
    assert prepared.tokenizer("great")["input_ids"] and prepared.recipe.train.bf16 is False
    assert sum(weight.requires_grad for weight in prepared.model.parameters()) > 0
    torch.rand(3)  # whatever happens in a notebook in between
    output = prepared.trainer.train()
    assert output.global_step == 4
    trained = {name: value.numpy() for name, value in prepared.model.state_dict().items()}
    saved = load_file(first.path / "model" / "model.safetensors")
    assert all((saved[name] == trained[name]).all() for name in saved)
    finished = hftune.train(output_dir=prepared.path, resume=True, progress=False)  # saves, scores and verifies it
    assert weights(finished.path) == weights(first.path)
    assert finished.metrics["splits"] == first.metrics["splits"]


def test_a_dry_run_leaves_nothing(here: Path) -> None:
    estimate = hftune.train(data=FRAME, dry_run=True, **SILENT)
    assert estimate.updates == 4 and estimate.data == "rows in memory" and everything(here) == []


# ---- forms of data ----

TEXTS = [row["text"] for row in ROWS]
NAMES = [row["label"] for row in ROWS]


def hf(**columns: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict(columns)


def classes() -> datasets.Dataset:
    made = hf(text=TEXTS, label=[NAMES.index(name) for name in NAMES])
    return made.cast_column("label", datasets.ClassLabel(names=["zest", "bore"]))


class Polars:
    """Any object that gives Arrow."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.table({"text": TEXTS, "label": NAMES}).__arrow_c_stream__(requested_schema)


FORMS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "list of dicts": (ROWS, ("bad", "good")),
    "DataFrame": (FRAME, ("bad", "good")),
    "its index is no column": (FRAME.set_index(FRAME.index + 7), ("bad", "good")),
    "Dataset": (hf(text=TEXTS, label=NAMES), ("bad", "good")),
    "pyarrow": (pa.table({"text": TEXTS, "label": NAMES}), ("bad", "good")),
    "polars": (Polars(), ("bad", "good")),
    "category": (FRAME.astype({"label": "category"}), ("bad", "good")),
    "ints": (FRAME.assign(label=[10 - NAMES.index(name) for name in NAMES]), ("9", "10")),
    "numpy ints": ([{"text": row["text"], "label": np.int64(row["label"] == "bad")} for row in ROWS], ("0", "1")),
    "bools": (FRAME.assign(label=FRAME.label == "good"), ("false", "true")),
    "ClassLabel": (classes(), ("zest", "bore")),
}


def loaded(data: Any, tmp_path: Path, **settings: Any) -> Any:
    """The splits that a run on this data would have, read from what is stored."""
    made = resolve(None, data, None, settings)
    assert made.rows is not None
    made.rows.write(tmp_path / "data")
    assert read_stored(tmp_path / "data").fingerprint() == made.rows.fingerprint()
    return load_data(with_data(made.recipe, tmp_path / "data").data)


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_rows(name: str, tmp_path: Path) -> None:
    data, labels = FORMS[name]
    splits = loaded(data, tmp_path)
    assert splits.labels == labels
    assert {split: len(rows) for split, rows in splits.named.items()} == {"train": 32, "validation": 4, "test": 4}
    got = {text for rows in splits.named.values() for text in rows["text"][:]}
    assert got == set(TEXTS)


def test_rows_come_in_the_order_of_a_shuffled_dataset() -> None:
    shuffled = hf(text=TEXTS, label=NAMES).shuffle(seed=3).select(range(7))
    assert from_python(shuffled).tables["train"].column("text").to_pylist() == shuffled["text"][:]


def test_splits_and_pairs(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    mixed = {"train": tmp_path / "rows.csv", "dev": FRAME[:6], "test": [{"text": "who knows", "label": None}]}
    splits = loaded(mixed, tmp_path / "mixed")
    assert {split: len(rows) for split, rows in splits.named.items()} == {"train": 40, "validation": 6, "test": 1}
    assert splits.named["test"]["label"][:] == [-1]  # predictions, and no scores
    as_dict = datasets.DatasetDict(train=classes(), validation=classes())
    assert set(loaded(as_dict, tmp_path / "dict").named) == {"train", "validation", "test"}
    pairs = FRAME.assign(premise=FRAME.text, hypothesis="it is good").drop(columns="text")
    splits = loaded(pairs, tmp_path / "pairs")
    assert splits.is_pair and splits.train["text_pair"][0] == "it is good"
    other = FRAME.rename(columns={"text": "body", "label": "y"})
    splits = loaded(other, tmp_path / "other", text_column_name="body", label_column_name="y", max_train_samples=10)
    assert len(splits.train) == 10


QUESTIONS = [
    {"question": f"Where was {first} {last} born?", "answer": place}
    for first, place in (("Ada", "London"), ("Karl", "Trier"), ("Marie", "Warsaw"))
    for last in ("Ek", "Lund", "Moe", "Ro")
]


def test_questions_from_rows(here: Path, standing_proof: None) -> None:
    data = {"train": QUESTIONS, "test": [{"question": row["question"]} for row in QUESTIONS[:3]]}
    run = hftune.train(data=data, task="answer", max_steps=2, output_dir="a", progress=False)
    assert run.metrics["data"]["rows"] == {"train": 11, "validation": 1, "test": 3}
    assert list(run.predictions("test")["text"]) == [row["question"] for row in QUESTIONS[:3]]
    assert load_questions(run.recipe.data).train.known[0] == "London"
    assert run.evaluate(QUESTIONS[:4], progress=False).scores.keys() >= {"exact_match"}
    for wrong in (
        [{"question": "Who?"}],
        [{"question": "Who?", "answer": "a\tb"}],
        [{"question": None, "answer": "b"}],
    ):
        with pytest.raises(hftune.HftuneError):
            resolve(None, wrong, "answer", {})


@pytest.mark.parametrize("task", ["clm", "span", "mlm"])
def test_corpora_from_lists_of_texts(here: Path, task: str) -> None:
    texts = [f"{person} Ek was born in {place} and lived there for {years} years." for person in ("Ada", "Karl", "Eva")
             for place in ("Trier", "London") for years in range(10)]  # fmt: skip
    model = "scratch:bert-tiny" if task == "mlm" else "scratch:mingpt"
    size = {"vocab_size": 300} if task != "span" else {}
    estimate = hftune.train(data=texts, task=task, model=model, dry_run=True, max_steps=1, progress=False, **size)
    assert estimate.task == task and sum(estimate.rows.values()) >= len(texts)
    with pytest.raises(hftune.HftuneError, match="no column that looks like text"):
        resolve(None, [{"a": "x", "b": "y"}], task, {})
    with pytest.raises(hftune.HftuneError):
        resolve(None, ["", "  "], task, {})


# ---- what is refused, with nothing left on disk ----


def changed(place: int, column: str, value: Any) -> pd.DataFrame:
    frame = FRAME.copy()
    frame.loc[place, column] = value
    return frame


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no text column": ({"data": FRAME.rename(columns={"text": "a"}).assign(b=1)}, "no column that looks like a text"),
    "no label column": ({"data": FRAME.rename(columns={"label": "b"})}, "no column that looks like a label"),
    "another text column": ({"data": FRAME, "text_column_name": "body"}, "no column 'body'"),
    "an empty list": ({"data": []}, "an empty list"),
    "an empty DataFrame": ({"data": FRAME[:0]}, "no rows"),
    "an empty dict": ({"data": {}}, "an empty dict"),
    "duplicate columns": ({"data": pd.concat([FRAME, FRAME[["text"]]], axis=1)}, "some of one name: 'text'"),
    "NaN text": ({"data": changed(3, "text", np.nan)}, "no text in column 'text' (row 4)"),
    "NaN label": ({"data": changed(3, "label", None)}, "no label in column 'label' (row 4)"),
    "NaN number": ({"data": FRAME.assign(label=[0.0, np.nan] * 20)}, "no label in column 'label' (row 2"),
    "differing keys": ({"data": [*ROWS, {"text": "x"}]}, "data[40] has the keys 'text'"),
    "an object": ({"data": object()}, "builtins.object, which holds no rows"),
    "bytes": ({"data": b"text"}, "builtins.bytes"),
    "strings": ({"data": ["a", "b"]}, "expected a dict, got str 'a'"),
    "tuples": ({"data": [("a", "b")]}, "expected a dict, got tuple"),
    "texts that are numbers": ({"data": FRAME.assign(text=range(40))}, "expected a text in column 'text', got int"),
    "several labels": ({"data": [{"text": "a", "label": ["x"]}] * 3}, "expected one label"),
    "labels of several types": ({"data": [{"text": "a", "label": 1}, {"text": "b", "label": "x"}]}, "several types"),
    "one label": ({"data": ROWS[::2]}, "have one label: 'good'"),
    "scores": ({"data": [{"text": f"a{n}", "label": n / 3} for n in range(9)]}, "a regression task"),
    "a split of another name": ({"data": {"train": ROWS, "holdout": ROWS}}, "a split 'holdout'"),
    "a split twice": ({"data": {"train": ROWS, "dev": ROWS, "validation": ROWS}}, "two validation splits"),
    "columns for splits": ({"data": {"text": TEXTS, "label": NAMES}}, "one of column name to values"),
    "no train split": ({"data": {"test": ROWS}}, "no train split"),
    "no such file": ({"data": "nope.csv"}, "no file or folder 'nope.csv'"),
    "no such file in a dict": ({"data": {"train": "nope.csv"}}, "data['train'] is 'nope.csv'"),
    "a stream": ({"data": hf(text=TEXTS, label=NAMES).to_iterable_dataset()}, "IterableDataset"),
    "an unknown keyword": ({"data": ROWS, "learning_rat": 1}, "no setting has the name learning_rat"),
    "two spellings": ({"data": ROWS, "lr": 1e-3, "learning_rate": 1e-4}, "the same setting (train.learning_rate)"),
    "two names of data": ({"data": ROWS, "dataset_name": "reviews"}, "both data and dataset_name"),
    "two data": ({"data": "reviews", "dataset_name": "sst2"}, "two values"),
    "a file next to rows": ({"data": ROWS, "validation_file": "x.csv"}, "validation_file: such a setting is for files"),
    "a configuration of rows": ({"data": ROWS, "dataset_config_name": "x"}, "such a setting is for files"),
    "a setting of another task": ({"data": ROWS, "mlm_alpha": 1}, "no setting of task classify"),
    "a refused name": ({"data": ROWS, "load_best_model_at_end": False}, "load_best_model_at_end can't be set"),
    "a value of the wrong type": ({"data": ROWS, "num_train_epochs": "many"}, "expected a number > 0"),
    "an object as a value": ({"data": ROWS, "model": object()}, "expected a plain value"),
    "a task that is none": ({"data": ROWS, "task": "clasify"}, "expected task to be one of"),
    "a recipe that is none": ({"recipe": 3}, "expected a recipe by name"),
    "a DataFrame as recipe": ({"recipe": FRAME}, "expected a recipe by name"),
    "a section that is none": ({"recipe": {"trian": {}}, "data": ROWS}, "trian: unknown section"),
    "a misspelled recipe": ({"recipe": "classify/reviewz"}, "no recipe"),
    "seeds as text": ({"data": ROWS, "seeds": "1,2"}, "list of whole numbers"),
    "a seed twice": ({"data": ROWS, "seeds": [1, 1]}, "different whole numbers"),
    "seed and seeds": ({"data": ROWS, "seeds": [1], "seed": 2}, "can't both be given"),
    "progress as text": ({"data": ROWS, "progress": "yes"}, "expected progress"),
    "resume of nothing": ({"data": ROWS, "resume": True, "output_dir": None}, "resume needs to know which run"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_written(name: str, here: Path) -> None:
    arguments, said = BAD[name]
    with pytest.raises(hftune.HftuneError) as error:
        hftune.train(**{**SILENT, "output_dir": "runs/x", **arguments})
    assert error.value.exit_code == 2 and said in error.value.message and error.value.hint
    assert "--" not in error.value.hint
    assert everything(here) == []


def test_a_run_that_was_killed_at_its_start_is_no_hindrance(here: Path) -> None:
    rows = from_python(ROWS[:6])
    rows.write(here / "a" / "data")
    (here / "a" / ".lock").touch()
    with pytest.raises(hftune.HftuneError):
        hftune.train(data=FRAME, output_dir="a", **{**SILENT, "model": "scratch:nothing"})
    assert everything(here) == []  # removed, as it was ours
    (here / "b" / "data").mkdir(parents=True)
    (here / "b" / "data" / "train.parquet").write_bytes(b"mine")
    with pytest.raises(hftune.HftuneError, match="in use"):
        hftune.train(data=FRAME, output_dir="b", **SILENT)
    assert (here / "b" / "data" / "train.parquet").read_bytes() == b"mine"


def test_the_rows_of_a_run_that_another_process_begins_stay(here: Path) -> None:
    (here / "a").mkdir()
    with RunDir(here / "a").locked():
        from_python(ROWS[:6]).write(here / "a" / "data")
        with pytest.raises(hftune.HftuneError, match="being used by"):
            hftune.train(data=FRAME, output_dir="a", **SILENT)
    assert read_stored(here / "a" / "data").fingerprint() == from_python(ROWS[:6]).fingerprint()


def test_hints_name_keywords() -> None:
    hint = "go on with that run: --output runs/a --resume; or --set train.max_steps=3, see `hftune x --resume`"
    wanted = "go on with that run: output_dir='runs/a' resume=True; or max_steps=3, see `hftune x --resume`"
    assert in_python(hint) == wanted
    assert in_python("lower it with --per-device-train-batch-size") == "lower it with per_device_train_batch_size"


# ---- consent ----


def test_a_keyword_is_consent_and_a_recipe_is_not(tmp_path: Path) -> None:
    asks = {"model": {"model_name_or_path": "some/model", "trust_remote_code": True}}
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(asks))
    for recipe in (asks, file, load_recipe(file)):
        with pytest.raises(hftune.HftuneError, match="which no file can decide") as error:
            hftune.train(recipe, data=ROWS, progress=False)
        assert "trust_remote_code=True" in error.value.hint
        assert resolve(recipe, ROWS, None, {"trust_remote_code": True}).recipe.model.trust_remote_code is True


def test_settings_of_another_method_are_left_out_of_any_recipe(tmp_path: Path) -> None:
    stated = {"method": {"kind": "lora", "r": 4}, "train": {"learning_rate": 1e-2}}
    for recipe in (stated, load_recipe(None, stated)):
        full = resolve(recipe, ROWS, None, {"method": "full", "model": tmp_path}).recipe
        assert full.method.kind == "full" and full.train.learning_rate != 1e-2
        assert full.model.model_name_or_path == str(tmp_path)
    assert resolve(stated, ROWS, None, {}).recipe.method.r == 4  # type: ignore[union-attr]
    removed = resolve(None, ROWS, None, {"warmup_ratio": 0.2})
    assert removed.recipe.train.warmup_steps == 0.2 and "warmup_steps" in removed.notices[0]


def test_the_call_in_the_report_holds_no_secret() -> None:
    text = requests.call_text("train", {"data": FRAME, "model": "hf_" + "a" * 30, "lr": 1e-3, "task": None})
    assert text == "hftune.train(data=<DataFrame>, model='[redacted]', lr=0.001)"


# ---- progress ----


def test_progress_is_lines_nothing_or_what_a_listener_makes_of_it(
    here: Path, capfd: pytest.CaptureFixture[str], standing_proof: None
) -> None:
    arguments = {**QUICK, "data": ROWS, "output_dir": "a"}
    heard = Heard()
    hftune.prepare(**arguments, progress=heard)
    assert heard.lines[0] == "loading data" and "loading model" in heard.lines
    assert "".join(capfd.readouterr()) == ""
    hftune.train(**{**arguments, "resume": True, "progress": False})
    assert "".join(capfd.readouterr()) == ""
    hftune.prepare(**{**arguments, "output_dir": "b"})
    out, err = capfd.readouterr()
    assert out == "" and err.splitlines()[0] == "· loading data"


def test_a_notebook_gets_rich_output(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[Any] = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    vars(ipython)["get_ipython"] = lambda: shell
    vars(display)["display"] = displayed.append
    assert not show.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert show.in_notebook()
    with show.shown(True) as listener:
        assert isinstance(listener, show.NotebookProgress)
        listener.stage("loading data")
        listener.begin(3, "updates")
        listener.advance(1, {"loss": 0.5})
        listener.end()
        listener.warn("hf_" + "a" * 30)
    shown = "".join(str(one._repr_mimebundle_([], [])) for one in displayed)
    assert "loading data" in shown and "WARNING" in shown and "hf_aaa" not in shown
    with show.shown_study(True, 1) as watcher:
        order = {"path": "x", "setting": "lr=1", "seed": 3}
        watcher.expect(order)
        watcher.done(order, {"state": "done", "splits": {"validation": {"accuracy": 0.5}}})
    assert "[1/1] lr=1 seed 3: done, validation accuracy 0.5000" in str(displayed[-1]._repr_mimebundle_([], []))


# ---- loading ----


def test_a_model_folder_predicts_and_has_no_run(first: hftune.Run, here: Path) -> None:
    model = hftune.load(first.path / "model")
    texts = list(first.predictions("test")["text"])
    assert model.predict(texts) == first.predict(texts)
    assert model.evaluate(ROWS[:4], progress=False).scores == first.evaluate(ROWS[:4], progress=False).scores
    for refused in (lambda: model.metrics, model.report, model.push, model.predictions, lambda: model.path):
        with pytest.raises(hftune.HftuneError, match="without a run directory"):
            refused()
    with pytest.raises(hftune.HftuneError):
        hftune.load("no-such-run/at/all")
    with pytest.raises(hftune.HftuneError, match="holds no model"):
        hftune.load(here)
    with pytest.raises(hftune.HftuneError, match="predict takes a list"):
        model.predict("one text")
    with pytest.raises(hftune.HftuneError, match="expected texts, got int"):
        model.predict([3])  # type: ignore[list-item]


def test_from_a_dataframe_to_the_hub_and_back(client: Client) -> None:
    source = """
import json, pandas, hftune
frame = pandas.DataFrame(ROWS)
run = hftune.train(data=frame, output_dir="a", progress=False, **QUICK)
published = hftune.load("a").push("tester/from-python", private=True, progress=False)
model = hftune.load("tester/from-python")
same = model.predict(["never again"]) == run.predict(["never again"])
try:
    model.metrics
except hftune.HftuneError as error:
    print(json.dumps([published.repo, published.verified, same, str(error)]))
"""
    done = client.python(f"ROWS, QUICK = {ROWS!r}, {QUICK!r}\n{source}", token=client.hub.token)
    assert done.returncode == 0, done.stderr
    repo, verified, same, error = json.loads(done.stdout)
    assert (repo, verified, same) == ("tester/from-python", True, True) and "without a run directory" in error
    files = client.hub.files("tester/from-python")
    assert client.hub.repo("tester/from-python").private is True
    assert "model.safetensors" in files and not any(name.endswith((".parquet", ".jsonl")) for name in files)
    texts = [row["text"].encode() for row in ROWS]  # the card shows one as an example, no file holds the rows
    assert all(sum(text in content for text in texts) <= 1 for content in files.values())


# ---- the module itself ----


def test_importing_is_instant_and_lists_everything() -> None:
    code = "import sys; before = set(sys.modules); import hftune; print(sorted(set(sys.modules) - before), dir(hftune))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, _, names = done.stdout.partition("] ")
    assert loaded == "['hftune'"
    for name in ("train", "load", "prepare", "sweep", "compare", "predict", "evaluate", "load_recipe", "Recipe", "Run"):
        assert f"'{name}'" in names and getattr(hftune, name) is not None
    assert sorted(hftune._HOME) == sorted(set(hftune.__all__) - {"__version__"})


def test_in_memory_data_has_one_fingerprint_for_one_content() -> None:
    prints = {from_python(data).fingerprint() for data in (ROWS, FRAME, hf(text=TEXTS, label=NAMES))}
    assert len(prints) == 1
    assert from_python({"validation": ROWS, "train": ROWS}).fingerprint() not in prints
    assert isinstance(from_python(ROWS), InMemoryData)
