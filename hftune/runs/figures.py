"""Figures: their style, the charts of a run, and two formats: a PNG file, and an SVG with the colors of its page.

Figures are made without pyplot, so that no global state is touched.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from hftune.files import write_bytes

INK, MUTED, GRID = "#24292e", "#6b7178", "#dcdfe3"
# Okabe and Ito's palette, which people with the common color blindnesses can tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P")
# The names under which the page's stylesheet defines the same colors, once for light and once for dark.
_PAGE_COLORS = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--hairline",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
    PURPLE: "--purple",
    SKY: "--sky",
    YELLOW: "--yellow",
}
WIDTH, HEIGHT = 4.8, 3.1
TEXT = 9.5
DPI = 200
# With more labels the numbers in a confusion matrix are too small to read.
READABLE_LABELS = 12
MOST_POINTS = 300


@dataclass(frozen=True)
class Line:
    """One line of a chart; low and high draw the spread over seeds as a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    marker: str = ""
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


LINE_OF_TEXT = 0.07
"""Height of a line of text as a share of the height of a figure."""


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare with, such as a baseline."""

    label: str
    y: float


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """An empty figure; its size in inches is chosen so that the text is readable at the width of a phone."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, x_label: str, y_label: str) -> None:
    """Axes with a light grid, one spine and labels."""
    axes.set_xlabel(plain(x_label), fontsize=TEXT, color=MUTED, parse_math=False)
    axes.set_ylabel(plain(y_label), fontsize=TEXT, color=MUTED, parse_math=False)
    axes.tick_params(labelsize=TEXT - 0.5, colors=MUTED, length=0, pad=5)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(GRID)


def legend(axes: Axes, columns: int = 3) -> None:
    """Draw the legend above the plot, so that it hides nothing."""
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0}
    look: dict[str, Any] = {"frameon": False, "fontsize": TEXT, "labelcolor": INK}
    box = axes.legend(**place, **look, ncols=columns, handlelength=1.6, columnspacing=1.4)
    for text in box.get_texts():
        text.set_parse_math(False)


def draw_line(axes: Axes, line: Line) -> None:
    """One line with its markers and its band."""
    look: dict[str, Any] = {"color": line.color, "linewidth": 1.6, "marker": line.marker or None, "markersize": 4}
    axes.plot(line.x, line.y, label=plain(line.label), **look)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=line.color, alpha=0.18, linewidth=0)


def plain(text: str, limit: int = 40) -> str:
    """Text for a figure: one printable line of at most ``limit`` characters."""
    kept = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    references: Sequence[Reference] = (),
    mark: tuple[float, str] | None = None,
    log_x: bool = False,
    height: float = HEIGHT,
    columns: int = 3,
) -> Figure:
    """Lines over one axis, with bands where they have a spread.

    Args:
        lines: What to draw, each with its own color and marker.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        references: Horizontal lines to compare with, named at their end.
        mark: A place on x that matters, and its name.
        log_x: Use a logarithmic x axis.
        height: Of the figure, in inches.
        columns: Of the legend.
    """
    figure = new_figure(height=height)
    axes = figure.subplots()
    style(axes, x_label, y_label)
    if log_x:
        axes.set_xscale("log")
    else:
        whole = all(_whole(line.x) for line in lines)
        # Around a single point matplotlib would show fractions, all rounded to the same label.
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole, min_n_ticks=1 if whole else 2))
        if whole:
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for line in lines:
        draw_line(axes, line)
    _draw_references(axes, references)
    if mark is not None:
        axes.axvline(mark[0], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label=plain(mark[1]))
    legend(axes, columns)
    return figure


def confusion(counts: NDArray[np.int64], labels: Sequence[str]) -> Figure:
    """How often each label (row) was predicted as which (column), shaded by its share of the row."""
    size = min(4.8 + 0.12 * max(0, len(labels) - READABLE_LABELS), 9.0)
    figure = new_figure(size, size * 0.92)
    axes = figure.subplots()
    style(axes, "predicted label", "true label")
    axes.grid(False)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    places = range(len(labels))
    font = TEXT - 0.5 if len(labels) <= READABLE_LABELS else max(3.0, 7.5 - len(labels) / 25)
    names = [plain(label, 14) for label in labels]
    turned = max(map(len, names)) * len(names) > 40
    axes.set_xticks(places, names, rotation=90 if turned else 0, fontsize=font, parse_math=False)
    axes.set_yticks(places, names, fontsize=font, parse_math=False)
    if len(labels) <= READABLE_LABELS:
        for row in places:
            for column in places:
                color = "white" if shares[row, column] > 0.55 else INK
                text = f"{counts[row, column]:,}"
                axes.text(column, row, text, ha="center", va="center", fontsize=font, color=color)
    return figure


