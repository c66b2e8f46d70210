"""Everything a report says of a run, read once from its directory by ``hftune.runs.report`` for the sections.

The recipe is taken as it lies there, not checked against today's schema: a page can be made again years later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.config import document
from hftune.files import Damaged
from hftune.runs.directory import RunDir
from hftune.runs.wording import score_name

SPLITS = ("test", "validation")


@dataclass(frozen=True)
class RunFacts:
    """One run as plain data."""

    name: str
    recipe_text: str
    recipe: dict[str, Any]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    history: list[dict[str, Any]]
    predictions: dict[str, list[dict[str, Any]]]
    model_bytes: int

    @classmethod
    def read(cls, run: RunDir) -> RunFacts:
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
    def task(self) -> str:
        """The kind of task."""
        return str(self.metrics.get("task") or self.section("task").get("kind", ""))

    @property
    def scored(self) -> dict[str, dict[str, Any]]:
        """The splits that were scored, test first."""
        splits = self.metrics.get("splits", {})
        return {name: splits[name] for name in (*SPLITS, *sorted(set(splits) - set(SPLITS))) if name in splits}

    @property
    def main_split(self) -> str | None:
        """The split whose scores are the result: test, or validation where test was left alone."""
        return next(iter(self.scored), None)

    @property
    def main_metric(self) -> str | None:
        """The score that decided which checkpoint was kept."""
        chosen = self.metrics.get("selection", {}).get("metric")
        if chosen is not None:
            return str(chosen).removeprefix("eval_")
        numbers = next(iter(self.scored.values()), {})
        return next((name for name, value in numbers.items() if isinstance(value, float)), None)

    @property
    def selected_step(self) -> float | None:
        """The update whose weights were kept."""
        step = self.metrics.get("selection", {}).get("step")
        return None if step is None else float(step)

    @property
    def labels(self) -> list[str]:
        """The label names in their one order; empty for tasks without labels."""
        return [str(label) for label in self.metrics.get("labels", [])]

    @property
    def baselines(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Baseline → split → scores."""
        return dict(self.metrics.get("baselines", {}))

    def section(self, name: str) -> dict[str, Any]:
        """One section of the recipe."""
        found = self.recipe.get(name)
        return found if isinstance(found, dict) else {}

    def rows(self, split: str) -> int:
        """How many rows a split has."""
        return int(self.metrics.get("data", {}).get("rows", {}).get(split, 0))

    def answered(self, split: str) -> list[dict[str, Any]]:
        """The predictions of a split for which the right answer is known."""
        return [row for row in self.predictions.get(split, []) if row.get("gold") is not None]

    @property
    def subtitle(self) -> str:
        """What was trained on what, in one line."""
        parts = (
            self.task,
            self.section("data").get("name"),
            self.section("model").get("name"),
            self.section("method").get("kind"),
            f"seed {self.section('train').get('seed')}" if "seed" in self.section("train") else None,
        )
        return " · ".join(str(part) for part in parts if part)

    @property
    def main_metric_name(self) -> str:
        """The deciding score in words."""
        return score_name(self.main_metric or "loss")


def _recipe(run: RunDir) -> tuple[str, dict[str, Any]]:
    """The text of recipe.yaml and what it states."""
    try:
        stated, _ = document.read(run.recipe)
        text = run.recipe.read_text(encoding="utf-8-sig")
    except (document.DocumentError, OSError) as error:
        raise Damaged(run.recipe, str(error)) from error
    if not isinstance(stated, dict | None):
        raise Damaged(run.recipe, "it holds no sections")
    return text, stated or {}
