"""The Python API: what the command line does, from rows in memory to a model on the Hub."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from api_case import FRAME, QUICK, ROWS, SILENT, everything, weights
from facts import hftune_error, mentions
from hub_client import Client
from safetensors.numpy import load_file

import hftune
from hftune.api import call, study
from hftune.api.call import resolve
from hftune.cli import terminal
from hftune.cli.terminal import RunProgress
from hftune.config.shipped import find_study
from hftune.files import read_json
from hftune.pipeline import train as pipeline
from hftune.pipeline.run_session import refuse_other_recipe
from hftune.progress import ProgressReporter
from hftune.recipe import load_recipe, read_recipe
from hftune.runs.directory import RunDir
from hftune.runs.report import verdict
from hftune.studies.request import read_values

Hftune = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> hftune.Run:
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
    for wrong, printed in (
        (lambda: first.predictions("tset"), "did you mean 'test'"),
        (lambda: first.plot("los"), "loss"),
    ):
        with pytest.raises(hftune.HftuneError) as error:
            wrong()
        assert printed in error.value.hint


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
    with hftune_error("text_colum"):
        first.evaluate(rows, progress=False, text_colum="body")


def test_the_recipe_gives_the_run_again(first: hftune.Run, here: Path) -> None:
    again = hftune.train(first.path / "recipe.yaml", here / "again", progress=False)
    assert weights(again.path) == weights(first.path)
    assert again.metrics["splits"] == first.metrics["splits"]
    assert again.metrics["data"]["fingerprints"] == first.metrics["data"]["fingerprints"]
    assert not (again.path / "data").exists()  # it reads those of the first run


# ---- resuming ----


class StopsAt(ProgressReporter):
    def __init__(self, step: int) -> None:
        self.step = step

    def advance(self, done: int, facts: Any) -> None:
        if done == self.step:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_resumed_with_its_rows(first: hftune.Run, here: Path) -> None:
    with pytest.raises(hftune.Interrupted) as stop:
        hftune.train(data=FRAME, output_dir="a", **{**QUICK, "progress": StopsAt(3)})
    assert "output_dir='a', resume=True" in stop.value.hint
    with hftune_error("other data"):
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
    with hftune_error("other data") as error:
        hftune.train(data=ROWS[::-1], output_dir=copied, resume=True, **SILENT)
    assert "output_dir" in error.value.hint


def test_the_dtype_of_a_run_is_taken_where_none_is_given(copied: Path) -> None:
    run = RunDir.open(copied)
    stated = read_recipe(run)
    unset = stated.model_copy(update={"train": stated.train.model_copy(update={"bf16": None, "fp16": None})})
    assert refuse_other_recipe(run, unset) == stated
    run.write_recipe(stated.model_copy(update={"train": stated.train.model_copy(update={"bf16": True})}))
    assert refuse_other_recipe(run, unset).train.precision == "bf16"
    with hftune_error("train.bf16", "True → False"):
        refuse_other_recipe(run, stated)


def test_resuming_a_run_whose_recipe_leaves_the_dtype_to_the_machine(first: hftune.Run, copied: Path) -> None:
    stated = read_recipe(RunDir.open(copied))
    unset = stated.model_copy(update={"train": stated.train.model_copy(update={"bf16": None, "fp16": None})})
    (copied / "metrics.json").unlink()
    again = pipeline.train(unset, copied, resume=True)
    assert again.metrics["splits"] == first.metrics["splits"]
    assert read_recipe(again.run).train.bf16 is False


# ---- overwrite ----


class Heard(ProgressReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)

    warn = note


def test_evaluations_and_the_verdict_are_reported(here: Path) -> None:
    received = Heard()
    how = {**SILENT, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "progress": received}
    run = hftune.train(data=FRAME, output_dir="a", **how)
    found = [
        re.match(r"step (\d) of 4, .*validation accuracy (\S+), best (\S+) at step (\d)", one) for one in received.lines
    ]
    steps = [(int(one[1]), float(one[2])) for one in found if one]
    scores = run.history.query("split == 'validation'")["accuracy"].tolist()
    assert steps == [(2, pytest.approx(scores[0], abs=1e-4)), (4, pytest.approx(scores[1], abs=1e-4))]
    (last,) = [one for one in found if one and one[1] == "4"]
    assert float(last[3]) == pytest.approx(run.metrics["selection"]["score"], abs=1e-4)
    assert int(last[4]) == run.metrics["selection"]["step"]
    found_verdict = verdict(run.metrics)
    assert found_verdict is not None
    assert received.lines[-1] == f"{found_verdict.summary} {found_verdict.scores}"


def test_overwrite_moves_a_run_aside(first: hftune.Run, copied: Path) -> None:
    received = Heard()
    run = hftune.train("a", "a", overwrite=True, progress=received, max_steps=2)  # the run itself is its recipe
    moved = copied.with_name("a-2")
    assert any(line.endswith("is now at a-2") for line in received.lines)
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
    with hftune_error("mine"):
        hftune.train(data=FRAME, output_dir="mine", overwrite=True, **SILENT)
    with RunDir.open(copied).locked(), hftune_error(f"process {os.getpid()}"):
        hftune.train(data=FRAME, output_dir="a", overwrite=True, **SILENT)
    with hftune_error("resume", "overwrite"):
        hftune.train(data=FRAME, output_dir="a", overwrite=True, resume=True, **SILENT)
    assert sorted(path.name for path in here.iterdir()) == ["a", "mine"]


# ---- several seeds, studies ----


def test_seeds_make_a_group(first: hftune.Run, here: Path) -> None:
    group = hftune.train(data=FRAME, seeds=[1, 2], output_dir="g", **SILENT)
    assert [run.metrics["seed"] for run in group.runs] == [1, 2]
    assert (here / "g" / "data" / "train.parquet").is_file() and not (here / "g" / "seed-1" / "data").exists()
    assert weights(group.runs[0].path) == weights(first.path)
    losses = [run.metrics["splits"]["test"]["loss"] for run in group.runs]
    spread = group.metrics["splits"]["test"]["loss"]
    assert spread["mean"] == pytest.approx(np.mean(losses)) and spread["std"] == pytest.approx(np.std(losses, ddof=1))
    with hftune_error("other data"):
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

    monkeypatch.setattr(study, "train_study", carry_out)
    with pytest.raises(Planned):
        hftune.sweep(*arguments, progress=False, **keywords)
    return kept[0]


def test_the_plans_of_sweeps(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    plan, folder = planned(monkeypatch, "reviews-lr", seeds=[7], batch_size=4)
    shipped = read_values(find_study("reviews-lr"))[0]
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
    ("arguments", "expected"),
    [
        ({}, ["nothing to vary"]),
        ({"grid": {"learning_rat": [1]}}, ["learning_rat"]),
        ({"grid": {"lr": 1e-3}}, ["list of values"]),
        ({"grid": {"lr": [1e-3]}, "seed": 3}, ["seed"]),
        ({"grid": {"lr": [1e-3]}, "jobs": 0}, ["whole number"]),
        ({"study": "reviews-lrr"}, ["no study"]),
        ({"grid": {"lr": ["much"]}}, ["train.learning_rate"]),
        ({"grid": {"lr": [1e-3]}, "data": []}, ["empty list"]),
        ({"grid": {"lr": [1e-3]}, "recipe": {"model": {"trust_remote_code": True}}}, ["trust_remote_code", "file"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refused_studies(here: Path, arguments: dict[str, Any], expected: list[str]) -> None:
    with hftune_error(*expected):
        hftune.sweep(progress=False, **arguments)
    assert everything(here) == []


# ---- driving the trainer oneself ----


def test_the_trainer_of_prepare_trains_as_train_does(first: hftune.Run, here: Path) -> None:
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
    assert estimate.steps == 4 and estimate.data == "rows in memory" and everything(here) == []


# ---- consent ----


def test_a_keyword_is_consent_and_a_recipe_is_not(tmp_path: Path) -> None:
    asks = {"model": {"model_name_or_path": "some/model", "trust_remote_code": True}}
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(asks))
    for recipe in (asks, file, load_recipe(file)):
        with hftune_error("trust_remote_code", "file") as error:
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
    text = call.call_text("train", {"data": FRAME, "model": "hf_" + "a" * 30, "lr": 1e-3, "task": None})
    assert text == "hftune.train(data=<DataFrame>, model='[redacted]', lr=0.001)"


# ---- progress ----


def test_progress_is_lines_nothing_or_what_a_listener_makes_of_it(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = {**QUICK, "data": ROWS, "output_dir": "a"}
    received = Heard()
    hftune.prepare(**arguments, progress=received)
    assert received.lines[0] == "loading data" and "loading model" in received.lines
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
    assert not terminal.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert terminal.in_notebook()
    terminal.err.cache_clear()
    with call.shown(True) as reporter:
        assert isinstance(reporter, RunProgress)
        reporter.stage("loading data")
        reporter.begin(3, "updates")
        reporter.advance(1, {"loss": 0.5})
        reporter.end()
        reporter.warn("hf_" + "a" * 30)
    shown = "".join(str(one._repr_mimebundle_([], [])) for one in displayed)
    assert "loading data" in shown and "WARNING" in shown and "hf_aaa" not in shown
    with call.shown_study(True, 1) as callback:
        order = {"path": "x", "setting": "lr=1", "seed": 3, "action": "train"}
        callback.on_job(order)
        callback.on_end(order, {"state": "done", "metric": "f1", "splits": {"validation": {"f1": 0.5}}})
    assert "[1/1] lr=1 seed 3: done, validation F1 0.5000" in str(displayed[-1]._repr_mimebundle_([], []))


# ---- loading ----


def test_a_model_folder_predicts_and_has_no_run(first: hftune.Run, here: Path) -> None:
    model = hftune.load(first.path / "model")
    texts = list(first.predictions("test")["text"])
    assert model.predict(texts) == first.predict(texts)
    assert model.evaluate(ROWS[:4], progress=False).scores == first.evaluate(ROWS[:4], progress=False).scores
    for refused in (lambda: model.metrics, model.report, model.push, model.predictions, lambda: model.path):
        with hftune_error("run directory"):
            refused()
    with pytest.raises(hftune.HftuneError):
        hftune.load("no-such-run/at/all")
    with pytest.raises(hftune.HftuneError, match=r"config\.json"):
        hftune.load(here)
    with hftune_error("predict", "list"):
        model.predict("one text")
    with hftune_error("texts", "int"):
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
    assert (repo, verified, same) == ("tester/from-python", True, True) and mentions(error, "run directory")
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


def test_the_model_and_the_tokenizer_are_those_that_predict(first: hftune.Run) -> None:
    texts = ["the food was great", "never again"]
    with torch.inference_mode():
        logits = first.model(**first.tokenizer(texts, return_tensors="pt", padding=True)).logits
    assert not first.model.training and first.model is first.model
    assert [first.model.config.id2label[int(row.argmax())] for row in logits] == [
        answer.label for answer in first.predict(texts)
    ]


def test_a_file_is_no_model(here: Path) -> None:
    (here / "mine.csv").write_text("text,label\na,b\n", encoding="utf-8")
    with hftune_error("mine.csv", "is a file") as caught:
        hftune.load("mine.csv")
    assert "Hub" not in str(caught.value)


def test_a_complete_run_with_other_settings_is_refused_before_it_is_called_complete(copied: Path) -> None:
    seen: list[str] = []

    class Noted(ProgressReporter):
        def note(self, text: str) -> None:
            seen.append(text)

    with hftune_error("train.learning_rate"):
        hftune.train(output_dir=copied, resume=True, learning_rate=0.5, progress=Noted())
    assert seen == []
