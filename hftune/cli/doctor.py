"""``hftune doctor``: what this machine has, and what would stand in the way of a run.

hftune doctor
"""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from hftune.cli import options
from hftune.cli.terminal import out, show_json, visible

STYLES = {"ok": "green", "note": "yellow", "bad": "bold red"}


def doctor(as_json: options.Json = False) -> None:
    """Check versions, devices, disk, compiler, Hub and the embedded files; exit 1 when something is bad."""
    from hftune.doctor import examine
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    findings = examine()
    if as_json:
        show_json({"checks": [_as_dict(finding) for finding in findings]})
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for finding in findings:
            found = Text(visible(finding.found))
            if finding.hint:
                found.append(f"\n→ {visible(finding.hint)}", style="dim")
            table.add_row(Text(finding.state, style=STYLES[finding.state]), finding.what, found)
        out().print(table)
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _as_dict(finding: Any) -> dict[str, str]:
    return {"what": finding.what, "state": finding.state, "found": finding.found, "hint": finding.hint}