def reliability(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Accuracy against confidence in bins, and the share of rows in each bin, for one or two models by name."""
    figure = new_figure(height=3.9)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    style(upper, "", "accuracy")
    style(lower, "confidence", "share")
    upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="ideal")
    for (name, bins), color, marker in zip(curves.items(), (ORANGE, BLUE), ("o", "s"), strict=False):
        confidence, accuracy = ([one[key] for one in bins] for key in ("confidence", "accuracy"))
        draw_line(upper, Line(name, confidence, accuracy, color, marker))
        total = sum(one["count"] for one in bins)
        shares, widths = [one["count"] / total for one in bins], [one["high"] - one["low"] for one in bins]
        look: dict[str, Any] = {"align": "edge", "color": color, "alpha": 0.35, "linewidth": 0}
        lower.bar([one["low"] for one in bins], shares, width=widths, **look)
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1)
    lower.xaxis.set_major_locator(MaxNLocator(nbins=5))
    lower.yaxis.set_major_locator(MaxNLocator(nbins=2))
    legend(upper)
    return figure


def risk_coverage(curve: Sequence[Mapping[str, float]]) -> Figure:
    """Share of right answers, and the confidence threshold, over the share of questions that are answered."""
    figure = new_figure()
    axes = figure.subplots()
    style(axes, "questions answered, most confident first", "share")
    x = [point["coverage"] for point in curve]
    draw_line(axes, Line("right answers", x, [point["accuracy"] for point in curve], BLUE))
    draw_line(axes, Line("confidence", x, [point["confidence"] for point in curve], ORANGE))
    axes.axhline(curve[-1]["accuracy"], color=GREEN, linewidth=1, linestyle=(0, (4, 2)), label="all answered")
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    legend(axes)
    return figure


def score_by_length(slices: Sequence[Mapping[str, Any]], overall: float, unit: str) -> Figure:
    """Accuracy of each band of text lengths with its 95 % interval, against that of all rows."""
    figure = new_figure()
    axes = figure.subplots()
    style(axes, f"length of the text ({unit})", "accuracy")
    axes.grid(False, axis="x")
    places = np.arange(len(slices))
    scores = np.asarray([one["accuracy"] for one in slices])
    below = scores - np.asarray([one["low"] for one in slices])
    above = np.asarray([one["high"] for one in slices]) - scores
    axes.errorbar(places, scores, yerr=np.vstack([below, above]), fmt="o", markersize=5, color=BLUE, elinewidth=1.6)
    axes.plot([], [], "o", markersize=5, color=BLUE, label="95 % interval")
    axes.axhline(overall, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="all rows")
    axes.set_xticks(places, [one["range"] for one in slices], parse_math=False)
    axes.set_xlim(-0.5, len(slices) - 0.5)
    lowest, highest = min(one["low"] for one in slices), max(one["high"] for one in slices)
    axes.set_ylim(max(-0.02, lowest - 0.05), min(1.02, highest + 0.05))
    legend(axes)
    return figure


def _draw_references(axes: Axes, references: Sequence[Reference]) -> None:
    """Lines with their names at the end; lines that are too close for two lines of text share one."""
    for reference in references:
        axes.axhline(reference.y, color=GREEN, linewidth=1, linestyle=(0, (4, 2)))
    low, high = axes.get_ylim()
    groups: list[list[Reference]] = []
    for reference in sorted(references, key=lambda one: one.y):
        if groups and reference.y - groups[-1][-1].y < LINE_OF_TEXT * (high - low):
            groups[-1].append(reference)
        else:
            groups.append([reference])
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (-2, 3), "textcoords": "offset points"}
    look: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": TEXT - 0.5, "color": GREEN, "parse_math": False}
    for group in groups:
        axes.annotate(", ".join(plain(one.label) for one in group), (1, group[-1].y), **place, **look)


def thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means over stretches of equal size if there are more points than a figure can show."""
    if len(x) <= MOST_POINTS:
        return list(x), list(y)
    stretches = np.array_split(np.arange(len(x)), MOST_POINTS)
    means_x = [float(np.mean(np.asarray(x)[stretch])) for stretch in stretches]
    return means_x, [float(np.mean(np.asarray(y)[stretch])) for stretch in stretches]


def _whole(values: Sequence[float]) -> bool:
    return all(float(value).is_integer() for value in values)


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG on white."""
    with warnings.catch_warnings():
        _ignore_missing_glyphs()
        written = io.BytesIO()
        # Without the version of matplotlib in the file, equal figures are equal bytes.
        figure.savefig(written, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    write_bytes(path, written.getvalue())
    return path


def to_svg(figure: Figure, name: str) -> Markup:
    """The figure as an SVG element for a page: colors and font are the page's, the size follows its column.

    ``name`` is unique on the page; it keeps the ids inside apart from those of other figures.
    """
    written = io.StringIO()
    # Text stays text (it can be searched, and read aloud), and ids depend on the name alone: the same run gives the
    # same page, byte for byte.
    options: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(options), warnings.catch_warnings():
        _ignore_missing_glyphs()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    # The page's style sheet has the colors for light and dark, the font and the size: what the figure brings of these
    # is taken out, and so are metadata and ids that nothing refers to.
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, count=1, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)", svg))
    # Text of the data has its angle brackets escaped, so that only matplotlib's own tags match here.
    svg = re.sub(r"<[^<>]+>", lambda tag: _for_page(tag.group(), used), svg)
    return Markup(re.sub(r"\s*\n\s*", " ", svg).strip())


def _for_page(tag: str, used: set[str]) -> str:
    identifier = re.search(r' id="([^"]*)"', tag)
    if identifier and identifier.group(1) not in used:
        tag = tag.replace(identifier.group(), "")
    for color, variable in _PAGE_COLORS.items():
        tag = tag.replace(color, f"var({variable})")
    tag = re.sub(r"font-family: [^;\"]*;?", "", tag)
    if tag.startswith("<svg"):
        tag = re.sub(r' (width|height|version|xmlns)="[^"]*"', "", tag)
        tag = tag.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    return tag


def _ignore_missing_glyphs() -> None:
    """Ignore warnings about missing glyphs: such a label shows as boxes in the PNG, and correctly on the page."""
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
