"""What an experiment of the lab is: a claim, the numbers that bear it out, a figure, a check. Used by every file here.

An experiment is one file that ends with ``EXPERIMENT = Experiment(…)`` and one line in ``EXPERIMENTS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hftune.config.section import Section
from hftune.runs.figures import Line
from hftune.runs.plots import line_chart
from hftune.runs.wording import minus

Numbers = dict[str, Any]
"""What an experiment found: plain values that JSON can hold."""
S = TypeVar("S", bound=Section)
ROUNDING = 1e-12
"""What double precision leaves of a difference that should be zero, for numbers around 1."""


@dataclass(frozen=True)
class Drawing:
    """The one figure of an experiment."""

    figure: Figure
    alt: str
    """What it shows, in words, for those who do not see it."""
    caption: str


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One claim about attention, and how it is put to the test."""

    name: str
    claim: str
    """What is claimed, in a sentence."""
    mathematics: str
    """The docstring of the file: why it should be so."""
    settings: type[S]
    measure: Callable[[S, int], Numbers]
    """Settings and seed in, numbers out; nothing else goes in, nothing else comes out."""
    check: Callable[[Numbers], list[str]]
    """The statements that the numbers contradict; none where the claim holds."""
    draw: Callable[[Numbers], Drawing]
    rows: Callable[[Numbers], Sequence[tuple[str, str]]]
    """The numbers that a reader should see, each with its name."""
    questions: tuple[str, ...]
    """What a reader should be able to answer afterwards."""


def violated(statements: Mapping[str, bool]) -> list[str]:
    """The statements that do not hold."""
    return [statement for statement, holds in statements.items() if not holds]


def falling(values: Sequence[float]) -> bool:
    """Whether each value is less than the one before it, until they are lost in rounding."""
    return all(later < max(earlier, ROUNDING) for earlier, later in pairwise(values))


def equal(found: Sequence[float], predicted: Sequence[float]) -> bool:
    """Whether all pairs agree to 6 digits, or to what rounding leaves."""
    pairs = zip(found, predicted, strict=True)
    return all(math.isclose(one, other, rel_tol=1e-6, abs_tol=ROUNDING) for one, other in pairs)


def short(value: float, digits: int = 3) -> str:
    """A number in as few characters as tell it, 0.000012 as 1.2e−05."""
    return minus(f"{value:.{digits}g}")


def chart(
    lines: Sequence[Line], *, x_label: str, y_label: str, log_x: bool = False, log_y: bool = False, power: int = 10
) -> Figure:
    """Lines as in every other figure of the project, y by its order of magnitude where asked.

    Args:
        lines: What to draw.
        x_label: What x is.
        y_label: What y is.
        log_x: Whether x is spread by its order of magnitude.
        log_y: Whether y is; zeros are then left out.
        power: The base of the ticks on a logarithmic x.
    """
    figure = line_chart(lines, x_label=x_label, y_label=y_label, log_x=log_x)
    axes = figure.axes[0]
    if log_x and power != 10:
        axes.set_xscale("log", base=power)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if log_y:
        axes.set_yscale("log", nonpositive="mask")
    # Between decades minor ticks are a smudge at this size.
    axes.minorticks_off()
    return figure
