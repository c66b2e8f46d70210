"""The figures of a comparison: scores with intervals, learning curves, score against values and against cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from hftune.runs.figures import (
    BLUE,
    GREEN,
    INK,
    MARKERS,
    MUTED,
    ORANGE,
    SERIES,
    TEXT,
    Line,
    draw_line,
    legend,
    line_chart,
    new_figure,
    plain,
    style,
    thinned,
)
from hftune.runs.formatting import score_name
from hftune.runs.report import CLASSIFICATION
from hftune.studies.compare import Compared, ComparedSystem
from hftune.studies.plan import axis_title, described, shown
from hftune.studies.systems import System
from hftune.studies.tables import baselines_along

MOST_LINES = len(SERIES)
MOST_ROWS = 20
MOST_MARKERS = 40
"""A line of more points has no markers."""
# Values that differ by this factor or more may be on a logarithmic axis.
LOG_FROM = 8.0
# The line style of baselines.
DASHES = (0, (4, 2))


@dataclass(frozen=True)
class TradeOff:
    """The cost (x) and score (y) of a system, with the range over seeds."""

    rank: int
    name: str
    x: float
    y: float
    low: float
    high: float
    collapsed: bool = False
    """Whether every run of it predicts one label."""


def scores(compared: Compared) -> Figure:
    """Every setting with its mean, its 95 % interval and its seeds, best on validation first."""
    rows = compared.rows[:MOST_ROWS]
    figure = new_figure(height=1.15 + 0.42 * len(rows))
    axes = figure.subplots()
    style(axes, f"{compared.split} {score_name(compared.metric)}", "")
    axes.grid(False, axis="y")
    for place, row in enumerate(rows):
        found = row.scores[compared.split]
        color = ORANGE if row.selected else BLUE
        axes.plot([found.low, found.high], [place, place], color=color, linewidth=1.6)
        axes.plot(row.by_seed[compared.split], [place] * len(row.seeds), "|", color=MUTED, markersize=9)
        axes.plot(found.mean, place, "s" if row.selected else "o", color=color, markersize=6)
    axes.plot([], [], "o-", color=BLUE, markersize=6, linewidth=1.6, label="mean, 95 % interval")
    if any(row.selected for row in rows):
        axes.plot([], [], "s-", color=ORANGE, markersize=6, linewidth=1.6, label="selected")
    axes.plot([], [], "|", color=MUTED, markersize=9, label="seeds")
    known = [splits[compared.split] for splits in compared.baselines.values() if compared.split in splits]
    pick, reach = (
        (max, 1.0) if compared.higher_is_better else (min, 3 * max(row.scores[compared.split].high for row in rows))
    )
    # The perplexity of a unigram may be so much larger than all others that these would become one dot.
    if known and pick(known) <= reach:
        axes.axvline(pick(known), color=GREEN, linewidth=1, linestyle=DASHES, alpha=0.7, label="best baseline")
    # Names are above their lines: next to the axis they would take the width of a phone.
    look: dict[str, Any] = {"fontsize": TEXT - 0.5, "color": INK, "va": "bottom", "parse_math": False}
    for place, row in enumerate(rows):
        name = plain(f"{place + 1}  {row.name}" if len(rows) > 1 else row.name, 60)
        axes.text(0, place - 0.24, name, transform=axes.get_yaxis_transform(), **look)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.85)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    legend(axes, columns=2)
    return figure


def losses(systems: Sequence[System]) -> dict[str, Figure]:
    """Training and validation loss over steps, mean over seeds: one chart of both for one system, else one of each."""
    kinds: dict[str, Callable[[Sequence[dict[str, object]]], dict[int, float]]] = {
        "training": _training_losses,
        "validation": partial(_evaluations, metric="loss"),
    }
    histories = [[run.read_history() for run in system.runs] for system in systems[:MOST_LINES]]
    if len(systems) == 1:
        lines = [
            line
            for place, (kind, read) in enumerate(kinds.items())
            if (line := _mean_line(f"{kind} loss", [read(history) for history in histories[0]], 1 - place))
        ]
        return {"losses": _loss_chart(lines, "loss")} if lines else {}
    found = {}
    for kind, read in kinds.items():
        lines = [
            line
            for place, (system, of_seeds) in enumerate(zip(systems, histories, strict=False))
            if (line := _mean_line(system.name, [read(history) for history in of_seeds], place))
        ]
        if lines:
            found[f"{kind}-loss"] = _loss_chart(lines, f"{kind} loss")
    return found


def _loss_chart(lines: Sequence[Line], y_label: str) -> Figure:
    columns = 1 if max(len(line.label) for line in lines) > 18 else 2
    height = 2.9 + 0.2 * len(lines)
    return line_chart(lines, x_label="steps", y_label=f"{y_label} (nats)", height=height, columns=columns)


def _mean_line(label: str, by_seed: Sequence[Mapping[int, float]], place: int) -> Line | None:
    """The mean over seeds at the steps that all of them have, with a band from the lowest to the highest."""
    steps = sorted(set.intersection(*(set(one) for one in by_seed)))
    if not steps:
        return None
    x = [float(step) for step in steps]
    seeds = [thinned(x, [one[step] for step in steps])[1] for one in by_seed]
    line = _banded(label, thinned(x, x)[0], [list(values) for values in zip(*seeds, strict=True)], place)
    return line if len(steps) <= MOST_MARKERS else replace(line, marker="")


def curves(systems: Sequence[System], metric: str) -> Figure | None:
    """Validation score over steps: the mean over seeds as a line, from the worst to the best seed as a band."""
    lines = [
        line
        for place, system in enumerate(systems[:MOST_LINES])
        if (line := _mean_line(system.name, [_evaluations(run.read_history(), metric) for run in system.runs], place))
    ]
    if not lines:
        return None
    columns = 1 if max(len(line.label) for line in lines) > 18 else 2
    y_label, height = f"validation {score_name(metric)}", 2.9 + 0.2 * len(lines)
    return line_chart(lines, x_label="steps", y_label=y_label, height=height, columns=columns)


def by_value(compared: Compared, axis: str) -> Figure:
    """Score against the values of one axis: one line for each setting of the others, seeds as a band."""
    groups: dict[str, list[ComparedSystem]] = {}
    for row in compared.rows:
        others = {key: value for key, value in row.values.items() if key != axis}
        groups.setdefault(described(others), []).append(row)
    shown_groups = list(groups.items())[:MOST_LINES]
    if max(len(rows) for _, rows in shown_groups) == 1:
        # A search has one setting for each value, so there are no lines.
        shown_groups = [("", list(compared.rows))]
    connect = all(len({row.values[axis] for row in rows}) == len(rows) for _, rows in shown_groups) and (
        shown_groups[0][0] or len(groups) == 1
    )
    values = sorted({float(row.values[axis]) for _, rows in shown_groups for row in rows})
    figure = new_figure(height=2.9 + 0.2 * len(shown_groups))
    axes = figure.subplots()
    style(axes, axis_title(list(compared.rows[0].values), axis), f"{compared.split} {score_name(compared.metric)}")
    for place, (label, rows) in enumerate(shown_groups):
        ordered = sorted(rows, key=lambda row: float(row.values[axis]))
        spread = [list(row.by_seed[compared.split]) for row in ordered]
        line = _banded(label or "mean over seeds", [float(row.values[axis]) for row in ordered], spread, place)
        if connect:
            draw_line(axes, line)
        else:
            axes.plot(line.x, line.y, line.marker, color=line.color, markersize=5, label=plain(line.label))
    _draw_baselines(axes, compared, axis)
    _value_ticks(axes, values)
    legend(axes, columns=1 if max(len(label) for label, _ in shown_groups) > 18 else 2)
    return figure


def _draw_baselines(axes: Axes, compared: Compared, axis: str) -> None:
    # Only baselines whose score changes along the axis, as it does with the number of training rows.
    for name, scores in baselines_along(compared, axis).items():
        if len(set(scores.values())) > 1:
            x = sorted(scores)
            y = [scores[value] for value in x]
            axes.plot(x, y, color=GREEN, linewidth=1.2, linestyle=DASHES, alpha=0.8, label=plain(name))


def trade_off(compared: Compared, against: str) -> Figure | None:
    """Score against cost, with the Pareto front; None if all systems cost the same.

    Args:
        compared: The comparison.
        against: ``trainable`` or ``seconds``.
    """
    points = points_of(compared, against)
    if len({point.x for point in points}) < 2:
        return None
    figure = new_figure()
    axes = figure.subplots()
    label = "trained parameters" if against == "trainable" else "training time (seconds)"
    style(axes, label, f"{compared.split} {score_name(compared.metric)}")
    for point in points:
        axes.plot([point.x, point.x], [point.low, point.high], color=MUTED, linewidth=1)
    for x, y, ranks in _labels(points):
        axes.annotate(ranks, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=TEXT, color=INK)
    front = pareto(points, lower_is_better=not compared.higher_is_better)
    axes.plot([point.x for point in front], [point.y for point in front], color=ORANGE, linewidth=1.2, zorder=1)
    rest = [point for point in points if point not in front and not point.collapsed]
    lost = [point for point in points if point.collapsed]
    for group, marker, color, name in (
        (front, "s", ORANGE, "best for its cost"),
        (rest, "o", BLUE, "others"),
        (lost, "x", MUTED, "collapsed"),
    ):
        if group:
            costs, heights = [one.x for one in group], [one.y for one in group]
            axes.plot(costs, heights, marker, color=color, label=name, linestyle="")
    if spreads_by_magnitude([point.x for point in points]):
        axes.set_xscale("log")
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))  # seconds may have fractions
    axes.margins(0.1)
    legend(axes)
    return figure


def _labels(points: Sequence[TradeOff]) -> list[tuple[float, float, str]]:
    """Position and text of the points' numbers; overlapping points share one."""
    heights = [point.y for point in points]
    near = (max(heights) - min(heights)) / 30
    found: list[tuple[float, float, list[int]]] = []
    for point in points:
        for x, y, ranks in found:
            if x == point.x and abs(y - point.y) <= near:
                ranks.append(point.rank)
                break
        else:
            found.append((point.x, point.y, [point.rank]))
    return [(x, y, ", ".join(map(str, ranks))) for x, y, ranks in found]


