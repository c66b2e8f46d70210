"""``hftune doctor``: what this machine has, and what would stand in the way of a run.

    hftune doctor
"""

from __future__ import annotations

import json as jsonlib
from typing import Any

import typer
from rich.table import Table

from hftune.cli import options
from hftune.cli.terminal import plain, stdout

MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "bad": "[red]bad[/red]"}


def doctor(json: options.Json = False) -> None:
    """Check versions, devices, disk, compiler, Hub and the embedded files; exit 1 when something is bad."""
    from hftune.doctor import examine
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    findings = examine()
    if json:
        stdout.print_json(jsonlib.dumps({"checks": [_as_dict(finding) for finding in findings]}))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            hint = f"\n[dim]→ {plain(finding.hint)}[/dim]" if finding.hint else ""
            table.add_row(MARKS[finding.state], plain(finding.what), plain(finding.found) + hint)
        stdout.print(table)
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _as_dict(finding: Any) -> dict[str, str]:
    return {"what": finding.what, "state": finding.state, "found": finding.found, "hint": finding.hint}
