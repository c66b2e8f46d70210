"""The collapse alarm on planted predictions: it must ring, and it must keep quiet."""

from __future__ import annotations

import numpy as np
import pytest

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
    assert "all 3,270 predictions are 'yes'" in reason
    assert "accuracy 0.6217, share of the commonest label 0.6217" in reason
    assert "1,237 gold labels are not" in reason


def test_nearly_one_class_even_the_minority() -> None:
    gold = boolq_gold()
    predicted = np.zeros_like(gold)
    predicted[:20] = 1
    reason = collapsed(predicted, gold)
    assert reason is not None
    assert "99.4% of 3,270 predictions are label 0, against 37.8%" in reason


def test_exact_majority_rate_with_concentrated_predictions() -> None:
    gold = boolq_gold()
    predicted = np.ones_like(gold)
    # 40 rightly and 40 wrongly taken away: 97.6 % yes, and to the item the score of a constant.
    predicted[np.flatnonzero(gold == 0)[:40]] = 0
    predicted[np.flatnonzero(gold == 1)[:40]] = 0
    reason = collapsed(predicted, gold)
    assert reason is not None
    assert "0.6217 is exactly the majority rate, and 97.6%" in reason
    predicted[np.flatnonzero(gold == 0)[40]] = 0
    assert collapsed(predicted, gold) is None


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


def test_nothing_is_said_of_a_split_with_one_label() -> None:
    assert collapsed(np.zeros(10), np.zeros(10)) is None


def test_constant_predictions_ring_even_on_a_very_imbalanced_set() -> None:
    gold = np.array([0] * 995 + [1] * 5)
    reason = collapsed(np.zeros(1000), gold)
    assert reason is not None
    assert "commonest label 0.9950" in reason
