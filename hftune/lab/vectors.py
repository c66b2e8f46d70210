"""Random vectors and attention over them, for the experiments.

Vectors are seeded and in double precision, so that a difference that should be zero is at most ``ROUNDING``. Outputs
and weights come from torch's own attention: an experiment is about what models compute, not about a reimplementation.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def generator(seed: int) -> torch.Generator:
    """A new random generator."""
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, source: torch.Generator) -> Tensor:
    """Independent N(0, 1) numbers in double precision."""
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def orthonormal(count: int, dimension: int, source: torch.Generator) -> Tensor:
    """Random orthonormal vectors [count, dimension]."""
    basis, _ = torch.linalg.qr(gaussian(dimension, count, source=source))
    rows: Tensor = basis.T.contiguous()
    return rows


def attend(queries: Tensor, keys: Tensor, values: Tensor, *, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
    """Softmax attention of queries [..., m, d] over keys and values [..., n, d]; logits are not divided by √d."""
    if keys.ndim == 2:  # torch chooses its kernel by the shape: all experiments use the one for batches
        return attend(queries[None], keys[None], values[None], scale=scale, bias=bias)[0]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scale)


def attention_weights(queries: Tensor, keys: Tensor, *, scale: float = 1.0, bias: Tensor | None = None) -> Tensor:
    """The weights [..., m, n] of ``attend``, which torch does not return: its output with the identity as values."""
    count = keys.shape[-2]
    identity = torch.eye(count, dtype=keys.dtype).expand(*keys.shape[:-1], count)
    return attend(queries, keys, identity, scale=scale, bias=bias)
