"""``hftune report``: one self-contained HTML page about each run.

hftune report runs/a
hftune report runs/a --output a.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hftune.cli import options
from hftune.cli.terminal import say, show_json
from hftune.errors import HftuneError

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Run directories; a group of seeds stands for all its runs.")
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the page here, not to report.html in the run; one run."),
]


def report(runs: Runs, output: OutputFile = None, as_json: options.Json = False) -> None:
    """Make one self-contained HTML page about each run: scores beside baselines, curves, mistakes, recipe."""
    from hftune.runs.directory import RunDir
    from hftune.runs.group import seed_runs
    from hftune.runs.report import write_report

    # Everything is opened before anything is written: a mistyped name leaves nothing half done.
    chosen = [run for path in runs for run in (seed_runs(path) or [RunDir.open(path)])]
    if output is not None and len(chosen) != 1:
        raise HftuneError(
            f"--output is one file, but {len(chosen)} runs were named",
            hint="leave --output out: each page then lies in its run as report.html",
        )
    if output is not None and output.is_dir():
        raise HftuneError(f"--output {output} is a folder", hint=f"name a file: --output {output / 'report.html'}")
    pages = [write_report(run, output) for run in chosen]
    if as_json:
        show_json({"reports": [str(page) for page in pages]})
    else:
        for page in pages:
            say(str(page))
