"""``hftune sweep``: a grid or a search, times seeds, as one study.

hftune sweep reviews-lr
hftune sweep --recipe classify/reviews --grid train.learning_rate=3e-4,1e-3 --seeds 1,2,3
hftune sweep --recipe classify/reviews --grid train.learning_rate=1e-4..1e-2 --search 30
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hftune.cli import options
from hftune.cli.flags import DO, Given, resolve_settings, settings_command
from hftune.cli.processes import refuse_several
from hftune.cli.seeds import seed_list
from hftune.cli.terminal import note, say, show_json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.studies.plan import Plan
    from hftune.studies.sweep import Hire

DEPENDS_ON = "depends_on."
"""What keys of ``--set`` begin with that are for the runs that others start from."""
LOCAL = "local"
CLUSTER_JOBS = 32
"""Jobs in the queue at once where --jobs was not given."""

Study = Annotated[
    str | None,
    typer.Argument(metavar="[STUDY]", help="A shipped study (hftune recipes ls) or a YAML file.", show_default=False),
]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="KEY=A,B",
        help="A setting and its values, or which of a study's named settings; can be repeated. "
        "With --search also KEY=LOW..HIGH.",
    ),
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", metavar="N,N,…", help="Seeds of each setting: 1,2,3 (the default) or 1-5.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Runs at once; threads are shared out.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "--output-dir", "-o", metavar="FOLDER", help="The study's folder; runs/<study> by default."
    ),
]
Test = Annotated[
    Literal["selected", "all"] | None,
    typer.Option("--test", help="Score test for the setting that validation selects (the default), or for all."),
]
SearchFor = Annotated[
    int | None, typer.Option("--search", min=1, metavar="N", help="Draw N settings with Optuna, not the whole grid.")
]
Launcher = Annotated[
    Literal["local", "slurm"] | None,
    typer.Option("--launcher", help="Run here, or each run as a job of a Slurm cluster."),
]
Slurm = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="partition, time (minutes), gpus, mem (GB), cpus, or sbatch's."),
]


@settings_command(
    {
        "study": Study,
        "recipe": options.RecipeName,
        "grid": Grid,
        "sets": options.Set,
        "seeds": Seeds,
        "jobs": Jobs,
        "output": Output,
        "test": Test,
        "search": SearchFor,
        "launcher": Launcher,
        "slurm": Slurm,
        "dry_run": options.DryRun,
        "as_json": options.Json,
    },
    takes_arguments=True,
)
def sweep(values: dict[str, Any], given: Given) -> None:
    """Train a grid or a search of settings with several seeds, and compare them: one study.

    Start the same command again to continue a study that was stopped: only what is not complete is trained.
    """
    if not all(given.get(name, True) in (True, "True", "true") for name in DO):
        raise HftuneError(
            "a study trains and scores every setting", hint="leave --do-train, --do-eval, --do-predict out"
        )
    settings = {name: value for name, value in given.items() if name not in DO}
    carry_out(**values, settings=resolve_settings(settings, _task_of(values["study"], values["recipe"])))


def _task_of(study: str | None, recipe: str | None) -> str | None:
    """The kind of task that a study is about: its recipe's, else the default one; None where it varies."""
    from hftune.config import load_recipe
    from hftune.config.document import DocumentError, read
    from hftune.config.kinds import default_kind
    from hftune.config.shipped import find_study

    if recipe is None and study is not None:
        try:
            stated = read(find_study(study))[0]
        except DocumentError:
            return None  # reported when the plan is made
        recipe = stated.get("recipe") if isinstance(stated, dict) else None
    if isinstance(recipe, str):
        return load_recipe(recipe).task.kind
    return None if study is not None else default_kind("task")


