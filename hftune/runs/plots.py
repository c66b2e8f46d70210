"""The figures of a run: data in, figure out.

``hftune.runs.report`` shows them and keeps them as PNG files; the studies draw their bands over seeds with the same
functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray

from hftune.runs.figures import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    TEXT,
    Line,
    Reference,
    draw_line,
    legend,
    new_figure,
    plain,
    style,
)

# More labels than this, and the numbers in a confusion matrix can't be read any more.
READABLE_LABELS = 12
MOST_POINTS = 300
CLASSIFICATION, MASKED = "classification_loss", "mlm_loss"
"""What history calls the two parts of a joint loss."""


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    references: Sequence[Reference] = (),
    mark: tuple[float, str] | None = None,
    log_x: bool = False,
) -> Figure:
    """Lines over one axis, with bands where they have a spread.

    Args:
        lines: What to draw; told apart by color and marker.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        references: Horizontal lines to compare with, named at their end.
        mark: A place on x that matters, and its name.
        log_x: Whether x is spread by its order of magnitude, as learning rates are.
    """
    figure = new_figure()
    axes = figure.subplots()
    style(axes, x_label, y_label)
    if log_x:
        axes.set_xscale("log")
    else:
        whole = all(_whole(line.x) for line in lines)
        # Of one point matplotlib would show the fractions around it, which all read alike.
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole, min_n_ticks=1 if whole else 2))
        if whole:
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for line in lines:
        draw_line(axes, line)
    for reference in references:
        _draw_reference(axes, reference)
    if mark is not None:
        axes.axvline(mark[0], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label=plain(mark[1]))
    legend(axes)
    return figure


def loss_curves(history: Sequence[Mapping[str, Any]], selected_step: float | None = None) -> Figure | None:
    """Training and validation loss over updates; None where nothing was logged. Of a sum the part that validation
    has as well.
    """
    train = _series(history, trained_loss(history), of_split=None)
    validation = _series(history, "loss", of_split="validation")
    lines = []
    if train[0]:
        lines.append(Line("training", *_thinned(*train), color=ORANGE))
    if validation[0]:
        lines.append(Line("validation", *validation, color=BLUE, marker="o"))
    if not lines:
        return None
    mark = None if selected_step is None else (selected_step, "kept")
    return line_chart(lines, x_label="updates", y_label="loss (nats)", mark=mark)


def trained_loss(history: Sequence[Mapping[str, Any]]) -> str:
    """What history calls the training loss that validation's is to be compared with."""
    return CLASSIFICATION if any(CLASSIFICATION in row for row in history) else "loss"


def masked_curve(history: Sequence[Mapping[str, Any]]) -> Figure | None:
    """The masked language model's training loss over updates; None where there was none beside the classifier."""
    x, y = _series(history, MASKED, of_split=None)
    if not x:
        return None
    line = Line("masked language model", *_thinned(x, y), color=GREEN)
    return line_chart([line], x_label="updates", y_label="loss (nats a masked token)")


def score_curve(
    history: Sequence[Mapping[str, Any]],
    metric: str,
    references: Sequence[Reference] = (),
    selected_step: float | None = None,
) -> Figure | None:
    """The validation score over updates, with the baselines as horizontal lines; None where it was not scored."""
    x, y = _series(history, metric, of_split="validation")
    if not x:
        return None
    mark = None if selected_step is None else (selected_step, "kept")
    return line_chart(
        [Line("validation", x, y, color=BLUE, marker="o")],
        x_label="updates",
        y_label=metric.replace("_", " "),
        references=references,
        mark=mark,
    )


def confusion(counts: NDArray[np.int64], labels: Sequence[str]) -> Figure:
    """How often each label (row) was called what (column), shaded by its share of the row."""
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
                axes.text(
                    column,
                    row,
                    f"{counts[row, column]:,}",
                    ha="center",
                    va="center",
                    fontsize=font,
                    color=color,
                )
    return figure


def reliability(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> Figure:
    """Accuracy against confidence before and after temperature scaling, and how many rows lie where."""
    figure = new_figure(height=3.9)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    style(upper, "", "accuracy")
    style(lower, "confidence", "share")
    upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="ideal")
    for name, bins, color, marker in (("as trained", before, ORANGE, "o"), ("scaled", after, BLUE, "s")):
        confident = [one["confidence"] for one in bins]
        draw_line(upper, Line(name, confident, [one["accuracy"] for one in bins], color, marker))
        total = sum(one["count"] for one in bins)
        lower.bar(
            [one["low"] for one in bins],
            [one["count"] / total for one in bins],
            width=[one["high"] - one["low"] for one in bins],
            align="edge",
            color=color,
            alpha=0.35,
            linewidth=0,
        )
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1)
    lower.xaxis.set_major_locator(MaxNLocator(nbins=5))
    lower.yaxis.set_major_locator(MaxNLocator(nbins=2))
    legend(upper)
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
    axes.errorbar(
        places,
        scores,
        yerr=np.vstack([below, above]),
        fmt="o",
        markersize=5,
        color=BLUE,
        elinewidth=1.6,
    )
    axes.plot([], [], "o", markersize=5, color=BLUE, label="95 % interval")
    axes.axhline(overall, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="all rows")
    axes.set_xticks(places, [one["range"] for one in slices], parse_math=False)
    axes.set_xlim(-0.5, len(slices) - 0.5)
    lowest, highest = min(one["low"] for one in slices), max(one["high"] for one in slices)
    axes.set_ylim(max(-0.02, lowest - 0.05), min(1.02, highest + 0.05))
    legend(axes)
    return figure


def _draw_reference(axes: Axes, reference: Reference) -> None:
    axes.axhline(reference.y, color=GREEN, linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate(
        plain(reference.label),
        (1, reference.y),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=TEXT - 0.5,
        color=GREEN,
        parse_math=False,
    )


def _series(history: Sequence[Mapping[str, Any]], key: str, *, of_split: str | None) -> tuple[list[float], list[float]]:
    rows = [row for row in history if row.get("split") == of_split and row.get(key) is not None]
    return [row["step"] for row in rows], [row[key] for row in rows]


def _thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means over stretches of equal size where there are more points than a figure can show."""
    if len(x) <= MOST_POINTS:
        return list(x), list(y)
    stretches = np.array_split(np.arange(len(x)), MOST_POINTS)
    means_x = [float(np.mean(np.asarray(x)[stretch])) for stretch in stretches]
    return means_x, [float(np.mean(np.asarray(y)[stretch])) for stretch in stretches]


def _whole(values: Sequence[float]) -> bool:
    return all(float(value).is_integer() for value in values)
