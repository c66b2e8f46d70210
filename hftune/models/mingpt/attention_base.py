"""What the attention variants share: the order of the tokens, splitting and joining heads, the cache.

``MinGPTModel`` builds one ``Layout`` for each forward pass and passes it to every layer. A variant has two methods:
``attend`` for a whole sequence from its first token on, and ``attend_cached`` for new tokens after a cached past.

Shapes: B batch, T new tokens, S tokens in all, H heads, D channels of a head, C = H·D.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers.cache_utils import Cache

from .configuration_mingpt import MinGPTConfig


@dataclass(frozen=True)
class Layout:
    """The order of the tokens in one forward pass.

    A sequence without a past is *packed*: the real tokens of each row are moved to the front, in order. Padding is then
    in the future of every real token, so causal attention is correct without any mask: the fused kernel can be used,
    and variants that split the sequence into blocks split every row at the same tokens, however it was padded.
    """

    position_ids: Tensor
    """[B or 1, T]: the positions that embeddings and rotations use."""
    cache: Cache | None = None
    past: int = 0
    """Tokens that are in the cache already."""
    order: Tensor | None = None
    """[B, T]: the slot each packed place was taken from; None where nothing moved."""
    restore: Tensor | None = None
    """[B, T]: the packed place of each slot, the inverse of ``order``."""
    ranks: Tensor | None = None
    """[B or 1, S], with a past: how many real tokens come before each key."""
    visible: Tensor | None = None
    """[B or 1, 1, T, S], with a past: which keys each new token may attend to."""

    @classmethod
    def build(
        cls, tokens: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> Layout:
        """The layout of ``tokens`` [B, T, C] under a mask [B, S] of 1 for real tokens and 0 for padding."""
        length, device = tokens.shape[1], tokens.device
        past = 0 if cache is None else int(cache.get_seq_length())
        total = past + length
        if attention_mask is not None and attention_mask.shape != (tokens.shape[0], total):
            raise ValueError(
                f"attention_mask has the shape {tuple(attention_mask.shape)}, expected "
                f"{(tokens.shape[0], total)}: one number for each token, cached ones included, "
                "1 for real and 0 for padding."
            )
        if past:
            return cls._after_past(length, past, attention_mask, position_ids, cache, device)
        order = restore = None
        if attention_mask is not None:
            # A stable sort by "is padding": real tokens come first and keep their order.
            order = torch.argsort((attention_mask == 0).to(torch.int8), dim=1, stable=True)  # [B, T]
            restore = torch.argsort(order, dim=1)  # sorting a permutation gives its inverse
        if position_ids is None:
            position_ids = torch.arange(length, device=device)[None]
        elif order is not None:
            position_ids = position_ids.expand_as(order).gather(1, order)
        return cls(position_ids, cache, order=order, restore=restore)

    @classmethod
    def _after_past(
        cls,
        length: int,
        past: int,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        device: torch.device,
    ) -> Layout:
        # Cached keys can't be packed, because the cache of each layer keeps them where they are: a mask hides padding.
        # It costs little, since new tokens are few.
        slots = torch.arange(past + length, device=device)
        own = slots[past:, None]  # [T, 1]
        visible = (slots <= own)[None, None]  # [1, 1, T, S]
        ranks = slots[None]  # [1, S]
        if attention_mask is not None:
            real = attention_mask != 0
            ranks = (real.long().cumsum(1) - 1).clamp(min=0)  # [B, S]
            # A token always sees itself: a row of nothing but padding must not divide by zero.
            visible = visible & (real[:, None, None] | (slots == own))  # [B, 1, T, S]
        if position_ids is None:
            position_ids = ranks[:, past:]
        return cls(position_ids, cache, past, ranks=ranks, visible=visible)

    def pack(self, x: Tensor) -> Tensor:
        """Move real tokens to the front: [B, T, C] by slot → [B, T, C] packed."""
        return x if self.order is None else _moved(x, self.order)

    def unpack(self, x: Tensor, dim: int = 1) -> Tensor:
        """Undo ``pack`` along ``dim`` of a tensor whose first dimension is the batch."""
        return x if self.restore is None else _moved(x.transpose(1, dim), self.restore).transpose(1, dim)

    def cached_view(self) -> tuple[Tensor, Tensor]:
        """``ranks`` and ``visible``, which every layout with a past has."""
        assert self.ranks is not None and self.visible is not None
        return self.ranks, self.visible


class ResidualLinear(nn.Linear):
    """A linear layer whose output joins the residual stream, and whose weights start smaller for that."""


class CausalAttention(nn.Module, ABC):
    """Attention that never looks ahead: output t depends on inputs 0 … t, and on no other even by rounding."""

    learned_positions: ClassVar[bool] = True
    """Whether the model adds a learned position embedding; rotations replace it."""

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__()
        self.layer_index = layer_index
        self.heads = config.num_attention_heads
        self.dropout = config.attention_dropout
        self.out = ResidualLinear(config.hidden_size, config.hidden_size)
        self.residual_dropout = nn.Dropout(config.residual_dropout)

    @abstractmethod
    def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, H, T, ·] of ``x`` [B, T, C]; the cache keeps keys and values."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values of a whole packed sequence: [B, H, T, ·] → [B, H, T, D]."""

    @abstractmethod
    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Mix all values [B, H, S, D] for the new tokens: → [B, H, T, D]."""

    def forward(self, x: Tensor, layout: Layout, want_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """[B, T, C] → [B, T, C], and the weights [B, H, T, S] on request."""
        q, k, v = self.project(x, layout)  # each [B, H, T, ·]
        weights = None
        if layout.past and layout.cache is not None:
            k, v = layout.cache.update(k, v, self.layer_index)  # [B, H, S, ·]
            y = self.attend_cached(q, k, v, layout)  # [B, H, T, D]
            if want_weights:
                weights = self.attend_cached(q, k, _identity_like(v), layout)
        else:
            if layout.cache is not None:  # it counts tokens as transformers does: padding keeps its place
                layout.cache.update(layout.unpack(k, 2), layout.unpack(v, 2), self.layer_index)
            y = self.attend(q, k, v)
            if want_weights:
                # Every variant is linear in the values: with the identity as values, its output is its weights. That is
                # slow, and works for kernels that never form a matrix of weights.
                weights = layout.unpack(layout.unpack(self.attend(q, k, _identity_like(v)), 2), 3)
        y = self.out(y.transpose(1, 2).flatten(2))  # [B, T, C]
        return self.residual_dropout(y), weights

    @property
    def dropout_now(self) -> float:
        """Dropout of attention weights at this moment: none outside training."""
        return self.dropout if self.training else 0.0

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, C] → [B, H, T, D]."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def init_parameters(self, config: MinGPTConfig) -> None:
        """Start values of the parameters that the variant holds itself; layers inside it have their own."""
        return


class QueryKeyValueAttention(CausalAttention):
    """Attention that compares queries with keys: one fused projection makes all three."""

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__(config, layer_index)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [B, H, T, D], as views of one product."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # each [B, T, C]
        return self.split_heads(q), self.split_heads(k), self.split_heads(v)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
    """softmax(QKᵀ/√D)·V with torch's fused kernel and its further arguments: [B, H, T, D].

    On a CPU the kernel's backward pass takes four times as long in bf16 as in fp32, so training goes through fp32.
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad:
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **settings).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, **settings)


