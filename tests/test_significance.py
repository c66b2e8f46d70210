"""The statistics on planted scores: known answers, stated rates over many draws, and the words of the verdict."""

from __future__ import annotations

import numpy as np
import pytest
from facts import hftune_error, mentions
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.metrics import f1_score

from hftune.evaluation import significance as sig
from hftune.evaluation.scores import SCORES

pytestmark = pytest.mark.numeric


def draw(
    rng: np.random.Generator, seeds: int, items: int, spread: float, *, gap: float = 0.0, common: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Two systems of like kind, right on about 70 % of items that both find hard or easy alike.

    Args:
        rng: Where the draw comes from.
        seeds: Models of each system.
        items: Test items.
        spread: Standard deviation of a system's accuracy between seeds, roughly.
        gap: By how much the first system is better, roughly.
        common: Share of the seeds' luck that both systems have in common.
    """
    shared_items, shared_seeds = rng.normal(size=items), rng.normal(size=(seeds, 1))
    systems = []
    for advantage in (gap, 0.0):
        difficulty = np.sqrt(0.7) * shared_items + np.sqrt(0.3) * rng.normal(size=items)
        luck = np.sqrt(common) * shared_seeds + np.sqrt(1 - common) * rng.normal(size=(seeds, 1))
        # One point of accuracy is about 0.031 on this latent scale.
        latent = 0.6 + 3.1 * (advantage + spread * luck) + difficulty + 0.5 * rng.normal(size=(seeds, items))
        systems.append(latent > 0)
    return systems[0], systems[1]


@pytest.mark.parametrize(
    ("seeds", "items", "spread", "common", "paired"),
    [
        (1, 500, 0.0, 0.0, True),
        (3, 500, 0.0, 0.0, True),
        (3, 500, 0.02, 0.0, True),
        (3, 500, 0.05, 0.0, True),
        (3, 500, 0.05, 0.8, True),
        (5, 1000, 0.01, 0.0, True),
        (5, 500, 0.05, 0.0, True),
        (3, 500, 0.03, 0.0, False),
    ],
)
def test_equal_systems_are_called_indistinguishable_at_the_stated_rate(
    seeds: int, items: int, spread: float, common: float, paired: bool
) -> None:
    rng = np.random.default_rng(11)
    draws = 300
    held = 0
    for _ in range(draws):
        a, b = draw(rng, seeds, items, spread, common=common)
        held += not sig.compare(a, b, paired_seeds=paired, resamples=1000).distinguishable
    # 95 % is promised; of 300 draws 93 % is 1.6 standard deviations below that.
    assert held / draws >= 0.93


@pytest.mark.parametrize(("seeds", "items", "spread"), [(1, 3270, 0.0), (3, 3270, 0.005), (5, 2000, 0.01)])
def test_a_gap_of_five_points_is_found(seeds: int, items: int, spread: float) -> None:
    rng = np.random.default_rng(12)
    found = [sig.compare(*draw(rng, seeds, items, spread, gap=0.05), resamples=1000) for _ in range(60)]
    assert np.mean([one.distinguishable and one.difference > 0 for one in found]) >= 0.9
    assert np.mean([one.difference for one in found]) == pytest.approx(0.05, abs=0.01)


def test_interval_of_one_system_holds_its_true_accuracy() -> None:
    rng = np.random.default_rng(13)
    truth = float(np.mean([draw(rng, 50, 4000, 0.03)[0].mean() for _ in range(40)]))
    held = 0
    for _ in range(200):
        found = sig.estimate(draw(rng, 3, 500, 0.03)[0], resamples=1000)
        held += found.low <= truth <= found.high
    assert held / 200 >= 0.92


ACCURACY = SCORES["classify"]["accuracy"]


@pytest.mark.parametrize(
    ("share", "items", "seeds", "spread"),
    [(0.95, 100, 1, 0.0), (0.99, 500, 1, 0.0), (0.21, 200, 3, 0.6), (0.97, 200, 3, 0.5), (0.9, 300, 3, 0.0)],
)
def test_the_interval_of_an_accuracy_stays_in_its_range_and_holds_the_truth(
    share: float, items: int, seeds: int, spread: float
) -> None:
    rng = np.random.default_rng(17)
    middle = np.log(share / (1 - share))
    truth = expit(middle + spread * rng.normal(size=20_000)).mean()
    held, left = 0, 0
    for _ in range(200):
        right = expit(middle + spread * rng.normal(size=(seeds, 1)))
        scores = rng.random((seeds, items)) < right
        found, plain = sig.estimate(scores, ACCURACY, resamples=1000), sig.estimate(scores, resamples=1000)
        assert 0 <= found.low <= found.mean <= found.high <= 1
        held += found.low <= truth <= found.high
        left += plain.low < 0 or plain.high > 1
    # 95 % is promised; of 200 draws 91 % is 2.6 standard deviations below that.
    assert held / 200 >= 0.91
    assert left > 0 or seeds == 1 or spread == 0, "without its range the interval leaves it"


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_accuracy_at_an_end_has_the_interval_of_wilson(value: float) -> None:
    found = sig.estimate(np.full((3, 50), value), ACCURACY)
    z = norm.ppf(0.975)
    ends = (0.0, z**2 / (50 + z**2)) if value == 0 else (50 / (50 + z**2), 1.0)
    assert (found.low, found.high) == pytest.approx(ends)


def test_few_unlike_seeds_stay_in_every_range() -> None:
    rng = np.random.default_rng(3)
    unlike = (rng.random((3, 200)) < np.array([[0.02], [0.21], [0.4]])).astype(float)
    against = sig.compare(1 - unlike, unlike, ACCURACY)
    assert -1 < against.low < against.difference < against.high < 1
    # Perplexities [seeds, items, (nats, tokens)]: never below 1.
    nats = rng.gamma(2.0, np.array([[0.02], [0.5], [1.5]]), size=(3, 30))
    score = SCORES["clm"]["perplexity"]
    found = sig.estimate(np.stack([nats, np.ones_like(nats)], axis=-1), score)
    assert found.mean == pytest.approx(np.exp(nats.mean(axis=1)).mean())
    assert 1 < found.low < found.mean < found.high


def test_a_ratio_of_sums_has_the_interval_of_the_delta_method() -> None:
    rng = np.random.default_rng(4)
    tokens = rng.integers(5, 60, 400).astype(float)
    nats = tokens * rng.gamma(9.0, 0.3, 400)
    found = sig.estimate(np.stack([nats, tokens], axis=-1)[None], SCORES["clm"]["loss"])
    ratio = nats.sum() / tokens.sum()
    error = np.sqrt(((nats - ratio * tokens) ** 2).sum()) / tokens.sum()
    assert found.mean == pytest.approx(ratio)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_f1_over_resampled_items_finds_a_planted_gap_and_no_other() -> None:
    rng = np.random.default_rng(6)
    gold = rng.integers(3, size=400)

    def system(share: float) -> np.ndarray:
        predicted = np.where(rng.random((4, 400)) < share, gold, rng.integers(3, size=(4, 400)))
        return np.stack([predicted, np.broadcast_to(gold, (4, 400))], axis=-1).astype(float)

    f1_macro, good, same, bad = SCORES["classify"]["f1_macro"], system(0.8), system(0.8), system(0.5)
    found = sig.compare(good, bad, f1_macro)
    assert found.distinguishable and found.items_test == "bootstrap" and found.p_value < 0.05
    assert not sig.compare(good, same, f1_macro).distinguishable
    expected = np.mean([f1_score(gold, seed[:, 0], average="macro") for seed in good])
    assert sig.estimate(good, f1_macro).mean == pytest.approx(expected)


def test_seeds_alone_give_the_t_interval() -> None:
    by_seed = np.array([0.01, 0.04, 0.02, 0.05])
    found = sig.compare(np.tile(by_seed[:, None], 50), np.zeros((4, 50)), resamples=400_000)
    half = student.ppf(0.975, 3) * by_seed.std(ddof=1) / 2
    assert found.difference == pytest.approx(0.03)
    assert (found.low, found.high) == pytest.approx((0.03 - half, 0.03 + half), abs=half * 0.03)


@pytest.mark.parametrize("levels", ["few", "many"])
def test_items_alone_give_the_normal_interval(levels: str) -> None:
    rng = np.random.default_rng(5)
    b = rng.random(2000)
    a = b + (rng.choice([-1.0, 0.0, 1.0], 2000, p=[0.1, 0.7, 0.2]) if levels == "few" else rng.normal(0.1, 1, 2000))
    found = sig.compare(a, b, resamples=5_000)
    half = 1.96 * (a - b).std(ddof=1) / np.sqrt(2000)
    assert found.difference == pytest.approx((a - b).mean())
    assert (found.low, found.high) == pytest.approx(((a - b).mean() - half, (a - b).mean() + half), abs=half * 0.08)


def test_noise_of_single_items_is_not_taken_for_luck_of_seeds() -> None:
    rng = np.random.default_rng(9)
    found = [sig.compare(*(rng.random((2, 30, 400)) < 0.8), resamples=1000) for _ in range(30)]
    width = np.mean([one.high - one.low for one in found])
    assert width == pytest.approx(2 * 1.96 * np.sqrt(2 * 0.16 / (30 * 400)), rel=0.15)


def test_luck_that_two_systems_share_cancels_when_seeds_are_paired() -> None:
    a, b = draw(np.random.default_rng(2), 5, 1000, 0.06, common=1.0)
    paired, loose = sig.compare(a, b), sig.compare(a, b, paired_seeds=False)
    assert paired.difference == loose.difference
    assert paired.high - paired.low < 0.6 * (loose.high - loose.low)


def test_order_of_the_systems_only_turns_the_sign() -> None:
    a, b = draw(np.random.default_rng(3), 3, 500, 0.02, gap=0.03)
    forth, back = sig.compare(a, b, resamples=200_000), sig.compare(b, a, resamples=200_000)
    assert forth.difference == pytest.approx(-back.difference)
    assert forth.low == pytest.approx(-back.high, abs=0.004)
    assert forth.items_p_value == back.items_p_value


def test_p_value_and_interval_agree() -> None:
    rng = np.random.default_rng(4)
    found = [sig.compare(*draw(rng, 3, 400, 0.01, gap=gap)) for gap in np.linspace(0, 0.12, 40)]
    clear = [one for one in found if not 0.045 < one.p_value < 0.055]
    assert len({one.distinguishable for one in clear}) == 2
    assert all(one.distinguishable == (one.p_value < 0.05) for one in clear)


def test_same_call_gives_the_same_numbers() -> None:
    a, b = draw(np.random.default_rng(3), 3, 500, 0.02)
    assert sig.compare(a, b) == sig.compare(a, b)


def test_estimate_of_planted_scores() -> None:
    found = sig.estimate([[1, 1, 0, 0], [1, 1, 1, 0]])
    assert found.mean == pytest.approx(0.625)
    assert found.std == pytest.approx(np.std([0.5, 0.75], ddof=1))
    assert (found.seeds, found.items) == (2, 4)
    assert found.low < 0.5 < 0.75 < found.high
    assert sig.estimate([1, 0]).std is None


def test_mcnemar_against_the_binomial_by_hand() -> None:
    a = np.array([1] * 10 + [0] * 2 + [1] * 50)
    b = np.array([0] * 10 + [1] * 2 + [1] * 50)
    by_hand = 2 * (1 + 12 + 66) / 2**12
    assert sig.mcnemar(a, b) == pytest.approx(by_hand)
    assert sig.mcnemar(a, a) == 1.0
    found = sig.compare(a, b)
    assert (found.items_test, found.items_p_value) == ("McNemar", pytest.approx(by_hand))


def test_approximate_randomization_comes_near_the_exact_test() -> None:
    a = np.array([1] * 10 + [0] * 2 + [1] * 50)
    b = np.array([0] * 10 + [1] * 2 + [1] * 50)
    assert sig.approximate_randomization(a, b, resamples=200_000) == pytest.approx(sig.mcnemar(a, b), abs=0.003)
    assert sig.approximate_randomization(a, a) == 1.0
    # Seven unlike differences of one sign: only 2 of the 128 ways to swap are as extreme.
    sizes = np.array([0.11, 0.23, 0.37, 0.41, 0.59, 0.67, 0.83])
    found = sig.approximate_randomization(sizes, np.zeros(7), resamples=200_000)
    assert found == pytest.approx(2 / 128, abs=0.001)
    assert sig.compare(sizes, np.zeros(7)).items_test == "approximate randomization"


def test_randomisation_of_unlike_scores_is_near_the_normal_one() -> None:
    differences = np.random.default_rng(8).normal(0.08, 1.0, 600)
    z = differences.sum() / np.sqrt((differences**2).sum())
    found = sig.approximate_randomization(differences, np.zeros(600), resamples=20_000)
    assert found == pytest.approx(2 * norm.sf(abs(z)), rel=0.15)


def test_randomisation_is_uniform_under_the_null_with_seeds_that_share_items() -> None:
    rng = np.random.default_rng(6)
    p_values = [sig.approximate_randomization(*draw(rng, 3, 300, 0.0), resamples=500) for _ in range(300)]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.09
    assert np.mean(np.array(p_values) <= 0.5) == pytest.approx(0.5, abs=0.1)


def test_holm_against_a_worked_example() -> None:
    assert sig.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert sig.holm([0.5, 0.9]) == [1.0, 1.0]
    assert sig.holm([0.02]) == [0.02]
    assert sig.holm([]) == []


def comparison(difference: float, low: float, high: float, seeds: int) -> sig.PairedComparison:
    return sig.PairedComparison(
        difference=difference,
        low=low,
        high=high,
        p_value=0.5,
        items_p_value=0.5,
        items_test="McNemar",
        seeds=(seeds, seeds),
        items=100,
    )


def test_verdicts_in_words() -> None:
    unclear = comparison(-0.012, -0.029, 0.004, 3)
    assert sig.verdict(unclear, "prefix", "full") == (
        "prefix − full: −1.2 points [−2.9, 0.4]: not distinguishable with 3 seeds"
    )
    clear = comparison(0.031, 0.012, 0.05, 5)
    assert sig.verdict(clear, "lora", "head") == ("lora − head: +3.1 points [1.2, 5.0]: lora is better, with 5 seeds")
    assert sig.verdict(clear, "lora", "head", higher_is_better=False).endswith("head is better, with 5 seeds")
    assert "lora is better" in sig.verdict(clear, "lora", "head", adjusted_p=0.04)
    assert mentions(sig.verdict(clear, "lora", "head", adjusted_p=0.2), "5 seeds", "corrected")
    loss = sig.verdict(comparison(-0.0123, -0.02, -0.0001, 3), "a", "b", scale=1, unit="nats", digits=3)
    assert loss.startswith("a − b: −0.012 nats [−0.020, 0.000]: ")
    assert sig.verdict(comparison(0, 0, 0, 3), "a", "b") == (
        "a − b: 0.0 points [0.0, 0.0]: no difference on any item with 3 seeds"
    )


def test_verdict_reports_too_few_seeds() -> None:
    one, two = (sig.verdict(comparison(0.031, 0.012, 0.05, seeds), "a", "b") for seeds in (1, 2))
    assert mentions(one, "a is better", "1 seed", "rows")
    assert mentions(two, "2 seeds")


def test_identical_systems() -> None:
    a, _ = draw(np.random.default_rng(1), 3, 100, 0.02)
    found = sig.compare(a, a)
    assert (found.difference, found.low, found.high, found.p_value) == (0.0, 0.0, 0.0, 1.0)
    assert not found.distinguishable


def test_unequal_numbers_of_seeds_and_bad_scores() -> None:
    a, b = draw(np.random.default_rng(1), 5, 400, 0.02)
    found = sig.compare(a, b[:3])
    assert found.seeds == (5, 3)
    assert found.low < found.difference < found.high
    with hftune_error(400, 399):
        sig.compare(a, b[:, 1:])
    with hftune_error("scores"):
        sig.estimate([])
    with hftune_error("NaN"):
        sig.estimate([np.nan, 1.0])
