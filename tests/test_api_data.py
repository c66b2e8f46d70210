"""Data for the Python API: every form of rows that it takes, and what is refused with nothing left on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from api_case import FRAME, ROWS, SILENT, everything
from facts import hftune_error

import hftune
from hftune.api.call import in_python, resolve
from hftune.data.in_memory import InMemoryData, from_python, read_stored
from hftune.data.load import load as load_data
from hftune.data.questions import load_questions
from hftune.recipe import with_data
from hftune.runs.directory import RunDir
from hftune.runs.report import report_page


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> hftune.Run:
    """A finished run on a DataFrame; tests that change it take a copy."""
    return hftune.train(data=FRAME, output_dir=tmp_path_factory.mktemp("api") / "first", **SILENT)


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


def test_questions_from_rows(here: Path) -> None:
    data = {"train": QUESTIONS, "test": [{"question": row["question"]} for row in QUESTIONS[:3]]}
    run = hftune.train(data=data, task="answer", max_steps=2, output_dir="a", progress=False)
    assert run.metrics["data"]["rows"] == {"train": 11, "validation": 1, "test": 3}
    assert list(run.predictions("test")["text"]) == [row["question"] for row in QUESTIONS[:3]]
    assert load_questions(run.recipe.data).train.required_answers[0] == "London"
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
    with hftune_error("column", "text"):
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
    "duplicate columns": ({"data": pd.concat([FRAME, FRAME[["text"]]], axis=1)}, "two columns of one name: 'text'"),
    "NaN text": ({"data": changed(3, "text", np.nan)}, "no text in column 'text' (row 4)"),
    "NaN label": ({"data": changed(3, "label", None)}, "no label in column 'label' (row 4)"),
    "NaN number": ({"data": FRAME.assign(label=[0.0, np.nan] * 20)}, "no label in column 'label' (row 2"),
    "differing keys": ({"data": [*ROWS, {"text": "x"}]}, "data[40] has the keys 'text'"),
    "an object": ({"data": object()}, "builtins.object, which has no rows"),
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
    "a setting of another task": ({"data": ROWS, "mlm_alpha": 1}, "not a setting of task classify"),
    "a refused name": ({"data": ROWS, "load_best_model_at_end": False}, "load_best_model_at_end can't be set"),
    "a value of the wrong type": ({"data": ROWS, "num_train_epochs": "many"}, "expected a number > 0"),
    "an object as a value": ({"data": ROWS, "model": object()}, "expected a plain value"),
    "a task that is none": ({"data": ROWS, "task": "clasify"}, "expected task to be one of"),
    "a recipe that is none": ({"recipe": 3}, "expected a recipe by name"),
    "a DataFrame as recipe": ({"recipe": FRAME}, "expected a recipe by name"),
    "a section that is none": ({"recipe": {"trian": {}}, "data": ROWS}, "trian: unknown section"),
    "a misspelled recipe": ({"recipe": "classify/reviewz"}, "no recipe"),
    "seeds in words": ({"data": ROWS, "seeds": "one,two"}, "whole numbers"),
    "a seed as number": ({"data": ROWS, "seeds": 3}, "whole numbers"),
    "a seed twice": ({"data": ROWS, "seeds": [1, 1]}, "each seed once"),
    "seed and seeds": ({"data": ROWS, "seeds": [1], "seed": 2}, "can't both be given"),
    "a folder as number": ({"data": ROWS, "output_dir": 5}, "expected output_dir to be a path"),
    "a checkpoint as number": ({"data": ROWS, "resume_from_checkpoint": 5}, "resume_from_checkpoint to be a path"),
    "no such checkpoint": ({"data": ROWS, "resume_from_checkpoint": "nope"}, "is neither"),
    "an empty path": ({"data": ROWS, "output_dir": ""}, "expected output_dir to be a path"),
    "a path with a NUL": ({"data": ROWS, "output_dir": "a\0b"}, "expected output_dir to be a path"),
    "seeds as bytes": ({"data": ROWS, "seeds": b"12"}, "whole numbers"),
    "a section without a name": ({"data": ROWS, "recipe": {5: 1}}, "5: expected text"),
    "a switch as text": ({"data": ROWS, "dry_run": "yes"}, "expected dry_run to be True or False"),
    "a dry run of a resumed run": ({"data": ROWS, "dry_run": True, "resume": True}, "dry run"),
    "scores of random weights": ({"data": ROWS, "do_train": False}, "random weights"),
    "nothing to do": (
        {"data": ROWS, "do_train": False, "do_eval": False, "do_predict": False, "model": "a/b", "vocab_size": None},
        "all false",
    ),
    "bf16 and fp16": ({"data": ROWS, "bf16": True, "fp16": True}, "exclude each other"),
    "constant with a warmup": ({"data": ROWS, "lr_scheduler_type": "constant", "warmup_steps": 5}, "skips the warmup"),
    "fp16 on a CPU": ({"data": "no-such-data", "fp16": True, "use_cpu": True}, "needs a GPU"),
    "an unknown tracker": ({"data": "no-such-data", "report_to": ["tensorbord"]}, "'tensorbord'"),
    "an unknown metric": ({"data": "no-such-data", "metric_for_best_model": "acuracy"}, "'acuracy'"),
    "an unknown further metric": ({"data": "no-such-data", "metrics": ["acuracy"]}, "acuracy"),
    "a type of peft as method": ({"data": "no-such-data", "method": "vera"}, "vera is a type of peft"),
    "a section with another value": ({"data": ROWS, "method": {"kind": "lora", "r": 4}, "r": 8}, "r is 8"),
    "a section without its kind": ({"data": ROWS, "method": {"r": 4}}, "method.r"),
    "the data of a Trainer": ({"train_dataset": ROWS}, "no setting has the name train_dataset"),
    "progress as text": ({"data": ROWS, "progress": "yes"}, "expected progress"),
    "resume of nothing": ({"data": ROWS, "resume": True, "output_dir": None}, "needs the run directory"),
}


WRONG_TYPES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a grid as list": ("grid", lambda run: hftune.sweep(grid=["lr"], data=ROWS, progress=False)),  # type: ignore[arg-type]
    "a number on the grid": ("grid", lambda run: hftune.sweep(grid={5: [1]}, data=ROWS)),  # type: ignore[dict-item]
    "an object on the grid": ("grid", lambda run: hftune.sweep(grid={"lr": [object()]}, data=ROWS)),
    "a number in a named setting": ("5", lambda run: hftune.sweep(grid={"a": {"x": {5: 1}}}, data=ROWS)),
    "a study as number": ("study", lambda run: hftune.sweep(study=5, grid={"lr": [1e-3]})),  # type: ignore[arg-type]
    "a number in a study": ("5", lambda run: hftune.sweep({5: 1}, grid={"lr": [1e-3]}, data=ROWS)),  # type: ignore[dict-item]
    "a frame as recipe": ("DataFrame", lambda run: hftune.sweep(recipe=FRAME, grid={"lr": [1e-3]})),
    "a folder of a study": ("output_dir", lambda run: hftune.sweep(grid={"lr": [1e-3]}, output_dir=5)),  # type: ignore[arg-type]
    "jobs as text": ("jobs", lambda run: hftune.sweep(grid={"lr": [1e-3]}, jobs="2")),  # type: ignore[arg-type]
    "the progress of a study": ("progress", lambda run: hftune.sweep(grid={"lr": [1e-3]}, progress="no")),  # type: ignore[arg-type]
    "a study that does not score": ("do_eval", lambda run: hftune.sweep(grid={"lr": [1e-3]}, do_eval=False)),
    "overwrite as text": ("overwrite", lambda run: hftune.prepare(data=ROWS, overwrite="x")),  # type: ignore[arg-type]
    "a repository as number": ("repo", lambda run: run.push(5)),
    "private as text": ("private", lambda run: run.push("a/b", private="maybe")),
    "texts as number": ("texts", lambda run: run.predict(5)),
    "pairs as text": ("texts", lambda run: run.predict(["a"], "b")),
    "no text": ("texts", lambda run: hftune.predict(run, None)),  # type: ignore[arg-type]
    "batches of none": ("batch_size", lambda run: run.predict(["a"], batch_size=0)),
    "batch size as text": ("batch_size", lambda run: hftune.predict(run, ["a"], batch_size="8")),  # type: ignore[arg-type]
    "a split as number": ("split", lambda run: run.predictions(5)),
    "a scored split as number": ("split", lambda run: run.evaluate(split=5)),
    "a metric that is not in a list": ("metrics", lambda run: run.evaluate(ROWS, metrics="f1")),
    "a page in place of a folder": ("folder", lambda run: run.report(run.path)),
    "a plot as list": ("name", lambda run: run.plot([])),
    "int8 as text": ("int8", lambda run: run.export(int8="no")),
    "a source as number": ("source", lambda run: hftune.load(5)),  # type: ignore[arg-type]
    "trust as text": ("trust_remote_code", lambda run: hftune.load(run, trust_remote_code="no")),  # type: ignore[arg-type]
    "a run as number": ("source", lambda run: hftune.Run(5)),  # type: ignore[arg-type]
    "compared numbers": ("run", lambda run: hftune.compare(5)),  # type: ignore[arg-type]
    "a metric as number": ("metric", lambda run: hftune.compare(run, metric=5)),  # type: ignore[arg-type]
    "a recipe as list": ("recipe", lambda run: hftune.load_recipe([])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_a_value_of_a_wrong_type_is_an_error_of_the_request(first: hftune.Run, here: Path, name: str) -> None:
    fact, call_it = WRONG_TYPES[name]
    with pytest.raises(hftune.HftuneError) as error:
        call_it(first)
    assert fact in error.value.message and error.value.hint and everything(here) == []


def test_rows_are_scored_by_the_name_of_their_split(first: hftune.Run, here: Path) -> None:
    how: dict[str, Any] = {"model": first, "do_train": False, "progress": False}
    assert list(hftune.train(data={"validation": ROWS[:6]}, do_eval=True, **how)) == ["validation"]
    with hftune_error("no test split", "train"):
        hftune.train(data=ROWS, do_predict=True, **how)


def test_a_run_that_does_not_score_validation(here: Path) -> None:
    run = hftune.train(data=ROWS, output_dir="a", do_eval=False, **SILENT)
    assert list(run.metrics["splits"]) == ["test"] and run.metrics["calibration"]["temperature"] is None
    assert "ece" in run.metrics["calibration"]["test"] and "reliability" in report_page(RunDir(run.path)).figures
    assert "calibration error on test" in (run.path / "model" / "README.md").read_text()


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_written(name: str, here: Path) -> None:
    arguments, output = BAD[name]
    with pytest.raises(hftune.HftuneError) as error:
        hftune.train(**{**SILENT, "output_dir": "runs/x", **arguments})
    assert error.value.exit_code == 2 and output in error.value.message and error.value.hint
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
    with hftune_error("b"):
        hftune.train(data=FRAME, output_dir="b", **SILENT)
    assert (here / "b" / "data" / "train.parquet").read_bytes() == b"mine"


def test_the_rows_of_a_run_that_another_process_begins_stay(here: Path) -> None:
    (here / "a").mkdir()
    with RunDir(here / "a").locked():
        from_python(ROWS[:6]).write(here / "a" / "data")
        with hftune_error(f"process {os.getpid()}"):
            hftune.train(data=FRAME, output_dir="a", **SILENT)
    assert read_stored(here / "a" / "data").fingerprint() == from_python(ROWS[:6]).fingerprint()


def test_rows_have_the_name_of_the_flag_too_and_a_method_can_be_a_section(tmp_path: Path) -> None:
    made = resolve(None, None, None, {"dataset_name": FRAME, "method": {"kind": "lora", "r": 4}, "lora_alpha": 8})
    assert made.rows is not None and made.rows.tables["train"].num_rows == len(FRAME)
    assert (made.recipe.method.kind, made.recipe.method.r, made.recipe.method.lora_alpha) == ("lora", 4, 8)
    with hftune_error("data", "dataset_name"):
        resolve(None, FRAME, None, {"dataset_name": FRAME})


def test_hints_fit_what_was_given() -> None:
    for name, value, fact in (
        ("eval_dataset", ROWS, "data={'train'"),
        ("peft_config", 1, "method='lora', r=16"),
        ("callbacks", [], "hftune.prepare"),
        ("mixed_precision", "bf16", "bf16 and fp16"),
    ):
        with pytest.raises(hftune.HftuneError) as error:
            hftune.train(data=ROWS, **SILENT, **{name: value})
        assert fact in error.value.hint
    with pytest.raises(hftune.HftuneError) as error:
        hftune.train(data=FRAME.drop(columns="text"), **SILENT)
    assert "text_column_name" in error.value.hint and "csv" not in error.value.hint


def test_hints_name_keywords() -> None:
    hint = "go on with that run: --output runs/a --resume; or --set train.max_steps=3, see `hftune x --resume`"
    wanted = "go on with that run: output_dir='runs/a', resume=True; or max_steps=3, see `hftune x --resume`"
    assert in_python(hint) == wanted
    assert in_python("lower it with --per-device-train-batch-size") == "lower it with per_device_train_batch_size"


def test_in_memory_data_has_one_fingerprint_for_one_content() -> None:
    prints = {from_python(data).fingerprint() for data in (ROWS, FRAME, hf(text=TEXTS, label=NAMES))}
    assert len(prints) == 1
    assert from_python({"validation": ROWS, "train": ROWS}).fingerprint() not in prints
    assert isinstance(from_python(ROWS), InMemoryData)
