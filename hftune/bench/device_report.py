"""What ``hftune bench devices`` shows: rows of a table, a plot, a json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hftune.bench.devices import Measured
from hftune.files import write_json
from hftune.runs.figures import BLUE, MUTED, new_figure, save, style

NUMBERS, PLOT = "devices.json", "devices.png"
COLUMNS = ("device", "numbers", "compiled", "steps/s", "tokens/s", "of the peak", "memory", "first step")


def cells(row: Measured) -> list[str]:
    """One line of the table."""
    setting = row.setting
    told = [name(row), setting.precision, "yes" if setting.compiled else "no"]
    if row.failed:
        return [*told, row.failed, "", "", "", ""]
    return [
        *told,
        f"{row.steps_per_second:.2f}",
        f"{row.tokens_per_second:,.0f}",
        f"{row.share_of_peak:.2f}",
        f"{row.peak_memory_mb:,.0f} MB",
        f"{row.first_step_seconds:.1f} s",
    ]


def name(row: Measured) -> str:
    """The device, with its threads."""
    threads = row.setting.threads
    return row.setting.device if threads is None else f"cpu, {threads} thread{'s' if threads > 1 else ''}"


def write(folder: Path, machine: dict[str, Any], rows: Sequence[Measured], notes: Sequence[str]) -> Path:
    """Keep the numbers and the plot; the path of the plot."""
    write_json(folder / NUMBERS, {"machine": machine, "notes": list(notes), "results": [row.as_dict() for row in rows]})
    return save(draw(rows), folder / PLOT)


def draw(rows: Sequence[Measured]) -> Figure:
    """Tokens a second of each way that ran, the share of the peak beside each bar."""
    ran = [row for row in rows if not row.failed]
    figure = new_figure(height=1.2 + 0.36 * len(ran))
    axes = figure.subplots()
    labels = [f"{name(row)}, {row.setting.precision}{', compiled' if row.setting.compiled else ''}" for row in ran]
    places = range(len(ran))
    axes.barh(places, [row.tokens_per_second for row in ran], color=BLUE, height=0.6)
    for place, row in zip(places, ran, strict=True):
        axes.annotate(
            f" {row.share_of_peak:.0%} of its peak",
            (row.tokens_per_second, place),
            va="center",
            color=MUTED,
            fontsize=8,
        )
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    style(axes, "tokens a second", "")
    axes.margins(x=0.25)
    return figure
