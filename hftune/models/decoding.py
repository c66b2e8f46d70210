"""Generate tokens after prompts, in batches, with a cache, within the context or with a sliding window.

transformers' ``generate`` can't be used for this: its samples depend on the batch and on torch's random state, finished
sequences stay in the batch, and a prefix that all prompts share is computed for each. Here neither the batch size nor
the other prompts change what is generated.
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

from hftune.models.load import evaluation_mode, max_positions

MIXED_BATCH, SIMILAR_LENGTH = 32, 0.9
"""Batches of at least this size only take prompts that have nearly the length of their longest: padding costs time."""
MIN_SHARED = 4
"""Number of tokens from which a prefix that all prompts of a batch share is computed only once."""
UNBOUNDED = 2**31
"""The context of a model without a limit."""


@dataclass
class Generated:
    """A prompt, and the tokens that were generated after it."""

    ids: list[int]
    """The prompt."""
    new_ids: list[int] = field(default_factory=list)
    """New tokens, including the end token."""
    log_probability: float = 0.0
    """Of the new tokens under the model itself, whatever way they were chosen."""
    ended: bool = False
    """Whether the last new token is an end token."""


AnyGenerated = TypeVar("AnyGenerated", bound=Generated)


def _greedy(logits: Tensor, rows: list[AnyGenerated]) -> Tensor:
    return logits.argmax(-1)


@dataclass(frozen=True)
class Decoding(Generic[AnyGenerated]):
    """How tokens are generated."""

    max_new_tokens: int
    """Fewer if the context is full, unless the window slides."""
    eos_token_ids: frozenset[int]
    """Tokens that end a sequence."""
    choose: Callable[[Tensor, list[AnyGenerated]], Tensor] = _greedy
    """Logits [B, V] of some sequences → the next token of each [B]."""
    sliding_window: bool = False
    """Keep the latter half of the context when it is full; prompts that are too long start with it."""
    closing: int | None = None
    """A token whose probability counts for sequences that are cut off, as if it ended them; not with a sliding
    window."""
    on_token: Callable[[AnyGenerated], None] = lambda row: None
    """Called with each sequence that has a new token."""
    advance: Callable[[int], None] = lambda rows: None
    """Called with the number of prompts that are done, after each batch."""


def context_of(model: PreTrainedModel) -> int:
    """The longest sequence of a model, in tokens."""
    return max_positions(model.config) or UNBOUNDED


def decode(
    model: PreTrainedModel, rows: Sequence[AnyGenerated], how: Decoding[AnyGenerated], *, batch_size: int
) -> None:
    """Generate after every prompt, in place. Torch's random state and the model's mode do not change."""
    block = context_of(model)
    with evaluation_mode(model):
        for batch in _batches(rows, how, block, batch_size):
            _decode_batch(model, batch, how, block)
            how.advance(len(batch))


def _batches(
    rows: Sequence[AnyGenerated], how: Decoding[AnyGenerated], block: int, size: int
) -> Iterator[list[AnyGenerated]]:
    """Batches from long to short prompts; if the context is tight, only prompts of one length share a batch.

    Padding takes part of the context, so that the result could otherwise depend on the other prompts.
    """
    batch: list[AnyGenerated] = []
    for row in sorted(rows, key=lambda row: -len(row.ids)):
        first = len(batch[0].ids) if batch else 0
        tight = first + how.max_new_tokens > block and len(row.ids) != first
        padded = len(batch) >= MIXED_BATCH and len(row.ids) < SIMILAR_LENGTH * first
        if batch and (len(batch) == size or tight or padded):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _decode_batch(model: PreTrainedModel, rows: list[AnyGenerated], how: Decoding[AnyGenerated], block: int) -> None:
    """One batch, padded between the shared prefix and the rest; sequences that have ended leave it."""
    arguments, going = _arguments(model), list(rows)
    # A sliding window drops the first tokens, and would keep the padding after the shared ones.
    cache, shared = (None, 0) if how.sliding_window else _shared_prefix(model, going, arguments)
    ids, mask = _padded(going, shared, model.device)  # each [B, T]
    new = ids[:, shared:]  # [B, T - shared]
    for _ in range(how.max_new_tokens if how.sliding_window else min(how.max_new_tokens, block - ids.shape[1])):
        if ids.shape[1] > block:  # only with a sliding window
            # The cached keys and values belong to positions that the remaining tokens no longer have: computed again.
            half = -(-block // 2)
            ids, mask, cache = ids[:, -half:], mask[:, -half:], None
            new = ids
        prefill = cache is None or new.shape[1] > 1
        outputs = _forward(model, arguments, new, mask, cache)
        cache, logits = outputs.past_key_values, outputs.logits[:, -1].float()  # [B, V]
        if prefill:
            preallocate(cache, min(block, ids.shape[1] + how.max_new_tokens))
        token = how.choose(logits, going)  # [B]
        scores = logits.log_softmax(-1).gather(1, token[:, None])[:, 0]  # [B]
        for row, number, score in zip(going, token.tolist(), scores.tolist(), strict=True):
            row.new_ids.append(number)
            row.log_probability += score
            row.ended = number in how.eos_token_ids
            how.on_token(row)
        stays = [place for place, row in enumerate(going) if not row.ended]
        if not stays:
            return
        ids, mask = torch.cat([ids, token[:, None]], dim=1), torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        new = ids[:, -1:]  # [B, 1]
        if len(stays) < len(going):
            kept = torch.tensor(stays, device=ids.device)
            going, ids, mask, new = [going[place] for place in stays], ids[kept], mask[kept], new[kept]
            if isinstance(cache, DynamicCache):
                cache.batch_select_indices(kept)
            else:  # a type that can't drop sequences: computed again
                cache, new = None, ids
    if how.closing is not None:
        logits = _forward(model, arguments, new, mask, cache).logits[:, -1].float()  # [B, V]
        for row, score in zip(going, logits.log_softmax(-1)[:, how.closing].tolist(), strict=True):
            row.log_probability += score


def _forward(model: PreTrainedModel, arguments: set[str], new: Tensor, mask: Tensor, cache: Any) -> Any:
    """Run new tokens [B, T] after those in the cache, under a mask [B, S] of all; logits of the last one only."""
    inputs: dict[str, Any] = {"input_ids": new, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
    if "position_ids" in arguments:
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]  # [B, T]
    if "logits_to_keep" in arguments:
        inputs["logits_to_keep"] = 1
    return model(**inputs)


def _shared_prefix(model: PreTrainedModel, rows: Sequence[Generated], arguments: set[str]) -> tuple[Any, int]:
    """The cache of the tokens that all prompts begin with, and their number; None and 0 if that is not possible.

    Questions of one form share their first words; samples of one prompt share all but its last token, which is needed
    for the logits.
    """
    prompts = [row.ids for row in rows]
    ids, other = min(prompts), max(prompts)  # the common prefix of these two is common to all
    alike = next((place for place, pair in enumerate(zip(ids, other, strict=False)) if pair[0] != pair[1]), len(ids))
    count = min(alike, min(map(len, prompts)) - 1)
    if len(rows) == 1 or count < MIN_SHARED or "position_ids" not in arguments:
        return None, 0
    once = torch.tensor([ids[:count]], device=model.device)  # [1, count]
    cache = _forward(model, arguments, once, torch.ones_like(once), None).past_key_values
    # Other layers, such as sliding ones, count places, not positions: padding after the prefix would move them.
    if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
        return None, 0
    cache.batch_repeat_interleave(len(rows))
    return cache, count


def _arguments(model: PreTrainedModel) -> set[str]:
    """The arguments of the model's forward, which differ between model types."""
    plain = model.get_base_model() if isinstance(model, PeftModel) else model
    return set(inspect.signature(plain.forward).parameters)


