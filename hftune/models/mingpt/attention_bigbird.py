"""BigBird, causal: each block of tokens sees recent blocks, the first blocks, and a few random ones.

The number of blocks seen is fixed, so the cost is linear in the length. What a block sees is one row of a
table that is drawn at construction and saved with the weights. See "Big Bird: Transformers for Longer
Sequences".
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from .attention_base import Layout, QueryKeyValueAttention, from_blocks, in_blocks, softmax_attention
from .configuration_mingpt import MinGPTConfig


def block_table(config: MinGPTConfig, layer_index: int) -> list[list[int]]:
    """For each block the blocks it sees, itself included, each once; filled up with −1."""
    width = config.bigbird_global + config.bigbird_window + config.bigbird_random
    table = []
    for block in range(-(-config.block_size // config.bigbird_block)):
        first = max(0, block - config.bigbird_window + 1)
        shared = range(min(config.bigbird_global, first))
        between = range(len(shared), first)
        # Seeded by block as well, so that a longer block size keeps the pattern of a shorter one.
        draw = random.Random(f"{config.bigbird_seed}/{layer_index}/{block}")
        chosen = draw.sample(between, min(config.bigbird_random, len(between)))
        seen = [*shared, *sorted(chosen), *range(first, block + 1)]
        table.append(seen + [-1] * (width - len(seen)))
    return table


class BigBirdAttention(QueryKeyValueAttention):
    """Softmax attention over the tokens of a fixed number of blocks."""

    table: Tensor

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__(config, layer_index)
        self.block = config.bigbird_block
        self.register_buffer("table", torch.tensor(block_table(config, layer_index)))  # [blocks, K]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Whole sequence: the blocks that each block sees are copied next to each other, so K·b keys, not T."""
        cut = in_blocks(q, self.block)  # [B·H, N, b, D]
        table = self.table[: cut.shape[1]]  # [N, K]
        seen = table.clamp(min=0).flatten()  # [N·K]

        def gather(x: Tensor) -> Tensor:  # [B, H, T, D] → [B·H, N, K·b, D]
            return in_blocks(x, self.block).index_select(1, seen).view(*cut.shape[:2], -1, x.shape[-1])

        y = softmax_attention(
            cut, gather(k), gather(v), attn_mask=self._allowed(table), dropout_p=self.dropout_now
        )  # [B·H, N, b, D]
        return from_blocks(y, q)

    def _allowed(self, table: Tensor) -> Tensor:
        """[N, b, K·b]: a token sees seen blocks whole, and its own up to itself."""
        blocks, _ = table.shape
        inside = torch.arange(self.block, device=table.device)  # [b]
        own = table == torch.arange(blocks, device=table.device)[:, None]  # [N, K]
        earlier = inside <= inside[:, None]  # [b, b]
        # −1 in the table means no block; its keys are those of block 0 (see clamp above), and must be hidden.
        allowed = (table >= 0)[:, None, :, None] & (~own[:, None, :, None] | earlier[:, None])  # [N, b, K, b]
        return allowed.flatten(2)

    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """New tokens against all cached keys, those outside their row of the table hidden."""
        # Blocks are split by rank, the number of real tokens before a key: a padded row sees the blocks of a packed
        # one.
        ranks, visible = layout.cached_view()
        key_block = ranks // self.block  # [B or 1, S]
        seen = self.table[key_block[:, layout.past :]]  # [B or 1, T, K]
        allowed = (seen[:, :, None] == key_block[:, None, :, None]).any(-1)  # [B or 1, T, S]
        mask = visible & allowed[:, None]  # [B or 1, 1, T, S]
        return softmax_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout_now)
