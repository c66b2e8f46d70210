"""Dense Synthesizer: a token decides from its own hidden state where to look; queries and keys are not compared.

From token t an MLP makes one score for each position of the block; softmax over positions 0 … t weighs the
values: B = W₂·relu(W₁·x + b₁) + b₂. See "Synthesizer: Rethinking Self-Attention in Transformer Models".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import initialization as init

from .attention_base import CausalAttention, Layout
from .configuration_mingpt import MinGPTConfig


class SynthesizerAttention(CausalAttention):
    """Scores are computed from the query's token alone, one for each position of the block."""

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__(config, layer_index)
        self.hidden = nn.Linear(config.hidden_size, config.hidden_size)
        self.score_weight = nn.Parameter(torch.empty(self.heads, config.head_size, config.block_size))
        self.score_bias = nn.Parameter(torch.empty(config.block_size))
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def init_parameters(self, config: MinGPTConfig) -> None:
        """Scores start near zero: every token begins by averaging its past."""
        init.normal_(self.score_weight, std=config.initializer_range)
        init.zeros_(self.score_bias)

    def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Scores [B, H, T, S] for queries; keys are one channel, since the cache counts tokens by them."""
        total = layout.past + x.shape[1]
        hidden = self.split_heads(F.relu(self.hidden(x)))  # [B, H, T, D]
        scores = hidden @ self.score_weight[..., :total] + self.score_bias[:total]  # [B, H, T, S]
        v = self.split_heads(self.value(x))  # [B, H, T, D]
        return scores, v[..., :1], v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Softmax of the scores over the past, times the values."""
        length = q.shape[-2]
        past = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()  # [T, T]
        return self._mix(q.masked_fill(~past, float("-inf")), v)

    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """The score of a key is that of its rank, because padding does not count as a position."""
        ranks, visible = layout.cached_view()
        scores = q.gather(-1, ranks[:, None, None].expand(*q.shape[:3], -1))  # [B, H, T, S]
        return self._mix(scores.masked_fill(~visible, float("-inf")), v)

    def _mix(self, scores: Tensor, v: Tensor) -> Tensor:
        return F.dropout(scores.softmax(dim=-1), self.dropout_now, self.training) @ v
