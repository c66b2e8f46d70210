"""The report: one self-contained HTML page, and its figures as PNG files, made of nothing but the run directory.

Called by ``hftune.pipeline`` at the end of every run and by ``hftune report``. The same directory gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

from hftune.config.train import LOWER_IS_BETTER
from hftune.files import write_text
from hftune.runs.directory import RunDir
from hftune.runs.facts import RunFacts
from hftune.runs.figures import save
from hftune.runs.page import Banner, Section, render
from hftune.runs.sections import SECTIONS
from hftune.runs.wording import baseline_name, number


def write_report(run: RunDir, output: Path | None = None) -> Path:
    """Make the page of a run, and its figures.

    Args:
        run: The run, finished or not.
        output: Where the page shall lie instead of report.html in the run directory, which is then left as it is.

    Returns:
        The path of the page.
    """
    facts = RunFacts.read(run)
    sections = [section for build in SECTIONS if (section := build(facts)) is not None]
    page = render("run.html.j2", facts=facts, sections=sections, banners=banners(facts))
    if output is None:
        _save_figures(run, sections)
    path = run.report if output is None else output
    write_text(path, page)
    return path


def banners(facts: RunFacts) -> list[Banner]:
    """What must be known before any number is read, worst first."""
    metrics = facts.metrics
    if not metrics:
        text = "There are no scores yet. What is shown is the course of training so far."
        return [Banner("This run is not finished.", text, alarm=True)]
    found = []
    if metrics.get("verified") is not True:
        text = (
            "The saved model was not reloaded in a fresh process with the same outputs. The scores may not be those "
            "of what lies in model/: do not use or publish it."
        )
        found.append(Banner("Not verified.", text, alarm=True))
    if metrics.get("collapsed"):
        reason = metrics.get("collapse_reason") or (
            "its predictions are (nearly) all one label, or its score is the majority rate"
        )
        text = f"The model has learned nothing that a constant answer does not know: {reason}."
        found.append(Banner("Collapsed.", text, alarm=True))
    found += [Banner("Look at the data.", f"{text}.") for text in metrics.get("data", {}).get("warnings", [])]
    return [*found, *_beaten(facts)]


def _beaten(facts: RunFacts) -> list[Banner]:
    split, metric = facts.main_split, facts.main_metric
    if split is None or metric is None:
        return []
    score = facts.scored[split].get(metric)
    sign = -1 if metric in LOWER_IS_BETTER else 1
    better = {
        name: of_split[split][metric]
        for name, of_split in facts.baselines.items()
        if isinstance(of_split.get(split, {}).get(metric), int | float)
        and score is not None
        and sign * of_split[split][metric] >= sign * score
    }
    if not better:
        return []
    told = ", ".join(f"{baseline_name(name)} {number(value)}" for name, value in better.items())
    text = f"On {split}, {facts.main_metric_name} is {number(score)}; {told}."
    return [Banner("A baseline does as well.", text)]


def _save_figures(run: RunDir, sections: list[Section]) -> None:
    """Keep every figure of the page as PNG, and none of an earlier state of the run."""
    names = {f"{picture.name}.png" for section in sections for picture in section.pictures}
    for old in run.plots.glob("*.png"):
        if old.name not in names:
            old.unlink()
    for section in sections:
        for picture in section.pictures:
            save(picture.figure, run.plots / f"{picture.name}.png")
