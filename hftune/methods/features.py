"""A model as a frozen encoder and a trained head: features of an example are computed once. Used by ``head``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from hftune.methods.applied import Precomputed


def split(model: PreTrainedModel) -> Precomputed:
    """The model as a frozen encoder and a head that shares its weights with the model."""
    trained = copy.copy(model)
    trained._modules = {**model._modules, model.base_model_prefix: _Features(model.base_model)}
    return Precomputed(trained=trained, encode=_encoder(model))


class _Features(nn.Module):
    """Stands where the backbone stood, and hands on what the backbone has said before."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        # Kept whole, so that a checkpoint still knows over which frozen weights the head was trained.
        self.backbone = backbone

    def get_input_embeddings(self) -> None:
        """There are none; FSDP asks, to see whether they are tied to an output."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPooling:
        """inputs_embeds (rows, 1, d): last hidden states. A pooler comes after them, for it may be a trained one."""
        pooler = getattr(self.backbone, "pooler", None)
        return BaseModelOutputWithPooling(
            last_hidden_state=inputs_embeds,
            pooler_output=None if pooler is None else pooler(inputs_embeds),  # (rows, d)
        )


def _encoder(model: PreTrainedModel) -> Callable[[Mapping[str, Tensor]], Tensor]:
    backbone = model.base_model
    takes = inspect.signature(backbone.forward).parameters
    mean = model.config.to_dict().get("classifier_pooling") == "mean"  # ModernBERT; all others read the first token

    @torch.no_grad()
    def encode(batch: Mapping[str, Tensor]) -> Tensor:
        hidden: Tensor = backbone(**{name: value for name, value in batch.items() if name in takes}).last_hidden_state
        if not mean:
            return hidden[:, 0]
        mask = batch["attention_mask"].unsqueeze(-1)  # (rows, tokens, 1)
        return (hidden * mask).sum(dim=1) / mask.sum(dim=1)

    return encode


def can_split(model: PreTrainedModel, trained: Mapping[str, nn.Module]) -> bool:
    """Whether features of a text stay the same: only a pooler may be trained inside the backbone.

    GPT-2's head reads the last token of a text, and ALBERT's pooler is a linear layer with its activation elsewhere:
    they run the frozen backbone in every epoch.
    """
    if hasattr(model, "score") or isinstance(getattr(model.base_model, "pooler", None), nn.Linear):
        return False
    prefix = model.base_model_prefix
    return all(not name.startswith(f"{prefix}.") or name.startswith(f"{prefix}.pooler") for name in trained)


def stay_in_evaluation_mode(backbone: nn.Module, _: Any) -> None:
    """A hook: a frozen backbone runs without dropout."""
    backbone.eval()
