"""A cache of keys and values with room to grow: a new token is written beside the old ones, which stay where they are.

transformers' own makes a longer copy of everything for each token, which on a CPU takes as long as half of the layer.
Used by ``hftune.models.decoding``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, as the first part of two larger tensors."""

    keys: Tensor
    values: Tensor

    def __init__(self, room: int) -> None:
        """room: tokens that it is made for; more fit after one copy."""
        super().__init__()
        self.room = room
        self._whole: tuple[Tensor, Tensor] | None = None

    @classmethod
    def around(cls, layer: DynamicLayer, room: int) -> RoomyLayer:
        """What a plain layer holds, with room beside it from the next token on."""
        made = cls(room)
        made.lazy_initialization(layer.keys, layer.values)
        made.keys, made.values = layer.keys, layer.values
        return made

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add tokens [B, H, T, D]; the keys and values of all tokens so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past = int(self.get_seq_length())
        total = past + key_states.shape[-2]
        whole = self._whole
        # Whoever cut, chose or reordered rows has put other tensors in place of ours.
        if whole is None or total > whole[0].shape[-2] or self.keys.data_ptr() != whole[0].data_ptr():
            size = max(self.room, total)
            whole = self._whole = (_roomier(key_states, self.keys, size), _roomier(value_states, self.values, size))
        for part, new in zip(whole, (key_states, value_states), strict=True):
            part[..., past:total, :] = new
        self.keys, self.values = (part[..., :total, :] for part in whole)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows, and the room beside them."""
        total = int(self.get_seq_length())
        if self._whole is None or self.keys.data_ptr() != self._whole[0].data_ptr():
            super().batch_select_indices(indices)
            return
        self._whole = (self._whole[0][indices], self._whole[1][indices])
        self.keys, self.values = (part[..., :total, :] for part in self._whole)


def make_room(cache: Any, room: int) -> None:
    """Give the plain layers of a cache room for so many tokens; layers and caches of other kinds stay as they are."""
    if not isinstance(cache, DynamicCache):
        return
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[place] = RoomyLayer.around(layer, room)


def _roomier(like: Tensor, held: Tensor, size: int) -> Tensor:
    """A tensor for so many tokens that begins with those that are held."""
    made = torch.empty(*like.shape[:-2], size, like.shape[-1], dtype=like.dtype, device=like.device)
    if held.numel():
        made[..., : held.shape[-2], :] = held
    return made