def _padded(rows: Sequence[Generated], shared: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask, with padding between the shared prefix and the rest, each [B, T]."""
    width = max(len(row.ids) for row in rows)
    ids = [row.ids[:shared] + [0] * (width - len(row.ids)) + row.ids[shared:] for row in rows]
    mask = [[1] * shared + [0] * (width - len(row.ids)) + [1] * (len(row.ids) - shared) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, as the first part of two larger tensors: a new token is written next to the old
    ones.

    DynamicLayer copies everything for each new token, which takes half of a layer's time on a CPU. transformers'
    StaticCache can't be used instead: its keys have the maximum length from the first token on, which the model would
    attend to, and sequences can't leave its batch.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int) -> None:
        """capacity: the number of tokens; more fit after one copy."""
        super().__init__()
        self.capacity = capacity
        self._whole: tuple[Tensor, Tensor] | None = None  # each [B, H, capacity, D]

    @classmethod
    def around(cls, layer: DynamicLayer, capacity: int) -> PreallocatedLayer:
        """A layer with the content of a plain one."""
        made = cls(capacity)
        made.lazy_initialization(layer.keys, layer.values)
        made.keys, made.values = layer.keys, layer.values
        return made

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add tokens [B, H, T, D]; returns the keys and values of all tokens so far [B, H, S, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past = int(self.get_seq_length())
        total = past + key_states.shape[-2]
        whole = self._whole
        # Cropping, selecting and reordering put other tensors in place of ours.
        if whole is None or total > whole[0].shape[-2] or self.keys.data_ptr() != whole[0].data_ptr():
            size = max(self.capacity, total)
            whole = self._whole = (_larger(key_states, self.keys, size), _larger(value_states, self.values, size))
        for part, new in zip(whole, (key_states, value_states), strict=True):
            part[..., past:total, :] = new
        self.keys, self.values = (part[..., :total, :] for part in whole)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these sequences, with their capacity."""
        total = int(self.get_seq_length())
        if self._whole is None or self.keys.data_ptr() != self._whole[0].data_ptr():
            super().batch_select_indices(indices)
            return
        self._whole = (self._whole[0][indices], self._whole[1][indices])
        self.keys, self.values = (part[..., :total, :] for part in self._whole)


def preallocate(cache: Any, capacity: int) -> None:
    """Give the plain layers of a cache room for this number of tokens; other layers and caches do not change."""
    if not isinstance(cache, DynamicCache):
        return
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[place] = PreallocatedLayer.around(layer, capacity)


def _larger(like: Tensor, held: Tensor, size: int) -> Tensor:
    """A tensor for ``size`` tokens that begins with those in ``held``."""
    made = torch.empty(*like.shape[:-2], size, like.shape[-1], dtype=like.dtype, device=like.device)
    if held.numel():
        made[..., : held.shape[-2], :] = held
    return made
