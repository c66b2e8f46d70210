"""Rotary positions (RoFormer, arXiv:2104.09864): queries and keys are rotated by an angle that grows with position.

Channel pair i of a head is rotated by position · base^(−2i/D). The product of a rotated query and a rotated key
depends on their distance alone, so no position embedding is needed, and nothing is learned about absolute
places.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_base import Layout, VanillaAttention
from .configuration_mingpt import MinGPTConfig


def rotate(x: Tensor, position_ids: Tensor, base: float) -> Tensor:
    """Rotate the channel pairs (i, i + D/2) of ``x`` [B, H, T, D] by the positions [B or 1, T]."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, dtype=torch.float32, device=x.device)
    angles = position_ids[:, None, :, None] * base ** (-steps / half)  # [B or 1, 1, T, D/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    # As in GPT-NeoX and LLaMA, the halves of a head are paired, not neighbors: two slices, no strided access.
    first, second = x.chunk(2, dim=-1)  # each [B, H, T, D/2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RopeAttention(VanillaAttention):
    """Vanilla attention over rotated queries and keys; the cache keeps rotated keys."""

    learned_positions = False

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__(config, layer_index)
        self.base = config.rope_base

    def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys rotated by their positions; values unchanged."""
        q, k, v = super().project(x, layout)
        return rotate(q, layout.position_ids, self.base), rotate(k, layout.position_ids, self.base), v
