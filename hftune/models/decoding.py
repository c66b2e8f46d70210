"""Tokens after prompts, one after the other: in batches, with a cache, within the context or sliding on.

``writer`` chooses the tokens of language models with it, ``answerer`` those of answers. Neither the batch size nor the
neighbors of a prompt change what is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from peft import PeftModel
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from hftune.models.positions import max_positions
from hftune.models.roomy_cache import make_room

ENOUGH, LIKE = 32, 0.9
"""So many rows keep a processor busy; from there on only those that are nearly as long join their batch."""
WORTH_SHARING = 4
"""From so many tokens on, what all prompts of a batch begin with is run once for all of them."""
UNBOUNDED = 2**31
"""Stands for the context of a model that sets no limit."""


@dataclass
class Row:
    """A prompt, and what has been written after it."""

    ids: list[int]
    written: list[int] = field(default_factory=list)
    """New tokens, the one that ended it among them."""
    log_probability: float = 0.0
    """What the model itself thinks of them, however they were chosen."""
    ended: bool = False


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True)
class Decoding(Generic[AnyRow]):
    """How prompts are gone on from."""

    most: int
    """New tokens of a row; fewer where the context is full, unless it slides."""
    ends: frozenset[int]
    """Tokens after which a row is done."""
    choose: Callable[[Tensor, list[AnyRow]], Tensor] = lambda logits, rows: logits.argmax(-1)
    """Logits [B, V] of some rows → the next token of each [B]."""
    slide: bool = False
    """Whether the latter half of the context stays when it is full; prompts that are too long begin so."""
    closing: int | None = None
    """A token whose probability counts for rows that are cut off, as if it ended them; not where the context slides."""
    told: Callable[[AnyRow], None] = lambda row: None
    """Hears of each row that has a new token."""
    advance: Callable[[int], None] = lambda rows: None
    """Told how many rows are done, batch by batch."""


def context_of(model: PreTrainedModel) -> int:
    """Tokens of the longest sequence that the model takes."""
    return max_positions(model.config) or UNBOUNDED


@torch.inference_mode()
def decode(model: PreTrainedModel, rows: Sequence[AnyRow], how: Decoding[AnyRow], *, batch_size: int) -> None:
    """Write after every row, in place. Torch's random state and the model's mode stay as they are."""
    block, was_training = context_of(model), model.training
    model.eval()
    try:
        for batch in _batches(rows, how, block, batch_size):
            _run(model, batch, how, block)
            how.advance(len(batch))
    finally:
        model.train(was_training)


def _batches(rows: Sequence[AnyRow], how: Decoding[AnyRow], block: int, size: int) -> Iterator[list[AnyRow]]:
    """Rows from long to short; where the context is tight, only rows of one length go together.

    Padding counts against the context, so that what is written could otherwise depend on the neighbors.
    """
    batch: list[AnyRow] = []
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        first = len(batch[0].ids) if batch else 0
        tight = first + how.most > block and len(row.ids) != first
        padded = len(batch) >= ENOUGH and len(row.ids) < LIKE * first
        if batch and (len(batch) == size or tight or padded):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _run(model: PreTrainedModel, rows: list[AnyRow], how: Decoding[AnyRow], block: int) -> None:
    """One batch, padded before what its rows do not share; rows that have ended leave it."""
    takes, going = _arguments(model), list(rows)
    # A context that slides drops what comes first, and would keep the padding after it.
    cache, shared = (None, 0) if how.slide else _shared(model, going, takes)
    ids, mask = _padded(going, shared, model.device)  # each [B, T]
    new = ids[:, shared:]
    for _ in range(how.most if how.slide else min(how.most, block - ids.shape[1])):
        if ids.shape[1] > block:  # only where it slides
            half = -(-block // 2)
            ids, mask, cache = ids[:, -half:], mask[:, -half:], None
            new = ids
        first = cache is None or new.shape[1] > 1
        outputs = _forward(model, takes, new, mask, cache)
        cache, logits = outputs.past_key_values, outputs.logits[:, -1].float()  # [B, V]
        if first:  # others follow one by one
            make_room(cache, min(block, ids.shape[1] + how.most))
        token = how.choose(logits, going)  # [B]
        scores = logits.log_softmax(-1).gather(1, token[:, None])[:, 0]
        for row, number, score in zip(going, token.tolist(), scores.tolist(), strict=True):
            row.written.append(number)
            row.log_probability += score
            row.ended = number in how.ends
            how.told(row)
        stays = [place for place, row in enumerate(going) if not row.ended]
        if not stays:
            return
        ids, mask = torch.cat([ids, token[:, None]], dim=1), torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        new = ids[:, -1:]
        if len(stays) < len(going):
            kept = torch.tensor(stays, device=ids.device)
            going, ids, mask, new = [going[place] for place in stays], ids[kept], mask[kept], new[kept]
            if isinstance(cache, DynamicCache):
                cache.batch_select_indices(kept)
            else:  # of a kind that can't be cut: made again
                cache, new = None, ids
    if how.closing is not None:
        logits = _forward(model, takes, new, mask, cache).logits[:, -1].float()  # [B, V]
        for row, score in zip(going, logits.log_softmax(-1)[:, how.closing].tolist(), strict=True):
            row.log_probability += score


def _forward(model: PreTrainedModel, takes: set[str], new: Tensor, mask: Tensor, cache: Any) -> Any:
    """Run new tokens [B, T] after those in the cache, under a mask of all of them; logits of the last one only."""
    inputs: dict[str, Any] = {"input_ids": new, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
    if "position_ids" in takes:
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
    if "logits_to_keep" in takes:
        inputs["logits_to_keep"] = 1
    return model(**inputs)


def _shared(model: PreTrainedModel, rows: Sequence[Row], takes: set[str]) -> tuple[Any, int]:
    """The cache of the tokens that all rows begin with, and their number; nothing where it can't be or is not worth it.

    Questions of one form share their first words, samples of one prompt all but its last token, which gives the logits.
    """
    prompts = [row.ids for row in rows]
    ids, other = min(prompts), max(prompts)  # what the two share, all share
    alike = next((place for place, pair in enumerate(zip(ids, other, strict=False)) if pair[0] != pair[1]), len(ids))
    count = min(alike, min(map(len, prompts)) - 1)
    if len(rows) == 1 or count < WORTH_SHARING or "position_ids" not in takes:
        return None, 0
    once = torch.tensor([ids[:count]], device=model.device)
    cache = _forward(model, takes, once, torch.ones_like(once), None).past_key_values
    # Layers of other kinds go by places, not by positions: padding after the shared tokens would move those apart.
    if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None, 0
    cache.batch_repeat_interleave(len(rows))
    return cache, count


def _arguments(model: PreTrainedModel) -> set[str]:
    """What the model's forward takes: families differ."""
    plain = model.get_base_model() if isinstance(model, PeftModel) else model
    return set(inspect.signature(plain.forward).parameters)


def _padded(rows: Sequence[Row], shared: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask, padded with any token on the left of what is not shared, each [B, T]."""
    width = max(len(row.ids) for row in rows)
    ids = [row.ids[:shared] + [0] * (width - len(row.ids)) + row.ids[shared:] for row in rows]
    mask = [[1] * shared + [0] * (width - len(row.ids)) + [1] * (len(row.ids) - shared) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
