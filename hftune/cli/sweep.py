"""``hftune sweep``: a grid or a hyperparameter search, each setting with several seeds, as one study.

hftune sweep reviews-lr
hftune sweep --recipe classify/reviews --grid train.learning_rate=3e-4,1e-3 --seeds 1,2,3
hftune sweep --recipe classify/reviews --grid train.learning_rate=1e-4..1e-2 --search 30
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hftune.cli.commands import refuse_several
from hftune.cli.options import (
    DO,
    RESUME_FROM,
    RUN,
    DryRun,
    Given,
    Json,
    RecipeName,
    Set,
    option,
    settings_command,
)
from hftune.cli.terminal import RunProgress, note, out, say, show_json, table, visible
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.studies.plan import Plan

CLUSTER_JOBS = 32
"""Default number of jobs in the queue."""

Study = Annotated[
    str | None,
    typer.Argument(metavar="[STUDY]", help="A shipped study (hftune recipes ls) or a YAML file.", show_default=False),
]
_GRID = (
    "A setting and its values, or some of a study's named settings; can be repeated. With --search also KEY=LOW..HIGH."
)
_TEST = "Score test for the setting that validation selects (the default), or for all."
_LAUNCHER = "Run here, or each run as a job of a Slurm cluster."
_SLURM = "partition, time (minutes), gpus, mem (GB), cpus, or a name of sbatch."
Jobs = Annotated[int | None, option(RUN, "N", "Runs at once; they share the threads.", "--jobs", "-j", min=1)]
Grid = Annotated[list[str] | None, option(RUN, "KEY=A,B", _GRID, "--grid")]
Seeds = Annotated[str | None, option(RUN, "N,N,…", "Seeds of each setting: 1,2,3 (the default) or 1-5.", "--seeds")]
_OUTPUT = "The study's folder; runs/<study> by default."
Output = Annotated[Path | None, option(RUN, "FOLDER", _OUTPUT, "--output", "--output-dir", "-o")]
Test = Annotated[Literal["selected", "all"] | None, option(RUN, None, _TEST, "--test")]
_SEARCH = "Sample N settings with Optuna instead of running the whole grid."
Search = Annotated[int | None, option(RUN, "N", _SEARCH, "--search", min=1)]
Launcher = Annotated[Literal["local", "slurm"] | None, option(RUN, None, _LAUNCHER, "--launcher")]
Slurm = Annotated[list[str] | None, option(RUN, "KEY=VALUE", _SLURM, "--slurm")]


def _task_of_study(values: Mapping[str, Any], given: Given) -> str | None:
    """The kind of task of the study or the recipe; refuses flags of Hugging Face's scripts that are for one run."""
    from hftune.studies.request import study_task

    if not all(given.get(name, True) in (True, "True", "true") for name in DO):
        raise HftuneError(
            "a study trains and scores every setting", hint="leave --do-train, --do-eval, --do-predict out"
        )
    if given.get(RESUME_FROM, False) not in (False, "False", "false"):
        raise HftuneError(
            "--resume-from-checkpoint names one run; a study has many",
            hint="leave it out: the same command continues a study that was stopped",
        )
    return study_task(values["study"], values["recipe"])


