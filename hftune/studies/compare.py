"""The comparison of systems: mean ± std, intervals, paired tests and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.errors import HftuneError, did_you_mean
from hftune.evaluation.scores import Score
from hftune.evaluation.significance import (
    ENOUGH_SEEDS,
    PairedComparison,
    ScoreEstimate,
    compare,
    estimate,
    holm,
    score_of_seeds,
    verdict,
)
from hftune.recipe import read_recipe
from hftune.runs.formatting import baseline_name, duration, score_name
from hftune.studies.folder import StudyDir
from hftune.studies.systems import (
    System,
    common_split,
    default_metric,
    differences,
    is_scored,
    item_scores,
    of_study,
    refuse_different_data,
    scores_of,
    select,
    training_seconds,
)

# With more systems than these, each is compared only with the best on validation.
MOST_FOR_ALL_PAIRS = 4

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class ComparedSystem:
    """One system in the comparison."""

    name: str
    values: dict[str, Any]
    """Its value on each axis of the study; empty for runs outside of studies."""
    seeds: tuple[int, ...]
    scores: dict[str, ScoreEstimate]
    """By split, for the splits on which all its runs were scored."""
    by_seed: dict[str, tuple[float, ...]]
    """The score of each seed, by split."""
    trainable: int
    total: int
    seconds: float
    """Mean training time."""
    collapsed: int
    """Runs of this system that collapsed to one class."""
    baselines: dict[str, dict[str, float]]
    """Baseline → split → score by the same metric; the mean over seeds that trained on different rows."""
    memory: float | None = None
    """Peak memory of its runs in GB; None if it was not measured."""
    formula: str | None = None
    """The number of trainable parameters as a formula, if the method has one."""
    selected: bool = False
    """Whether the study selected it on validation."""


@dataclass(frozen=True)
class PairwiseTest:
    """Two systems compared with each other."""

    first: str
    second: str
    comparison: PairedComparison
    adjusted_p: float
    """After Holm's correction for the number of pairs."""
    verdict: str
    """The result as a sentence."""


@dataclass(frozen=True)
class Compared:
    """The whole comparison."""

    metric: str
    split: str
    """The split of the tests."""
    rows: tuple[ComparedSystem, ...]
    """By mean validation score, best first; test has no influence on the order."""
    pairs: tuple[PairwiseTest, ...]
    baselines: dict[str, dict[str, float]]
    """Baseline → split → score, if all systems have the same."""
    notes: tuple[str, ...]
    higher_is_better: bool = True
    differences: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Recipe key, rows or fingerprint of a split → system → value, for all that differ."""

    @property
    def one_seed(self) -> bool:
        """Whether every system has a single seed."""
        return all(len(row.seeds) == 1 for row in self.rows)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits with scores of any system."""
        return tuple(split for split in ("validation", "test") if any(split in row.scores for row in self.rows))

    def as_dict(self) -> dict[str, Any]:
        """The comparison as comparison.json has it."""
        return asdict(self)


def compare_study(study: StudyDir, split: str | None = None, metric: str | None = None) -> Compared:
    """Compare the settings of a study, with notes on the selection, failures and pruned trials."""
    selection = select(study)
    systems = of_study(study)
    scored = [system for system in systems if is_scored(system, "test")]
    reference = study.plan().reference
    # A study with a reference selects no setting.
    selected = None if reference and len(scored) == len(systems) else selection.setting.name
    notes = [selection.reason] if selected else []
    if len(scored) == len(systems) > 1:
        notes.append("test was scored for all settings: the best of them on test is not an unbiased result")
    elif scored:
        notes.append(f"test was scored for {' and '.join(system.name for system in scored)} only")
    failures = study.failures()
    if failures:
        notes.append(f"{_count(len(failures), 'run')} failed: the reasons are in failures.jsonl")
    pruned = sum(trial["state"] == "pruned" for trial in study.trials())
    if pruned:
        notes.append(
            f"{pruned} of {len(study.trials())} trials were ended early, for a validation score below the median"
        )
    notes += _stage_times(study)
    return compare_systems(systems, split, metric, selected=selected, notes=notes, reference=reference)


