"""A study's folder as a sweep leaves it, with planted predictions of known quality. No training.

Used by the tests of comparison, tables, plots and the study page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hftune.files import write_jsonl, write_text
from hftune.recipe import load_recipe, read_recipe
from hftune.runs.directory import RunDir
from hftune.studies.executors import Callback, Job
from hftune.studies.folder import StudyDir
from hftune.studies.plan import PLAN, Plan, StudySetting, recipe_for
from hftune.studies.request import plan_yaml

LABELS = ("bad", "good")
ROWS = 600
SCRIPT = "<script>document.title = 'RUN'</script>"


def plant_run(
    path: Path,
    recipe: Any,
    share: float,
    *,
    splits: tuple[str, ...] = ("validation", "test"),
    difficulty_seed: int = 0,
    **changes: Any,
) -> RunDir:
    """A complete run that is right on about this share of rows; items are hard or easy for all runs alike."""
    run = RunDir.create(path)
    seed = recipe.train.seed
    run.begin(recipe, {"hftune": "0", "command": "hftune sweep planted"})
    scored: dict[str, Any] = {}
    for place, split in enumerate(splits):
        draw = np.random.default_rng([seed, place])
        hardness = np.random.default_rng([difficulty_seed, place]).uniform(size=ROWS)
        right = 0.7 * hardness + 0.3 * draw.uniform(size=ROWS) < np.quantile(0.7 * hardness + 0.15, share)
        rows = []
        for index, hit in enumerate(right):
            gold, other = (LABELS[index % 2], LABELS[1 - index % 2])
            output = gold if hit else other
            probabilities = {name: 0.8 if name == output else 0.2 for name in LABELS}
            line = {"id": index, "text": f"row {index} {SCRIPT}", "gold": gold, "label": output}
            rows.append(line | {"probabilities": probabilities})
        run.write_predictions(split, rows)
        scored[split] = {"accuracy": float(right.mean()), "loss": 1 - float(right.mean())}
    write_jsonl(run.history, history(scored["validation"]["accuracy"], seed))
    baseline = {split: {"accuracy": 0.5, "loss": 0.7} for split in splits}
    metrics = {
        "task": "classify",
        "splits": scored,
        "baselines": {"majority": baseline, "tfidf": {split: {"accuracy": 0.66, "loss": 0.6} for split in splits}},
        "parameters": {"trainable": 1000, "total": 5000, "formula": None},
        "speed": {"train_seconds": 10.0 + seed, "examples_per_second": 80.0},
        "collapsed": False,
        "verified": True,
        "seed": seed,
        "selection": {"metric": "accuracy", "step": 400, "score": scored["validation"]["accuracy"]},
        "data": {
            "source": "planted",
            "rows": {"train": 4000, "validation": ROWS, "test": ROWS},
            "fingerprints": {"train": "aa", "validation": "bb", "test": "cc"},
            "notes": [],
        },
        "labels": list(LABELS),
    }
    run.write_metrics(metrics | changes)
    write_text(run.report, "<!doctype html><title>run</title>")
    return run


def history(final: float, seed: int) -> list[dict[str, Any]]:
    """Four evaluations that end at the run's score."""
    draw = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for step in (100, 200, 300, 400):
        score = final - 0.2 * (400 - step) / 400 + 0.01 * float(draw.standard_normal()) * (step < 400)
        rows.append({"step": step, "epoch": step / 100, "loss": 1.0, "learning_rate": 1e-3, "seconds": step / 10})
        rows.append({"step": step, "epoch": step / 100, "split": "validation", "accuracy": score, "loss": 0.6})
    return rows


def plant_study(
    path: Path, plan: Plan, shares: dict[str, float], selected: str | None = None, **by_name: Any
) -> StudyDir:
    """A study whose settings are right on these shares of rows; test is scored for the selected one only."""
    path.mkdir(parents=True)
    write_text(path / PLAN, plan_yaml(plan))
    study = StudyDir(path)
    settings: list[StudySetting] = study.settings()
    assert {setting.name for setting in settings} >= set(shares), [setting.name for setting in settings]
    for setting in settings:
        if setting.name not in shares:
            continue
        splits = ("validation", "test") if selected in (None, setting.name) else ("validation",)
        for seed in plan.seeds:
            run = study.run(setting, seed)
            changes = by_name.get(setting.name, {})
            plant_run(run.path, recipe_for(plan, setting, seed), shares[setting.name], splits=splits, **changes)
    study.write_failures([])
    return study


class Planter:
    """An executor that writes complete runs instead of training them: the score comes from a table, by setting."""

    def __init__(self, shares: Mapping[str, float], broken: Mapping[str, str] | None = None) -> None:
        self.shares = shares
        self.broken = broken or {}
        self.trained: list[tuple[str, int]] = []
        self.scored: list[tuple[str, int]] = []

    def run(self, job: Job, callback: Callback) -> dict[str, Any]:
        path = Path(job["path"])
        if job["action"] == "score":
            self.scored.append((job["setting"], job["seed"]))
            run = RunDir(path)
            recipe = read_recipe(run)
            for file in (
                run.metrics,
                run.recipe,
                run.history,
                run.report,
                run.environment,
                run.predictions("validation"),
            ):
                file.unlink()
            run.predictions("validation").parent.rmdir()
            plant_run(path, recipe, self.shares[job["setting"]], splits=("validation", "test"))
            return {"state": "done", "seconds": 1.0}
        self.trained.append((job["setting"], job["seed"]))
        if job["setting"] in self.broken:
            return {"state": "failed", "reason": self.broken[job["setting"]], "hint": "none", "seconds": 1.0}
        recipe_file = path.parent / "r.yaml"
        recipe_file.parent.mkdir(parents=True, exist_ok=True)
        recipe_file.write_text(job["recipe"])
        plant_run(path, load_recipe(recipe_file), self.shares[job["setting"]], splits=tuple(job["score"]))
        recipe_file.unlink()
        return {"state": "done", "seconds": 1.0}

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass
