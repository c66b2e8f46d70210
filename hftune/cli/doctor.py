"""``hftune doctor``: what this machine has, what would stand in the way of a run, and what a launch would do.

hftune doctor
hftune doctor --launch --config_file accelerate_config.yaml --recipe classify/reviews
hftune doctor --launch --multi_gpu --num_processes 4 --recipe pretrain/wikitext-2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hftune.cli import options
from hftune.cli.flags import GIVEN, NOT_SETTINGS, resolve_settings
from hftune.cli.terminal import out, show_json, visible
from hftune.errors import HftuneError

STYLES = {"ok": "green", "note": "yellow", "bad": "bold red"}

app = typer.Typer(add_completion=False)

AsLaunch = Annotated[
    bool,
    typer.Option(
        "--launch",
        help="Say what accelerate launch would do with the flags that follow (--config_file, --num_processes …).",
    ),
]


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": ["-h", "--help"],
    }
)
def doctor(
    context: typer.Context,
    launch: AsLaunch = False,
    recipe: options.RecipeName = None,
    sets: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Check versions, devices, disk, compiler, Hub and the embedded files; exit 1 when something is bad.

    With --launch, check a launch in their place: world size, devices, precision, sharding, rows of an update.
    """
    if not launch:
        _refuse_without_launch(context.args, recipe, sets)
    from hftune.doctor import examine
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    told: dict[str, Any] = {}
    if launch:
        from hftune.launch_check import examine_launch

        what = options.resolve(recipe, sets, _typed(context.args)) if recipe or sets else None
        copied = context.args[:2] == ["accelerate", "launch"]
        plan, findings = examine_launch(context.args[2:] if copied else context.args, what)
        told = {"launch": plan.as_dict()}
    else:
        findings = examine()
    if as_json:
        show_json({**told, "checks": [_as_dict(finding) for finding in findings]})
    else:
        out().print(_table(findings))
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _typed(arguments: Sequence[str]) -> dict[str, Any]:
    """The flags of a command that was copied whole and stand for a setting: ``-m hftune classify --batch-size 16``.

    The command's own parser reads them; ``--recipe`` and ``--set`` are doctor's own, and gone from the arguments.
    """
    from hftune.cli import COMMANDS, dashed, load_command

    copied = list(arguments[arguments.index("hftune") + 1 :]) if "hftune" in arguments else []
    if not copied or copied[0] not in COMMANDS:
        return {}
    given = load_command(copied[0]).make_context(copied[0], list(map(dashed, copied[1:]))).meta.get(GIVEN, {})
    return resolve_settings({name: value for name, value in given.items() if name not in NOT_SETTINGS}, None)


def _refuse_without_launch(rest: Sequence[str], recipe: str | None, sets: Sequence[str] | None) -> None:
    stray = [*rest, *(["--recipe"] if recipe else []), *(["--set"] if sets else [])]
    if stray:
        raise HftuneError(
            f"{stray[0]} says something about a launch, but --launch was not given",
            hint="hftune doctor --launch --config_file accelerate_config.yaml --recipe NAME",
        )


def _table(findings: Sequence[Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        found = Text(visible(finding.found))
        if finding.hint:
            found.append(f"\n→ {visible(finding.hint)}", style="dim")
        table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.what, found)
    return table


def _as_dict(finding: Any) -> dict[str, str]:
    return {"what": finding.what, "state": finding.state, "found": finding.found, "hint": finding.hint}
