"""The comparison of systems: mean ± std, intervals, paired tests, a verdict in words. Called by ``hftune compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hftune.errors import HftuneError
from hftune.evaluation.significance import Comparison, Estimate, compare, estimate, holm, verdict
from hftune.studies.systems import System, common_split, correct, refuse_different_data


@dataclass(frozen=True)
class Row:
    """One system's line in the table."""

    name: str
    estimate: Estimate
    dev: float
    trainable: int
    total: int
    seconds: float
    collapsed: int
    """Runs of this system that collapsed to one class."""


@dataclass(frozen=True)
class Pair:
    """Two systems against each other."""

    first: str
    second: str
    comparison: Comparison
    adjusted_p: float
    words: str


@dataclass(frozen=True)
class Compared:
    """The whole comparison."""

    split: str
    rows: tuple[Row, ...]
    """Best first, by mean accuracy on dev: the order is not taken from test."""
    pairs: tuple[Pair, ...]
    """Each system against the best, or every pair when there are few."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For --json and comparison.json."""
        return asdict(self)


MOST_FOR_ALL_PAIRS = 4


def compare_systems(systems: Sequence[System], split: str | None = None) -> Compared:
    """Compare systems on the same rows.

    Args:
        systems: From ``collect``.
        split: dev or test; test where all were scored on it, else dev.

    Raises:
        HftuneError: Different data, or a split that was not scored.
    """
    if not systems:
        raise HftuneError("there is no complete run to compare", hint="finish the runs first")
    split = split or common_split(systems)
    for system in systems:
        for run in system.runs:
            if split not in run.read_metrics()["splits"]:
                raise HftuneError(
                    f"{run.path} was not scored on {split}",
                    hint="compare on dev with --split dev, or let the study score test for all: --test all",
                )
    refuse_different_data(systems, split)
    scores = {system.name: correct(system, split) for system in systems}
    rows = sorted((_row(system, scores[system.name]) for system in systems), key=lambda row: -row.dev)
    return Compared(split, tuple(rows), _pairs(systems, scores, rows), tuple(_notes(systems, rows, split)))


def _row(system: System, scores: Any) -> Row:
    metrics = [run.read_metrics() for run in system.runs]
    return Row(
        name=system.name,
        estimate=estimate(scores),
        dev=sum(entry["splits"]["dev"]["accuracy"] for entry in metrics) / len(metrics),
        trainable=metrics[0]["parameters"]["trainable"],
        total=metrics[0]["parameters"]["total"],
        seconds=sum(entry["speed"]["train_seconds"] for entry in metrics) / len(metrics),
        collapsed=sum(bool(entry["collapsed"]) for entry in metrics),
    )


def _pairs(systems: Sequence[System], scores: dict[str, Any], rows: Sequence[Row]) -> tuple[Pair, ...]:
    names = [row.name for row in rows]
    if len(names) <= MOST_FOR_ALL_PAIRS:
        chosen = [(second, first) for place, first in enumerate(names) for second in names[place + 1 :]]
    else:
        chosen = [(name, names[0]) for name in names[1:]]
    seeds = {system.name: system.seeds for system in systems}
    results = [
        compare(scores[first], scores[second], paired_seeds=seeds[first] == seeds[second]) for first, second in chosen
    ]
    adjusted = holm([result.p_value for result in results]) if results else []
    return tuple(
        Pair(first, second, result, p, verdict(result, first, second, adjusted_p=p if len(chosen) > 1 else None))
        for (first, second), result, p in zip(chosen, results, adjusted, strict=True)
    )


def _notes(systems: Sequence[System], rows: Sequence[Row], split: str) -> list[str]:
    notes = []
    fewest = min(len(system.runs) for system in systems)
    if fewest < 3:
        notes.append(f"some system has {fewest} seed{'s' * (fewest > 1)}: too few to tell settings from luck")
    if split == "dev":
        notes.append("compared on dev, which also chose checkpoints and settings: expect less on new data")
    for row in rows:
        if row.collapsed:
            notes.append(f"{row.name}: {row.collapsed} of {row.estimate.seeds} runs collapsed to one class")
    if len({len(system.runs) for system in systems}) > 1:
        notes.append("systems have different numbers of seeds")
    return notes
