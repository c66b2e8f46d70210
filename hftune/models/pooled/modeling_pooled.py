"""A sequence classifier over the mean or the maximum of an encoder's token vectors.

encoder → pooling over the tokens that are not padding → dropout → linear layer. That is the head that users of sentence
encoders know from SetFit and sentence-transformers: no dense layer and no tanh between the embedding and the labels.
These files are copied into Hub repositories with the weights, so they import torch, transformers and each other only.

Shapes: B batch, T tokens, P tokens of a prefix, d hidden size, N labels.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from .configuration_pooled import PooledEncoderConfig


def pool(hidden: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """The mean or the maximum over the tokens whose mask is not 0: [B, T, d] and [B, T] → [B, d]."""
    if mask is None:
        return hidden.mean(dim=1) if how == "mean" else hidden.amax(dim=1)
    kept = mask.to(torch.bool).unsqueeze(-1)  # [B, T, 1]
    if how == "max":
        return hidden.masked_fill(~kept, torch.finfo(hidden.dtype).min).amax(dim=1)
    weights = kept.to(hidden.dtype)
    # At least 1: a row without any token has the zero vector, as in sentence-transformers, and not NaN.
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class PooledForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """An encoder of ``AutoModel``, and a linear head on the pooled vectors of its tokens.

    The encoder has the name that transformers' own classes give it (``bert``, ``roberta`` …), so that their weights can
    be loaded; its pooler, which would read the first token, is left out.
    """

    config_class = PooledEncoderConfig
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: PooledEncoderConfig) -> None:
        super().__init__(config)
        inner = config.encoder_config
        encoder = _make_encoder(inner)
        self.base_model_prefix = encoder.base_model_prefix
        self.supports_gradient_checkpointing = encoder.supports_gradient_checkpointing
        self.add_module(self.base_model_prefix, encoder)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the head as the encoder's classes do; the encoder has its own method."""
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, mean=0.0, std=getattr(self.config.encoder_config, "initializer_range", 0.02))
            init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        """The word embeddings of the encoder."""
        embeddings: nn.Module = self.base_model.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace them."""
        self.base_model.set_input_embeddings(value)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,  # [B, T]
        attention_mask: Tensor | None = None,  # [B, T], or [B, P + T] with a prefix
        token_type_ids: Tensor | None = None,  # [B, T]
        inputs_embeds: Tensor | None = None,  # [B, T, e]
        labels: Tensor | None = None,  # [B], or [B, N] for several labels
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits [B, N], and with labels the loss that ``config.problem_type`` names, as of any classifier."""
        given = {"token_type_ids": token_type_ids, "past_key_values": past_key_values}
        outputs = self.base_model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            **{name: value for name, value in given.items() if value is not None},
            **kwargs,
        )
        hidden = outputs.last_hidden_state  # [B, T, d]
        mask = attention_mask
        if mask is not None and past_key_values is not None:
            mask = mask[:, -hidden.shape[1] :]  # a prefix has keys and values, and no vectors
        logits = self.classifier(self.dropout(pool(hidden, mask, self.config.pooling)))  # [B, N]
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def _make_encoder(config: Any) -> PreTrainedModel:
    """The encoder with random weights, without its pooler, and never with code from elsewhere."""
    known = MODEL_MAPPING[type(config)]
    takes = inspect.signature((known[0] if isinstance(known, tuple) else known).__init__).parameters
    pooler = {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}
    return AutoModel.from_config(config, trust_remote_code=False, **pooler)