def points_of(compared: Compared, against: str) -> list[TradeOff]:
    """Cost and score of each system."""
    found = []
    for place, row in enumerate(compared.rows):
        seeds = row.by_seed[compared.split]
        x = float(row.trainable) if against == "trainable" else row.seconds
        lost = row.collapsed == len(row.seeds)
        found.append(TradeOff(place + 1, row.name, x, row.scores[compared.split].mean, min(seeds), max(seeds), lost))
    return found


def pareto(points: Sequence[TradeOff], *, lower_is_better: bool = False) -> list[TradeOff]:
    """The Pareto front, cheapest first: each point is better than all cheaper ones. Collapsed systems are left out."""
    sign = -1 if lower_is_better else 1
    front: list[TradeOff] = []
    for point in sorted((one for one in points if not one.collapsed), key=lambda one: (one.x, -sign * one.y)):
        if not front or sign * point.y > sign * front[-1].y:
            front.append(point)
    return front


def spreads_by_magnitude(values: Sequence[float]) -> bool:
    """Whether values are spaced by factors, as learning rates are, and not by equal steps."""
    distinct = sorted(set(values))
    if len(distinct) < 2 or distinct[0] <= 0 or distinct[-1] / distinct[0] < LOG_FROM:
        return False
    steps = [after - before for before, after in pairwise(distinct)]
    factors = [after / before for before, after in pairwise(distinct)]
    return len(distinct) == 2 or max(factors) / min(factors) < max(steps) / min(steps)


