"""The comparison of systems: mean ± std, intervals, paired tests, a verdict in words.

Called by ``hftune compare`` and at the end of a study; ``hftune.studies.results`` writes it down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.errors import HftuneError
from hftune.evaluation.significance import ENOUGH_SEEDS, Comparison, Estimate, compare, estimate, holm, verdict
from hftune.runs.wording import duration
from hftune.studies.folder import StudyDir
from hftune.studies.select import select
from hftune.studies.systems import (
    METRICS,
    System,
    common_split,
    is_scored,
    item_scores,
    of_study,
    refuse_different_data,
    training_seconds,
)
from hftune.suggest import did_you_mean

MOST_FOR_ALL_PAIRS = 4
"""With more systems than these, each is compared with the best on validation only."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One system's line in the table."""

    name: str
    values: dict[str, Any]
    """Its place on each axis of a study; empty for loose runs."""
    seeds: tuple[int, ...]
    scores: dict[str, Estimate]
    """By split, for the splits that all its runs were scored on."""
    by_seed: dict[str, tuple[float, ...]]
    """The score of each seed, by split."""
    trainable: int
    total: int
    seconds: float
    """Mean time of training, with what a frozen encoder took before it."""
    collapsed: int
    """Runs of this system that collapsed to one class."""
    baselines: dict[str, dict[str, float]]
    """Baseline → split → score, fitted on the same training rows; where its runs have the same."""
    memory: float | None = None
    """The most memory that a run held, in GB; None where it was not measured."""
    selected: bool = False
    """Whether a study chose it on validation."""


@dataclass(frozen=True)
class Pair:
    """Two systems compared with each other."""

    first: str
    second: str
    comparison: Comparison
    adjusted_p: float
    """After Holm's correction for the number of pairs."""
    words: str


@dataclass(frozen=True)
class Compared:
    """The whole comparison."""

    metric: str
    split: str
    """What the pairs were compared on."""
    rows: tuple[Row, ...]
    """Best first, by the mean on validation: the order is not taken from test."""
    pairs: tuple[Pair, ...]
    baselines: dict[str, dict[str, float]]
    """Baseline → split → score, where all systems have the same."""
    notes: tuple[str, ...]

    @property
    def one_seed(self) -> bool:
        """Whether nothing is known of other seeds."""
        return all(len(row.seeds) == 1 for row in self.rows)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that some row has a score on."""
        return tuple(split for split in ("validation", "test") if any(split in row.scores for row in self.rows))

    def as_dict(self) -> dict[str, Any]:
        """For --json and comparison.json."""
        return asdict(self)


def compare_study(study: StudyDir, split: str | None = None, metric: str = "accuracy") -> Compared:
    """Compare the settings of a study, and say what was selected and how."""
    selection = select(study)
    systems = of_study(study)
    scored = [system for system in systems if is_scored(system, "test")]
    reference = study.plan().reference
    # A study that compares with one value of an axis asks a question, and chooses nothing.
    selected = None if reference and len(scored) == len(systems) else selection.setting.name
    notes = [selection.in_words()] if selected else []
    if len(scored) == len(systems) > 1:
        notes.append("test was scored for all settings: the best of them on test is not an unbiased result")
    elif scored:
        notes.append(f"test was scored for {' and '.join(system.name for system in scored)} only")
    failures = study.failures()
    if failures:
        notes.append(f"{_count(len(failures), 'run')} failed: the reasons are in failures.jsonl")
    pruned = sum(trial["state"] == "pruned" for trial in study.drawn())
    if pruned:
        notes.append(
            f"{pruned} of {len(study.drawn())} trials were ended early, for a validation score below the median"
        )
    notes += _stage_times(study)
    return compare_systems(systems, split, metric, selected=selected, notes=notes, reference=reference)


def compare_systems(
    systems: Sequence[System],
    split: str | None = None,
    metric: str = "accuracy",
    *,
    selected: str | None = None,
    notes: Sequence[str] = (),
    reference: Mapping[str, Any] | None = None,
) -> Compared:
    """Compare systems on the same rows.

    Args:
        systems: From ``collect``.
        split: validation or test; test where all were scored on it, else validation.
        metric: accuracy, or loss.
        selected: Name of the system that a study chose.
        notes: What is to be said beside what is found here.
        reference: An axis and the value on it that all others are compared with; the best on validation by default.

    Raises:
        HftuneError: Different data, or a split that was not scored.
    """
    if not systems:
        raise HftuneError("there is no complete run to compare", hint="finish the runs first")
    if metric not in METRICS:
        raise HftuneError(
            f"runs can't be compared by {metric!r}: it is not a mean over rows",
            hint=did_you_mean(metric, METRICS) or f"use one of: {', '.join(METRICS)}",
        )
    split = split or common_split(systems)
    for system in systems:
        if not is_scored(system, split):
            raise HftuneError(
                f"{system.runs[0].path} was not scored on {split}",
                hint="compare on validation with --split validation; a study scores test for all with --test all",
            )
    refuse_different_data(systems, split)
    scores = {
        (system.name, name): item_scores(system, name, metric)
        for system in systems
        for name in ("validation", "test")
        if is_scored(system, name)
    }
    sign = 1 if metric == "loss" else -1
    rows = sorted(
        (_row(system, scores, metric, system.name == selected) for system in systems),
        key=lambda row: sign * row.scores["validation"].mean,
    )
    return Compared(
        metric=metric,
        split=split,
        rows=tuple(rows),
        pairs=_pairs(
            systems,
            {name: values for (name, of), values in scores.items() if of == split},
            rows,
            metric,
            reference or {},
        ),
        baselines=_shared([row.baselines for row in rows]),
        notes=(*notes, *_notes(systems, rows, split)),
    )


def _row(system: System, scores: dict[tuple[str, str], Scores], metric: str, selected: bool) -> Row:
    metrics = [run.read_metrics() for run in system.runs]
    mine = {split: values for (name, split), values in scores.items() if name == system.name}
    return Row(
        name=system.name,
        values=system.values,
        seeds=system.seeds,
        scores={split: estimate(values) for split, values in mine.items()},
        by_seed={split: tuple(values.mean(axis=1).tolist()) for split, values in mine.items()},
        trainable=metrics[0]["parameters"]["trainable"],
        total=metrics[0]["parameters"]["total"],
        seconds=fmean(training_seconds(entry) for entry in metrics),
        collapsed=sum(bool(entry["collapsed"]) for entry in metrics),
        baselines=_shared([_baselines(entry, metric) for entry in metrics]),
        memory=max((one for entry in metrics if (one := entry["speed"].get("peak_memory_gb"))), default=None),
        selected=selected,
    )


def _pairs(
    systems: Sequence[System], scores: dict[str, Scores], rows: Sequence[Row], metric: str, reference: Mapping[str, Any]
) -> tuple[Pair, ...]:
    names = [row.name for row in rows]
    if reference:
        chosen = list(_partners(systems, reference))
    elif len(names) <= MOST_FOR_ALL_PAIRS:
        chosen = [(second, first) for place, first in enumerate(names) for second in names[place + 1 :]]
    else:
        chosen = [(name, names[0]) for name in names[1:]]
    seeds = {system.name: system.seeds for system in systems}
    results = [
        compare(scores[first], scores[second], paired_seeds=seeds[first] == seeds[second]) for first, second in chosen
    ]
    adjusted = holm([result.p_value for result in results]) if results else []
    look: dict[str, Any] = (
        {"scale": 1.0, "unit": "nats", "digits": 3, "higher_is_better": False} if metric == "loss" else {}
    )
    return tuple(
        Pair(
            first, second, result, p, verdict(result, first, second, adjusted_p=p if len(chosen) > 1 else None, **look)
        )
        for (first, second), result, p in zip(chosen, results, adjusted, strict=True)
    )


def _partners(systems: Sequence[System], reference: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each system and the one that differs from it only by the values that all are compared with."""
    by_place = {tuple(system.values.items()): system.name for system in systems}
    for system in systems:
        partner = by_place.get(tuple({**system.values, **reference}.items()))
        if partner is not None and partner != system.name:
            yield system.name, partner


