"""Replicas of repositories on the Hub: their file lists, their config.json with every key, their state-dict keys and
dtypes, shrunk and with random weights. Nothing here comes from ``save_pretrained``: real repositories do not either.

    files = REPLICAS["bert-base-uncased"].files()          # path → bytes, for LoopbackHub.add_model
    folder = REPLICAS["gpt2"].write(tmp_path / "gpt2")
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from replica_shapes import (
    D,
    E,
    F,
    H,
    L,
    Shapes,
    albert,
    bert_classifier,
    bert_pretraining,
    bert_tiny,
    deberta_v3,
    distilbert,
    electra,
    gpt2,
    minilm,
    modernbert,
    mpnet,
    roberta,
    tinybert,
)
from replica_tokenizers import TOKENIZERS, size_of
from safetensors.torch import save as to_safetensors
from torch import Tensor

Weights = Literal["safetensors", "bin", "both", "safetensors shards", "bin shards", "none"]

# ---- one repository ----


@dataclass(frozen=True)
class Replica:
    """A repository: what it holds, and what is special about it."""

    config: Mapping[str, Any]
    keys: Callable[[Mapping[str, Any]], Shapes]
    tokenizer: str
    """A key of TOKENIZERS."""
    weights: Weights = "both"
    dtype: torch.dtype = torch.float32
    others: tuple[str, ...] = ()
    """Files of other frameworks and tools, with dummy content."""
    tokenizer_config: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON files."""

    def settings(self) -> dict[str, Any]:
        """The content of config.json."""
        return {**self.config, "vocab_size": size_of(self.tokenizer)}

    def state(self) -> dict[str, Tensor]:
        """The state dict; always the same."""
        draw = torch.Generator().manual_seed(0)
        found = {}
        for name, shape in self.keys(self.settings()):
            if name.endswith("position_ids"):
                found[name] = torch.arange(shape[1]).unsqueeze(0)
            elif name.endswith(".attn.bias"):
                found[name] = torch.ones(shape).tril()
            else:
                drawn = 0.2 * torch.randn(shape, generator=draw)
                is_norm = len(shape) == 1 and name.endswith(("gamma", "norm.weight", "Norm.weight", "ln_f.weight"))
                found[name] = (drawn + 1 if is_norm else drawn).to(self.dtype)
        return found

    def files(self) -> dict[str, bytes]:
        """Every file of the repository."""
        made = {"config.json": _json(self.settings()), "README.md": b"---\nlicense: apache-2.0\n---\n"}
        made |= TOKENIZERS[self.tokenizer]()
        if self.tokenizer_config is not None:
            made["tokenizer_config.json"] = _json(self.tokenizer_config)
        made |= {name: _json(value) for name, value in self.extra.items()}
        made |= dict.fromkeys(self.others, b"dummy")
        return made | _weight_files(self.state(), self.weights)

    def write(self, folder: Path) -> Path:
        """The same as a folder."""
        for name, content in self.files().items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def to_bin(state: Any) -> bytes:
    """What ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _weight_files(state: dict[str, Tensor], how: Weights) -> dict[str, bytes]:
    def safe(part: dict[str, Tensor]) -> bytes:
        content: bytes = to_safetensors(part, metadata={"format": "pt"})
        return content

    if how == "none":
        return {}
    if how.endswith("shards"):
        kind, write = ("safetensors", safe) if how.startswith("safe") else ("bin", to_bin)
        stem = "model" if kind == "safetensors" else "pytorch_model"
        names, half = list(state), len(state) // 2
        parts = {f"{stem}-0000{i}-of-00002.{kind}": part for i, part in ((1, names[:half]), (2, names[half:]))}
        size = sum(value.numel() * value.element_size() for value in state.values())
        index = {
            "metadata": {"total_size": size},
            "weight_map": {name: file for file, part in parts.items() for name in part},
        }
        shards = {file: write({name: state[name] for name in part}) for file, part in parts.items()}
        return {**shards, f"{stem}.{kind}.index.json": _json(index)}
    made = {}
    if how in ("safetensors", "both"):
        made["model.safetensors"] = safe(state)
    if how in ("bin", "both"):
        made["pytorch_model.bin"] = to_bin(state)
    return made


# ---- the table ----

_DROPOUT = {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "initializer_range": 0.02}
_SHAPE = {"hidden_size": D, "intermediate_size": F, "num_attention_heads": H, "num_hidden_layers": L}
_BERT = {
    **_DROPOUT,
    **_SHAPE,
    **{"architectures": ["BertForMaskedLM"], "gradient_checkpointing": False, "hidden_act": "gelu"},
    **{"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0},
    **{"position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2},
    "use_cache": True,
}
_ROBERTA = {
    **_DROPOUT,
    **_SHAPE,
    **{"architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
    **{"hidden_act": "gelu", "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta"},
    "type_vocab_size": 1,
}
_LOWER = {"do_lower_case": True, "model_max_length": 512}
_FRAMEWORKS = ("tf_model.h5", "flax_model.msgpack", "rust_model.ot")
_MINILM_TOKENIZER = {
    **{"do_lower_case": True, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"},
    **{"mask_token": "[MASK]", "tokenize_chinese_chars": True, "strip_accents": None, "model_max_length": 512},
    **{"name_or_path": "nreimers/MiniLM-L6-H384-uncased", "tokenizer_class": "BertTokenizer", "never_split": None},
    **{"do_basic_tokenize": True, "special_tokens_map_file": "/home/someone/special_tokens_map.json"},
}
_MODERNBERT_TOKENIZER = {
    **{"clean_up_tokenization_spaces": True, "cls_token": "[CLS]", "mask_token": "[MASK]", "model_max_length": 8192},
    **{"model_input_names": ["input_ids", "attention_mask"], "pad_token": "[PAD]", "sep_token": "[SEP]"},
    **{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
}

REPLICAS: dict[str, Replica] = {
    "huawei-noah/TinyBERT_General_4L_312D": Replica(
        config={
            **_DROPOUT,
            **_SHAPE,
            **{"cell": {}, "model_type": "bert", "emb_size": D, "hidden_act": "gelu", "max_position_embeddings": 512},
            **{"pre_trained": "", "structure": [], "training": "", "type_vocab_size": 2},
        },
        keys=tinybert,
        tokenizer="vocab.txt",
        weights="bin",
        others=("flax_model.msgpack",),
    ),
    "bert-base-uncased": Replica(
        config=_BERT,
        keys=bert_pretraining,
        tokenizer="wordpiece",
        others=(*_FRAMEWORKS, "coreml/fill-mask/float32_model.mlpackage/Data/com.apple.CoreML/model.mlmodel"),
        tokenizer_config=_LOWER,
    ),
    "prajjwal1/bert-tiny": Replica(
        config={
            **_DROPOUT,
            **_SHAPE,
            **{"hidden_act": "gelu", "max_position_embeddings": 512, "type_vocab_size": 2},
        },
        keys=bert_tiny,
        tokenizer="vocab.txt",
        weights="bin",
    ),
    "roberta-base": Replica(
        config=_ROBERTA,
        keys=roberta,
        tokenizer="roberta",
        others=(*_FRAMEWORKS, "dict.txt"),
        tokenizer_config={"model_max_length": 512},
    ),
    "distilbert-base-uncased": Replica(
        config={
            **{"activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": D},
            **{"dropout": 0.1, "hidden_dim": F, "initializer_range": 0.02, "max_position_embeddings": 512},
            **{"model_type": "distilbert", "n_heads": H, "n_layers": L, "pad_token_id": 0, "qa_dropout": 0.1},
            **{"seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True},
            "transformers_version": "4.10.0.dev0",
        },
        keys=distilbert,
        tokenizer="wordpiece",
        others=_FRAMEWORKS,
        tokenizer_config=_LOWER,
    ),
    "albert-base-v2": Replica(
        config={
            **_DROPOUT,
            **_SHAPE,
            **{"architectures": ["AlbertForMaskedLM"], "bos_token_id": 2, "classifier_dropout_prob": 0.1},
            **{"down_scale_factor": 1, "embedding_size": E, "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new"},
            **{"inner_group_num": 1, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "albert"},
            **{"net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0, "pad_token_id": 0},
            **{"position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0", "type_vocab_size": 2},
        },
        keys=albert,
        tokenizer="albert",
        others=_FRAMEWORKS,
        tokenizer_config={"model_max_length": 512},
    ),
    "google/electra-small-discriminator": Replica(
        config={
            **_DROPOUT,
            **_SHAPE,
            **{"architectures": ["ElectraForPreTraining"], "embedding_size": E, "hidden_act": "gelu"},
            **{"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "electra", "pad_token_id": 0},
            **{"position_embedding_type": "absolute", "summary_activation": "gelu", "summary_last_dropout": 0.1},
            **{"summary_type": "first", "summary_use_proj": True, "type_vocab_size": 2},
        },
        keys=electra,
        tokenizer="wordpiece",
        weights="bin",
        others=("tf_model.h5", "flax_model.msgpack"),
        tokenizer_config=_LOWER,
    ),
    "microsoft/deberta-v3-small": Replica(
        config={
            **_DROPOUT,
            **_SHAPE,
            **{"model_type": "deberta-v2", "hidden_act": "gelu", "max_position_embeddings": 512},
            **{"relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm"},
            **{"share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-07},
            **{"max_relative_positions": -1, "position_biased_input": False, "type_vocab_size": 0},
        },
        keys=deberta_v3,
        tokenizer="deberta",
        weights="bin",
        dtype=torch.float16,
        others=("tf_model.h5", "pytorch_model.generator.bin"),
        tokenizer_config={"do_lower_case": False, "vocab_type": "spm"},
    ),
    "answerdotai/ModernBERT-base": Replica(
        config={
            **_SHAPE,
            **{"architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0},
            **{"bos_token_id": 1, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0},
            **{"classifier_pooling": "mean", "cls_token_id": 1, "decoder_bias": True, "embedding_dropout": 0.0},
            **{"deterministic_flash_attn": False, "eos_token_id": 2, "global_attn_every_n_layers": 3},
            **{"global_rope_theta": 160000.0, "gradient_checkpointing": False, "hidden_activation": "gelu"},
            **{"initializer_cutoff_factor": 2.0, "initializer_range": 0.02, "layer_norm_eps": 1e-05},
            **{"local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192},
            **{
                "mlp_bias": False,
                "mlp_dropout": 0.0,
                "model_type": "modernbert",
                "norm_bias": False,
                "norm_eps": 1e-05,
            },
            **{"pad_token_id": 3, "position_embedding_type": "absolute", "sep_token_id": 2},
            **{"tie_word_embeddings": True, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0"},
        },
        keys=modernbert,
        tokenizer="modernbert",
        others=("onnx/model.onnx", "onnx/model_fp16.onnx"),
        tokenizer_config=_MODERNBERT_TOKENIZER,
    ),
    "xlm-roberta-base": Replica(
        config={
            **_ROBERTA,
            **{"architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "output_past": True},
            **{"position_embedding_type": "absolute", "transformers_version": "4.17.0.dev0", "use_cache": True},
        },
        keys=roberta,
        tokenizer="xlm-roberta",
        others=("tf_model.h5", "flax_model.msgpack", "onnx/model.onnx"),
        tokenizer_config={"model_max_length": 512},
    ),
    "camembert-base": Replica(
        config={
            **_ROBERTA,
            **{"architectures": ["CamembertForMaskedLM"], "bos_token_id": 5, "eos_token_id": 6},
            **{"model_type": "camembert", "output_past": True},
        },
        keys=roberta,
        tokenizer="camembert",
        others=("tf_model.h5",),
        tokenizer_config={"model_max_length": 512},
    ),
    "microsoft/mpnet-base": Replica(
        config={
            **_DROPOUT,
            **_SHAPE,
            **{"architectures": ["MPNetForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu"},
            **{"layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "mpnet", "pad_token_id": 1},
            "relative_attention_num_buckets": 32,
        },
        keys=mpnet,
        tokenizer="mpnet",
        weights="bin",
        others=("tf_model.h5",),
        tokenizer_config=_LOWER,
    ),
    "sentence-transformers/all-MiniLM-L6-v2": Replica(
        config={**_BERT, "architectures": ["BertModel"], "_name_or_path": "nreimers/MiniLM-L6-H384-uncased"},
        keys=minilm,
        tokenizer="wordpiece",
        others=("tf_model.h5", "rust_model.ot", "onnx/model.onnx", "openvino/openvino_model.bin", "train_script.py"),
        tokenizer_config=_MINILM_TOKENIZER,
        extra={
            "1_Pooling/config.json": {"word_embedding_dimension": D, "pooling_mode_mean_tokens": True},
            "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}],
            "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        },
    ),
    "gpt2": Replica(
        config={
            **{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1},
            **{"bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0, "initializer_range": 0.02},
            **{"layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 64, "n_embd": D, "n_head": H, "n_layer": L},
            **{"n_positions": 64, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1},
            **{"summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True},
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        keys=gpt2,
        tokenizer="gpt2",
        others=(*_FRAMEWORKS, "64.tflite", "onnx/decoder_model.onnx"),
        tokenizer_config={"model_max_length": 1024},
        extra={"generation_config.json": {"bos_token_id": 0, "eos_token_id": 0, "transformers_version": "4.26.0.dev0"}},
    ),
    "someone/five-star-classifier": Replica(
        config={
            **_BERT,
            "architectures": ["BertForSequenceClassification"],
            "id2label": {str(i): f"{i + 1} star" for i in range(5)},
            "label2id": {f"{i + 1} star": i for i in range(5)},
        },
        keys=bert_classifier,
        tokenizer="wordpiece",
        tokenizer_config=_LOWER,
    ),
}
REPLICAS |= {
    "someone/half-precision": replace(
        REPLICAS["bert-base-uncased"],
        config={**_BERT, "torch_dtype": "float16"},
        weights="safetensors",
        dtype=torch.float16,
    ),
    "someone/sharded-safetensors": replace(REPLICAS["bert-base-uncased"], weights="safetensors shards"),
    "someone/sharded-bin": replace(REPLICAS["bert-base-uncased"], weights="bin shards"),
}
