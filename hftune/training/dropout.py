"""Fast dropout on a CPU: the same distribution as torch's, with masks that take a fraction of the time.

torch draws one random number for each element, which is over 40 % of a training step of a small encoder on a CPU. Here
the generator draws 64-bit words, and each word gives four elements 16 bits of their own. An element is dropped when its
16 bits fall below round(p · 65,536); the rate is exact to 1/131,072 (0.1 becomes 0.100006), and kept elements are
scaled by exactly that rate, so the mean is kept. Draws come from torch's global generator: ``manual_seed``, checkpoints
and gradient checkpointing work as before. Nothing changes on other devices or outside training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hftune.models.cls_only import attention_implementation

LEVELS = 1 << 16
ATTENTION = "sdpa_cheap_dropout"
"""Name under which the attention with cheap dropout is known to transformers; never written into a config.json."""


def dropout(values: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others so that the mean is kept."""
    threshold = round(p * LEVELS)
    if threshold == 0:
        return values
    if threshold == LEVELS:
        return values * 0.0
    dropped: Tensor = _Dropout.apply(values, threshold)  # type: ignore[no-untyped-call]
    return dropped


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, threshold: int) -> Tensor:
        count = values.numel()
        # random_(-2⁶³, None) draws all 64 bits; plain random_() leaves the sign bit 0, which one element in four has.
        words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        # Compared in place and widened once: new memory costs more here than the arithmetic.
        kept = words.view(torch.int16)[:count].ge_(threshold - LEVELS // 2)
        scale = LEVELS / (LEVELS - threshold)
        ctx.save_for_backward(kept.to(torch.int8).view(values.shape))
        ctx.scale = scale
        return kept.to(values.dtype).view(values.shape).mul_(scale).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return kept.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None


class CheapDropout(nn.Dropout):
    """``nn.Dropout`` that draws its mask cheaply when it trains on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements in training; return the input otherwise."""
        if not self.training or input.device.type != "cpu" or self.inplace:
            return super().forward(input)
        return dropout(input, self.p)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What ``sdpa`` does; with dropout on a CPU, where torch would take its slow path, in plain steps."""
    # query: (batch, heads, queries, width); key and value: (batch, kv heads, keys, width); attention_mask: bool, True
    # where a query attends, or a number that is added to the scores.
    special = kwargs.get("position_bias") is not None or kwargs.get("cache") is not None or "softcap" in kwargs
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    lengths_differ = query.shape[2] != key.shape[2]
    if (
        dropout == 0.0
        or query.device.type != "cpu"
        or special
        or (causal and attention_mask is None and lengths_differ)
    ):
        kwargs |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output
    groups = getattr(module, "num_key_value_groups", 1)  # grouped-query attention: heads that share a key
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    # (batch, heads, queries, keys)
    scores = torch.matmul(query * (query.shape[-1] ** -0.5 if scaling is None else scaling), key.transpose(2, 3))
    if attention_mask is None and causal and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            # Not -inf: a query that may attend to nothing would become nan.
            lowest = torch.finfo(scores.dtype).min
            attention_mask = torch.zeros_like(attention_mask, dtype=scores.dtype).masked_fill_(~attention_mask, lowest)
        scores = scores + attention_mask
    probabilities = _dropped(torch.softmax(scores, dim=-1), dropout)
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), None


_dropped = dropout  # transformers calls attention functions with a keyword of the same name


def install(model: nn.Module) -> int:
    """Replace a model's dropout modules, and its ``sdpa`` attention where it has one; the state dict stays the same.

    Returns:
        How many dropout modules now draw cheaply, attention probabilities included.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            # Not isinstance: a subclass may drop whole channels, or the same mask at every position.
            if type(child) is nn.Dropout:
                cheap = CheapDropout(child.p, child.inplace)
                parent.register_module(name, cheap.train(child.training))
                replaced += 1
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and attention_implementation(part.config) == "sdpa":
            # Both: a name without a mask function gets attention_mask=None, and padding would be attended to.
            AttentionInterface.register(ATTENTION, attention)
            AttentionMaskInterface.register(ATTENTION, sdpa_mask)
            part.set_attn_implementation(ATTENTION)
    return replaced