def in_blocks(x: Tensor, size: int) -> Tensor:
    """[B, H, T, D] → [B·H, N, size, D]: split into blocks, the last one filled with zeros."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % size)).flatten(0, 1)
    return x.view(len(x), -1, size, x.shape[-1])


def from_blocks(y: Tensor, q: Tensor) -> Tensor:
    """[B·H, N, size, D] → [B, H, T, D]: blocks joined again, in the shape of the queries."""
    return y.reshape(*q.shape[:2], -1, y.shape[-1])[:, :, : q.shape[2]]


def _moved(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of ``x`` [B, T, …] in the order [B, T], each as a whole: one channel at a time is far slower."""
    rows, length = order.shape
    first = torch.arange(rows, device=x.device)[:, None] * length  # [B, 1]
    return x.reshape(rows * length, -1).index_select(0, (order + first).flatten()).view(x.shape)


def _identity_like(v: Tensor) -> Tensor:
    """Values [B, H, S, D] replaced by the rows of the identity: [B, H, S, S]."""
    size = v.shape[2]
    return torch.eye(size, dtype=v.dtype, device=v.device).expand(*v.shape[:2], size, size)


class VanillaAttention(QueryKeyValueAttention):
    """softmax(QKᵀ/√D)·V by torch's fused kernel: quadratic time, and no T × T matrix in memory."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Whole sequence: the causal kernel, no mask tensor."""
        return softmax_attention(q, k, v, dropout_p=self.dropout_now, is_causal=True)

    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """New tokens against all cached keys, padding hidden."""
        _, visible = layout.cached_view()
        return softmax_attention(q, k, v, attn_mask=visible, dropout_p=self.dropout_now)