def run_study(
    settings: Mapping[str, Any],
    study: Study = None,
    recipe: RecipeName = None,
    grid: Grid = None,
    sets: Set = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    output: Output = None,
    test: Test = None,
    search: Search = None,
    launcher: Launcher = None,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train a grid or a search of settings with several seeds, and compare them: one study.

    Start the same command again to continue a study that was stopped: complete runs are not trained again.
    """
    refuse_several("sweep")
    on_cluster = launcher == "slurm"
    if slurm and not on_cluster:
        raise HftuneError("--slurm needs --launcher slurm", hint="add it, or leave --slurm out")
    if dry_run and on_cluster:
        raise HftuneError("--dry-run tries settings on this machine", hint="leave --launcher slurm out")
    plan, name = make_plan(study, recipe, grid, settings, sets, seeds, test, search)
    folder = output or Path("runs") / name
    if dry_run:
        _estimate(plan, folder, jobs or 1, as_json)
    else:
        sbatch = (slurm or []) if on_cluster else None
        _train(plan, folder, jobs or (CLUSTER_JOBS if on_cluster else 1), sbatch, as_json)


sweep = settings_command(task=_task_of_study)(run_study)


def _train(plan: Plan, folder: Path, jobs: int, sbatch: Sequence[str] | None, as_json: bool) -> None:
    """Train what is not complete, here or with options of sbatch on a cluster, and print the comparison."""
    from hftune.cli.live_table import LiveTable
    from hftune.cli.tables import print_comparison
    from hftune.studies.executors import local_executors, slurm_executors
    from hftune.studies.report import PAGE, write_study
    from hftune.studies.sweep import sweep as train_study

    note(f"study {folder}: the same command continues it; complete runs are kept", style="dim")
    with LiveTable(jobs) as table:
        create = local_executors if sbatch is None else slurm_executors(sbatch)
        outcome = train_study(plan, folder, jobs=jobs, create=create, callback=table)
    compared = write_study(outcome.study)
    if as_json:
        selected = outcome.selection
        chosen = {"setting": selected.setting.name, "metric": selected.metric, "validation": selected.mean}
        facts = {"study": str(folder), "selected": chosen, "failures": outcome.failures}
        show_json({**facts, **compared.as_dict()})
    else:
        print_comparison(compared)
        say(f"report  {folder / PAGE}")
    for failure in outcome.failures:
        note(f"failed: {failure['setting']} seed {failure['seed']}: {failure['reason']}", style="red")
        if failure["hint"]:
            note(f"  → {failure['hint']}")
    if outcome.failures:
        raise typer.Exit(1)


def make_plan(
    study: str | None,
    recipe: str | None,
    grid: list[str] | None,
    settings: Mapping[str, Any],
    sets: list[str] | None,
    seeds: str | None,
    test: str | None,
    search: int | None,
) -> tuple[Plan, str]:
    """The plan and the name of the study; flags override the values of a file."""
    from hftune.config.document import RecipeError
    from hftune.config.values import parse_sets
    from hftune.pipeline.request import list_seeds
    from hftune.studies.request import parse_grid, plan_study

    pairs, problems = parse_sets(sets or ())
    if problems:
        raise RecipeError("--set", problems)
    return plan_study(
        study,
        recipe=recipe,
        grid=parse_grid(grid) if grid else None,
        settings={**settings, **dict(pairs)},
        seeds=list_seeds(seeds) or None,
        test=test,
        search=search,
    )


def _estimate(plan: Plan, folder: Path, jobs: int, as_json: bool) -> None:
    """Print the estimated time and memory of a study."""
    from hftune.progress import quiet_libraries
    from hftune.studies.estimate import costs

    quiet_libraries()
    with RunProgress() as progress:
        found = list(costs(plan, folder, jobs, progress))
    minutes = sum(cost.minutes for cost in found) / jobs
    if as_json:
        show_json({"settings": [cost.as_dict() for cost in found], "jobs": jobs, "minutes": round(minutes, 1)})
        return
    columns = ("setting", "runs", "complete", "steps", "minutes each", "memory")
    shown = table(*columns)
    for cost in found:
        each = cost.each
        facts = each and (f"{each.steps:,}", f"{each.estimated_minutes:.1f}", f"{each.estimated_memory_gb:.2f} GB")
        shown.add_row(visible(cost.setting), f"{cost.runs:g}", str(cost.complete), *(facts or ()))
    out().print(shown)
    runs = sum(cost.runs for cost in found)
    say(f"{runs:g} runs, {jobs} at once: about {minutes:,.0f} minutes, without loading, scoring and verifying")
    say("dry run: nothing was trained, nothing was written")
