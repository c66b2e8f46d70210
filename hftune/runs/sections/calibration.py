"""Calibration: is a model that says 0.8 right four times in five, before and after temperature scaling."""

from __future__ import annotations

from hftune.runs.facts import RunFacts
from hftune.runs.page import Picture, Section
from hftune.runs.plots import reliability
from hftune.runs.wording import number


def calibration(facts: RunFacts) -> Section | None:
    """The reliability diagram and its numbers."""
    report = facts.metrics.get("calibration")
    split = facts.main_split
    if not report or split not in report or not report[split]["bins"]:
        return None
    found = report[split]
    temperature = report["temperature"]
    direction = "over-confident" if temperature > 1 else "under-confident"
    lead = (
        f"Expected calibration error on {split}: {number(found['ece'])} as trained, {number(found['ece_scaled'])} "
        f"after dividing the logits by {number(temperature)}, which was fitted on {report['fitted_on']}."
    )
    if abs(temperature - 1) > 0.05:
        lead += f" The model as trained is {direction}."
    picture = Picture(
        "reliability",
        reliability(found["bins"], found["bins_scaled"]),
        alt=(
            f"Reliability diagram: accuracy against confidence on {split}. As trained the gap to the ideal "
            f"diagonal is {number(found['ece'])} on average, after scaling {number(found['ece_scaled'])}."
        ),
        caption="Reliability: points below the dashed line are too sure of themselves",
    )
    return Section(
        id="calibration",
        title="Calibration",
        template="calibration.html.j2",
        lead=lead,
        pictures=(picture,),
        values={"found": found, "split": split},
    )
