"""Reliability, calibration error and temperature against planted confidences."""

from __future__ import annotations

import numpy as np
import pytest
from facts import hftune_error
from scipy.special import log_softmax, softmax

from hftune.errors import RunFailed
from hftune.evaluation import metrics as cal

pytestmark = pytest.mark.numeric


def drawn(rows: int, stretch: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a model that is perfectly calibrated once they are divided by stretch."""
    rng = np.random.default_rng(seed)
    true = rng.normal(scale=2.0, size=(rows, 4))
    gold = (softmax(true, axis=1).cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return true * stretch, gold


def test_bins_hold_what_was_planted() -> None:
    confidence = np.array([0.62, 0.64, 0.97, 1.0, 0.6])
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    bins = cal.reliability_bins(probabilities, np.array([0, 1, 0, 0, 0]))
    assert [row["count"] for row in bins] == [1, 2, 2]
    assert bins[0]["high"] == pytest.approx(0.6)  # the upper edge belongs to the bin
    assert bins[1] == pytest.approx({"low": 0.6, "high": 2 / 3, "confidence": 0.63, "accuracy": 0.5, "count": 2})
    assert bins[2]["high"] == 1.0
    error = cal.expected_calibration_error(bins)
    assert error == pytest.approx((0.4 * 1 + 0.13 * 2 + 0.015 * 2) / 5)


@pytest.mark.parametrize("stretch", [0.5, 1.0, 3.0])
def test_temperature_recovers_the_planted_stretch(stretch: float) -> None:
    logits, gold = drawn(20_000, stretch)
    assert cal.fit_temperature(logits, gold) == pytest.approx(stretch, rel=0.05)


def test_temperature_mends_an_overconfident_model_on_the_split_it_was_not_fitted_on() -> None:
    report = cal.calibration({"validation": drawn(4000, 3.0, 1), "test": drawn(4000, 3.0, 2)})
    assert report["fitted_on"] == "validation"
    assert report["test"]["ece"] > 0.15
    assert report["test"]["ece_scaled"] < 0.03
    assert sum(row["count"] for row in report["test"]["bins_scaled"]) == 4000
    assert set(report) == {"temperature", "fitted_on", "validation", "test"}
    assert set(report["validation"]) == {"ece", "ece_scaled", "bins", "bins_scaled"}
    assert report["temperature"] == cal.fit_temperature(*drawn(4000, 3.0, 1))


def test_without_validation_nothing_is_fitted() -> None:
    report = cal.calibration({"test": drawn(100, 3.0)})
    assert report["temperature"] is None
    assert report["fitted_on"] is None
    assert set(report["test"]) == {"ece", "bins"}


def test_perfect_predictions_keep_their_temperature() -> None:
    gold = np.arange(30) % 3
    assert cal.fit_temperature(np.eye(3)[gold] * 4, gold) == 1.0


def test_temperature_stays_within_bounds_and_never_makes_its_split_worse() -> None:
    gold = np.arange(4000) % 4
    nearly = np.eye(4)[gold] * 0.1
    nearly[0] = nearly[0][::-1]
    assert cal.fit_temperature(nearly, gold) == pytest.approx(cal.MIN_TEMPERATURE, rel=1e-3)
    noise = np.random.default_rng(0).normal(scale=9, size=(4000, 4))
    hot = cal.fit_temperature(noise, gold)
    assert 5 < hot <= cal.MAX_TEMPERATURE
    rows = np.arange(4000)
    assert -log_softmax(noise / hot, axis=1)[rows, gold].mean() < -log_softmax(noise, axis=1)[rows, gold].mean()


def test_bad_rows_are_refused() -> None:
    with pytest.raises(RunFailed, match="NaN"):
        cal.fit_temperature(np.array([[np.nan, 0.0]]), np.array([0]))
    with hftune_error("temperature"):
        cal.fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=int))
