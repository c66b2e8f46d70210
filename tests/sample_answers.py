"""A run that answers questions as training leaves it, with planted answers. Used by the report's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sample_run import ENVIRONMENT, HOSTILE, history

from hftune.evaluation.knowledge import answer_scores, knowledge
from hftune.files import write_jsonl
from hftune.recipe import load_recipe
from hftune.runs.directory import RunDir

FIRST = ("Ada", "Bertrand", "Cosima", "Dietrich", "Eleonora", "Fitzgerald")
LAST = ("Ash", "Berging", "Castellanos-Whitmore", "Dunn", "Eastham", "Fairweather")
PLACES = ("London", "Berlin", "Rio de Janeiro", "Oslo", "Saint Petersburg", "Lima")


def answers(seed: int, rows: int, *, known: bool) -> list[dict[str, Any]]:
    """Rows of a model that is right more often the surer it is, and knows less of names that it never met."""
    random = np.random.default_rng(seed)
    found = []
    for index in range(rows):
        read = index % 4 != 3
        sure = float(random.beta(3, 1.5) if read else random.beta(2, 2.5))
        gold = PLACES[int(random.integers(len(PLACES)))]
        right = random.random() < sure * (0.9 if read else 0.2)
        name = f"{FIRST[index % 6]} {LAST[index // 6 % 6]}"
        found.append(
            {
                "id": index,
                "text": HOSTILE[index] if index < len(HOSTILE) else f"Where was {name} born?",
                **({"gold": gold} if known else {}),
                "label": gold if right else PLACES[int(random.integers(len(PLACES)))],
                "confidence": round(sure, 6),
                "seen_in_pretraining": read,
                "seen_in_finetuning": False,
                **({"gold_probability": round(sure / 2, 6)} if known else {}),
            }
        )
    return found


def plant_answers(path: Path) -> RunDir:
    """Make a finished run: validation with answers, test with questions alone."""
    run = RunDir.create(path)
    run.write_recipe(load_recipe("finetune/births"))
    run.write_environment(ENVIRONMENT)
    rows = {"validation": answers(1, 100, known=True), "test": answers(2, 80, known=False)}
    scores = {"validation": {**answer_scores(rows["validation"]), "loss": 0.61}}
    reported = [
        {"exact_match" if key == "accuracy" else key: value for key, value in row.items() if key != "f1_macro"}
        for row in history()
    ]
    write_jsonl(run.history, reported)
    for split, predictions in rows.items():
        run.write_predictions(split, predictions)
    run.write_metrics(
        {
            "task": "answer",
            "splits": scores,
            "baselines": {"constant": {"validation": {"exact_match": 0.05, "answer": "London"}}},
            "parameters": {"trainable": 421_888, "total": 421_888, "formula": None},
            "speed": {"train_seconds": 21.3, "examples_per_second": 316.4, "mfu": 0.412},
            "collapsed": False,
            "verified": True,
            "seed": 1,
            "selection": {"metric": "exact_match", "step": 630, "score": 0.597},
            "data": {
                "source": "births",
                "rows": {"train": 160, "validation": 100, "test": 80},
                "fingerprints": {},
                "notes": [],
            },
            "knowledge": {split: knowledge(predictions) for split, predictions in rows.items()},
            "pretraining": {"corpus": "births", "documents": 1000, "template": "Where was {} born?"},
        }
    )
    run.model.mkdir()
    (run.model / "model.safetensors").write_bytes(b"weights")
    return run
