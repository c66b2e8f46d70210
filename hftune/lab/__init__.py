"""The attention lab: what attention can and can't do, as experiments that run. Called by ``hftune lab``.

An experiment is one file with a claim, the mathematics, a measurement, a figure and a check, and one line here.
"""

from __future__ import annotations

from typing import Any

from hftune.lab import (
    argmax,
    average,
    bptt,
    complexity,
    copy_value,
    key_query_value,
    logit_bias,
    low_rank,
    masking,
    multi_head,
    random_features,
    scaling,
    single_head,
)
from hftune.lab.experiment import Experiment

EXPERIMENTS: dict[str, Experiment[Any]] = {
    "copy": copy_value.EXPERIMENT,
    "average": average.EXPERIMENT,
    "single-head": single_head.EXPERIMENT,
    "multi-head": multi_head.EXPERIMENT,
    "key-query-value": key_query_value.EXPERIMENT,
    "argmax": argmax.EXPERIMENT,
    "scaling": scaling.EXPERIMENT,
    "masking": masking.EXPERIMENT,
    "complexity": complexity.EXPERIMENT,
    "low-rank": low_rank.EXPERIMENT,
    "random-features": random_features.EXPERIMENT,
    "bptt": bptt.EXPERIMENT,
    "logit-bias": logit_bias.EXPERIMENT,
}
