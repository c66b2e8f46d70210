"""Evaluation by length that answers in row order: long rows are batched with long ones, and nobody sees it.

The first layer over Trainer; ``hftune.training.trainer`` is the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset
from transformers import EvalPrediction, Trainer
from transformers.trainer_utils import EvalLoopOutput

from hftune.training.sampler import FixedOrder, longest_first


class RowOrderTrainer(Trainer):  # type: ignore[misc]
    """Trainer whose ``evaluate`` and ``predict`` go from long rows to short ones."""

    def __init__(self, *, validation_lengths: Sequence[int], **kwargs: Any) -> None:
        """validation_lengths: tokens of each validation row; the rest is Trainer's own."""
        self._dev_lengths = validation_lengths
        self._order: np.ndarray | None = None
        self.compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None
        super().__init__(**kwargs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Dev rows, or others, from long to short."""
        self._order = longest_first(self._dev_lengths if eval_dataset is None else _lengths(eval_dataset))
        loader: DataLoader[Any] = super().get_eval_dataloader(eval_dataset)
        return loader

    def get_test_dataloader(self, test_dataset: Dataset[Any]) -> DataLoader[Any]:
        """Rows to predict, from long to short."""
        self._order = longest_first(_lengths(test_dataset))
        loader: DataLoader[Any] = super().get_test_dataloader(test_dataset)
        return loader

    def _get_eval_sampler(self, eval_dataset: Any) -> FixedOrder:
        assert self._order is not None and len(self._order) == len(eval_dataset), "set by the loader's maker"
        return FixedOrder(self._order)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate, and put predictions back into row order before anyone sees them."""
        assert self._order is not None, "set by the loader's maker"
        back = np.argsort(self._order)
        compute: Callable[[EvalPrediction], dict[str, float]] | None = self.compute_metrics

        def in_row_order(outcome: EvalPrediction) -> dict[str, float]:
            assert compute is not None, "only called when there is one"
            names = ("predictions", "label_ids", "inputs", "losses")
            return compute(EvalPrediction(**{name: _take(getattr(outcome, name), back) for name in names}))

        self.compute_metrics = in_row_order if compute else None
        try:
            output = super().evaluation_loop(*args, **kwargs)
        finally:
            self.compute_metrics = compute
        return output._replace(predictions=_take(output.predictions, back), label_ids=_take(output.label_ids, back))


def _lengths(dataset: Any) -> list[int]:
    """Tokens of each row; equal ones, which keep the row order, where rows have no token ids."""
    return [len(row["input_ids"]) if "input_ids" in row else 1 for row in dataset]


def _take(value: Any, rows: np.ndarray) -> Any:
    """The rows of an array, or of every array in a nest of them."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _take(part, rows) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_take(part, rows) for part in value)
    return value[rows]
