"""The figures of what a model knows: accuracy against coverage, and against confidence. Drawn for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hftune.runs.figures import BLUE, GREEN, MUTED, ORANGE, Line, draw_line, legend, new_figure, style


def risk_coverage(curve: Sequence[Mapping[str, float]]) -> Figure:
    """Share of right answers, and the confidence that draws the line, over the share of questions answered."""
    figure = new_figure()
    axes = figure.subplots()
    style(axes, "questions answered, surest first", "share")
    x = [point["coverage"] for point in curve]
    draw_line(axes, Line("right answers", x, [point["accuracy"] for point in curve], BLUE))
    draw_line(axes, Line("confidence", x, [point["confidence"] for point in curve], ORANGE))
    axes.axhline(curve[-1]["accuracy"], color=GREEN, linewidth=1, linestyle=(0, (4, 2)), label="all answered")
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    legend(axes)
    return figure


def confidence_reliability(bins: Sequence[Mapping[str, float]]) -> Figure:
    """Share of right answers against confidence, and how many answers lie where."""
    figure = new_figure(height=3.9)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    style(upper, "", "right answers")
    style(lower, "confidence", "answers")
    upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="ideal")
    sure = [one["confidence"] for one in bins]
    draw_line(upper, Line("as trained", sure, [one["accuracy"] for one in bins], ORANGE, "o"))
    lower.bar(
        [one["low"] for one in bins],
        [one["count"] for one in bins],
        width=[one["high"] - one["low"] for one in bins],
        align="edge",
        color=ORANGE,
        alpha=0.5,
        linewidth=0,
    )
    upper.set_xlim(0, 1)
    upper.set_ylim(-0.02, 1.02)
    legend(upper)
    return figure
