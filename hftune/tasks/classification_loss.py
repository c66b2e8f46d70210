"""The loss of classification: cross-entropy with class weights and label smoothing, averaged over the whole update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hftune.errors import HftuneError
from hftune.suggest import did_you_mean


class ClassificationLoss:
    """Trainer's ``compute_loss_func``.

    Dividing the sum by ``num_items_in_batch`` makes the mean right under gradient accumulation, several processes
    and a short last batch; the mean that models return themselves is right only without any of these.
    """

    def __init__(self, weights: Tensor | None, label_smoothing: float) -> None:
        """weights: one a label, or None for equal ones."""
        self.weights = weights
        self.label_smoothing = label_smoothing

    def __call__(
        self, outputs: Mapping[str, Tensor], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Loss of one forward pass, as its share of the update."""
        logits = outputs["logits"]
        weights = None if self.weights is None else self.weights.to(logits)
        total = cross_entropy(logits, labels, weight=weights, label_smoothing=self.label_smoothing, reduction="sum")
        return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)


def class_weights(setting: Any, labels: Sequence[str], gold: Sequence[int]) -> Tensor | None:
    """Weights in label order with a mean of 1 over the training rows, so that the learning rate keeps its meaning."""
    if setting is None:
        return None
    counts = np.bincount(np.asarray(gold), minlength=len(labels))
    if setting == "auto":
        # A label that the subset lacks gets no rows, so its weight is never used.
        weights = 1.0 / np.maximum(counts, 1)
    else:
        weights = np.array([_weight(setting, label) for label in labels])
        _refuse_unknown(setting, labels)
    return torch.tensor(weights * counts.sum() / (weights * counts).sum(), dtype=torch.float32)


def _weight(setting: Mapping[str, float], label: str) -> float:
    if label not in setting:
        raise HftuneError(
            f"task.class_weights has no weight for the label {label!r}",
            hint="give one for every label, or use task.class_weights=auto",
        )
    if setting[label] <= 0:
        raise HftuneError(
            f"task.class_weights.{label} is {setting[label]}, expected a number above 0",
            hint="leave rows of that label out of the data if it should not count",
        )
    return setting[label]


def _refuse_unknown(setting: Mapping[str, float], labels: Sequence[str]) -> None:
    known = set(labels)
    unknown = [label for label in setting if label not in known]
    if unknown:
        shown = ", ".join(labels[:20]) + (f" … {len(labels):,} in all" if len(labels) > 20 else "")
        raise HftuneError(
            f"task.class_weights names {unknown[0]!r}, which is not a label of the data ({shown})",
            hint=did_you_mean(unknown[0], labels) or "use the label names as the data has them",
        )
