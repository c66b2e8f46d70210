"""The look of every figure, and its two forms: a PNG file, and an SVG that takes its colors from the page.

``hftune.runs.plots`` draws with it, the report and the study pages show the result. Figures are made
without pyplot, so nothing global is touched.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hftune.files import write_bytes

INK, MUTED, GRID = "#24292e", "#6b7178", "#dcdfe3"
# Okabe and Ito's palette, which people with the common color blindnesses can tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P")
# The names under which the page's stylesheet defines the same colors, once for light and once for dark.
_PAGE_COLOURS = {
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


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare with, such as a baseline."""

    label: str
    y: float


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """An empty figure; its size in inches is chosen so that the text can be read at the width of a phone."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style(axes: Axes, x_label: str, y_label: str) -> None:
    """Quiet axes: two spines, a light grid, labels in plain words."""
    axes.set_xlabel(plain(x_label), fontsize=TEXT, color=MUTED, parse_math=False)
    axes.set_ylabel(plain(y_label), fontsize=TEXT, color=MUTED, parse_math=False)
    axes.tick_params(labelsize=TEXT - 0.5, colors=MUTED, length=0, pad=5)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(GRID)


def legend(axes: Axes, columns: int = 3) -> None:
    """The legend above the plot, where it hides nothing."""
    box = axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        ncols=columns,
        frameon=False,
        fontsize=TEXT,
        labelcolor=INK,
        borderaxespad=0,
        handlelength=1.6,
        columnspacing=1.4,
    )
    for text in box.get_texts():
        text.set_parse_math(False)


def draw_line(axes: Axes, line: Line) -> None:
    """One line with its markers and its band."""
    axes.plot(
        line.x,
        line.y,
        color=line.color,
        linewidth=1.6,
        marker=line.marker or None,
        markersize=4,
        label=plain(line.label),
    )
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=line.color, alpha=0.18, linewidth=0)


def plain(text: str, limit: int = 40) -> str:
    """Text for a figure: one line, nothing unprintable, not too long."""
    kept = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG on white."""
    with warnings.catch_warnings():
        _ignore_missing_glyphs()
        written = io.BytesIO()
        # Without the software's name the same figure is the same bytes for every version that draws it alike.
        figure.savefig(written, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    write_bytes(path, written.getvalue())
    return path


def to_svg(figure: Figure, name: str) -> Markup:
    """The figure as an SVG element for a page: colors and font are the page's, the size follows its column.

    Args:
        figure: What to show.
        name: Unique on its page; keeps the ids inside apart from those of other figures.
    """
    written = io.StringIO()
    options: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(options), warnings.catch_warnings():
        _ignore_missing_glyphs()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
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
    for color, variable in _PAGE_COLOURS.items():
        tag = tag.replace(color, f"var({variable})")
    tag = re.sub(r"font-family: [^;\"]*;?", "", tag)
    if tag.startswith("<svg"):
        tag = re.sub(r' (width|height|version|xmlns)="[^"]*"', "", tag)
        tag = tag.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    return tag


def _ignore_missing_glyphs() -> None:
    """A label in a script that matplotlib's font lacks shows as boxes in the PNG, and rightly on the page."""
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
