"""The collapse alarm on planted predictions: it must ring, and it must keep quiet."""

from __future__ import annotations

import numpy as np
import pytest
from facts import mentions

from hftune.evaluation.collapse import collapsed


def boolq_gold() -> np.ndarray:
    """BoolQ's validation split: 2,033 of 3,270 answers are yes, a rate of 0.6217."""
    return np.random.default_rng(0).permutation(np.arange(3270) < 2033).astype(int)


def model(gold: np.ndarray, recalls: tuple[float, ...], seed: int = 1) -> np.ndarray:
    """Predictions that find each label with its recall, and else name the next label."""
    rng = np.random.default_rng(seed)
    right = rng.random(len(gold)) < np.array(recalls)[gold]
    return np.where(right, gold, (gold + 1) % len(recalls))


def test_boolq_at_the_majority_rate() -> None:
    gold = boolq_gold()
    reason = collapsed(np.ones_like(gold), gold, ("no", "yes"))
    assert reason is not None
    assert mentions(reason, "all", 3270, "'yes'")
    assert "accuracy 0.6217, majority label of the split 0.6217" in reason
    assert mentions(reason, 1237)


def test_nearly_one_class_even_the_minority() -> None:
    gold = boolq_gold()
    predicted = np.zeros_like(gold)
    predicted[:20] = 1
    reason = collapsed(predicted, gold)
    assert reason is not None
    assert mentions(reason, "99.4%", 3270, "label 0", "37.8%")


@pytest.mark.parametrize("rows", [500, 2000, 10_000])
def test_nearly_one_of_five_labels_and_three_never(rows: int) -> None:
    """The score is a little above the majority rate, as chance has it."""
    gold = np.arange(rows) % 5
    for seed in range(20):
        rng = np.random.default_rng(seed)
        predicted = np.where(rng.random(rows) < 0.95, 4, 0)
        reason = collapsed(predicted, gold, ("1", "2", "3", "4", "5"))
        assert reason is not None
        assert mentions(reason, "'5'", "3 of 5")


@pytest.mark.parametrize("share", [0.03, 0.08, 0.14, 0.2])
def test_no_better_than_a_constant(share: float) -> None:
    """Some predictions differ from the majority label, with no relation to gold."""
    gold = boolq_gold()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert collapsed((rng.random(len(gold)) > 0.378 * share).astype(int), gold) is not None


@pytest.mark.parametrize("rows", [100, 1000])
def test_two_of_five_labels_at_random(rows: int) -> None:
    gold = np.arange(rows) % 5
    for seed in range(20):
        predicted = np.random.default_rng(seed).choice([1, 3], rows)
        reason = collapsed(predicted, gold)
        assert reason is not None
        assert mentions(reason, "3 of 5", "correlation")
    assert collapsed(np.random.default_rng(0).choice(5, rows), gold) is None, "a random guess is bad, and no collapse"


@pytest.mark.parametrize("labels", [2, 3, 5, 20, 100])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("rows", [50, 200, 2000])
def test_no_alarm_for_models_that_learned(labels: int, skew: float, rows: int) -> None:
    """From weak to good models, on labels from equally frequent to one that has nearly all rows."""
    shares = np.arange(1, labels + 1) ** -skew
    shares /= shares.sum()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gold = rng.choice(labels, rows, p=shares)
        recalls = rng.uniform(0.35, 0.95, labels)  # where it misses, it guesses by frequency
        predicted = np.where(rng.random(rows) < recalls[gold], gold, rng.choice(labels, rows, p=shares))
        assert len(np.unique(gold)) < 2 or collapsed(predicted, gold) is None


def test_no_alarm_for_a_careful_model_of_a_rare_label() -> None:
    """It finds a fifth of the rare rows, and is right whenever it predicts it: 99.8 % of predictions are one label."""
    gold = (np.arange(2000) < 20).astype(int)
    assert collapsed((np.arange(2000) < 4).astype(int), gold) is None


def test_five_balanced_classes() -> None:
    gold = np.arange(500) % 5
    assert collapsed(np.full(500, 3), gold) is not None
    assert collapsed(model(gold, (0.5,) * 5), gold) is None


@pytest.mark.parametrize("rare", [0.01, 0.03, 0.1, 0.3])
def test_no_alarm_for_a_good_model_on_an_imbalanced_set(rare: float) -> None:
    for seed in range(20):
        gold = (np.random.default_rng(seed).random(2000) < rare).astype(int)
        assert collapsed(model(gold, (0.99, 0.7), seed), gold) is None
        assert collapsed(gold, gold) is None


def test_no_alarm_when_the_majority_rate_is_met_by_chance() -> None:
    gold = np.array([0] * 60 + [1] * 40)
    predicted = np.array([0] * 40 + [1] * 40 + [0] * 20)
    assert (predicted == gold).mean() == 0.6
    assert collapsed(predicted, gold) is None


def test_nothing_is_reported_of_a_split_with_one_label() -> None:
    assert collapsed(np.zeros(10), np.zeros(10)) is None


def test_constant_predictions_ring_even_on_a_very_imbalanced_set() -> None:
    gold = np.array([0] * 995 + [1] * 5)
    reason = collapsed(np.zeros(1000), gold)
    assert reason is not None
    assert "majority label of the split 0.9950" in reason