def _baselines(metrics: Mapping[str, Any], metric: str) -> dict[str, dict[str, float]]:
    """What simple systems score that were fitted on the training rows of a run."""
    return {
        name: {split: scores[metric] for split, scores in splits.items() if metric in scores}
        for name, splits in metrics.get("baselines", {}).items()
    }


def _shared(every: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Baseline → split → score, where that is the same for all: with other training rows it is not."""
    found: dict[tuple[str, str], set[float]] = {}
    for baselines in every:
        for name, splits in baselines.items():
            for split, score in splits.items():
                found.setdefault((name, split), set()).add(score)
    result: dict[str, dict[str, float]] = {}
    for (name, split), values in found.items():
        if len(values) == 1:
            result.setdefault(name, {})[split] = values.pop()
    return result


def _stage_times(study: StudyDir) -> list[str]:
    """The table's times are those of the runs in it; what they start from took time as well."""
    plan, told = study.plan(), []
    for name in plan.depends_on:
        runs = [run for seed in plan.seeds if (run := study.before(name, seed)).complete]
        if runs:
            told.append(f"{name}, {duration(fmean(training_seconds(run.read_metrics()) for run in runs))} a seed")
    return [f"times leave out the runs that others start from: {'; '.join(told)}"] if told else []


def _notes(systems: Sequence[System], rows: Sequence[Row], split: str) -> list[str]:
    notes = []
    fewest = min(len(system.runs) for system in systems)
    if fewest < ENOUGH_SEEDS:
        notes.append(
            f"{'every' if all(len(one.runs) == fewest for one in systems) else 'some'} setting has "
            f"{_count(fewest, 'seed')}: too few to tell settings from luck, use {ENOUGH_SEEDS} or more"
        )
    if len({len(system.runs) for system in systems}) > 1:
        notes.append("settings have different numbers of seeds")
    if split == "validation":
        notes.append("compared on validation, which also chose the checkpoints: expect less on new data")
    elif len({run.read_metrics()["data"]["fingerprints"]["validation"] for one in systems for run in one.runs}) > 1:
        notes.append("the validation rows differ, so that validation scores are not comparable; test rows are the same")
    collapsed = [f"{row.name} ({row.collapsed} of {_count(len(row.seeds), 'run')})" for row in rows if row.collapsed]
    if collapsed:
        notes.append(f"collapsed to one class: {', '.join(collapsed)}")
    return notes


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
