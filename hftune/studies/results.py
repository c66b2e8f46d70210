"""What is left of a comparison: comparison.{json,csv,md}, the figures as PNG, and the page.

Written at the end of ``hftune sweep``, by ``hftune compare --output`` and by ``hftune report STUDY``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hftune.files import write_json, write_text
from hftune.runs.figures import save
from hftune.runs.page import Section
from hftune.runs.report import write_report
from hftune.studies.compare import Compared, compare_study
from hftune.studies.folder import StudyDir
from hftune.studies.page import sections, study_page
from hftune.studies.systems import System, of_study
from hftune.studies.tables import csv_text, markdown_text

PAGE = "report.html"


def write_study(study: StudyDir) -> Compared:
    """Compare the settings of a study and write everything into its folder."""
    compared = compare_study(study)
    systems = of_study(study)
    for system in systems:
        for run in system.runs:
            # A study killed between a run's scores and its page leaves the page missing or behind.
            if not run.report.is_file() or run.report.stat().st_mtime_ns < run.metrics.stat().st_mtime_ns:
                write_report(run)
    write_results(study.path, compared, systems, study)
    return compared


def write_results(folder: Path, compared: Compared, systems: Sequence[System], study: StudyDir | None = None) -> Path:
    """Write tables, figures and the page into a folder; the path of the page."""
    write_json(folder / "comparison.json", compared.as_dict())
    write_text(folder / "comparison.csv", csv_text(compared))
    write_text(folder / "comparison.md", markdown_text(compared))
    parts = sections(compared, systems, study)
    # The page first: saving a figure as PNG settles its layout, and the page would depend on that.
    page = study_page(folder.resolve().name, compared, parts, study)
    _save_figures(folder / "plots", parts)
    write_text(folder / PAGE, page)
    return folder / PAGE


def study_report(study: StudyDir, output: Path) -> Path:
    """Only the page of a study, written elsewhere."""
    compared, systems = compare_study(study), of_study(study)
    parts = sections(compared, systems, study)
    write_text(output, study_page(study.path.resolve().name, compared, parts, study))
    return output


def _save_figures(folder: Path, parts: Sequence[Section]) -> None:
    """Keep every figure of the page as PNG, and none of an earlier state."""
    pictures = {f"{picture.name}.png": picture.figure for part in parts for picture in part.pictures}
    for old in folder.glob("*.png"):
        if old.name not in pictures:
            old.unlink()
    for name, figure in pictures.items():
        save(figure, folder / name)
