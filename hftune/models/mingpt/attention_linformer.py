"""Linformer, causal: own block exactly, all complete past blocks through a fixed number of learned summaries.

Linformer multiplies keys and values [T, D] by learned E [R, T] and attends to R rows. Here a token of block i
gets E restricted to the blocks before i, so the R summaries know complete past blocks only: they are running
sums over blocks, divided by √i to stay at one scale. Cost is T · (block + R). See "Linformer: Self-Attention
with Linear Complexity".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import initialization as init

from .attention_base import Layout, QueryKeyValueAttention, from_blocks, in_blocks, softmax_attention
from .configuration_mingpt import MinGPTConfig


class LinformerAttention(QueryKeyValueAttention):
    """Softmax attention over R summaries of the past and the tokens of one's own block."""

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__(config, layer_index)
        self.block, self.rank = config.linformer_block, config.linformer_rank
        past_blocks = -(-config.block_size // self.block) - 1
        self.compress_keys = nn.Parameter(torch.empty(past_blocks, self.block, self.rank))
        self.compress_values = nn.Parameter(torch.empty(past_blocks, self.block, self.rank))

    def init_parameters(self, config: MinGPTConfig) -> None:
        """A summary of one block starts at the scale of a single key."""
        init.normal_(self.compress_keys, std=self.block**-0.5)
        init.normal_(self.compress_values, std=self.block**-0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Whole sequence: summaries and own block side by side for each block."""
        cut = in_blocks(q, self.block)  # [B·H, N, b, D]
        y = softmax_attention(
            cut,
            self._with_past(in_blocks(k, self.block), self.compress_keys),
            self._with_past(in_blocks(v, self.block), self.compress_values),
            attn_mask=self._allowed(cut.shape[1], q.device),
            dropout_p=self.dropout_now,
        )  # [B·H, N, b, D]
        return from_blocks(y, q)

    def _with_past(self, x: Tensor, compress: Tensor) -> Tensor:
        """[B·H, N, b, D] → [B·H, N, R+b, D]: before each block, the summaries of all blocks before it."""
        blocks = x.shape[1]
        each = compress[: blocks - 1].transpose(1, 2) @ x[:, :-1]  # [B·H, N-1, R, D]
        # Shifted, not "sum minus own": subtracting would leave the rounding of the own block behind.
        past = F.pad(each.cumsum(dim=1), (0, 0, 0, 0, 1, 0))  # [B·H, N, R, D]
        scale = torch.arange(blocks, device=x.device).clamp(min=1).to(x.dtype).rsqrt()  # [N]
        return torch.cat((past * scale[:, None, None], x), dim=2)

    def _allowed(self, blocks: int, device: torch.device) -> Tensor:
        """[N, b, R+b]: summaries except in the first block, which has no past; own block up to oneself."""
        inside = torch.arange(self.block, device=device)
        own = (inside <= inside[:, None]).expand(blocks, -1, -1)  # [N, b, b]
        # Without a past there are no summaries: zeros would still take part in the softmax.
        has_past = (torch.arange(blocks, device=device) > 0)[:, None, None]
        return torch.cat((has_past.expand(-1, self.block, self.rank), own), dim=2)

    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """The same for new tokens: the summaries of each are computed again from its cached past."""
        ranks, visible = layout.cached_view()
        key_block = ranks // self.block  # [B or 1, S]
        own_block = key_block[:, layout.past :, None]  # [B or 1, T, 1]
        real = visible[:, 0]  # [B or 1, T, S]
        before = (real & (key_block[:, None] < own_block)) * own_block.clamp(min=1).to(q.dtype).rsqrt()
        near = (real & (key_block[:, None] == own_block))[:, None]  # [B or 1, 1, T, S]

        def summaries(x: Tensor, compress: Tensor) -> Tensor:  # [B, H, S, D] → [B, H, T, R, D]
            mix = compress.flatten(0, 1)[ranks.clamp(max=compress.shape[0] * self.block - 1)]  # [B or 1, S, R]
            weights = before[:, :, None] * mix.transpose(1, 2)[:, None]  # [B or 1, T, R, S]
            return weights[:, None] @ x[:, :, None]  # [B, 1, T, R, S] @ [B, H, 1, S, D]

        scale = q.shape[-1] ** -0.5
        far = (summaries(k, self.compress_keys) @ q[..., None]).squeeze(-1) * scale  # [B, H, T, R]
        far = far.masked_fill((own_block == 0)[:, None], float("-inf"))
        close = (q @ k.transpose(2, 3) * scale).masked_fill(~near, float("-inf"))  # [B, H, T, S]
        weights = F.dropout(torch.cat((far, close), -1).softmax(-1), self.dropout_now, self.training)
        far, close = weights[..., : self.rank], weights[..., self.rank :]
        from_past = far[..., None, :] @ summaries(v, self.compress_values)  # [B, H, T, 1, D]
        return from_past.squeeze(-2) + close @ v