def _banded(label: str, x: list[float], values: list[list[float]], place: int) -> Line:
    several = len(values[0]) > 1
    return Line(
        label,
        x,
        [fmean(seeds) for seeds in values],
        color=SERIES[place % MOST_LINES],
        marker=MARKERS[place % MOST_LINES],
        low=[min(seeds) for seeds in values] if several else None,
        high=[max(seeds) for seeds in values] if several else None,
    )


def _value_ticks(axes: Axes, values: list[float]) -> None:
    # Ticks at the values of the study, if there are few.
    if spreads_by_magnitude(values):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
    if len(values) <= 6:
        axes.set_xticks(values, [shown(int(value) if value.is_integer() else value) for value in values])


def _training_losses(history: Sequence[dict[str, object]]) -> dict[int, float]:
    # Of a joint loss the part that validation has too.
    key = CLASSIFICATION if any(CLASSIFICATION in row for row in history) else "loss"
    rows = [row for row in history if row.get("split") is None and isinstance(row.get(key), int | float)]
    return {int(str(row["step"])): float(str(row[key])) for row in rows}


def _evaluations(history: Sequence[dict[str, object]], metric: str) -> dict[int, float]:
    rows = [row for row in history if row.get("split") == "validation" and isinstance(row.get(metric), int | float)]
    return {int(str(row["step"])): float(str(row[metric])) for row in rows}
