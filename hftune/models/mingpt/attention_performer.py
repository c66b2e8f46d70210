"""Performer (FAVOR+): softmax attention approximated by positive random features, linear in the length.

exp(q·k) is the mean over Gaussian w of φ_w(q)·φ_w(k) with φ_w(x) = exp(w·x − |x|²/2): all positive, so
weights never change sign, and accurate where the kernel is small. Rows w drawn orthogonal to each other
have less variance. With features in place of exp, sums over the past become a running state. See
"Rethinking Attention with Performers". The draw is made once, saved with the weights and kept: a model and
its copy agree.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .attention_base import Layout, QueryKeyValueAttention
from .configuration_mingpt import MinGPTConfig

CHUNK = 64  # tokens handled by one small T × T product between two updates of the running state
FLOOR = 1e-6  # least feature of a key: where nothing matches, attention falls back to the mean of the past


def orthogonal_gaussian(features: int, size: int, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian rows [features, size], orthogonal to each other within each group of ``size``."""
    groups = -(-features // size)
    basis, triangle = torch.linalg.qr(torch.randn(groups, size, size, generator=generator))
    # Fixing the signs makes the basis uniformly distributed; the lengths make each row Gaussian again.
    basis = basis * triangle.diagonal(dim1=1, dim2=2).sign()[:, None]
    rows = basis.transpose(1, 2).flatten(0, 1)[:features]
    lengths = torch.randn(features, size, generator=generator).norm(dim=1)
    scaled: Tensor = rows * lengths[:, None]
    return scaled


def log_features(x: Tensor, projection: Tensor) -> Tensor:
    """w·x − |x|²/2 for each row w of ``projection``, with softmax's 1/√D shared between queries and keys."""
    x = x.float() * x.shape[-1] ** -0.25
    return x @ projection.float().T - x.square().sum(-1, keepdim=True) / 2  # [B, H, T, M]


def causal_favor(q: Tensor, k: Tensor, v: Tensor, chunk: int = CHUNK) -> Tensor:
    """Attention from log features [B, H, T, M] and values [B, H, T, D], in time proportional to T.

    Each query's features are divided by their greatest, which cancels. A key's may not be divided by the
    greatest of all keys, since that would let the future into the rounding: they are divided by the key's
    own peak, and the running maximum of the peaks, which knows the past only, brings them to one scale.
    """
    # Nothing is learned from the scales, which cancel in the quotient at the end: detached, they need no gradients.
    q = (q - q.amax(-1, keepdim=True).detach()).exp()  # [B, H, T, M]
    peak = k.amax(-1, keepdim=True).detach()  # [B, H, T, 1]
    k = (k - peak).exp() + FLOOR
    top = peak.cummax(dim=2).values  # [B, H, T, 1]
    v = F.pad(v.float(), (0, 1), value=1.0)  # [B, H, T, D+1]: the last column adds up the weights
    state = level = None
    outputs = []
    # One split each: the gradient of a slice is as long as the whole, which would make backward quadratic.
    chunks = zip(*(torch.split(x, chunk, dim=2) for x in (q, k, v, peak, top)), strict=True)
    for q_c, k_c, v_c, peak_c, top_c in chunks:
        size = q_c.shape[2]
        future = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)  # [c, c]
        # Inside a chunk the plain T × T product, in which the future can be masked; before it, the running state.
        scale = (peak_c.transpose(2, 3) - top_c).masked_fill(future, float("-inf")).exp()  # [B, H, c, c]
        mixed = (q_c @ k_c.transpose(2, 3) * scale) @ v_c  # [B, H, c, D+1]
        end = top_c[:, :, -1:]
        update = (k_c * (peak_c - end).exp()).transpose(2, 3) @ v_c  # [B, H, M, D+1]
        if state is not None and level is not None:
            mixed = mixed + (q_c @ state) * (level - top_c).exp()
            update = update + state * (level - end).exp()
        state, level = update, end
        outputs.append(mixed)
    mixed = torch.cat(outputs, dim=2)
    return mixed[..., :-1] / mixed[..., -1:]


class PerformerAttention(QueryKeyValueAttention):
    """Linear attention through random features; queries and keys are turned into log features at once."""

    projection: Tensor

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__(config, layer_index)
        self.register_buffer("projection", orthogonal_gaussian(config.performer_features, config.head_size))

    def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Log features [B, H, T, M] of queries and keys, and values [B, H, T, D]."""
        q, k, v = super().project(x, layout)
        return log_features(q, self.projection), log_features(k, self.projection), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Whole sequence, chunk by chunk."""
        return causal_favor(q, k, v).to(v.dtype)

    def attend_cached(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """The same weights written out against all cached keys."""
        _, visible = layout.cached_view()
        q = (q - q.amax(-1, keepdim=True)).exp()  # [B, H, T, M]
        peak = k.amax(-1, keepdim=True)  # [B, H, S, 1]
        reach = peak.transpose(2, 3).masked_fill(~visible, float("-inf"))  # [B, H, T, S]
        scale = (reach - reach.amax(-1, keepdim=True)).exp()  # [B, H, T, S]
        weights = (q @ ((k - peak).exp() + FLOOR).transpose(2, 3)) * scale  # [B, H, T, S]
        return (weights / weights.sum(-1, keepdim=True)).to(v.dtype) @ v
