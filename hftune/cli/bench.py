"""``hftune bench``: how fast this machine trains and predicts with hftune, and with what people use otherwise.

hftune bench                                     # every case, a table of ratios
hftune bench ls
hftune bench run head answers --clock cpu        # some cases, on a machine that does other things as well
hftune bench devices --steps 50                  # the same training steps on every device there is
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hftune.cli import terminal
from hftune.cli.options import Json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.bench.case import Case
    from hftune.bench.measure import Result

app = typer.Typer(add_completion=False, help="Measure speed against peers, and devices against each other.")

Names = Annotated[list[str] | None, typer.Argument(metavar="[CASE…]", help="Cases (hftune bench ls); all by default.")]
Clock = Annotated[
    Literal["wall", "cpu"],
    typer.Option("--clock", help="Which time ratios are of; cpu where the machine does other things as well."),
]
Repeats = Annotated[int | None, typer.Option("--repeats", min=1, help="Turns of each side; each case has its own.")]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny models, few rows: shows that cases run, and nothing else.")]
Keep = Annotated[
    Path | None,
    typer.Option("--keep", metavar="FOLDER", help="Add the results to FOLDER/results.json and FOLDER/README.md."),
]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Training steps of each.")]
Output = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where devices.json and devices.png go; ./devices.")
]
DEFAULT_FOLDER = Path("devices")


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure speed against peers, and devices against each other; alone, it runs every case."""
    if context.invoked_subcommand is None:
        run_cases()


@app.command("ls")
def list_cases(as_json: Json = False) -> None:
    """List the cases with what they are measured against and the ratio that is aimed at."""
    from rich.table import Table

    from hftune.bench import CASES
    from hftune.bench.kept import times

    if as_json:
        terminal.show_json([_as_dict(case) for case in CASES.values()])
        return
    table = Table("case", "what", "against", "goal", box=None, pad_edge=False, header_style="bold")
    for case in CASES.values():
        for goal in case.goals:
            bound = f"at least {times(goal.least)}" if goal.least else f"under {times(goal.most)}" if goal.most else ""
            table.add_row(case.name, case.what, goal.against, bound)
    terminal.out().print(table)


@app.command("run")
def run_cases(
    names: Names = None,
    clock: Clock = "wall",
    repeats: Repeats = None,
    quick: Quick = False,
    keep: Keep = None,
    as_json: Json = False,
) -> None:
    """Run cases: the sides of each take turns, and the median of the ratios counts."""
    from hftune.bench import CASES, choose, kept
    from hftune.bench.case import FULL, QUICK
    from hftune.bench.machine import describe
    from hftune.bench.measure import measure
    from hftune.quiet import quiet_libraries

    if keep is not None and quick:
        raise HftuneError("what --quick measures says nothing about speed", hint="leave --keep or --quick out")
    cases = choose(names or [])
    if keep is not None:
        kept.check(keep)
    quiet_libraries()
    machine, results = describe(), []
    with terminal.err().status("…") as status:
        for case in cases:
            result = measure(case, QUICK if quick else FULL, repeats=repeats, progress=status.update)
            results.append(result)
            if not as_json:
                _show(result, clock)
            if keep is not None:
                kept.keep(keep, [result.as_dict(clock)], machine, CASES)
    if as_json:
        found = [result.as_dict(clock) for result in results]
        terminal.show_json({"machine": machine, "quick": quick, "results": found})
    elif quick:
        terminal.say("quick: tiny models and few rows show that cases run; their ratios say nothing about speed")


@app.command("devices")
def run_devices(steps: Steps = 50, output: Output = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Run the same training steps on every device: threads, number formats, compiled or not; a table and a plot."""
    from rich.table import Table

    from hftune.bench import device_report
    from hftune.bench.devices import measure, settings
    from hftune.bench.machine import describe
    from hftune.quiet import quiet_libraries

    if output.exists() and not output.is_dir():
        raise HftuneError(f"--output {output} is a file", hint="name a folder; devices.json and devices.png go there")
    quiet_libraries()
    machine, (chosen, notes), rows = describe(), settings(), []
    for line in notes:
        terminal.note(line)
    for number, setting in enumerate(chosen, start=1):
        terminal.note(f"{number} of {len(chosen)}: {setting}")
        rows.append(measure(setting, steps))
        plot = device_report.write(output, machine, rows, notes)  # each time: who stops here keeps what is done
    if as_json:
        terminal.show_json({"machine": machine, "notes": notes, "results": [row.as_dict() for row in rows]})
        return
    table = Table(*device_report.COLUMNS, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(terminal.visible, device_report.cells(row)))
    terminal.out().print(table)
    terminal.say(str(plot))


def _show(result: Result, clock: str) -> None:
    """What was reached against each other side, as soon as it is known."""
    from hftune.bench.kept import cells

    terminal.say(f"{result.case.name}: {result.case.what}", style="bold")
    if result.skipped:
        terminal.say(f"  not run: {result.skipped}", style="yellow")
    for goal in result.as_dict(clock)["goals"]:
        against, wanted, reached, spread, by, met = cells(goal, clock)
        style = "bold red" if met == "no" else "green" if met == "yes" else ""
        terminal.say(f"  {reached} against {against} ({spread}, {by}); aimed at: {wanted}", style=style)


def _as_dict(case: Case) -> dict[str, Any]:
    goals = [{"against": goal.against, "least": goal.least, "most": goal.most} for goal in case.goals]
    return {"case": case.name, "what": case.what, "unit": case.unit, "goals": goals, "notes": case.notes}
