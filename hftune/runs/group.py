"""Several seeds of one recipe: ``runs/<name>/seed-1``, ``seed-2`` … and group.json with mean ± std.

Called by ``hftune.pipeline`` after each seed, and by the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hftune.errors import HftuneError
from hftune.files import refuse_links, write_json
from hftune.runs.directory import SEED_PREFIX, RunDir, runs_in

GROUP = "group.json"
SEEDS = "a group of seeds"


def seed_path(group: Path, seed: int) -> Path:
    """Where the run of one seed lies inside its group."""
    return group / f"{SEED_PREFIX}{seed}"


def seed_runs(group: Path) -> list[RunDir]:
    """The runs of a group in order of their seeds, finished or not; links are refused as inside a run."""
    found = [run for run in runs_in(group) if run.path.name.startswith(SEED_PREFIX)]
    if found:
        refuse_links(group, SEEDS, depth=1)
    return [RunDir.open(run.path) for run in found]


def group_summary(runs: Sequence[RunDir]) -> dict[str, Any]:
    """Mean and standard deviation of every score over runs that differ in nothing but their seed.

    Args:
        runs: Finished runs of one recipe.

    Returns:
        ``{"task", "seeds", "runs", "splits": {"validation": {"accuracy": {"mean", "std", "values"}}}, "baselines",
        "seconds", "collapsed": [seeds], "verified"}``. The standard deviation is that of a sample, and null
        for one run.

    Raises:
        HftuneError: There is no run, one is not finished, or they were not made on the same data.
    """
    if not runs:
        raise HftuneError("a group needs at least one finished run, got none", hint="train with --seeds 1,2,3")
    metrics = [run.read_metrics() for run in runs]
    _demand_same_data(runs, metrics)
    _demand_same_recipe(runs)
    first = metrics[0]
    return {
        "task": first["task"],
        "seeds": [one["seed"] for one in metrics],
        "runs": [run.path.name for run in runs],
        "splits": {split: _spread([one["splits"].get(split, {}) for one in metrics]) for split in first["splits"]},
        "baselines": first.get("baselines", {}),
        "seconds": _spread([one.get("speed", {}) for one in metrics]).get("train_seconds"),
        "collapsed": [one["seed"] for one in metrics if one.get("collapsed")],
        "verified": all(one.get("verified") is True for one in metrics),
    }


def write_group(group: Path) -> dict[str, Any]:
    """Summarize the finished runs of a group into its group.json, and return the summary."""
    summary = group_summary([run for run in seed_runs(group) if run.complete])
    write_json(group / GROUP, summary)
    return summary


def _spread(scores: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean, standard deviation and values of each number that every run has."""
    names = [name for name, value in scores[0].items() if _is_number(value)]
    spread = {}
    for name in names:
        values = [one.get(name) for one in scores]
        numbers = [float(value) for value in values if value is not None and _is_number(value)]
        if len(numbers) == len(scores):
            spread[name] = {
                "mean": fmean(numbers),
                "std": stdev(numbers) if len(numbers) > 1 else None,
                "values": numbers,
            }
    return spread


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _demand_same_data(runs: Sequence[RunDir], metrics: Sequence[Mapping[str, Any]]) -> None:
    prints = [one.get("data", {}).get("fingerprints", {}) for one in metrics]
    for run, found in zip(runs, prints, strict=True):
        if found != prints[0]:
            differing = sorted(split for split in {*found, *prints[0]} if found.get(split) != prints[0].get(split))
            raise HftuneError(
                f"{runs[0].path} and {run.path} were made on different data: {', '.join(differing)} differs",
                hint="a mean over seeds needs the same rows: keep data and data.split_seed the same",
            )


def _demand_same_recipe(runs: Sequence[RunDir]) -> None:
    def but_for_the_seed(run: RunDir) -> str:
        recipe = run.read_recipe()
        return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": 0})}).model_dump_json()

    for run in runs[1:]:
        if but_for_the_seed(run) != but_for_the_seed(runs[0]):
            raise HftuneError(
                f"{runs[0].path} and {run.path} were made with different recipes",
                hint="a mean over seeds needs one recipe; compare different ones with `hftune compare`",
            )
