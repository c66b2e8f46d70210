"""Convert a GPT-2 to a minGPT: same logits, other names and layouts of the weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from .configuration_mingpt import MinGPTConfig
from .modeling_mingpt import MinGPTForCausalLM

_NAMES = {
    "ln_1.weight": "attention_norm.weight",
    "ln_1.bias": "attention_norm.bias",
    "attn.c_attn.weight": "attention.qkv.weight",
    "attn.c_attn.bias": "attention.qkv.bias",
    "attn.c_proj.weight": "attention.out.weight",
    "attn.c_proj.bias": "attention.out.bias",
    "ln_2.weight": "mlp_norm.weight",
    "ln_2.bias": "mlp_norm.bias",
    "mlp.c_fc.weight": "mlp.up.weight",
    "mlp.c_fc.bias": "mlp.up.bias",
    "mlp.c_proj.weight": "mlp.down.weight",
    "mlp.c_proj.bias": "mlp.down.bias",
}


def from_gpt2(source: GPT2LMHeadModel | str | Path) -> MinGPTForCausalLM:
    """A minGPT with the weights of a GPT-2, whose logits it reproduces.

    Args:
        source: A GPT-2, or the name or folder of one.

    Raises:
        ValueError: The GPT-2 uses a setting that minGPT has no counterpart for.
    """
    gpt2 = GPT2LMHeadModel.from_pretrained(source) if isinstance(source, (str, Path)) else source
    model = MinGPTForCausalLM(_config_like(gpt2.config))
    theirs = gpt2.state_dict()
    ours: dict[str, Tensor] = {
        "model.token_embedding.weight": theirs["transformer.wte.weight"],
        "model.position_embedding.weight": theirs["transformer.wpe.weight"],
        "model.final_norm.weight": theirs["transformer.ln_f.weight"],
        "model.final_norm.bias": theirs["transformer.ln_f.bias"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    for layer in range(gpt2.config.n_layer):
        for old, new in _NAMES.items():
            weight = theirs[f"transformer.h.{layer}.{old}"]
            # GPT-2 stores linear layers as [in, out], torch as [out, in].
            ours[f"model.blocks.{layer}.{new}"] = weight.T.contiguous() if weight.dim() == 2 else weight
    with torch.no_grad():
        model.load_state_dict(ours)
    model.to(gpt2.dtype)
    model.train(gpt2.training)
    return model


def _config_like(gpt2: GPT2Config) -> MinGPTConfig:
    expected = {
        "activation_function": (gpt2.activation_function, ("gelu_new", "gelu_pytorch_tanh")),
        "scale_attn_weights": (gpt2.scale_attn_weights, (True,)),
        "scale_attn_by_inverse_layer_idx": (gpt2.scale_attn_by_inverse_layer_idx, (False,)),
        "add_cross_attention": (gpt2.add_cross_attention, (False,)),
    }
    for name, (value, known) in expected.items():
        if value not in known:
            raise ValueError(
                f"This GPT-2 has {name}={value!r}; minGPT has {known[0]!r} only, so its logits would differ. "
                "Load it with transformers' GPT2LMHeadModel instead."
            )
    return MinGPTConfig(
        vocab_size=gpt2.vocab_size,
        block_size=gpt2.n_positions,
        hidden_size=gpt2.n_embd,
        num_hidden_layers=gpt2.n_layer,
        num_attention_heads=gpt2.n_head,
        intermediate_size=gpt2.n_inner,
        embedding_dropout=gpt2.embd_pdrop,
        residual_dropout=gpt2.resid_pdrop,
        attention_dropout=gpt2.attn_pdrop,
        layer_norm_epsilon=gpt2.layer_norm_epsilon,
        initializer_range=gpt2.initializer_range,
        tie_word_embeddings=gpt2.tie_word_embeddings,
        pad_token_id=gpt2.pad_token_id,
        bos_token_id=gpt2.bos_token_id,
        eos_token_id=gpt2.eos_token_id,
    )
