"""Tokenizers and sequence classifiers by Hub id, folder, run or ``scratch:<preset>``. Called by the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models import mingpt
from hftune.models.adapter import base_to_start_from, is_adapter, load_adapter, with_weights_of
from hftune.models.auto import load_auto_config, load_auto_tokenizer, pad_with_eos, set_padding
from hftune.models.checkpoint import (
    STARTED_FROM,
    TOKENIZER,
    ask_first,
    explained,
    locate,
    locate_tokenizer,
    refuse_unsafe,
    whose_code,
)
from hftune.models.containment import refuse_leading_out
from hftune.models.facts import saved_facts
from hftune.models.first_token import read_first_only
from hftune.models.presets import preset, refuse_other_head
from hftune.models.weight_files import check_weights
from hftune.models.weights import load_weights, refuse_incomplete

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model, and which of its modules did not come from the checkpoint."""

    model: PreTrainedModel
    fresh_modules: tuple[str, ...]
    """Names of modules with newly initialized weights: an adapter must carry these along."""


def load_tokenizer(section: ModelSection, texts: Iterable[str], *, padded: bool = True) -> PreTrainedTokenizerBase:
    """The model's tokenizer; for a scratch model, one trained on the texts (the training split, nothing else).

    Args:
        section: The model.
        texts: The training texts.
        padded: Whether batches need padding, and so the tokenizer a token for it.
    """
    if section.from_scratch and section.tokenizer_name is None:
        return preset(section).train_tokenizer(texts, section.vocab_size)
    source = section
    if section.tokenizer_name is not None:
        # One that is named apart from the model has revisions of its own, so that no commit of its code is known.
        local = section.trust_remote_code and Path(section.tokenizer_name).is_dir()
        source = section.model_copy(
            update={"model_name_or_path": section.tokenizer_name, "model_revision": None, "trust_remote_code": local}
        )
    location = locate_tokenizer(source.model_name_or_path)
    wanted = STARTED_FROM if section.tokenizer_name is None else TOKENIZER
    ask_first(location, source, wanted)
    mingpt.register()
    with explained(source, wanted):
        if section.tokenizer_name is None and not Path(location).is_dir():
            # Without this, a repository that holds no model at all is refused for lack of a tokenizer.
            check_weights(source.model_name_or_path, location, source.model_revision)
        refuse_leading_out(location, source.model_revision)
        tokenizer = load_auto_tokenizer(location, **whose_code(location, source))
    if not _ordinary(tokenizer):
        # transformers makes up an empty one for a folder that holds none: every word would be unknown.
        raise HftuneError(
            f"{source.model_name_or_path} brings no tokenizer: only special tokens are known",
            hint="name one with --tokenizer: the one that the checkpoint was trained with",
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise HftuneError(
            f"the tokenizer of {source.model_name_or_path} has no number for model_max_length: "
            f"{tokenizer.model_max_length!r}",
            hint="correct it in its tokenizer_config.json",
        )
    if padded:
        pad_with_eos(tokenizer, source.model_name_or_path)
        if tokenizer.pad_token is None:
            raise HftuneError(
                f"the tokenizer of {source.model_name_or_path} has no padding token and no end-of-text token to pad "
                "with, so texts "
                "can't be batched",
                hint="choose another checkpoint, or add a pad_token to its tokenizer_config.json",
            )
    return tokenizer


def load_config(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The architecture, before any weights: what length and label checks are made against."""
    if section.from_scratch:
        config = preset(section).build_config(tokenizer)
    else:
        mingpt.register()  # a saved one is loaded with our code, not with the code that lies beside it
        location = locate(section.model_name_or_path)
        refuse_unsafe(location, section)
        with explained(section):
            source = section
            if is_adapter(location, section.model_revision):
                source = base_to_start_from(location, section)
                location = source.model_name_or_path
            config = load_auto_config(location, **whose_code(location, source))
    if section.model_type not in (None, config.model_type):
        raise HftuneError(
            f"model.model_type is {section.model_type}, but {section.model_name_or_path} is a {config.model_type}",
            hint=f"leave --model-type out, or write {config.model_type}",
        )
    if section.dropout is not None:
        _set_dropout(config, section.dropout)
    return config


def load_sequence_classifier(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], *, skip_unread: bool = True
) -> LoadedModel:
    """An encoder with a classification head for these labels, in fp32.

    A head that the checkpoint brings is kept only when its label names are the same ones. Where ``skip_unread`` is set,
    the last layer computes only what the head reads.
    """
    loaded = _sequence_classifier(section, tokenizer, labels)
    if skip_unread:
        read_first_only(loaded.model)
    return loaded


def _sequence_classifier(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> LoadedModel:
    refuse_other_head(section, causal=False)
    config = load_config(section, tokenizer)
    if config.model_type == mingpt.MinGPTConfig.model_type:
        raise HftuneError(
            f"{section.model_name_or_path} is a minGPT, which writes text and has no head for labels",
            hint="take an encoder (BERT, RoBERTa …); a minGPT learns to answer with `hftune finetune --from`",
        )
    brought = tuple(config.id2label.values())
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    if section.from_scratch:
        return LoadedModel(AutoModelForSequenceClassification.from_config(config, dtype=torch.float32), ())
    location = locate(section.model_name_or_path)
    with explained(section):
        if is_adapter(location, section.model_revision):
            brought = tuple(saved_facts(location, section.model_revision).get("labels") or ())
            joined = load_adapter(location, section, brought)  # first: it registers the class of a base with own code
            model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
            new = set(with_weights_of(joined, model))
            refuse_incomplete(section, model, (), new, other_labels=True)
        else:
            model, new = load_weights(AutoModelForSequenceClassification, location, section, config, other_labels=True)
    check_vocabulary(section, model, tokenizer)
    set_padding(model, tokenizer)
    head = tuple(name for name, _ in model.named_children() if name != model.base_model_prefix)
    fresh = modules_of(new)
    if not any(name.split(".")[0] in head for name in fresh) and brought != tuple(labels):
        fresh += _reset(model, head)
    if fresh:
        logger.info("newly initialized: %s", ", ".join(fresh))
    return LoadedModel(model, fresh)


def check_vocabulary(section: ModelSection, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer whose ids mean something else to the weights: all would run as if nothing were wrong."""
    embedded = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > embedded:
        raise HftuneError(
            f"the tokenizer has {len(tokenizer)} tokens, the checkpoint {section.model_name_or_path} embeds "
            f"{embedded}: it was "
            "trained with another vocabulary",
            hint="use the tokenizer that belongs to the checkpoint: leave model.tokenizer_name out",
        )
    if section.tokenizer_name is None:
        return
    with explained(section):
        location = locate(section.model_name_or_path)
        own = load_auto_tokenizer(location, **whose_code(location, section))
    theirs, ours = _ordinary(own), tokenizer.get_vocab()
    moved = next((token for token, number in theirs.items() if ours.get(token) != number), None)
    if moved is not None:
        raise HftuneError(
            f"model.tokenizer_name is {section.tokenizer_name}, whose vocabulary is not that of the checkpoint "
            f"{section.model_name_or_path}: "
            f"{moved!r} is number {theirs[moved]} there and {ours.get(moved, 'not known')} here",
            hint="leave model.tokenizer_name out",
        )


def _ordinary(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The vocabulary without special tokens: nothing where a checkpoint brings no tokenizer."""
    special = set(tokenizer.all_special_tokens)
    return {token: number for token, number in tokenizer.get_vocab().items() if token not in special}


def modules_of(names: Iterable[str]) -> tuple[str, ...]:
    """Parameter names to module names, each once: classifier.weight and classifier.bias are one module."""
    return tuple(sorted({name.rpartition(".")[0] for name in names}))


def _reset(model: PreTrainedModel, head: Sequence[str]) -> tuple[str, ...]:
    """Draw the head anew: one that was trained for other labels would start from answers that mean something else."""
    names = []
    for name, module in model.named_modules():
        if name.split(".")[0] in head and any(True for _ in module.parameters(recurse=False)):
            for parameter in module.parameters(recurse=False):
                parameter._is_hf_initialized = False  # transformers leaves what it loaded alone
            model._init_weights(module)
            names.append(name)
    return tuple(names)


def _set_dropout(config: PreTrainedConfig, rate: float) -> None:
    """Every dropout rate the architecture has; their names differ from family to family."""
    names: Sequence[str]
    if isinstance(config, mingpt.MinGPTConfig):
        names = config.dropouts  # a rate that its attention can't have would be saved, and refused when it is loaded
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
