"""AdamW whose weight decay leaves embeddings alone, as language models want it. Made by ``assembly``."""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import ALL_LAYERNORM_LAYERS


def adamw_for(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Decay for matrices only: not for norms, biases, embeddings and what is tied to them."""
    kinds = (nn.Embedding, *ALL_LAYERNORM_LAYERS)
    spared: set[int] = set()
    for module in model.modules():
        if isinstance(module, kinds) or "norm" in type(module).__name__.lower():
            spared |= {id(parameter) for parameter in module.parameters(recurse=False)}
    moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [one for one in moving if one.ndim > 1 and id(one) not in spared]
    rest = [one for one in moving if one.ndim < 2 or id(one) in spared]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, fused=True)
