"""The page of the lab: claims, figures, numbers and questions in one self-contained HTML text. Called by ``run``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from hftune.lab.result import Result
from hftune.runs.page import Banner, Picture, Section, render
from hftune.runs.wording import duration


def pictured(result: Result) -> Picture:
    """The figure of an experiment, named after it."""
    drawing = result.experiment.draw(result.numbers)
    return Picture(result.experiment.name, drawing.figure, drawing.alt, drawing.caption)


def lab_page(results: Sequence[Result], pictures: Sequence[Picture]) -> str:
    """The page as text.

    Args:
        results: What has run, in the order of the page.
        pictures: The figure of each.
    """
    sections = [_experiment(*pair) for pair in zip(results, pictures, strict=True)]
    if len(results) > 1:
        sections.insert(0, _claims(results))
    return render(
        "lab.html.j2",
        title="The attention lab" if len(results) > 1 else results[0].experiment.name,
        kind="Experiments" if len(results) > 1 else "Experiment",
        subtitle=f"What attention can and can't do, measured · seed {results[0].seed}",
        banners=_banners(results),
        sections=sections,
    )


def mathematics(docstring: str) -> list[tuple[bool, str]]:
    """A docstring in paragraphs without its first, each with whether it is a formula, whose lines stay apart."""
    paragraphs = docstring.strip().split("\n\n")[1:]
    return [
        (True, textwrap.dedent(paragraph).strip("\n"))
        if paragraph.startswith("    ")
        else (False, " ".join(paragraph.split()))
        for paragraph in paragraphs
    ]


def _banners(results: Sequence[Result]) -> list[Banner]:
    broken = [result.experiment.name for result in results if not result.holds]
    if not broken:
        return []
    text = f"The numbers contradict what is claimed of {', '.join(broken)}; the statements stand there."
    return [Banner("A claim does not hold.", text, alarm=True)]


def _claims(results: Sequence[Result]) -> Section:
    kept = sum(result.holds for result in results)
    seconds = duration(sum(result.seconds for result in results))
    count = "All" if kept == len(results) else f"{kept} of"
    return Section(
        id="claims",
        title="Claims",
        template="lab_claims.html.j2",
        lead=f"{count} {len(results)} claims hold. Each was measured and checked here, in {seconds} together.",
        values={"results": results, "duration": duration},
    )


def _experiment(result: Result, picture: Picture) -> Section:
    experiment = result.experiment
    return Section(
        id=experiment.name,
        title=experiment.name,
        template="lab_experiment.html.j2",
        lead=experiment.claim,
        pictures=(picture,),
        values={
            "violated": result.violated,
            "rows": experiment.rows(result.numbers),
            "questions": experiment.questions,
            "mathematics": mathematics(experiment.mathematics),
            "command": result.command(),
        },
    )
