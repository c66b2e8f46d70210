"""``hftune lab``: what attention can and can't do, as experiments that run.

hftune lab ls
hftune lab run copy --set keys=8
hftune lab run all --output lab
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli import terminal
from hftune.cli.options import Json, command_group
from hftune.errors import HftuneError, RunFailed

if TYPE_CHECKING:
    from hftune.lab.run import LabResult

DEFAULT_FOLDER = Path("lab")

app = command_group("Run experiments on what attention can and can't do.")

Name = Annotated[str, typer.Argument(metavar="NAME|all", help="An experiment (hftune lab ls), or all.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="A setting, such as keys=8, or copy.keys=8 with all; can be repeated."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="Folder for lab.html, lab.json and the figures; ./lab by default with all.",
    ),
]


@app.command("ls")
def list_experiments(as_json: Json = False) -> None:
    """List the experiments with their claims; --json adds every setting with its default and meaning."""
    from hftune.lab import claims

    if as_json:
        terminal.show_json(_described())
        return
    table = terminal.table("experiment", "claim")
    for row in claims().items():
        table.add_row(*row)
    terminal.out().print(table)


def _described() -> list[dict[str, Any]]:
    """The claims and settings of the experiments; importing them takes a moment."""
    from hftune.lab.run import EXPERIMENTS

    return [
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


@app.command("run")
def run_experiments(
    name: Name, sets: Sets = None, seed: Seed = 0, output: Output = None, as_json: Json = False
) -> None:
    """Run one experiment or all; exit code 1 if a claim does not hold. With all or --output, a page is written."""
    from hftune.lab.run import ALL, run, select, write
    from hftune.progress import quiet_libraries

    folder = output if output is not None or name != ALL else DEFAULT_FOLDER
    if folder is not None and folder.exists() and not folder.is_dir():
        raise HftuneError(f"--output {folder} is a file", hint="name a folder for lab.html")
    selected = select(name, sets or [])
    quiet_libraries()
    results = []
    for experiment, settings in selected:
        with terminal.err().status(f"{experiment.name} …"):
            results.append(run(experiment, settings, seed))
        if not as_json:
            _show(results[-1], whole=len(selected) == 1)
    page = None if folder is None else write(results, folder)
    if as_json:
        shown = [result.as_dict() for result in results]
        terminal.show_json(shown[0] if name != ALL else {"page": str(page), "results": shown})
    elif page is not None:
        terminal.say(str(page))
    _fail_where_broken(results)


def _show(result: LabResult, *, whole: bool) -> None:
    """One line per experiment; all its numbers if it is the only one."""
    verdict = ("holds", "green") if result.holds else ("does not hold", "bold red")
    name = result.experiment.name
    if not whole:
        terminal.say(f"{name:<16} {verdict[0]:<14} {result.seconds:6.1f} s", style="" if result.holds else verdict[1])
        return
    terminal.say(result.experiment.claim, style="bold")
    table = terminal.table(header=False)
    for row in result.experiment.rows(result.numbers):
        table.add_row(*map(terminal.visible, row))
    terminal.out().print(table)
    terminal.say(f"{name}: {verdict[0]} ({result.seconds:.1f} s)", style=verdict[1])


def _fail_where_broken(results: list[LabResult]) -> None:
    broken = [result for result in results if not result.holds]
    if not broken:
        return
    lines = [f"  {result.experiment.name}: {statement}" for result in broken for statement in result.violated]
    count = "1 claim does" if len(broken) == 1 else f"{len(broken)} claims do"
    raise RunFailed(
        f"{count} not hold; the numbers contradict:\n" + "\n".join(lines),
        hint="changed settings can break a claim; with the defaults this is a bug",
    )
