"""``hftune lab``: what attention can and can't do, as experiments that run.

hftune lab ls
hftune lab run copy --set keys=8
hftune lab run all --output lab
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hftune.cli import terminal
from hftune.cli.options import Json
from hftune.errors import HftuneError, RunFailed

if TYPE_CHECKING:
    from hftune.lab.result import Result

DEFAULT_FOLDER = Path("lab")

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Run experiments on what attention can and can't do."
)

Name = Annotated[str, typer.Argument(metavar="NAME|all", help="An experiment (hftune lab ls), or all.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="A setting, as keys=8, or with all copy.keys=8; may be given often."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="What every draw depends on.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Where lab.html, lab.json and the figures go; with all, ./lab by default.",
    ),
]


@app.command("ls")
def list_experiments(as_json: Json = False) -> None:
    """List the experiments with their claims; --json adds every setting with its default and meaning."""
    from rich.table import Table

    from hftune.lab import EXPERIMENTS

    if as_json:
        terminal.show_json(
            [
                {
                    "name": name,
                    "claim": experiment.claim,
                    "questions": list(experiment.questions),
                    "settings": {
                        key: {"default": value, "meaning": experiment.settings.model_fields[key].description}
                        for key, value in experiment.settings().model_dump(mode="json").items()
                    },
                }
                for name, experiment in EXPERIMENTS.items()
            ]
        )
        return
    table = Table("experiment", "claim", box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, experiment.claim)
    terminal.out().print(table)


@app.command("run")
def run_experiments(
    name: Name, sets: Sets = None, seed: Seed = 0, output: Output = None, as_json: Json = False
) -> None:
    """Run one experiment or all; ends with 1 when a claim does not hold. With all, or --output, a page is written."""
    from hftune.lab.choose import ALL, choose
    from hftune.lab.run import run, write
    from hftune.quiet import quiet_libraries

    folder = output if output is not None or name != ALL else DEFAULT_FOLDER
    if folder is not None and folder.exists() and not folder.is_dir():
        raise HftuneError(f"--output {folder} is a file", hint="Name a folder; lab.html will lie in it.")
    chosen = choose(name, sets or [])
    quiet_libraries()
    results = []
    for experiment, settings in chosen:
        with terminal.err().status(f"{experiment.name} …"):
            results.append(run(experiment, settings, seed))
        if not as_json:
            _show(results[-1], whole=len(chosen) == 1)
    page = None if folder is None else write(results, folder)
    if as_json:
        shown = [result.as_dict() for result in results]
        terminal.show_json(shown[0] if name != ALL else {"page": str(page), "results": shown})
    elif page is not None:
        terminal.say(str(page))
    _fail_where_broken(results)


def _show(result: Result, *, whole: bool) -> None:
    """A line for each experiment of many; all its numbers where it is the only one."""
    verdict = ("holds", "green") if result.holds else ("does not hold", "bold red")
    name = result.experiment.name
    if not whole:
        terminal.say(f"{name:<16} {verdict[0]:<14} {result.seconds:6.1f} s", style="" if result.holds else verdict[1])
        return
    from rich.table import Table

    terminal.say(result.experiment.claim, style="bold")
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in result.experiment.rows(result.numbers):
        table.add_row(*map(terminal.visible, row))
    terminal.out().print(table)
    terminal.say(f"{name}: {verdict[0]} ({result.seconds:.1f} s)", style=verdict[1])


def _fail_where_broken(results: list[Result]) -> None:
    broken = [result for result in results if not result.holds]
    if not broken:
        return
    lines = [f"  {result.experiment.name}: {statement}" for result in broken for statement in result.violated]
    count = "1 claim does" if len(broken) == 1 else f"{len(broken)} claims do"
    raise RunFailed(
        f"{count} not hold; the numbers contradict:\n" + "\n".join(lines),
        hint="Where settings were changed, the claim may need others; with the defaults this is a fault.",
    )
