"""A tiny joint training that the tests share: labeled and unlabeled rows of made-up tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from training_case import Case, collate, rows, tiny_bert
from transformers import PreTrainedModel

from hftune.models.joint import with_mlm_head
from hftune.tasks.classification import ClassificationLoss
from hftune.tasks.joint import JointLoss, PairedCollator, PairedRows
from hftune.tasks.mlm import MaskedRows, Masking
from hftune.tasks.tokens import Encoded
from hftune.training.callbacks import LossComponents
from hftune.training.inputs import AuxiliaryData

UNLABELED = 23


def examples(count: int = UNLABELED) -> Encoded:
    draw = np.random.default_rng(9)
    return Encoded.of(
        {"input_ids": [1, *draw.integers(10, 60, int(draw.integers(5, 20))).tolist()]} for _ in range(count)
    )


def inputs(train_rows: int, batch_size: int, weight: Callable[[float], float]) -> dict[str, Any]:
    """What replaces the plain inputs of a ``Case``; made anew for each trainer."""
    unlabeled, parts = examples(), LossComponents()
    lengths = unlabeled.sizes.tolist()
    masking = Masking(1, 0.3, 2, frozenset(range(5)), np.arange(5, 64))
    return {
        "train": PairedRows(rows(train_rows, 1), MaskedRows(unlabeled, masking)),  # type: ignore[arg-type]
        "collator": PairedCollator(collate, 0),
        "loss": JointLoss(ClassificationLoss(None, 0.0), parts),
        "loss_components": parts,
        "auxiliary": AuxiliaryData(lengths, batch_size, weight, "mlm_labels", "mlm_items", "mlm_alpha"),
        "keep_columns": True,
    }


def joint_bert(dropout: float) -> PreTrainedModel:
    return with_mlm_head(tiny_bert(dropout))


def joint_case(
    folder: Path, settings: dict[str, Any], *, rows: int, mlm_batch_size: int, weight: Callable[[float], float]
) -> Case:
    return Case(folder, settings, train_rows=rows, inputs=inputs(rows, mlm_batch_size, weight))
