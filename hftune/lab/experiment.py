"""The class of an experiment: claim, measured numbers, check and figure; and what the experiments share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Generic, Self, TypeVar

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from pydantic import AfterValidator, Field, model_validator

from hftune.config.section import Section
from hftune.lab import claim_of
from hftune.runs.figures import Line, line_chart
from hftune.runs.formatting import minus

Numbers = dict[str, Any]  # plain values that can be written as JSON
S = TypeVar("S", bound=Section)
T = TypeVar("T", int, float)
ROUNDING = 1e-12


@dataclass(frozen=True)
class Drawing:
    """The figure of an experiment."""

    figure: Figure
    alt: str
    """A description for readers who do not see it."""
    caption: str


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """One claim about attention and its test."""

    docstring: str
    """Docstring of its module: the name, the claim in one sentence, and why it should hold."""
    settings: type[S]
    measure: Callable[[S, int], Numbers]
    """Settings and seed → numbers; depends on nothing else."""
    statements: Callable[[Numbers], Mapping[str, bool]]
    """Statements about the numbers that follow from the claim → whether each holds."""
    draw: Callable[[Numbers], Drawing]
    rows: Callable[[Numbers], Sequence[tuple[str, str]]]
    """The most important numbers with their names."""
    questions: tuple[str, ...]
    """What a reader should be able to answer afterwards."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.docstring.partition(": ")[0]

    @property
    def claim(self) -> str:
        """One sentence."""
        return claim_of(self.docstring)

    def check(self, numbers: Numbers) -> list[str]:
        """The statements that the numbers contradict; empty if the claim holds."""
        return [statement for statement, holds in self.statements(numbers).items() if not holds]


# ---- settings ----


def growing(values: tuple[T, ...]) -> tuple[T, ...]:
    """Require that each value is greater than the one before."""
    if not all(earlier < later for earlier, later in pairwise(values)):
        raise ValueError("each must be greater than the one before")
    return values


def shrinking(values: tuple[T, ...]) -> tuple[T, ...]:
    """Require that each value is less than the one before."""
    if not all(earlier > later for earlier, later in pairwise(values)):
        raise ValueError("each must be less than the one before")
    return values


Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(growing), Field(min_length=2)]
# A scale of a query is a logit: its exponential must be finite.
Scales = Annotated[tuple[Annotated[float, Field(gt=0, le=500)], ...], AfterValidator(growing), Field(min_length=2)]


class KeySettings(Section):
    """Number and width of keys."""

    keys: int = Field(16, ge=3)
    """Number of keys and values."""
    dimension: int = Field(32, ge=3)
    """Width of keys and values; at least the number of keys, so that the keys can be orthogonal."""

    @model_validator(mode="after")
    def _fits_dimension(self) -> Self:
        if self.keys > self.dimension:
            raise ValueError(f"{self.keys} keys can't be orthogonal in {self.dimension} dimensions: raise dimension")
        return self


# ---- checks ----


def falling(values: Sequence[float]) -> bool:
    """Whether each value is less than the one before, up to rounding."""
    return all(later < max(earlier, ROUNDING) for earlier, later in pairwise(values))


def equal(found: Sequence[float], predicted: Sequence[float]) -> bool:
    """Whether all pairs agree to 6 digits, up to rounding."""
    pairs = zip(found, predicted, strict=True)
    return all(math.isclose(one, other, rel_tol=1e-6, abs_tol=ROUNDING) for one, other in pairs)


def slope(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """Exponent p of the fit cost ≈ c · lengthᵖ: least squares on logarithms."""
    if len(lengths) != len(costs) or len(set(lengths)) < 2:
        raise ValueError("A slope needs one cost for each length, and at least two different lengths.")
    xs, ys = [math.log(x) for x in lengths], [math.log(y) for y in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in xs)


# ---- numbers and figures ----


def short(value: float, digits: int = 3) -> str:
    """A number with three significant digits, such as 1.2e−05."""
    return minus(f"{value:.{digits}g}")


def chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    power: int = 10,
    from_zero: bool = False,
) -> Figure:
    """A line chart; ``power`` is the base of the ticks on a logarithmic x, and log_y leaves out zeros."""
    figure = line_chart(lines, x_label=x_label, y_label=y_label, log_x=log_x)
    axes = figure.axes[0]
    if log_x and power != 10:
        axes.set_xscale("log", base=power)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if log_y:
        axes.set_yscale("log", nonpositive="mask")
    if from_zero:
        axes.set_ylim(bottom=0)
    axes.minorticks_off()  # unreadable at this size
    return figure
