"""What a task hands to training: everything a Trainer needs that the ``train`` section does not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset
from transformers import EvalPrediction

from hftune.training.companion import Companion
from hftune.training.parts import LossParts


@dataclass(frozen=True)
class TrainingInputs:
    """Tokenized rows, how they become batches, how a batch becomes a loss, and what is best."""

    train: Dataset[Any]
    validation: Dataset[Any]
    collator: Callable[[list[dict[str, Any]]], Mapping[str, Tensor]]
    train_lengths: list[int]
    """Tokens of each training row, for length buckets."""
    validation_lengths: list[int]
    """Tokens of each validation row."""
    compute_metrics: Callable[[EvalPrediction], dict[str, float]]
    loss: Callable[..., Tensor] | None
    """Trainer's compute_loss_func: (outputs, labels, num_items_in_batch) → loss; None takes the model's own."""
    tokens: str = ""
    """A hash of the tokenized training rows: a tokenizer that has changed can't go on with an old run."""
    preprocess_logits: Callable[[Any, Any], Any] | None = None
    """Trainer's preprocess_logits_for_metrics: (outputs, labels) → what compute_metrics needs of them, no more."""
    keep_columns: bool = False
    """Whether the collator reads columns that the model does not take; they are left out before it otherwise."""
    epoch_lengths: Callable[[int], Sequence[int]] | None = None
    """Tokens of each training row in an epoch, where rows change from epoch to epoch; ``train`` is then asked for
    (epoch, row) and must answer by these two alone, so that a resumed run sees what the first one saw."""
    decay_embeddings: bool = True
    """Whether weight decay goes for embeddings too; Muon's never does."""
    samples: Callable[[Any], list[dict[str, Any]]] | None = None
    """The model → what it writes, kept in history at each evaluation; must leave the random state alone."""
    companion: Companion | None = None
    """Rows to train on beside the labeled ones: ``train`` is then asked for ``Beside`` and ``Repeated`` too."""
    notes: tuple[str, ...] = ()
    """What whoever watches should know of the rows as they were made."""
    parts: LossParts | None = None
    """Where ``loss`` keeps the parts that it is the sum of; they are logged beside it."""
