"""State dicts of the replicas: names and shapes as the repositories on the Hub have them, at a small size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

D, F, L, H, E = 16, 32, 2, 2, 8  # hidden, inner, layers, heads, and the embedding size of ALBERT and ELECTRA

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _dense(name: str, out: int, into: int) -> Shapes:
    yield f"{name}.weight", (out, into)
    yield f"{name}.bias", (out,)


def _norm(name: str, size: int = D, names: tuple[str, str] = ("weight", "bias")) -> Shapes:
    for one in names:
        yield f"{name}.{one}", (size,)


def _bert_encoder(prefix: str, config: Mapping[str, Any], names: tuple[str, str], embedding: int = D) -> Shapes:
    yield f"{prefix}embeddings.word_embeddings.weight", (config["vocab_size"], embedding)
    yield f"{prefix}embeddings.position_embeddings.weight", (config["max_position_embeddings"], embedding)
    yield f"{prefix}embeddings.token_type_embeddings.weight", (config["type_vocab_size"], embedding)
    yield from _norm(f"{prefix}embeddings.LayerNorm", embedding, names)
    for i in range(L):
        layer = f"{prefix}encoder.layer.{i}"
        for part in ("query", "key", "value"):
            yield from _dense(f"{layer}.attention.self.{part}", D, D)
        yield from _dense(f"{layer}.attention.output.dense", D, D)
        yield from _norm(f"{layer}.attention.output.LayerNorm", D, names)
        yield from _dense(f"{layer}.intermediate.dense", F, D)
        yield from _dense(f"{layer}.output.dense", D, F)
        yield from _norm(f"{layer}.output.LayerNorm", D, names)


def _pretraining_heads(config: Mapping[str, Any], names: tuple[str, str], *, decoder: bool) -> Shapes:
    yield "cls.predictions.bias", (config["vocab_size"],)
    yield from _dense("cls.predictions.transform.dense", D, D)
    yield from _norm("cls.predictions.transform.LayerNorm", D, names)
    if decoder:
        yield "cls.predictions.decoder.weight", (config["vocab_size"], D)
    yield from _dense("cls.seq_relationship", 2, D)


OLD, NEW = ("gamma", "beta"), ("weight", "bias")


def bert_pretraining(config: Mapping[str, Any]) -> Shapes:
    """bert-base-uncased: names of TensorFlow for the norms."""
    yield from _bert_encoder("bert.", config, OLD)
    yield from _dense("bert.pooler.dense", D, D)
    yield from _pretraining_heads(config, OLD, decoder=False)


def bert_tiny(config: Mapping[str, Any]) -> Shapes:
    yield from _bert_encoder("bert.", config, NEW)
    yield from _dense("bert.pooler.dense", D, D)
    yield from _pretraining_heads(config, NEW, decoder=True)


def tinybert(config: Mapping[str, Any]) -> Shapes:
    """With the layers that were fitted to the 768-wide teacher."""
    yield from bert_tiny(config)
    for i in range(L + 1):
        yield from _dense(f"fit_denses.{i}", 2 * D, D)


def minilm(config: Mapping[str, Any]) -> Shapes:
    """No prefix, no head; the position ids are a buffer that was saved."""
    yield "embeddings.position_ids", (1, config["max_position_embeddings"])
    yield from _bert_encoder("", config, NEW)
    yield from _dense("pooler.dense", D, D)


def bert_classifier(config: Mapping[str, Any]) -> Shapes:
    yield from _bert_encoder("bert.", config, NEW)
    yield from _dense("bert.pooler.dense", D, D)
    yield from _dense("classifier", len(config["id2label"]), D)


def roberta(config: Mapping[str, Any]) -> Shapes:
    yield from _bert_encoder("roberta.", config, NEW)
    yield "lm_head.bias", (config["vocab_size"],)
    yield from _dense("lm_head.dense", D, D)
    yield from _norm("lm_head.layer_norm")


def distilbert(config: Mapping[str, Any]) -> Shapes:
    yield "distilbert.embeddings.word_embeddings.weight", (config["vocab_size"], D)
    yield "distilbert.embeddings.position_embeddings.weight", (config["max_position_embeddings"], D)
    yield from _norm("distilbert.embeddings.LayerNorm")
    for i in range(L):
        layer = f"distilbert.transformer.layer.{i}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            yield from _dense(f"{layer}.attention.{part}", D, D)
        yield from _norm(f"{layer}.sa_layer_norm")
        yield from _dense(f"{layer}.ffn.lin1", F, D)
        yield from _dense(f"{layer}.ffn.lin2", D, F)
        yield from _norm(f"{layer}.output_layer_norm")
    yield from _dense("vocab_transform", D, D)
    yield from _norm("vocab_layer_norm")
    yield "vocab_projector.bias", (config["vocab_size"],)


def albert(config: Mapping[str, Any]) -> Shapes:
    yield "albert.embeddings.word_embeddings.weight", (config["vocab_size"], E)
    yield "albert.embeddings.position_embeddings.weight", (config["max_position_embeddings"], E)
    yield "albert.embeddings.token_type_embeddings.weight", (2, E)
    yield from _norm("albert.embeddings.LayerNorm", E)
    yield from _dense("albert.encoder.embedding_hidden_mapping_in", D, E)
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    yield from _norm(f"{layer}.full_layer_layer_norm")
    for part in ("query", "key", "value", "dense"):
        yield from _dense(f"{layer}.attention.{part}", D, D)
    yield from _norm(f"{layer}.attention.LayerNorm")
    yield from _dense(f"{layer}.ffn", F, D)
    yield from _dense(f"{layer}.ffn_output", D, F)
    yield from _dense("albert.pooler", D, D)
    yield "predictions.bias", (config["vocab_size"],)
    yield from _norm("predictions.LayerNorm", E)
    yield from _dense("predictions.dense", E, D)


def electra(config: Mapping[str, Any]) -> Shapes:
    yield "electra.embeddings.position_ids", (1, config["max_position_embeddings"])
    yield from _bert_encoder("electra.", config, NEW, E)
    yield from _dense("electra.embeddings_project", D, E)
    yield from _dense("discriminator_predictions.dense", D, D)
    yield from _dense("discriminator_predictions.dense_prediction", 1, D)


def deberta_v3(config: Mapping[str, Any]) -> Shapes:
    yield "deberta.embeddings.word_embeddings.weight", (config["vocab_size"], D)
    yield from _norm("deberta.embeddings.LayerNorm")
    for i in range(L):
        layer = f"deberta.encoder.layer.{i}"
        for part in ("query_proj", "key_proj", "value_proj"):
            yield from _dense(f"{layer}.attention.self.{part}", D, D)
        yield from _dense(f"{layer}.attention.output.dense", D, D)
        yield from _norm(f"{layer}.attention.output.LayerNorm")
        yield from _dense(f"{layer}.intermediate.dense", F, D)
        yield from _dense(f"{layer}.output.dense", D, F)
        yield from _norm(f"{layer}.output.LayerNorm")
    yield "deberta.encoder.rel_embeddings.weight", (2 * config["position_buckets"], D)
    yield from _norm("deberta.encoder.LayerNorm")
    yield "lm_predictions.lm_head.bias", (config["vocab_size"],)
    yield from _dense("lm_predictions.lm_head.dense", D, D)
    yield from _norm("lm_predictions.lm_head.LayerNorm")
    yield from _dense("mask_predictions.dense", D, D)
    yield from _norm("mask_predictions.LayerNorm")
    yield from _dense("mask_predictions.classifier", 1, D)


def modernbert(config: Mapping[str, Any]) -> Shapes:
    yield "model.embeddings.tok_embeddings.weight", (config["vocab_size"], D)
    yield "model.embeddings.norm.weight", (D,)
    for i in range(L):
        layer = f"model.layers.{i}"
        if i:  # the first layer has none
            yield f"{layer}.attn_norm.weight", (D,)
        yield f"{layer}.attn.Wqkv.weight", (3 * D, D)
        yield f"{layer}.attn.Wo.weight", (D, D)
        yield f"{layer}.mlp_norm.weight", (D,)
        yield f"{layer}.mlp.Wi.weight", (2 * F, D)
        yield f"{layer}.mlp.Wo.weight", (D, F)
    yield "model.final_norm.weight", (D,)
    yield "head.dense.weight", (D, D)
    yield "head.norm.weight", (D,)
    yield "decoder.bias", (config["vocab_size"],)


def mpnet(config: Mapping[str, Any]) -> Shapes:
    yield "mpnet.embeddings.word_embeddings.weight", (config["vocab_size"], D)
    yield "mpnet.embeddings.position_embeddings.weight", (config["max_position_embeddings"], D)
    yield from _norm("mpnet.embeddings.LayerNorm")
    for i in range(L):
        layer = f"mpnet.encoder.layer.{i}"
        for part in ("q", "k", "v", "o"):
            yield from _dense(f"{layer}.attention.attn.{part}", D, D)
        yield from _norm(f"{layer}.attention.LayerNorm")
        yield from _dense(f"{layer}.intermediate.dense", F, D)
        yield from _dense(f"{layer}.output.dense", D, F)
        yield from _norm(f"{layer}.output.LayerNorm")
    yield "mpnet.encoder.relative_attention_bias.weight", (config["relative_attention_num_buckets"], H)
    yield from _dense("mpnet.pooler.dense", D, D)
    yield "lm_head.bias", (config["vocab_size"],)
    yield from _dense("lm_head.dense", D, D)
    yield from _norm("lm_head.layer_norm")
    yield "lm_head.decoder.weight", (config["vocab_size"], D)


def gpt2(config: Mapping[str, Any]) -> Shapes:
    """No prefix; Conv1D holds its weights transposed; the causal mask was saved as attn.bias."""
    yield "wte.weight", (config["vocab_size"], D)
    yield "wpe.weight", (config["n_positions"], D)
    for i in range(L):
        yield from _norm(f"h.{i}.ln_1")
        yield f"h.{i}.attn.bias", (1, 1, config["n_positions"], config["n_positions"])
        yield from _conv(f"h.{i}.attn.c_attn", D, 3 * D)
        yield from _conv(f"h.{i}.attn.c_proj", D, D)
        yield from _norm(f"h.{i}.ln_2")
        yield from _conv(f"h.{i}.mlp.c_fc", D, 4 * D)
        yield from _conv(f"h.{i}.mlp.c_proj", 4 * D, D)
    yield from _norm("ln_f")


def _conv(name: str, into: int, out: int) -> Shapes:
    yield f"{name}.weight", (into, out)
    yield f"{name}.bias", (out,)
