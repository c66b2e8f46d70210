"""Is one system better than another? Confidence intervals over items and seeds, paired tests, a one-line verdict.

Scores are arrays ``[seeds, items]``: 1 where the model of that seed got that item right and 0 where not, or any other
score of a single item such as its loss. A score that is no mean over items (perplexity, F1; ``evaluation.scores``) has
arrays ``[seeds, items, columns]`` and is computed again for each resample of items.

The interval. A difference between two ways of training is uncertain for two reasons: other test items and other seeds
could have been drawn. With d[s, i] the paired difference of seed s on item i,

    d[s, i] = mean + seed effect[s] + item effect[i] + rest[s, i].

Resampling seeds with replacement, as the plain hierarchical bootstrap does, understates the variance between seeds when
there are few of them: three seeds drawn from three have two thirds of the right variance and no tails. So only the
items are resampled. To each bootstrap mean of the seed-averaged differences (items and rest) a draw of the seed effect
is added: normal, with a variance that is itself drawn from its sampling distribution for S seeds. The mean square
between seeds follows its expectation times chi-squared with S − 1 degrees of freedom over S − 1; dividing by such a
draw gives plausible values of the expectation, and the part that the rest explains is subtracted (a generalized
confidence interval, Weerahandi 1993, as for variance components). The percentiles of the sum are the interval. If seeds
dominate it approaches the t interval over seeds, if they have no effect the item bootstrap. In simulations of equal
systems the 95 % interval contains zero in 95 to 99 % of draws; it is too wide when three seeds hardly differ, since
three seeds can't prove that.

The range. An accuracy is never below 0 or above 1, but the mean plus such a draw can be: with three unlike seeds the
interval of 0.21 was −0.18 … 0.60. So the draws are added on a scale without ends: the logit for a score with two ends
(accuracy, and differences of accuracies, between −1 and 1), the logarithm for one with a lower end (loss, perplexity),
each draw times the slope of that scale there (the delta method). For one seed that is the logit interval of Brown, Cai
and DasGupta (2001, "Interval estimation for a binomial proportion", section 4.2). At an end itself the logit does not
exist: an accuracy of 1 on n items has Wilson's interval (1927), n / (n + z²) … 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binomtest, norm

from hftune.errors import HftuneError
from hftune.evaluation.scores import MAX_EXPONENT, Score

Floats = NDArray[np.float64]
ItemsTest = Literal["McNemar", "approximate randomization", "bootstrap"]

CONFIDENCE = 0.95
SEED = 0
"""Of all draws: the same runs give the same intervals."""
RESAMPLES = 10_000
FEWER_RESAMPLES = 1_000
"""For a function of all items, which is computed for each resample one by one."""
# Up to this many different values it is faster to draw how often each occurs than to draw items.
FEW_LEVELS = 200
MOST_DRAWS = 50_000_000
"""Items times resamples."""
ENOUGH_SEEDS = 3
"""With fewer seeds the verdict adds that they are too few."""


@dataclass(frozen=True)
class ScoreEstimate:
    """The mean score of one system: over its seeds and items, with an interval for other seeds and items."""

    mean: float
    std: float | None
    """Standard deviation between seeds; None with one seed."""
    low: float
    high: float
    seeds: int
    items: int


@dataclass(frozen=True)
class PairedComparison:
    """The mean difference of two systems on the same items, a − b."""

    difference: float
    low: float
    high: float
    p_value: float
    """From the same draws as the interval, so that the two agree."""
    items_p_value: float
    """Of a test over items alone: it compares these trained models, not the way they were trained."""
    items_test: ItemsTest
    seeds: tuple[int, int]
    items: int

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def estimate(scores: Any, score: Score | None = None, *, resamples: int = RESAMPLES) -> ScoreEstimate:
    """Mean, spread over seeds and interval of one system.

    Args:
        scores: ``[seeds, items]``; ``[seeds, items, columns]`` for a score that is no mean over items.
        score: Its entry in the table of scores, with its range; a mean without a range by default.
        resamples: Number of draws for the interval.
    """
    values = _checked(scores)
    rng = np.random.default_rng(SEED)
    by_seed = score_of_seeds(values, score)
    mean, (low, high) = float(by_seed.mean()), _range(score)
    if score is None or score.is_mean:
        draws = _item_draws(values, rng, resamples) - mean + _seed_draws(values, rng, resamples)
    else:
        replicates = _replicates(values, score, rng, resamples)
        errors = _errors(replicates.mean(axis=1), mean, score)
        draws = errors + _effects(by_seed, replicates, rng)
    interval = _end_interval(mean, low, high, values.shape[1]) or _interval(_within(mean, draws, low, high))
    std = float(by_seed.std(ddof=1)) if len(values) > 1 else None
    return ScoreEstimate(mean, std, *interval, *values.shape[:2])


def score_of_seeds(scores: Any, score: Score | None = None) -> Floats:
    """The score of each seed, ``[seeds]``."""
    values = np.asarray(scores, dtype=np.float64)
    if score is None or score.is_mean:
        found = values.mean(axis=1)
    elif score.of_sums is not None:
        found = score.of_sums(values.sum(axis=1))
    else:
        assert score.of_items is not None
        found = np.array([score.of_items(one) for one in values])
    if not np.isfinite(found).all():
        raise HftuneError("The score is not defined for these items.", hint="compare by another metric")
    return np.asarray(found, dtype=np.float64)


def compare(
    a: Any, b: Any, score: Score | None = None, *, paired_seeds: bool = True, resamples: int = RESAMPLES
) -> PairedComparison:
    """Compare two systems scored on the same items.

    Args:
        a: Scores of the first system, ``[seeds, items]``, or ``[items]`` for one seed; with a last axis of columns for
            a score that is no mean over items.
        b: Scores of the second, the same items in the same order.
        score: As of ``estimate``.
        paired_seeds: Row s of a and row s of b come from one seed, which may have drawn the same subset or order
            for both: the common effect cancels. False for rows of different seeds; a different number of seeds
            implies it.
        resamples: Number of draws for the interval.
    """
    first, second = _checked(a), _checked(b)
    if first.shape[1] != second.shape[1]:
        raise HftuneError(
            f"The systems were scored on {first.shape[1]:,} and {second.shape[1]:,} items.",
            hint="compare runs on the same split of the same data, cut into the same documents or blocks",
        )
    rng = np.random.default_rng(SEED)
    paired = paired_seeds and len(first) == len(second)
    items_test: ItemsTest = "bootstrap"
    if score is None or score.is_mean:
        by_item = first.mean(axis=0) - second.mean(axis=0)
        difference = float(by_item.mean())
        draws = _item_draws(by_item[None], rng, resamples) - difference
        if paired:
            draws += _seed_draws(first - second, rng, resamples)
        else:
            draws += _seed_draws(first, rng, resamples) - _seed_draws(second, rng, resamples)
        items_p_value, items_test = _items_test(first, second, resamples)
    else:
        difference, errors, seeds = _difference(first, second, score, rng, resamples, paired=paired)
        items_p_value = _two_sided(difference + errors)
        draws = errors + seeds
    low, high = _range(score)
    widest = high - low
    moved = _within(difference, draws, -widest, widest) if abs(difference) < widest else difference + 0 * draws
    interval = _end_interval(difference, -widest, widest, first.shape[1]) or _interval(moved)
    return PairedComparison(
        difference=difference,
        low=interval[0],
        high=interval[1],
        p_value=_two_sided(moved),
        items_p_value=items_p_value,
        items_test=items_test,
        seeds=(len(first), len(second)),
        items=first.shape[1],
    )


def _items_test(first: Floats, second: Floats, resamples: int) -> tuple[float, ItemsTest]:
    if len(first) == len(second) == 1 and bool(np.isin([first, second], (0.0, 1.0)).all()):
        return mcnemar(first[0], second[0]), "McNemar"
    return approximate_randomization(first, second, resamples=resamples), "approximate randomization"


def _difference(
    first: Floats, second: Floats, score: Score, rng: np.random.Generator, resamples: int, *, paired: bool
) -> tuple[float, Floats, Floats]:
    """The difference of two scores that are no means, its errors over resampled items, and those over seeds."""
    count = len(first)
    replicates = _replicates(np.concatenate([first, second]), score, rng, resamples)  # the same items for both
    a, b = score_of_seeds(first, score), score_of_seeds(second, score)
    difference = float(a.mean() - b.mean())
    errors = _errors(replicates[:, :count].mean(axis=1) - replicates[:, count:].mean(axis=1), difference, score)
    if paired:
        return difference, errors, _effects(a - b, replicates[:, :count] - replicates[:, count:], rng)
    return difference, errors, _effects(a, replicates[:, :count], rng) - _effects(b, replicates[:, count:], rng)


def mcnemar(a: Any, b: Any) -> float:
    """Exact two-sided McNemar test (1947): are the items that only one of two models gets right evenly split?

    Items that both get right or both get wrong do not count: they are no evidence for either model.

    Args:
        a: ``[items]``, 1 or True where the first model is right.
        b: The same for the second.
    """
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_first + only_second:
        return 1.0
    return float(binomtest(only_first, only_first + only_second, 0.5).pvalue)


def approximate_randomization(a: Any, b: Any, *, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of the mean difference when the two systems' answers are swapped at random, item by item.

    The test of Noreen (1989), which Dror et al. (2018) recommend where the distribution of a score is not known. All
    seeds of an item are swapped together, since they share its difficulty. Takes any scores, not only 0 and 1.
    """
    by_item = _checked(a).mean(axis=0) - _checked(b).mean(axis=0)
    rng = np.random.default_rng(SEED)
    sizes, counts = np.unique(np.abs(by_item).round(12), return_counts=True)
    if len(sizes) <= FEW_LEVELS:
        # Items with equal differences are interchangeable: how many of them keep their sign is binomial.
        sums = (2 * rng.binomial(counts, 0.5, size=(resamples, len(counts))) - counts) @ sizes
    else:
        flips = (rng.integers(2, size=(rows, len(by_item)), dtype=np.int8) for rows in _slices(by_item, resamples))
        sums = np.concatenate([(2 * kept - 1) @ by_item for kept in flips])
    extreme = int((np.abs(sums) >= abs(by_item.sum()) - 1e-9).sum())
    # The observed assignment is one of those possible: without the 1, p could be 0 (Phipson and Smyth 2010).
    return (extreme + 1) / (resamples + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for multiple comparisons (1979): as safe as Bonferroni's, and never weaker."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    # The smallest of m p-values is multiplied by m, the next one by m − 1 …; none may end up below a smaller one.
    factors = np.arange(len(p_values), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1.0)
    return [float(value) for value in adjusted]


def verdict(
    comparison: PairedComparison,
    first: str,
    second: str,
    *,
    adjusted_p: float | None = None,
    scale: float = 100.0,
    unit: str = "points",
    digits: int = 1,
    higher_is_better: bool = True,
) -> str:
    """One line: the difference, its interval and which system is better.

    Args:
        comparison: From ``compare``.
        first: Name of the first system.
        second: Name of the second.
        adjusted_p: The p-value after ``holm``, where this is one of several comparisons.
        scale: What the difference is multiplied by for display.
        unit: Its name after that.
        digits: Decimals shown.
        higher_is_better: False for losses and errors.
    """
    middle, low, high = (value * scale for value in (comparison.difference, comparison.low, comparison.high))
    shown = f"{_signed(middle, digits, plus=True)} {unit}".rstrip()
    span = f"[{_signed(low, digits)}, {_signed(high, digits)}]"
    fewest = min(comparison.seeds)
    seeds = f"{fewest} seed{'s' if fewest > 1 else ''}"
    corrected_away = adjusted_p is not None and adjusted_p > 1 - CONFIDENCE
    if comparison.low == comparison.high == 0.0:
        words = f"no difference on any item with {seeds}"
    elif not comparison.distinguishable:
        words = f"not distinguishable with {seeds}"
    elif corrected_away:
        words = f"not distinguishable with {seeds} once corrected for the number of comparisons"
    else:
        better = first if (comparison.difference > 0) == higher_is_better else second
        words = f"{better} is better, with {seeds}"
    if fewest == 1:
        words += "; the interval is over rows only"
    elif fewest < ENOUGH_SEEDS:
        words += "; too few to estimate the effect of the seed"
    return f"{first} − {second}: {shown} {span}: {words}"


def _checked(scores: Any) -> Floats:
    values = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if not values.size:
        raise HftuneError("There are no scores to compare.", hint="give runs with at least one scored item")
    if not np.isfinite(values).all():
        raise HftuneError("Some scores are NaN or infinite.", hint="leave the failed run out of the comparison")
    return values


def _range(score: Score | None) -> tuple[float, float]:
    return (-math.inf, math.inf) if score is None else (score.low, score.high)


def _within(middle: float, draws: Floats, low: float, high: float) -> Floats:
    """The middle moved by each draw, on a scale on which it can't leave the range."""
    if math.isinf(low):
        return middle + draws
    # The transformation gives the interval its skewness; that of the draws would be added a second time.
    draws = np.concatenate([draws, -draws])
    if math.isinf(high):
        above = middle - low
        return low + above * np.exp(np.minimum(draws / above, MAX_EXPONENT)) if above > 0 else middle + 0 * draws
    below, above = middle - low, high - middle
    # The slope of logit((x − low) / (high − low)) at the middle is (high − low) / (below · above).
    place = math.log(below / above) + draws * ((high - low) / (below * above))
    return np.asarray(low + (high - low) * expit(place))


def _end_interval(middle: float, low: float, high: float, items: int) -> tuple[float, float] | None:
    """Wilson's interval of a score that is at an end of its range; None of any other."""
    if math.isinf(low) or math.isinf(high) or low < middle < high:
        return None
    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    reach = (high - low) * z**2 / (items + z**2)
    return (low, low + reach) if middle <= low else (high - reach, high)


def _item_draws(values: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """Bootstrap means of the seed-averaged items.

    Items with equal values are interchangeable, so drawing how often each value occurs is the same bootstrap as
    drawing items, and right-or-wrong scores have only a few values.
    """
    by_item = values.mean(axis=0).round(12)
    levels, counts = np.unique(by_item, return_counts=True)
    items = len(by_item)
    if len(levels) <= FEW_LEVELS:
        return np.asarray(rng.multinomial(items, counts / items, size=resamples) @ levels / items)
    picks = (rng.integers(items, size=(rows, items), dtype=np.int32) for rows in _slices(by_item, resamples))
    return np.concatenate([by_item.take(chosen).mean(axis=1) for chosen in picks])


def _slices(by_item: Floats, resamples: int) -> list[int]:
    """The resamples in chunks that fit the CPU's cache: twice as fast, and less memory."""
    rows = max(1, 300_000 // len(by_item))
    return [min(rows, resamples - start) for start in range(0, resamples, rows)]


def _seed_draws(values: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """Plausible errors of the mean from having drawn these seeds; zeros for one seed, which shows no spread."""
    seeds, items = values.shape
    if seeds < 2 or items < 2:
        return np.zeros(resamples)
    by_seed, by_item = values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    # The residual mean square of a two-way analysis of variance without replication, seeds × items.
    rest = ((values - by_seed - by_item + values.mean()) ** 2).sum() / ((seeds - 1) * (items - 1))
    return _seed_effects(float(by_seed.var(ddof=1)), float(rest / items), seeds, rng, resamples)


def _seed_effects(between: float, rest: float, seeds: int, rng: np.random.Generator, resamples: int) -> Floats:
    """Draws of the seed effect on a mean over seeds.

    Args:
        between: Variance of the scores between seeds; its expectation is the seed variance plus ``rest``.
        rest: Variance of a seed's score that comes from the items, but not from those that are hard for every seed.
        seeds: Number of seeds.
        rng: For the draws.
        resamples: Number of draws.
    """
    plausible = (seeds - 1) * between / rng.chisquare(seeds - 1, size=resamples)
    spread = np.sqrt(np.maximum(plausible - rest, 0.0) / seeds)
    return np.asarray(spread * rng.standard_normal(resamples))


def _replicates(values: Floats, score: Score, rng: np.random.Generator, resamples: int) -> Floats:
    """The score of every seed on resampled items ``[resamples, seeds]``, the same items for all seeds."""
    seeds, items, columns = values.shape
    if score.of_sums is None:
        assert score.of_items is not None
        rows = (rng.integers(items, size=items) for _ in range(min(resamples, FEWER_RESAMPLES)))
        found = np.array([[score.of_items(one[chosen]) for one in values] for chosen in rows])
        # Not defined for some resamples: all of their items have the same label, for instance.
        return np.asarray(found[np.isfinite(found).all(axis=1)])
    flat = values.transpose(1, 0, 2).reshape(items, seeds * columns)
    sums = np.concatenate([weights @ flat for weights in _weights(items, rng, resamples)])
    return np.asarray(score.of_sums(sums.reshape(-1, seeds, columns)))


def _weights(items: int, rng: np.random.Generator, resamples: int) -> Iterator[Floats]:
    """How often each item is drawn, ``[slice, items]``; of very many items there are fewer resamples."""
    for rows in _slices(np.empty(items), max(FEWER_RESAMPLES, min(resamples, MOST_DRAWS // items))):
        # Each resample counts in its own range of numbers, so that one bincount counts all of them.
        picks = rng.integers(items, size=(rows, items)) + np.arange(rows)[:, None] * items
        yield np.bincount(picks.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)


def _errors(replicates: Floats, value: float, score: Score) -> Floats:
    """Errors of a score over resampled items."""
    # A resample repeats items, on which a calibration error is larger and F1 of rare labels smaller than on new ones:
    # the spread of the resamples is right, their mean is not (Efron and Tibshirani 1993, chapter 10).
    return replicates - (value if score.of_items is None else float(replicates.mean()))


def _effects(by_seed: Floats, replicates: Floats, rng: np.random.Generator) -> Floats:
    """Draws of the seed effect on a score that is no mean, from its replicates ``[resamples, seeds]``."""
    if len(by_seed) < 2:
        return np.zeros(len(replicates))
    return _seed_effects(float(by_seed.var(ddof=1)), _rest(replicates), len(by_seed), rng, len(replicates))


def _rest(replicates: Floats) -> float:
    """What items contribute to the variance between seeds: the variance of a seed's errors that others do not share."""
    covariance = np.cov(replicates.T)
    seeds = len(covariance)
    # Errors from items that are hard for every seed are common to all: they are the mean covariance of two seeds.
    own = float(np.trace(covariance)) / seeds
    return own - (float(covariance.sum()) - own * seeds) / (seeds * (seeds - 1))


def _interval(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _two_sided(draws: Floats) -> float:
    tie = 1e-12  # a draw of no difference is not exactly 0 after rounding
    below, above = int((draws <= tie).sum()), int((draws >= -tie).sum())
    # Twice the smaller tail; the 1 is as in approximate_randomization: p can't be 0.
    return min(1.0, 2 * (min(below, above) + 1) / (len(draws) + 1))


def _signed(value: float, digits: int, *, plus: bool = False) -> str:
    """A number with a true minus sign, and no sign for what rounds to nothing."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"−{text}" if value < 0 else f"+{text}" if plus else text
