"""Scores, baselines, the collapse alarm, calibration, slices, statistics. Used by tasks and studies."""
