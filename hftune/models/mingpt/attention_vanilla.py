"""Softmax attention over all earlier tokens, as in GPT-2. Positions are learned, added to the embedding."""

from __future__ import annotations

from torch import Tensor

from .attention_base import Layout, QueryKeyValueAttention, softmax_attention


class VanillaAttention(QueryKeyValueAttention):
    """softmax(QKᵀ/√D)·V by torch's fused kernel: quadratic time, and no T × T matrix in memory."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Whole sequence: the causal kernel, no mask tensor."""
        return softmax_attention(q, k, v, dropout_p=self.dropout_now, is_causal=True)

    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """New tokens against all cached keys, padding hidden."""
        _, visible = layout.cached_view()
        return softmax_attention(q, k, v, attn_mask=visible, dropout_p=self.dropout_now)
