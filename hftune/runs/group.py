"""Several seeds of one recipe: ``runs/<name>/seed-1``, ``seed-2`` … and group.json with mean ± std.

Also what ``overwrite`` does with a run or a group: it is renamed, never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hftune.config import document
from hftune.errors import HftuneError
from hftune.files import refuse_links, write_json
from hftune.runs.directory import RUN, SEED_PREFIX, RunDir, free_name, in_use, is_run, runs_in

GROUP = "group.json"
SEEDS = "a group of seeds"


def seed_path(group: Path, seed: int) -> Path:
    """The path of one seed inside its group."""
    return group / f"{SEED_PREFIX}{seed}"


def seed_runs(group: Path) -> list[RunDir]:
    """The runs of a group in the order of their seeds, finished or not; links are refused as inside a run."""
    found = [run for run in runs_in(group) if run.path.name.startswith(SEED_PREFIX)]
    if found:
        refuse_links(group, SEEDS, depth=1)
    return [RunDir.open(run.path) for run in found]


def refuse_used_group(group: Path, resume: bool) -> None:
    """Refuse a path at which there is something else than a group to be resumed."""
    if in_use(group) and (is_run(group) or not resume):
        raise HftuneError(
            f"{group} is in use: it holds {'a run' if is_run(group) else 'something'} already",
            hint=f"use a free name: --output {free_name(group)}; a group that was begun is resumed with --resume",
        )


def group_summary(runs: Sequence[RunDir]) -> dict[str, Any]:
    """Mean and standard deviation of every score over seeds.

    Args:
        runs: Finished runs that differ only in the seed.

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
    # Mean, standard deviation and values of each number that every run has.
    spread = {}
    for name in scores[0]:
        values = [float(one[name]) for one in scores if _is_number(one.get(name))]
        if len(values) == len(scores):
            std = stdev(values) if len(values) > 1 else None
            spread[name] = {"mean": fmean(values), "std": std, "values": values}
    return spread


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _demand_same_data(runs: Sequence[RunDir], metrics: Sequence[Mapping[str, Any]]) -> None:
    # By content and not by path: a file can change between two seeds.
    prints = [one.get("data", {}).get("fingerprints", {}) for one in metrics]
    for run, found in zip(runs, prints, strict=True):
        if found != prints[0]:
            differing = sorted(split for split in {*found, *prints[0]} if found.get(split) != prints[0].get(split))
            raise HftuneError(
                f"{runs[0].path} and {run.path} were trained on different data: {', '.join(differing)} differs",
                hint="a mean over seeds needs the same rows: keep data and data.split_seed the same",
            )


def _demand_same_recipe(runs: Sequence[RunDir]) -> None:
    def but_for_the_seed(run: RunDir) -> dict[str, Any]:
        settings = run.read_settings()
        return {**settings, "train": {**settings.get("train", {}), "seed": None}}

    for run in runs[1:]:
        if but_for_the_seed(run) != but_for_the_seed(runs[0]):
            raise HftuneError(
                f"{runs[0].path} and {run.path} were trained with different recipes",
                hint="a mean over seeds needs one recipe; compare different ones with `hftune compare`",
            )


def is_replaceable(path: Path) -> bool:
    """Whether this is a run or a group of seeds: nothing else is ever moved."""
    return is_run(path) or bool(seed_runs(path))


def move_aside(path: Path) -> Path:
    """Rename a run or a group to a free name next to it.

    Returns:
        Its new path.

    Raises:
        HftuneError: A process is using it, or it can't be renamed.
    """
    refuse_links(path, RUN, depth=2)
    for run in seed_runs(path) or [RunDir(path)]:
        with run.locked():  # refused while a process trains there: its files would still change under the new name
            pass
    free = free_name(path)
    try:
        path.rename(free)
    except OSError as error:
        raise HftuneError(
            f"can't move {path} aside to {free}: {error.strerror}", hint="take another output directory"
        ) from error
    return free


# Settings that can name a file of the run that was moved.
MOVED = (("data", "dataset_name"), ("model", "model_name_or_path"))


def update_moved_paths(moved: Path, path: Path) -> None:
    """Update the paths of data and model in the recipes of a run or group that was moved."""
    for run in seed_runs(moved) or [RunDir(moved)]:
        try:
            settings = run.read_settings()  # finds the data
        except HftuneError:
            continue  # an error here must not end the new run
        for section, key in MOVED:
            if isinstance(name := settings.get(section, {}).get(key), str):
                settings[section][key] = moved_path(name, path, moved)
        if settings != document.read(run.recipe)[0]:
            run.write_settings(settings)


def moved_path(name: str, path: Path, moved: Path) -> str:
    """The new path of something inside a folder that was moved; any other name unchanged."""
    given = Path(name).expanduser()
    try:
        inside = given.resolve().relative_to(path.resolve())
    except (OSError, RuntimeError, ValueError):  # elsewhere, or no path at all
        return name
    return str(moved / inside)
