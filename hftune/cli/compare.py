"""``hftune compare``: which setting is better, and is the difference significant?

hftune compare runs/full runs/prefix
hftune compare runs/reviews-lr --split validation --format markdown
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hftune.cli import options
from hftune.cli.tables import print_comparison
from hftune.cli.terminal import say, show_json
from hftune.errors import HftuneError

Paths = Annotated[list[Path], typer.Argument(metavar="RUN|GROUP|STUDY…", help="Runs, groups of seeds, or a study.")]
Split = Annotated[
    Literal["validation", "test"] | None,
    typer.Option("--split", help="Split to compare on; by default test if all were scored on it, else validation."),
]
Metric = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="A score of the task; by default the one that selected checkpoints."),
]
Format = Annotated[Literal["table", "markdown", "csv", "json"], typer.Option("--format", "-f", help="Output format.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Also write tables, plots and a page into this folder."),
]


def compare(
    paths: Paths,
    split: Split = None,
    metric: Metric = None,
    format_name: Format = "table",
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Compare runs or the settings of a study: mean ± std, intervals, paired tests and verdicts.

    Runs that differ in nothing but the seed are one setting.
    """
    if as_json and format_name not in ("table", "json"):
        raise HftuneError(f"--json and --format {format_name} can't both be given", hint="leave one of them out")

    from hftune.files import refuse_links
    from hftune.runs.directory import in_use
    from hftune.runs.schema import consistent
    from hftune.studies.compare import compare_study, compare_systems
    from hftune.studies.folder import StudyDir
    from hftune.studies.plan import is_study
    from hftune.studies.systems import collect
    from hftune.studies.tables import csv_text, markdown_text

    if output is not None and in_use(output) and not (output / "comparison.json").is_file():
        raise HftuneError(f"{output} is in use and has no comparison", hint="name another folder with --output")
    if output is not None and is_study(output):
        raise HftuneError(f"{output} is a study, which has its own comparison", hint="name another folder")
    if output is not None:
        refuse_links(output, "a comparison")
    with consistent(", ".join(map(str, paths))):
        systems = collect(paths)
        study = StudyDir.open(paths[0]) if len(paths) == 1 and is_study(paths[0]) else None
        compared = compare_study(study, split, metric) if study else compare_systems(systems, split, metric)
        page = None
        if output is not None:
            from hftune.studies.report import write_results  # imports matplotlib

            page = write_results(output, compared, systems)
    if as_json or format_name == "json":
        show_json(compared.as_dict())
    elif format_name == "table":
        print_comparison(compared)
        if page is not None:
            say(f"report  {page}")
    else:
        say((csv_text(compared) if format_name == "csv" else markdown_text(compared)).rstrip("\n"))
