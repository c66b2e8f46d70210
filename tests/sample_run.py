"""A run directory as training leaves it, with planted predictions and hostile texts. Used by the report's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hftune.files import write_jsonl
from hftune.recipe import Recipe
from hftune.runs.directory import RunDir

LABELS = ["1", "2", "3", "4", "5"]
SCRIPT = "<script>document.title = 'RUN'; alert(1)</script>"
HOSTILE = (
    f"Great food {SCRIPT} <img src=x onerror=\"document.title='RUN'\"> would come again",
    "\x1b[31mred\x1b[0m and \x07 a bell, \x00 a NUL, \u202ereversed\u202c and {{ 7 * 7 }} {% raw %}",
    "Waited an hour. " * 700 + "The end of a long text.",
    "</style></svg><svg onload=\"document.title='RUN'\"> it was 'fine' & \"dandy\"",
    "食べ物はとても美味しかったが、二度と行かない。 ☕ مرحبا",
)
OPINIONS = ("The soup was cold", "Our waiter was kind", "I would not come back", "The music was too loud")


def plant_run(path: Path, **changes: Any) -> RunDir:
    """Make a finished classification run; changes replace top-level entries of its metrics."""
    run = RunDir.create(path)
    run.write_recipe(Recipe())
    run.write_environment(ENVIRONMENT)
    write_jsonl(run.history, history())
    for split, seed in (("validation", 1), ("test", 2)):
        run.write_predictions(split, predictions(seed))
    run.write_metrics(metrics() | changes)
    run.model.mkdir()
    with (run.model / "model.safetensors").open("wb") as weights:
        weights.truncate(17_400_000)
    return run


def predictions(seed: int, rows: int = 500) -> list[dict[str, Any]]:
    """Rows of a model that mostly hits, else errs to a neighbor; the hostile texts are its surest mistakes."""
    random = np.random.default_rng(seed)
    found = []
    for index in range(rows):
        gold = int(random.integers(5))
        hostile = index < len(HOSTILE)
        step = int(random.choice([-1, 1])) if hostile or random.random() > 0.62 else 0
        label = min(4, max(0, gold + step)) if gold + step in range(5) else gold - step
        sure = 0.999 - index / 1000 if hostile else float(random.uniform(0.35, 0.98))
        rest = (1 - sure) / 4
        words = int(random.integers(2, 40))
        text = HOSTILE[index] if hostile else f"{OPINIONS[index % 4]}: {'very ' * words}much so, {index}."
        found.append(
            {
                "id": index,
                "text": text,
                "gold": LABELS[gold],
                "label": LABELS[label],
                "probabilities": {
                    name: round(sure if place == label else rest, 6) for place, name in enumerate(LABELS)
                },
            }
        )
    return found


def history() -> list[dict[str, Any]]:
    """Eight epochs: training loss falls with noise, validation loss turns at the fifth."""
    random = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for step in range(10, 1001, 10):
        loss = 0.35 + 1.3 * float(np.exp(-step / 350)) + 0.05 * float(random.standard_normal())
        rows.append(
            {
                "step": step,
                "epoch": step / 125,
                "loss": loss,
                "learning_rate": 5e-4,
                "grad_norm": 1.0,
                "seconds": step / 10,
            }
        )
        if step % 125 == 0 or step in (130, 380, 630, 880):
            score = 0.62 - 0.4 * float(np.exp(-step / 220))
            rows.append(
                {
                    "step": step,
                    "epoch": step / 125,
                    "split": "validation",
                    "loss": 0.95 + 0.6 * float(np.exp(-step / 200)) + max(0, step - 630) / 2500,
                    "accuracy": score,
                    "f1_macro": score - 0.01,
                    "seconds": step / 10,
                }
            )
    return rows


def metrics() -> dict[str, Any]:
    """Scores that are right for the planted predictions as far as the page shows them side by side."""
    splits = {name: _scores(predictions(seed)) for name, seed in (("validation", 1), ("test", 2))}
    return {
        "task": "classify",
        "splits": splits,
        "baselines": {
            "majority": {name: _baseline(0.214, 0.07, 0.0) for name in splits},
            "tfidf": {name: _baseline(0.518, 0.512, 0.4) for name in splits},
        },
        "parameters": {"trainable": 4_386_309, "total": 4_386_309, "formula": None},
        "speed": {"train_seconds": 101.3, "examples_per_second": 316.4, "mfu": 0.412},
        "collapsed": False,
        "verified": True,
        "seed": 1,
        "selection": {"metric": "accuracy", "step": 630, "score": 0.597},
        "data": {
            "source": "embedded: reviews",
            "rows": {"train": 4000, "validation": 500, "test": 500},
            "fingerprints": {"train": "6f3a9d2c41b07e58", "validation": "b1946ac92492d234", "test": "0f343b0931126a20"},
            "notes": ["label noise of 6 % is part of the data"],
        },
        "labels": LABELS,
        "calibration": calibration(),
    }


def calibration() -> dict[str, Any]:
    """An over-confident model, and the same with its temperature fixed."""
    bins, scaled = [], []
    for place in range(4, 15):
        low, high = place / 15, (place + 1) / 15
        middle = (low + high) / 2
        bins.append(
            {"low": low, "high": high, "confidence": middle, "accuracy": middle * 0.72, "count": 20 + 6 * place}
        )
        if place < 12:
            near = {"confidence": middle, "accuracy": middle * 0.97, "count": 90 - 5 * place}
            scaled.append({"low": low, "high": high, **near})
    split = {"ece": 0.182, "ece_scaled": 0.021, "bins": bins, "bins_scaled": scaled}
    return {"temperature": 1.84, "fitted_on": "validation", "validation": split, "test": split}


def _scores(rows: list[dict[str, Any]]) -> dict[str, Any]:
    per_class = {}
    for name in LABELS:
        hits = sum(row["gold"] == row["label"] == name for row in rows)
        output, support = sum(row["label"] == name for row in rows), sum(row["gold"] == name for row in rows)
        per_class[name] = {
            "precision": hits / output,
            "recall": hits / support,
            "f1": 2 * hits / (output + support),
            "support": support,
        }
    return {
        "accuracy": sum(row["gold"] == row["label"] for row in rows) / len(rows),
        "f1_macro": sum(one["f1"] for one in per_class.values()) / len(LABELS),
        "mcc": 0.521,
        "ece": 0.182,
        "loss": 1.034,
        "per_class": per_class,
    }


def _baseline(accuracy: float, f1: float, mcc: float) -> dict[str, Any]:
    return {"accuracy": accuracy, "f1_macro": f1, "mcc": mcc, "ece": 0.03, "loss": 1.6}


ENVIRONMENT = {
    "hftune": "0.1.0",
    "python": "3.11.9",
    "libraries": {"torch": "2.13.0", "transformers": "5.22.2", "datasets": "5.2.0", "tokenizers": "0.23.3"},
    "platform": "Linux 6.1.0 x86_64",
    "cpu": "Example CPU @ 2.60GHz",
    "cores": {"total": 8, "usable": 2},
    "memory_gb": 15.6,
    "devices": [],
    "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "changed": True},
    "command": "hftune classify --output runs/a --set train.weight_decay=0.05",
}
