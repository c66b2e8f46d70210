"""``hftune doctor``: what this machine has, what would prevent a run, and what a launch would do.

hftune doctor
hftune doctor --launch --config_file accelerate_config.yaml --recipe classify/reviews
hftune doctor --launch --multi_gpu --num_processes 4 --recipe pretrain/wikitext-2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from hftune.cli.options import GIVEN, Json, RecipeName, Set, resolve_settings
from hftune.cli.terminal import out, show_json, table, visible
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.pipeline.doctor import Finding

STYLES = {"ok": "green", "note": "yellow", "bad": "bold red"}

app = typer.Typer(add_completion=False, rich_markup_mode=None)

AsLaunch = Annotated[
    bool,
    typer.Option(
        "--launch",
        help="Show what accelerate launch would do with the flags that follow (--config_file, --num_processes …).",
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
    recipe: RecipeName = None,
    sets: Set = None,
    as_json: Json = False,
) -> None:
    """Check versions, devices, disk, compiler, Hub and the embedded files; exit code 1 if there is a problem.

    With --launch, check a launch instead: world size, devices, precision, sharding, effective batch size.
    """
    if not launch:
        _refuse_without_launch(context.args, recipe, sets)
    from hftune.pipeline.doctor import examine, examine_launch

    described: dict[str, Any] = {}
    if launch:
        from hftune.pipeline.request import resolve_recipe
        from hftune.progress import quiet_libraries

        quiet_libraries()
        chosen = resolve_recipe(recipe, _typed(context.args), sets or ()) if recipe or sets else None
        copied = context.args[:2] == ["accelerate", "launch"]
        plan, findings = examine_launch(context.args[2:] if copied else context.args, chosen)
        described = {"launch": plan.as_dict()}
    else:
        findings = examine()
    if as_json:
        show_json({**described, "checks": [{"what": what, **asdict(finding)} for what, finding in findings.items()]})
    else:
        _show(findings)
    if any(finding.state == "bad" for finding in findings.values()):
        raise typer.Exit(1)


def _typed(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings in a copied launch command, such as ``-m hftune classify --batch-size 16``, as values of ``--set``.

    The command's own parser reads them. ``--recipe`` and ``--set`` are options of doctor, and were removed before.
    """
    from hftune.cli.commands import COMMANDS, dashed, load_command

    copied = list(arguments[arguments.index("hftune") + 1 :]) if "hftune" in arguments else []
    if not copied or copied[0] not in COMMANDS:
        return {}
    given = load_command(copied[0]).make_context(copied[0], list(map(dashed, copied[1:]))).meta.get(GIVEN, {})
    return resolve_settings(given, None)


def _refuse_without_launch(rest: Sequence[str], recipe: str | None, sets: Sequence[str] | None) -> None:
    stray = [*rest, *(["--recipe"] if recipe else []), *(["--set"] if sets else [])]
    if stray:
        raise HftuneError(
            f"{stray[0]} describes a launch, but --launch was not given",
            hint="check a launch with `hftune doctor --launch --config_file accelerate_config.yaml --recipe NAME`",
        )


def _show(findings: Mapping[str, Finding]) -> None:
    from hftune.cli.hints import fitted

    shown = table(header=False)
    for what, finding in findings.items():
        found = Text(visible(finding.found))
        if finding.hint:
            hint = fitted(finding.hint, ("doctor",))
            found.append(f"\n→ {visible(hint)}", style="dim")
        shown.add_row(Text(finding.state, style=STYLES[finding.state]), what, found)
    out().print(shown)
