"""``hftune report``: one self-contained HTML page about each run or study.

hftune report runs/a
hftune report runs/a --output a.html
hftune report runs/reviews-lr
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hftune.cli import options
from hftune.cli.terminal import say, show_json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.studies.folder import StudyDir as Study

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN|STUDY…", help="Runs, studies, or groups of seeds."),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the page to this file, not to report.html in its folder; for one page only.",
    ),
]


def report(runs: Runs, output: OutputFile = None, as_json: options.Json = False) -> None:
    """Make one self-contained HTML page about each run or study: scores next to baselines, curves, mistakes, recipe.

    A group of seeds gets a page of its own, and one for each of its runs.
    """
    from hftune.runs.directory import RunDir
    from hftune.runs.group import seed_runs
    from hftune.runs.report import write_report
    from hftune.runs.schema import consistent
    from hftune.studies.folder import StudyDir
    from hftune.studies.plan import is_study

    # Everything is opened before anything is written, so that a misspelled name changes nothing.
    chosen: list[RunDir | StudyDir | Path] = []
    for path in runs:
        if is_study(path):
            chosen.append(StudyDir.open(path))
        elif not (members := seed_runs(path)):
            chosen.append(RunDir.open(path, "a run or a study"))
        else:
            complete = any(run.complete for run in members)
            chosen += [*(members if output is None or not complete else []), *([path] if complete else [])]
    if output is not None and len(chosen) != 1:
        raise HftuneError(
            f"--output is one file, but {len(chosen)} runs were named",
            hint="leave --output out: each page is then written to report.html in its run",
        )
    if output is not None and output.is_dir():
        raise HftuneError(f"--output {output} is a folder", hint=f"name a file: --output {output / 'report.html'}")
    pages = []
    for one in chosen:
        with consistent(one if isinstance(one, Path) else one.path):
            if isinstance(one, RunDir):
                pages.append(write_report(one, output))
            else:
                pages.append(_study_page(one, output) if isinstance(one, StudyDir) else _group_page(one, output))
    if as_json:
        show_json({"reports": [str(page) for page in pages]})
    else:
        for page in pages:
            say(str(page))


def _group_page(group: Path, output: Path | None) -> Path:
    from hftune.studies.report import write_group_page

    return write_group_page(group, output)


def _study_page(study: Study, output: Path | None) -> Path:
    from hftune.studies.report import PAGE, study_report, write_study

    if output is not None:
        return study_report(study, output)
    write_study(study)
    return study.path / PAGE
