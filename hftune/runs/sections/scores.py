"""The result: every score with the baselines beside it, and how sure the main one is."""

from __future__ import annotations

from typing import Any

from hftune.config.train import LOWER_IS_BETTER
from hftune.runs.facts import RunFacts
from hftune.runs.page import Section
from hftune.runs.shares import wilson
from hftune.runs.wording import baseline_name, baseline_notes, was_left_out

# Scores that are the share of rows answered rightly, for which an interval can be counted.
SHARES = ("accuracy", "exact_match")


def scores(facts: RunFacts) -> Section | None:
    """Headline and table of scores."""
    split, metric = facts.main_split, facts.main_metric
    if split is None or metric is None:
        return None
    tables = [
        {"split": name, "rows": facts.rows(name), "names": names, "systems": _systems(facts, name, names)}
        for name in facts.scored
        if (names := _numbers(facts.scored[name]))
    ]
    headline = _headline(facts, split, metric)
    return Section(
        id="scores",
        title="Scores",
        template="scores.html.j2",
        lead=_lead(headline),
        values={
            "headline": headline,
            "tables": tables,
            "best": _best,
            "lower": LOWER_IS_BETTER,
            "notes": baseline_notes(facts.baselines),
        },
    )


def _headline(facts: RunFacts, split: str, metric: str) -> dict[str, Any]:
    value = facts.scored[split].get(metric)
    rows = facts.rows(split)
    interval = wilson(value, rows) if metric in SHARES and value is not None and rows else None
    baselines = [
        {"name": baseline_name(name), "value": of_split[split][metric]}
        for name, of_split in facts.baselines.items()
        if isinstance(of_split.get(split, {}).get(metric), float)
    ]
    return {
        "split": split,
        "metric": metric,
        "value": value,
        "rows": rows,
        "interval": interval,
        "baselines": sorted(baselines, key=lambda one: _rank(metric, one["value"])),
        "doubt": bool(facts.metrics.get("collapsed")) or facts.metrics.get("verified") is not True,
        "on_scale": metric not in LOWER_IS_BETTER and value is not None and 0 <= value <= 1,
    }


def _lead(headline: dict[str, Any]) -> str:
    told = []
    if headline["baselines"]:
        told.append("Beside the model stand simpler systems, scored on the same rows.")
    if headline["interval"]:
        told.append(f"The interval is that of {headline['rows']:,} rows alone: another seed moves the score too.")
    return " ".join(told)


def _numbers(scores: dict[str, Any]) -> list[str]:
    return [name for name, value in scores.items() if isinstance(value, int | float)]


def _systems(facts: RunFacts, split: str, names: list[str]) -> list[dict[str, Any]]:
    model: dict[str, Any] = {
        "name": "this model",
        "scores": [facts.scored[split][name] for name in names],
        "model": True,
    }
    others: list[dict[str, Any]] = [
        {
            "name": baseline_name(name),
            "scores": [of_split[split].get(score) for score in names],
            "model": False,
        }
        for name, of_split in facts.baselines.items()
        if split in of_split and not was_left_out(of_split[split])
    ]
    column = names.index(facts.main_metric) if facts.main_metric in names else 0
    # Strongest first, as in the headline; what lacks the score comes last.
    others.sort(key=lambda one: _rank(names[column], one["scores"][column]))
    return [model, *others]


def _rank(name: str, value: float | None) -> float:
    if value is None:
        return float("inf")
    return value if name in LOWER_IS_BETTER else -value


def _best(name: str, column: int, systems: list[dict[str, Any]]) -> float | None:
    values = [one["scores"][column] for one in systems if one["scores"][column] is not None]
    if len(values) < 2:
        return None
    return float(min(values) if name in LOWER_IS_BETTER else max(values))
