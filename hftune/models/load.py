"""Tokenizer and configuration of the model that is trained, from a checkpoint or from scratch.

They must fit each other and the data. Then what running a loaded model needs everywhere: device, mode and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
)

from hftune.errors import HftuneError, did_you_mean
from hftune.models.checkpoint import Checkpoint, open_checkpoint
from hftune.models.hub_files import TOKENIZER, TRAINING, Purpose
from hftune.models.settings import MINGPT_TYPE, SCRATCH, ModelSection, encoder_config
from hftune.models.tokenizers import FORMATS, pad_with_eos, train_tokenizer

OFFSET_BY_PADDING = {
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text")
}
"""Architectures that number positions from padding_idx + 1, so that as many embeddings are never used."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, and which of its modules the checkpoint does not have."""

    model: PreTrainedModel
    fresh_modules: tuple[str, ...] = ()
    """Names of modules with newly initialized weights: an adapter must save them."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What was decided when it was loaded: entries of metrics.json."""
    notes: tuple[str, ...] = ()


def load_tokenizer(section: ModelSection, texts: Iterable[str], *, padded: bool = True) -> PreTrainedTokenizerBase:
    """The model's tokenizer; for a model from scratch, one trained on the texts.

    If batches are ``padded``, it must have a token for that.
    """
    if section.from_scratch and section.tokenizer_name is None:
        return preset(section).train_tokenizer(texts, section.vocab_size)
    source, purpose = section, TRAINING
    if section.tokenizer_name is not None:
        purpose = TOKENIZER
        # It has revisions of its own, so no commit of its code is known.
        local = section.trust_remote_code and Path(section.tokenizer_name).is_dir()
        source = section.model_copy(
            update={"model_name_or_path": section.tokenizer_name, "model_revision": None, "trust_remote_code": local}
        )
    name = source.model_name_or_path
    tokenizer = open_checkpoint(source, purpose).tokenizer()
    if not _ordinary(tokenizer):
        # transformers makes an empty one for a folder without a tokenizer: every word would be unknown.
        raise HftuneError(
            f"{name} has no tokenizer: only special tokens are known",
            hint="name the one that the checkpoint was trained with: --tokenizer",
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise HftuneError(
            f"model_max_length of the tokenizer of {name} is not a number: {tokenizer.model_max_length!r}",
            hint="correct it in its tokenizer_config.json",
        )
    if padded:
        pad_with_eos(tokenizer, name)
        if tokenizer.pad_token is None:
            raise HftuneError(
                f"the tokenizer of {name} has no padding token and no end-of-text token to pad with, so texts can't be "
                "batched",
                hint="choose another checkpoint, or add a pad_token to its tokenizer_config.json",
            )
    return tokenizer


def load_config(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, purpose: Purpose = TRAINING
) -> PreTrainedConfig:
    """The configuration, before any weights are loaded: lengths and methods are checked against it."""
    return open_model(section, tokenizer, purpose)[1]


def open_model(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, purpose: Purpose = TRAINING
) -> tuple[Checkpoint | None, PreTrainedConfig]:
    """What a model is trained from, None for random initialization, and its configuration; no weights are loaded."""
    checkpoint = None
    if section.from_scratch:
        config = preset(section, causal=purpose.causal).build_config(tokenizer)
    else:
        checkpoint = whole = open_checkpoint(section, purpose)
        if checkpoint.adapter is not None:
            checkpoint.adapter.refuse_unmergeable()
            whole = checkpoint.adapter.base
        config = whole.config()
    kind = encoder_config(config).model_type
    if section.model_type not in (None, kind):
        raise HftuneError(
            f"model.model_type is {section.model_type}, but {section.model_name_or_path} is a {kind} model",
            hint=f"leave --model-type out, or set it to {kind}",
        )
    if section.dropout is not None:
        _set_dropout(config, section.dropout)
    return checkpoint, config


def _set_dropout(config: PreTrainedConfig, rate: float) -> None:
    """Set every dropout rate of the architecture; their names differ between model types."""
    if (encoder := encoder_config(config)) is not config:
        _set_dropout(encoder, rate)
    names: Sequence[str]
    if config.model_type == MINGPT_TYPE:
        names = config.dropouts  # its attention may have none
    else:
        names = [
            name
            for name, value in config.to_dict().items()
            if "drop" in name and (value is None or isinstance(value, float)) and not name.startswith("layerdrop")
        ]
    if not names:
        raise HftuneError(
            f"model.dropout is set, but a {config.model_type} model has no dropout setting",
            hint="leave model.dropout out",
        )
    for name in names:
        setattr(config, name, rate)


def check_vocabulary(checkpoint: Checkpoint, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose ids have another meaning to the weights, which would not fail but give wrong results."""
    section = checkpoint.section
    embedded = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > embedded:
        raise HftuneError(
            f"the tokenizer has {len(tokenizer)} tokens, the checkpoint {section.model_name_or_path} has embeddings "
            f"for {embedded}: it was trained with another vocabulary",
            hint="use the tokenizer of the checkpoint: leave model.tokenizer_name out",
        )
    if section.tokenizer_name is None:
        return
    theirs, ours = _ordinary(checkpoint.tokenizer()), tokenizer.get_vocab()
    moved = next((token for token, number in theirs.items() if ours.get(token) != number), None)
    if moved is not None:
        raise HftuneError(
            f"the vocabulary of model.tokenizer_name {section.tokenizer_name} is not that of the checkpoint "
            f"{section.model_name_or_path}: {moved!r} has the id {theirs[moved]} there and {ours.get(moved, 'none')} "
            "here",
            hint="leave model.tokenizer_name out",
        )


def _ordinary(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The vocabulary without special tokens: empty if a checkpoint has no tokenizer."""
    special = set(tokenizer.all_special_tokens)
    return {token: number for token, number in tokenizer.get_vocab().items() if token not in special}


def set_labels(config: PreTrainedConfig, labels: Sequence[str]) -> None:
    """Set the label names of a classifier, in order."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def modules_of(names: Iterable[str]) -> tuple[str, ...]:
    """The modules of some parameters: classifier.weight and classifier.bias are one module."""
    return tuple(sorted({name.rpartition(".")[0] for name in names}))


def max_positions(config: PreTrainedConfig) -> int | None:
    """The longest input in tokens, or None if the architecture has no limit."""
    config = encoder_config(config)
    values = config.to_dict()
    if values.get("position_biased_input") is False:
        return None  # DeBERTa-v2 has relative positions only
    # Some model types call it n_positions or block_size.
    limit = values.get(config.attribute_map.get("max_position_embeddings", "max_position_embeddings"))
    if not isinstance(limit, int) or limit <= 0:
        return None
    if config.model_type in OFFSET_BY_PADDING:
        return limit - int(values.get("pad_token_id") or 0) - 1
    return limit


def check_length(config: PreTrainedConfig, max_length: int, virtual_tokens: int = 0) -> None:
    """Refuse a length that the model has no positions for, including virtual tokens.

    The model itself would fail only when a long example comes.
    """
    limit = max_positions(config)
    if limit is None or max_length + virtual_tokens <= limit:
        return
    if not virtual_tokens:
        raise HftuneError(
            f"data.max_seq_length is {max_length}, but this {config.model_type} model has {limit} positions",
            hint=f"use --max-length {limit} or less",
        )
    left = {"--max-length ": limit - virtual_tokens, "--set method.num_virtual_tokens=": limit - max_length}
    raise HftuneError(
        f"data.max_seq_length {max_length} and method.num_virtual_tokens {virtual_tokens} make "
        f"{max_length + virtual_tokens} tokens, but this {config.model_type} model has {limit} positions",
        hint=f"lower one of them: {' or '.join(f'{flag}{most}' for flag, most in left.items() if most > 0) or 'both'}",
    )


# ---- scratch:<preset>: well-known shapes, random initialization, a tokenizer trained on the training texts ----

# RoBERTa numbers positions from padding_idx + 1, so two of them are never used.
ROBERTA_OFFSET = 2


@dataclass(frozen=True)
class Preset:
    """How a model and its tokenizer are made from scratch."""

    family: str
    """What its tokenizer is trained for: a key of ``FORMATS``."""
    config: Callable[[PreTrainedTokenizerBase, dict[str, Any]], PreTrainedConfig]
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of the configuration."""
    causal: bool = False
    """Whether it predicts the next token; encoders read in both directions."""
    tokenizer_type: str | None = None

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with the vocabulary and the special tokens of this tokenizer."""
        return self.config(tokenizer, self.shape)

    def train_tokenizer(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
        """The tokenizer of this architecture, trained on the texts: the same texts give the same ids."""
        kind = self.tokenizer_type or next(iter(FORMATS[self.family]))
        found = list(texts) if isinstance(texts, Iterator) else texts  # some read the texts twice
        block_size = self.shape.get("block_size")
        return train_tokenizer(kind, lambda: found, vocab_size, family=self.family, block_size=block_size, exact=False)


def _encoder(config: type[PreTrainedConfig]) -> Callable[[PreTrainedTokenizerBase, dict[str, Any]], PreTrainedConfig]:
    def build(tokenizer: PreTrainedTokenizerBase, shape: dict[str, Any]) -> PreTrainedConfig:
        return config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            **{**shape, "intermediate_size": shape.get("intermediate_size") or 4 * shape["hidden_size"]},
        )

    return build


def _mingpt(tokenizer: PreTrainedTokenizerBase, shape: dict[str, Any]) -> PreTrainedConfig:
    from hftune.models.mingpt import MinGPTConfig

    # Generation stops where training sequences end: at the mask, or the end of a document.
    ends = [token for token in (tokenizer.mask_token_id, tokenizer.eos_token_id) if token is not None]
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": ends[0] if len(ends) == 1 else ends or None}
    try:
        return MinGPTConfig(vocab_size=len(tokenizer), **ids, **shape)
    except ValueError as error:
        reason = str(error)
        for name in ("hidden_size", "num_attention_heads"):
            reason = reason.replace(name, f"model.{name}")
        raise HftuneError(
            f"this shape of a minGPT is not possible: {reason}",
            hint="change model.hidden_size, model.num_attention_heads or model.block_size",
        ) from error


def _gpt2(tokenizer: PreTrainedTokenizerBase, shape: dict[str, Any]) -> PreTrainedConfig:
    return GPT2Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        n_positions=shape["max_position_embeddings"],
        n_embd=shape["hidden_size"],
        n_layer=shape["num_hidden_layers"],
        n_head=shape["num_attention_heads"],
        n_inner=shape.get("intermediate_size"),
        # Drawing dropout masks on a CPU costs as much as the layers themselves; model.dropout switches it on.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )


def _shape(layers: int, hidden_size: int, heads: int, **more: Any) -> dict[str, Any]:
    return {"num_hidden_layers": layers, "hidden_size": hidden_size, "num_attention_heads": heads, **more}


_BERT = Preset("bert", _encoder(BertConfig))
_MINGPT = Preset("mingpt", _mingpt, _shape(4, 256, 8, block_size=128), causal=True)
PRESETS: dict[str, Preset] = {
    "bert-tiny": replace(_BERT, shape=_shape(2, 128, 2, max_position_embeddings=512)),
    "tinybert": replace(_BERT, shape=_shape(4, 312, 12, intermediate_size=1200, max_position_embeddings=512)),
    "roberta-tiny": Preset(
        "roberta", _encoder(RobertaConfig), _shape(2, 128, 2, max_position_embeddings=512 + ROBERTA_OFFSET)
    ),
    "mingpt": _MINGPT,
    "mingpt-tiny": replace(_MINGPT, shape=_shape(2, 64, 4, block_size=128)),
    "gpt2-tiny": Preset("gpt2", _gpt2, _shape(2, 128, 2, max_position_embeddings=128), causal=True),
}


def preset(section: ModelSection, *, causal: bool | None = None) -> Preset:
    """The preset of a ``scratch:<preset>`` model, with the shape that the recipe sets.

    If the name is unknown, one that predicts the next token (``causal``) or one that does not is suggested.
    """
    key = section.model_name_or_path.removeprefix(SCRATCH)
    if key not in PRESETS:
        fitting = [f"{SCRATCH}{name}" for name, known in PRESETS.items() if causal in (None, known.causal)]
        raise HftuneError(
            f"unknown scratch model {key!r}; expected one of {', '.join(fitting)}",
            hint=did_you_mean(f"{SCRATCH}{key}", fitting) or f"use --model {fitting[0]}",
        )
    found, changes = PRESETS[key], section.shape
    if "hidden_size" in changes:  # an inner size of the preset belongs to its own hidden size
        changes = {"intermediate_size": None, **changes}
    return replace(found, shape={**found.shape, **changes}, tokenizer_type=section.tokenizer_type)


def refuse_other_head(section: ModelSection, *, causal: bool) -> None:
    """Refuse a GPT from scratch for classification, and an encoder from scratch for causal language modeling."""
    if not section.from_scratch or preset(section, causal=causal).causal == causal:
        return
    fitting = [name for name, known in PRESETS.items() if known.causal == causal]
    needed = "a model that predicts the next token" if causal else "an encoder"
    raise HftuneError(
        f"this task needs {needed}; {section.model_name_or_path} is not one",
        hint=f"use --model {SCRATCH}{' or '.join(fitting)}",
    )


# ---- running a loaded model: its device, its mode, and batches of examples of similar length ----


def default_device() -> str:
    """The first GPU, or else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Turn off dropout and gradients in the block, and restore the mode of the model after it."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def longest_first(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """The indices of all examples in batches, from long to short.

    A batch is as wide as its longest example, so similar lengths mean little padding; and if memory is too small,
    the first batch fails, not the last.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