def carry_out(
    *,
    study: str | None = None,
    recipe: str | None = None,
    grid: list[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    sets: list[str] | None = None,
    seeds: str | None = None,
    jobs: int | None = None,
    output: Path | None = None,
    test: str | None = None,
    search: int | None = None,
    launcher: str | None = None,
    slurm: list[str] | None = None,
    dry_run: bool = False,
    as_json: bool = False,
) -> None:
    """Run a study from flags, and print the comparison; ``hftune boolq --method all`` does so too."""
    refuse_several("sweep")
    launcher = launcher or LOCAL
    if slurm and launcher != "slurm":
        raise HftuneError("--slurm needs --launcher slurm", hint="add it, or leave --slurm out")
    plan, name = _plan(study, recipe, grid, settings or {}, sets, seeds, test, search)
    _refuse_unasked(plan, grid, settings or {}, sets)
    folder = output or Path("runs") / name
    if dry_run:
        if launcher == "slurm":
            raise HftuneError("--dry-run tries settings out on this machine", hint="leave --launcher slurm out")
        _try_out(plan, folder, jobs or 1, as_json)
        return
    hire = _hire(launcher, slurm)
    count = jobs or (CLUSTER_JOBS if launcher == "slurm" else 1)

    from hftune.cli.board import Board
    from hftune.cli.comparison import print_comparison
    from hftune.studies.results import PAGE, write_study
    from hftune.studies.sweep import sweep as run_study

    note(f"study {folder}: complete runs are kept, and the same command continues it", style="dim")
    with Board(count) as board:
        outcome = run_study(plan, folder, jobs=count, hire=hire, watcher=board)
    compared = write_study(outcome.study)
    if as_json:
        selected = outcome.selection
        show_json(
            {
                "study": str(folder),
                "selected": {"setting": selected.setting.name, "metric": selected.metric, "validation": selected.mean},
                "failures": outcome.failures,
                **compared.as_dict(),
            }
        )
    else:
        print_comparison(compared)
        say(f"report  {folder / PAGE}")
    if outcome.failures:
        for failure in outcome.failures:
            note(f"failed: {failure['setting']} seed {failure['seed']}: {failure['reason']}", style="red")
            if failure["hint"]:
                note(f"  → {failure['hint']}")
        raise typer.Exit(1)


def _try_out(plan: Plan, folder: Path, jobs: int, as_json: bool) -> None:
    """Say what a study would cost; nothing is trained."""
    from rich.table import Table

    from hftune.cli.terminal import out, visible
    from hftune.cli.watch import Watcher
    from hftune.quiet import quiet_libraries
    from hftune.studies.estimate import costs

    quiet_libraries()
    with Watcher() as listener:
        found = list(costs(plan, folder, jobs, listener))
    minutes = sum(cost.minutes for cost in found) / jobs
    if as_json:
        show_json({"settings": [cost.as_dict() for cost in found], "jobs": jobs, "minutes": round(minutes, 1)})
        return
    columns = ("setting", "runs", "complete", "updates", "minutes each", "memory")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for cost in found:
        each = cost.each
        told = each and (f"{each.updates:,}", f"{each.estimated_minutes:.1f}", f"{each.estimated_memory_gb:.2f} GB")
        table.add_row(visible(cost.setting), f"{cost.runs:g}", str(cost.complete), *(told or ()))
    out().print(table)
    runs = sum(cost.runs for cost in found)
    say(f"{runs:g} runs, {jobs} at once: about {minutes:,.0f} minutes; loading, scoring and verifying each come on top")
    say("dry run: nothing was trained, nothing was written")


def _plan(
    study: str | None,
    recipe: str | None,
    grid: list[str] | None,
    inherit: Mapping[str, Any],
    sets: list[str] | None,
    seeds: str | None,
    test: str | None,
    search: int | None,
) -> tuple[Plan, str]:
    """The plan, and the name of the study; flags come on top of what a file states."""
    from hftune.config.document import DocumentError
    from hftune.config.overrides import parse_sets
    from hftune.config.problems import RecipeError
    from hftune.config.shipped import find_study
    from hftune.files import file_name
    from hftune.runs.naming import safe
    from hftune.studies.plan import make_plan, parse_grid, read_values

    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    if study is not None:
        try:
            path = find_study(study)
        except DocumentError as error:
            raise RecipeError(study, [error.problem]) from error
        values, lines = read_values(path)
    elif not grid:
        raise HftuneError(
            "there is nothing to vary", hint="name a study, or say what: --grid train.learning_rate=3e-4,1e-3"
        )
    pairs, problems = parse_sets(sets or ())
    if problems:
        raise RecipeError("--set", problems)
    if grid:
        stated = _mapping(values, "grid")
        task = _task_of(study, recipe)
        axes = {_dotted(key, stated, task): axis for key, axis in parse_grid(grid).items()}
        values["grid"] = {**stated, **{key: _chosen(key, axis, stated) for key, axis in axes.items()}}
    own = {key: value for key, value in pairs if not key.startswith(DEPENDS_ON)}
    if own or inherit:
        values["set"] = {**_mapping(values, "set"), **inherit, **own}
    values |= _before(values, [pair for pair in pairs if pair[0] not in own])
    given = {"recipe": recipe, "seeds": seed_list(seeds) or None, "test": test, "search": search}
    values |= {key: value for key, value in given.items() if value is not None}
    plan = make_plan(values, study or "the study", lines)
    if study is not None:
        return plan, file_name(path.resolve().parent.name if path.name == "study.yaml" else path.stem, kept=" =+-")
    keys = "-".join(key.rpartition(".")[2] for key in plan.grid)
    start = (recipe or "defaults").rstrip("/").rpartition("/")[2].removesuffix(".yaml")
    return plan, safe(f"study-{start}-{keys}")


def _before(values: dict[str, Any], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """``depends_on.mlm.train.max_steps=9`` is a setting of the runs that others start from."""
    stages = dict(_mapping(values, "depends_on"))
    for key, value in pairs:
        _, name, setting = [*key.split(".", 2), ""][:3]
        if not isinstance(stages.get(name), dict) or not setting:
            known = ", ".join(stages) or "none"
            raise HftuneError(
                f"--set {key}: the study depends on no runs {name!r}; it depends on: {known}",
                hint="write --set depends_on.NAME.train.max_steps=100",
            )
        stages[name] = {**stages[name], "set": {**_mapping(stages[name], "set"), setting: value}}
    return {"depends_on": stages} if pairs else {}


def _dotted(key: str, stated: Mapping[str, Any], task: str | None) -> str:
    """The setting that a name alone stands for; an axis of the study keeps its name."""
    from hftune.config.kinds import spellings

    return key if key in stated else spellings(task).get(key.replace("-", "_"), key)


def _chosen(key: str, axis: Any, stated: Mapping[str, Any]) -> Any:
    """What was typed for an axis: its values, or names of the settings that the study has under it."""
    named = stated.get(key)
    if (
        not isinstance(named, dict)
        or not isinstance(axis, list)
        or not all(isinstance(one, dict) for one in named.values())
    ):
        return axis
    for name in axis:
        if name not in named:
            raise HftuneError(
                f"--grid {key}: the study has no {key} {name!r}", hint=f"it has: {', '.join(map(str, named))}"
            )
    return {name: named[name] for name in axis}


def _refuse_unasked(plan: Plan, grid: list[str] | None, settings: Mapping[str, Any], sets: list[str] | None) -> None:
    """A study file may come from anybody: what it trusts must have been typed."""
    from hftune.config.consent import refuse_unasked, typed_keys
    from hftune.config.overrides import parse_sets
    from hftune.studies.plan import parse_grid, recipes_of

    typed = typed_keys([*parse_grid(grid or []).items(), *settings.items(), *parse_sets(sets or ())[0]])
    for recipe in recipes_of(plan):
        refuse_unasked(recipe, typed)


def _mapping(values: dict[str, Any], key: str) -> dict[str, Any]:
    """What a file states there; where that is no mapping, the check of the plan says so."""
    stated = values.get(key)
    return stated if isinstance(stated, dict) else {}


def _hire(launcher: str, parameters: list[str] | None) -> Hire | None:
    if launcher == "local":
        return None
    from hftune.studies.slurm import slurm_crew

    return slurm_crew(parameters or [])
