"""Leaves out what no classifier reads: of the last layer's output, its head takes the first token and no other.

Keys and values of the last layer still come from every token; query, attention and everything after them are computed
for the first token alone. The answer is the same up to rounding, and so is every gradient: the outputs of the other
tokens had none. Of a model of four layers that saves a fifth of the work, of one of twelve a fifteenth.

``hftune.tasks`` applies it to what is trained, ``hftune.models.classifier`` to what predicts. Nothing of it is saved.
"""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

READERS = {f"{family}ForSequenceClassification" for family in ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra")}
"""transformers' classifiers whose head reads the first token, over layers that are built like BERT's."""
EVERY_TOKEN = "every_token"
"""A keyword with which a caller of the encoder, as the masked half of joint training, gets all tokens after all."""


def read_first_only(model: PreTrainedModel) -> bool:
    """Let the last layer of a classifier compute its first token only.

    Returns:
        Whether the model is of a kind that this is known to be right for; any other is left as it is.
    """
    kind = type(model)
    known = kind.__name__ in READERS and kind.__module__.startswith("transformers.models.")
    if not known or model.config.is_decoder:
        return False
    last = model.base_model.encoder.layer[-1].attention
    if "forward" in vars(last.self):
        return True  # it was done before
    last.self.forward = MethodType(_attend, last.self)
    last.output.register_forward_pre_hook(_match)
    return True


def _attend(module: Any, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
    """What the layer's own ``forward`` does, with one query a row: [B, T, C] → [B, 1, C]."""
    if kwargs.pop(EVERY_TOKEN, False):
        return type(module).forward(module, hidden_states, attention_mask, **kwargs)
    rows, size = hidden_states.shape[0], module.attention_head_size
    kwargs.pop("encoder_hidden_states", None)
    past = kwargs.pop("past_key_values", None)
    query = module.query(hidden_states[:, :1]).view(rows, 1, -1, size).transpose(1, 2)  # [B, H, 1, D]
    key = module.key(hidden_states).view(rows, -1, query.shape[1], size).transpose(1, 2)  # [B, H, T, D]
    value = module.value(hidden_states).view(rows, -1, query.shape[1], size).transpose(1, 2)
    if past is not None:  # a prefix
        key, value = past.update(key, value, module.layer_idx)
    if attention_mask is not None and attention_mask.dim() == 4:
        attention_mask = attention_mask[:, :, :1]
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, _plain_attention(module))
    dropout = module.dropout.p if module.training else 0.0
    mixed, weights = attend(
        module, query, key, value, attention_mask, dropout=dropout, scaling=module.scaling, **kwargs
    )
    return mixed.reshape(rows, 1, -1).contiguous(), weights


def _match(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The residual of the tokens that are left."""
    mixed, residual = inputs
    return mixed, residual[:, : mixed.shape[1]]


def _plain_attention(module: nn.Module) -> Any:
    """The function that the layer's own file has for ``eager`` attention."""
    return vars(sys.modules[type(module).__module__])["eager_attention_forward"]
