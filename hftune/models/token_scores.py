"""Rows of tokens as batches, and how a language model takes to them: each token's loss, and whether it was likeliest.

Used by the tasks that train language models, and by ``answerer``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

IGNORED = -100
Collate = Callable[[list[dict[str, Any]]], dict[str, Tensor]]
Scores = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Loss of each token and 1 where it was the likeliest, each [rows, T]; 0 for the first token and for padding."""


class NextTokenBatches:
    """Collator: pads on the right, where causal attention needs no mask for it; padding is never predicted."""

    def __init__(self, fill: int) -> None:
        """fill: any token."""
        self.fill = fill

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Rows → ids and labels, each [B, T]; ``first`` of a row is the first token that is to be predicted, else 1."""
        width = max(len(row["input_ids"]) for row in rows)
        made = np.full((2, len(rows), width), self.fill, dtype=np.int64)
        made[1] = IGNORED
        for place, row in enumerate(rows):
            ids, first = row["input_ids"], row.get("first", 1)
            made[0, place, : len(ids)] = ids
            made[1, place, first : len(ids)] = ids[first:]
        ids, labels = torch.from_numpy(made)
        return {"input_ids": ids, "labels": labels}


def token_scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each token and 1 where it was the likeliest: [B, T, V] and [B, T] → each [B, T].

    Trainer calls it on every evaluation batch, so that no logits are kept.
    """
    before, after = logits[:, :-1].float(), labels[:, 1:]
    # Row by row: the logits of a batch are large, and a second copy of all of them is larger than the model.
    rows = zip(before, after, strict=True)
    losses = torch.stack([cross_entropy(row, told, ignore_index=IGNORED, reduction="none") for row, told in rows])
    hits = (before.argmax(-1) == after).float()
    nothing = losses.new_zeros(len(losses), 1)
    return torch.cat([nothing, losses], dim=1), torch.cat([nothing, hits], dim=1)


def score_sequences(
    model: PreTrainedModel,
    rows: Sequence[dict[str, Any]],
    collate: Collate,
    *,
    batch_size: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> Scores:
    """Score every token of every row, in the order given; long rows run first."""
    lengths = [len(row["input_ids"]) for row in rows]
    order = sorted(range(len(rows)), key=lambda row: -lengths[row])
    found: Scores = (np.zeros((len(rows), max(lengths)), np.float32), np.zeros((len(rows), max(lengths)), np.float32))
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = {name: part.to(model.device) for name, part in collate([rows[row] for row in chosen]).items()}
            logits = model(input_ids=batch["input_ids"], use_cache=False).logits
            for whole, part in zip(found, token_scores(logits, batch["labels"]), strict=True):
                whole[chosen, : part.shape[1]] = part.cpu().numpy()
            advance(len(chosen))
    return found