def compare_systems(
    systems: Sequence[System],
    split: str | None = None,
    metric: str | None = None,
    *,
    selected: str | None = None,
    notes: Sequence[str] = (),
    reference: Mapping[str, Any] | None = None,
) -> Compared:
    """Compare systems on the same rows.

    Args:
        systems: From ``collect``.
        split: validation or test; by default test if all were scored on it.
        metric: A score of their task (``evaluation.scores``); by default the one that selected the checkpoints.
        selected: Name of the system that a study selected.
        notes: Notes to add to those of the comparison.
        reference: An axis and its value with which all others are compared; the best on validation by default.

    Raises:
        HftuneError: Different data, or a split that was not scored.
    """
    if not systems:
        raise HftuneError("there is no complete run to compare", hint="finish the runs first")
    metric = metric or default_metric(systems)
    known = scores_of(systems)
    if metric not in known:
        raise HftuneError(
            f"these runs can't be compared by {metric!r}",
            hint=did_you_mean(metric, known) or f"use one of: {', '.join(known)}",
        )
    score = known[metric]
    recorded = systems[0].runs[0].read_metrics()
    if "labels" in recorded and not any(metric in one for one in recorded["splits"].values()):
        # a recorded score fits the labels
        from hftune.evaluation.metrics import refuse_unsuitable  # imports scikit-learn

        refuse_unsuitable([metric], recorded["labels"])
    split = split or common_split(systems)
    for system in systems:
        if not is_scored(system, split):
            raise HftuneError(
                f"{system.runs[0].path} was not scored on {split}",
                hint="compare on validation with --split validation; a study scores test for all with --test all",
            )
    refuse_different_data(systems, split)
    scores = {
        (system.name, name): item_scores(system, name, score)
        for system in systems
        for name in ("validation", "test")
        if is_scored(system, name)
    }
    _refuse_different_items(systems, scores, split)
    sign = -1 if score.higher_is_better else 1
    # Runs with do_eval false have no validation scores.
    ranking = "validation" if all(is_scored(system, "validation") for system in systems) else split
    rows = sorted(
        (_row(system, scores, metric, score, system.name == selected) for system in systems),
        key=lambda row: sign * row.scores[ranking].mean,
    )
    on_split = {name: values for (name, of), values in scores.items() if of == split}
    differing = differences(systems)
    return Compared(
        metric=metric,
        split=split,
        rows=tuple(rows),
        pairs=_tests(systems, on_split, [row.name for row in rows], score, reference or {}),
        baselines=_shared([row.baselines for row in rows]),
        notes=(
            *notes,
            *_other_items(systems, differing),
            *_notes(systems, rows, split),
            *_baseline_as_good(rows[0], split, metric, score),
        ),
        higher_is_better=score.higher_is_better,
        differences={
            key: dict(zip((system.name for system in systems), values, strict=True))
            for key, values in differing.items()
        },
    )


def _refuse_different_items(systems: Sequence[System], scores: dict[tuple[str, str], Scores], split: str) -> None:
    """Refuse predictions for other items: blocks of tokens depend on the tokenizer, and on the length of a block."""
    counts = {system.name: scores[system.name, split].shape[1] for system in systems}
    if len(set(counts.values())) > 1:
        (first, most), (second, other) = list({count: (name, count) for name, count in counts.items()}.values())[:2]
        raise HftuneError(
            f"{first} was scored on {most:,} examples of {split} and {second} on {other:,}",
            hint="compare runs whose text is divided alike: one tokenizer and block size, or one example per line",
        )


def _other_items(systems: Sequence[System], differing: Collection[str]) -> list[str]:
    """A note if settings differ that decide which tokens of a text are scored, such as the ratio of masked ones."""
    tasks = [read_recipe(system.runs[0]).task for system in systems]
    decisive = [key for key in differing if any(key in task.item_settings for task in tasks)]
    if not decisive:
        return []
    verb = "differs" if len(decisive) == 1 else "differ"
    return [
        f"not the same items: {', '.join(decisive)} {verb}, so other tokens are scored; a difference in the scores "
        "is not one between the models"
    ]


def _row(
    system: System, scores: dict[tuple[str, str], Scores], metric: str, score: Score, selected: bool
) -> ComparedSystem:
    metrics = [run.read_metrics() for run in system.runs]
    mine = {split: values for (name, split), values in scores.items() if name == system.name}
    return ComparedSystem(
        name=system.name,
        values=system.values,
        seeds=system.seeds,
        scores={split: estimate(values, score) for split, values in mine.items()},
        by_seed={split: tuple(score_of_seeds(values, score).tolist()) for split, values in mine.items()},
        trainable=metrics[0]["parameters"]["trainable"],
        total=metrics[0]["parameters"]["total"],
        seconds=fmean(training_seconds(entry) for entry in metrics),
        collapsed=sum(bool(entry["collapsed"]) for entry in metrics),
        baselines=_means([_baselines(entry, metric) for entry in metrics]),
        memory=max((one for entry in metrics if (one := entry["speed"].get("peak_memory_gb"))), default=None),
        formula=metrics[0]["parameters"].get("formula"),
        selected=selected,
    )


