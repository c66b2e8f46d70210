"""Metrics, baselines, collapse detection, calibration and significance tests."""
