"""``hftune classify`` end to end on tiny models: every data format, the run directory, determinism, resume."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from facts import mentions
from safetensors.numpy import load_file
from tiny import QUICK, csv_folder, pairs_folder, parquet_folder, stars_folder

from hftune.pipeline import dry_run as dryrun
from hftune.recipe import load_recipe

Hftune = Callable[..., tuple[int, str, str]]

RUN_FILES = {
    "recipe.yaml",
    "environment.json",
    "metrics.json",
    "history.jsonl",
    "predictions",
    "plots",
    "report.html",
    "model",
    "checkpoints",
}
MODEL_FILES = {
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "hftune.json",
    "README.md",
}


def metrics_of(run: Path) -> dict:
    return json.loads((run / "metrics.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("make", "labels", "best"),
    [
        (csv_folder, ["bad", "good"], "accuracy"),
        (stars_folder, ["1", "5"], "f1"),
        (parquet_folder, ["false", "true"], "roc_auc"),
        (pairs_folder, ["denies", "entails"], "eval_matthews_correlation"),
    ],
    ids=["csv", "stars", "parquet", "pairs"],
)
def test_every_format_trains(
    make: Callable[[Path], Path], labels: list[str], best: str, here: Path, hftune: Hftune
) -> None:
    chosen = ["--metric_for_best_model", best, "--set", "task.metrics=[recall]"]
    code, out, err = hftune(
        "classify", "--data", str(make(here / "data")), "--output", "run", *QUICK, *chosen, "--json"
    )
    assert code == 0, err
    metrics = metrics_of(here / "run")
    selected = best.removeprefix("eval_")
    assert metrics["selection"]["metric"] == selected
    for system in ({"model": metrics["splits"]} | metrics["baselines"]).values():
        assert all({selected, "recall"} <= scores.keys() for scores in system.values())
    second = metrics["splits"]["test"]["per_class"][metrics["labels"][1]]
    assert metrics["splits"]["test"]["recall"] == second["recall"]
    assert json.loads(out) == {"run": "run", **metrics}
    assert metrics["verified"] is True
    assert [label.lower() for label in metrics["labels"]] == labels
    assert set(metrics["splits"]) == {"validation", "test"} == set(metrics["baselines"]["tfidf"])
    assert {path.name for path in (here / "run").iterdir() if not path.name.startswith(".")} == RUN_FILES
    assert {path.name for path in (here / "run" / "model").iterdir()} == MODEL_FILES
    first = json.loads((here / "run" / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert list(first["probabilities"]) == metrics["labels"]
    assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert first["label"] == max(first["probabilities"], key=first["probabilities"].__getitem__)


def test_the_same_command_gives_the_same_bits_and_another_seed_does_not(here: Path, hftune: Hftune) -> None:
    data = str(csv_folder(here / "data"))
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        code, _, err = hftune("classify", "--data", data, "--output", name, "--seed", seed, *QUICK)
        assert code == 0, err
    a, b, c = (load_file(here / name / "model" / "model.safetensors") for name in "abc")
    assert a.keys() == b.keys()
    assert all((a[name] == b[name]).all() for name in a)
    assert any((a[name] != c[name]).any() for name in a)


@pytest.mark.renders
def test_what_is_saved_loads_in_a_pipeline_and_with_predict(here: Path, hftune: Hftune) -> None:
    from transformers import pipeline

    for file in csv_folder(here / "data").iterdir():
        file.write_text(file.read_text(encoding="utf-8").replace("label,text", "mark,body", 1), encoding="utf-8")
    columns = ("--text-column", "body", "--label-column", "mark")
    code, out, err = hftune("classify", "--data", "data", *columns, "--output", "run", *QUICK)
    assert code == 0, err
    assert "\n\n" not in err, "no bar leaves an empty line in a log"
    files = [path for path in (here / "run").rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert len({path.stat().st_mode & 0o777 for path in files}) == 1, "weights can be read by whoever reads the rest"
    assert mentions(out, "evaluations and saves") and "examples/s in training steps)" in out
    assert "\nmajority label  validation" in out and "\nbag of words    test" in out
    text = "the tea was superb"
    (ours,) = pipeline("text-classification", model="run/model", top_k=None)([text])
    code, out, err = hftune("predict", "run", text, "--json")
    assert code == 0, err
    reported = json.loads(out)["probabilities"]
    assert {answer["label"]: pytest.approx(answer["score"], abs=1e-4) for answer in ours} == reported

    # The same file twice is scored the same; evaluate agrees with the run.
    code, out, err = hftune("evaluate", "run", "--split", "validation", "--json")
    assert code == 0, err
    assert (
        json.loads(out)["splits"]["validation"]["accuracy"]
        == metrics_of(here / "run")["splits"]["validation"]["accuracy"]
    )
    code, out, err = hftune("evaluate", "run", "--data", "data/test.csv", "--json", "--output", "said.jsonl")
    assert code == 0, err
    assert json.loads(out)["splits"]["all"]["loss"] == pytest.approx(
        metrics_of(here / "run")["splits"]["test"]["loss"], abs=1e-5
    )
    assert len((here / "said.jsonl").read_text(encoding="utf-8").splitlines()) == 16

    # The columns that the run was trained with, next to others with more usual names.
    with (here / "data" / "test.csv").open(encoding="utf-8", newline="") as source:
        rows = [{"text": "no text of the run", "label": "5", **row} for row in csv.DictReader(source)]
    (here / "wide.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, wide, err = hftune("evaluate", "run", "--data", "wide.jsonl", "--json")
    assert code == 0, err
    assert json.loads(wide)["splits"] == json.loads(out)["splits"]
    code, _, err = hftune("evaluate", "run", "--data", "wide.jsonl", "--label-column", "label")
    assert code == 2 and mentions(err, "'5'", "does not know")


def test_an_existing_run_is_refused_or_resumed_never_overwritten(here: Path, hftune: Hftune) -> None:
    command = ("classify", "--data", str(csv_folder(here / "data")), "--output", "run", *QUICK)
    code, _, err = hftune(*command)
    assert code == 0, err
    before = (here / "run" / "metrics.json").read_bytes()
    code, _, err = hftune(*command)
    assert (code, "in use" in err, "--resume" in err) == (2, True, True)
    (here / "run" / ".lock-owner").write_text("999999\n")  # killed when all was written
    code, _, err = hftune(*command, "--resume")
    assert code == 0, err
    assert "complete already" in err and not (here / "run" / ".lock-owner").exists()
    assert ("has collapsed" in err) == json.loads(before)["collapsed"]
    (here / "run" / "metrics.json").unlink()
    code, _, err = hftune(*command, "--resume", "--lr", "0.5")
    assert (code, "train.learning_rate" in err) == (2, True)
    code, _, err = hftune("classify", "--output", "run", "--resume")
    assert code == 0, err
    again, first = metrics_of(here / "run"), json.loads(before)
    assert again["splits"] == first["splits"]


def test_a_group_of_seeds_has_mean_and_std(here: Path, hftune: Hftune) -> None:
    data = str(csv_folder(here / "data"))
    code, out, err = hftune("classify", "--data", data, "--output", "group", "--seeds", "1,2", *QUICK, "--json")
    assert code == 0, err
    scores = [metrics_of(here / "group" / f"seed-{seed}")["splits"]["test"]["accuracy"] for seed in (1, 2)]
    summary = json.loads(out)["splits"]["test"]["accuracy"]
    assert summary["mean"] == pytest.approx(sum(scores) / 2)
    assert summary["std"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)


def test_a_dry_run_of_head_tuning_counts_the_encoder_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dryrun, "_time_batches", lambda job, loader: (0.7, 0.5))
    spent = []
    real = dryrun._time_head
    monkeypatch.setattr(dryrun, "_time_head", lambda job, loader: spent.append(real(job, loader)) or 0.01)
    settings = {
        "data.dataset_name": str(csv_folder(here / "data")),
        "model.vocab_size": 300,
        "train.per_device_train_batch_size": 8,
    }
    tokens = []
    for cached in (True, False):
        changes = {"method.kind": "head", "method.cache_features": cached, "train.num_train_epochs": 20.0}
        estimate = dryrun.dry_run(load_recipe(None, {**settings, **changes}))
        tokens.append(estimate.estimated_minutes * 60 / 0.5)
    assert spent[0] > 0 and len(spent) == 1
    once = tokens[0] - 100 * 0.01 / 0.5  # 5 steps per epoch
    assert tokens[1] > 15 * once, "without features it runs once an epoch"


@pytest.mark.parametrize(
    ("compiled", "updates", "output"),
    [
        (0.5, 1000, "saves time: 30 s"),
        (0.5, 10, "does not save time: 30 s"),
        (1.2, 1000, "does not save time: 1.20 times"),
    ],
)
def test_whether_compiling_pays_is_reported_by_what_it_costs_and_saves(
    compiled: float, updates: int, output: str
) -> None:
    reported = dryrun._break_even(1.0, 30.0, compiled, 2.0, updates)
    assert reported.startswith(output) and (
        compiled > 1 or ("after 30 steps" in reported and f"has {updates:,}" in reported)
    )


def test_a_dry_run_tries_compiling_only_where_it_is_requested(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: asked.append(model))
    monkeypatch.setattr("hftune.training.arguments.find_compiler", lambda: True)
    settings = {"data.dataset_name": str(csv_folder(here / "data")), "model.vocab_size": 300, "train.max_steps": 4}
    assert dryrun.dry_run(load_recipe(None, settings)).compiling == "off" and not asked
    reported = dryrun.dry_run(load_recipe(None, {**settings, "train.torch_compile": True})).compiling
    assert len(asked) == 1 and "save" in reported


def test_a_dry_run_trains_nothing_and_leaves_nothing(here: Path, hftune: Hftune) -> None:
    data = csv_folder(here / "data")
    code, out, err = hftune("classify", "--data", str(data), *QUICK, "--dry-run", "--json")
    assert code == 0, err
    estimate = json.loads(out)
    assert estimate["rows"] == {"train": 40, "validation": 16, "test": 16}
    assert estimate["steps"] == 4
    assert estimate["loss_of_first_batch"] > 0
    assert estimate["estimated_memory_gb"] > 0
    assert [path.name for path in here.iterdir()] == ["data"]


def test_a_model_stuck_on_one_class_raises_the_alarm(here: Path, hftune: Hftune) -> None:
    quick = [*QUICK, "--lr", "1e-12"]  # fresh weights that do not move
    code, _, err = hftune("classify", "--data", str(csv_folder(here / "data")), "--output", "run", *quick)
    assert code == 0, err
    assert metrics_of(here / "run")["collapsed"] is True
    assert "collapsed" in err


def test_class_weights_and_smoothing_change_what_is_learned(here: Path, hftune: Hftune) -> None:
    data = str(csv_folder(here / "data"))
    plain = ("classify", "--data", data, *QUICK)
    for name, extra in (("a", []), ("b", ["--set", "task.class_weights={bad: 9, good: 1}"])):
        code, _, err = hftune(*plain, "--output", name, *extra)
        assert code == 0, err
    a, b = (load_file(here / name / "model" / "model.safetensors") for name in "ab")
    assert any((a[name] != b[name]).any() for name in a)


def test_python_api(here: Path) -> None:
    from hftune import load_recipe, predict, train

    recipe = load_recipe(
        overrides={
            "data.dataset_name": str(csv_folder(here / "data")),
            "data.max_seq_length": 16,
            "train.per_device_train_batch_size": 8,
        },
        sets=["model.vocab_size=300", "train.max_steps=4"],
    )
    result = train(recipe, "run")
    assert result.metrics["verified"] is True
    (answer,) = predict("run", ["the bar was grim"])
    assert answer.label in ("bad", "good")
    assert answer.confidence == max(answer.probabilities.values())


def test_a_token_budget_is_reported(here: Path, hftune: Hftune) -> None:
    data = str(csv_folder(here / "data"))
    budget = ("--set", "train.max_tokens_per_batch=64")
    for more, output in (
        ((), "effective batch size 8\n"),
        (budget, "effective batch size 8 at most, 64 tokens per batch"),
    ):
        code, _, err = hftune("classify", "--data", data, *QUICK, *more, "--dry-run")
        assert code == 0 and output in err, err


def test_what_was_trained_in_bf16_is_what_was_saved(here: Path, hftune: Hftune, cpu_bf16: None) -> None:
    csv_folder(here / "data")
    code, _, err = hftune(
        "classify",
        "--data",
        "data",
        "--output",
        "run",
        *QUICK,
        "--set",
        "train.use_cpu=true",
        "--set",
        "train.bf16=true",
    )
    assert code == 0, err
    assert metrics_of(here / "run")["verified"] is True