def _tests(
    systems: Sequence[System],
    scores: dict[str, Scores],
    names: Sequence[str],
    score: Score,
    reference: Mapping[str, Any],
) -> tuple[PairwiseTest, ...]:
    """Paired tests; names are in the order of the table."""
    if reference:
        chosen = list(_partners(systems, reference))
    elif len(names) <= MOST_FOR_ALL_PAIRS:
        chosen = [(second, first) for first, second in combinations(names, 2)]
    else:
        chosen = [(name, names[0]) for name in names[1:]]
    seeds = {system.name: system.seeds for system in systems}
    results = [
        compare(scores[first], scores[second], score, paired_seeds=seeds[first] == seeds[second])
        for first, second in chosen
    ]
    adjusted = holm([result.p_value for result in results]) if results else []
    look: dict[str, Any] = {
        "scale": score.scale,
        "unit": score.unit,
        "digits": score.digits,
        "higher_is_better": score.higher_is_better,
    }
    found = []
    for (first, second), result, p in zip(chosen, results, adjusted, strict=True):
        text = verdict(result, first, second, adjusted_p=p if len(chosen) > 1 else None, **look)
        found.append(PairwiseTest(first, second, result, p, text))
    return tuple(found)


def _partners(systems: Sequence[System], reference: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each system and the one with the reference value that is otherwise the same."""
    by_place = {tuple(system.values.items()): system.name for system in systems}
    for system in systems:
        partner = by_place.get(tuple({**system.values, **reference}.items()))
        if partner is not None and partner != system.name:
            yield system.name, partner


def _baselines(metrics: Mapping[str, Any], metric: str) -> dict[str, dict[str, float]]:
    """The baselines of a run: name → split → score."""
    return {
        name: {split: scores[metric] for split, scores in splits.items() if metric in scores}
        for name, splits in metrics.get("baselines", {}).items()
    }


def _means(every: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The baselines of a system: those that all its seeds have, averaged if seeds have other training rows."""
    found: dict[str, dict[str, float]] = {}
    for name, splits in every[0].items():
        for split in splits:
            values = [scores for one in every if (scores := one.get(name, {}).get(split)) is not None]
            if len(values) == len(every):
                found.setdefault(name, {})[split] = values[0] if len(set(values)) == 1 else fmean(values)
    return found


def _shared(every: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The baseline scores that are the same for all; they differ with the training rows."""
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
    plan, times = study.plan(), []
    for name in plan.depends_on:
        runs = [run for seed in plan.seeds if (run := study.stage_run(name, seed)).complete]
        if runs:
            times.append(f"{name}, {duration(fmean(training_seconds(run.read_metrics()) for run in runs))} per seed")
    return [f"times leave out the runs that others start from: {'; '.join(times)}"] if times else []


def _notes(systems: Sequence[System], rows: Sequence[ComparedSystem], split: str) -> list[str]:
    notes = []
    fewest = min(len(system.runs) for system in systems)
    if fewest < ENOUGH_SEEDS:
        notes.append(
            f"{'every' if all(len(one.runs) == fewest for one in systems) else 'some'} setting has "
            f"{_count(fewest, 'seed')}: too few to compare settings, use {ENOUGH_SEEDS} or more"
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


def _baseline_as_good(best: ComparedSystem, split: str, metric: str, score: Score) -> list[str]:
    """A note if a baseline does as well as the best setting, which then has learned nothing worth a comparison."""
    sign = 1 if score.higher_is_better else -1
    mean = best.scores[split].mean
    found = {name: splits[split] for name, splits in best.baselines.items() if split in splits}
    better = [f"{baseline_name(name)} {value:.4f}" for name, value in found.items() if sign * value >= sign * mean]
    if not better:
        return []
    shown = f"on {split}, {score_name(metric)} is {mean:.4f}; {', '.join(better)}"
    return [f"a baseline does as well as the best setting, or better: {shown}"]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
