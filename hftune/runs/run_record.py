"""The contents of a run directory, read once for the sections of its report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hftune.config import document
from hftune.files import Damaged
from hftune.runs.directory import RunDir
from hftune.runs.formatting import score_name

SPLITS = ("test", "validation")


@dataclass(frozen=True)
class RunRecord:
    """One run as plain data."""

    name: str
    recipe_text: str
    # Not checked against the current schema: a page can be made again years later.
    recipe: dict[str, Any]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    history: list[dict[str, Any]]
    predictions: dict[str, list[dict[str, Any]]]
    model_bytes: int

    @classmethod
    def read(cls, run: RunDir) -> RunRecord:
        """Read a run, finished or not."""
        text, recipe = _recipe(run)
        predictions = {split: run.read_predictions(split) for split in SPLITS}
        files = [path for path in run.model.rglob("*") if path.is_file()] if run.model.is_dir() else []
        return cls(
            name=run.name,
            recipe_text=text,
            recipe=recipe,
            metrics=run.read_metrics() if run.metrics.is_file() else {},
            environment=run.read_environment(),
            history=run.read_history(),
            predictions={split: rows for split, rows in predictions.items() if rows},
            model_bytes=sum(path.stat().st_size for path in files),
        )

    @property
    def subtitle(self) -> str:
        """Task, data, model, method and seed in one line."""
        task = str(self.metrics.get("task") or self._setting("task", "kind") or "")
        seed = self._setting("train", "seed")
        parts = (
            task,
            self._setting("data", "dataset_name"),
            self._setting("model", "model_name_or_path"),
            self._setting("method", "kind"),
            None if seed is None else f"seed {seed}",
        )
        return " · ".join(str(part) for part in parts if part)

    @property
    def scored(self) -> dict[str, dict[str, Any]]:
        """The splits with scores, test first."""
        splits = self.metrics.get("splits", {})
        return {name: splits[name] for name in (*SPLITS, *sorted(set(splits) - set(SPLITS))) if name in splits}

    @property
    def main_split(self) -> str | None:
        """The split of the headline score: test, or validation if test was not scored."""
        return next(iter(self.scored), None)

    @property
    def main_metric(self) -> str | None:
        """The metric that selected the checkpoint."""
        # Trainer prefixes validation scores; a run without a selection, or of another version, shows its first score.
        chosen = self.metrics.get("selection", {}).get("metric")
        if chosen is not None:
            return str(chosen).removeprefix("eval_")
        numbers = next(iter(self.scored.values()), {})
        return next((name for name, value in numbers.items() if isinstance(value, float)), None)

    @property
    def main_metric_name(self) -> str:
        """The main metric for readers."""
        return score_name(self.main_metric or "loss")

    @property
    def selected_step(self) -> float | None:
        """The step of the checkpoint that was kept."""
        step = self.metrics.get("selection", {}).get("step")
        return None if step is None else float(step)

    @property
    def labels(self) -> list[str]:
        """The label names in order; empty for tasks without labels."""
        return [str(label) for label in self.metrics.get("labels", [])]

    @property
    def baselines(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Baseline → split → scores."""
        return dict(self.metrics.get("baselines", {}))

    def baseline_scores(self, split: str, metric: str) -> Iterator[tuple[str, float]]:
        """Each baseline that has this score, with its value."""
        for name, splits in self.baselines.items():
            value = splits.get(split, {}).get(metric)
            if isinstance(value, int | float):
                yield name, float(value)

    def rows(self, split: str) -> int:
        """The number of rows of a split."""
        return int(self.metrics.get("data", {}).get("rows", {}).get(split, 0))

    def answered(self, split: str) -> list[dict[str, Any]]:
        """The predictions of a split whose right answer is known."""
        return [row for row in self.predictions.get(split, []) if row.get("gold") is not None]

    def evaluations(self, key: str = "step") -> list[dict[str, Any]]:
        """The evaluations on validation that have this value, in order."""
        return [row for row in self.history if row.get("split") == "validation" and row.get(key) is not None]

    def logged(self, key: str) -> list[dict[str, Any]]:
        """The logging steps of training that have this value, in order."""
        return [row for row in self.history if row.get("split") is None and row.get(key) is not None]

    def _setting(self, section: str, key: str) -> Any:
        found = self.recipe.get(section)
        return found.get(key) if isinstance(found, dict) else None


def _recipe(run: RunDir) -> tuple[str, dict[str, Any]]:
    try:
        stated, _ = document.read(run.recipe)
        text = run.recipe.read_text(encoding="utf-8-sig")
    except document.RecipeError as error:
        raise Damaged(run.recipe, str(error.problems[0])) from error
    if not isinstance(stated, dict | None):
        raise Damaged(run.recipe, "it has no sections")
    return text, stated or {}
