"""Configurations and tokenizers through the Auto classes, also of old repositories whose config.json has no model_type.

transformers 4 took the architecture from the repository's name there (prajjwal1/bert-tiny); transformers 5 refuses.
Used by everything in ``hftune.models`` that loads a checkpoint.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto import modeling_auto
from transformers.utils import cached_file

from hftune.errors import HftuneError

logger = logging.getLogger(__name__)

CONFIG = "config.json"
_CLASSES = ("MODEL", "MODEL_FOR_MASKED_LM", "MODEL_FOR_PRETRAINING", "MODEL_FOR_SEQUENCE_CLASSIFICATION")


def load_auto_config(location: str, **how: Any) -> PreTrainedConfig:
    """The configuration of a checkpoint.

    Args:
        location: A folder or a Hub id.
        **how: ``revision`` and ``trust_remote_code``.

    Raises:
        HftuneError: It has no model_type, and neither architectures nor the name tells it.
    """
    values = _config_values(location, how.get("revision"))
    if values is None or "model_type" in values or "auto_map" in values:
        return AutoConfig.from_pretrained(location, **how)
    name = Path(location).name if Path(location).is_dir() else location
    kind = _from_architectures(values.get("architectures")) or _from_name(name)
    if kind is None:
        raise HftuneError(
            f"the config.json of {location} has no model_type, and neither its architectures nor the name {name!r} "
            "tells which architecture it is",
            hint='download the checkpoint, add "model_type" to its config.json (such as "bert"), and use that folder',
        )
    logger.info("The config.json of %s has no model_type: loading it as %s", location, kind)
    return CONFIG_MAPPING[kind].from_dict(values, name_or_path=location)


def load_auto_tokenizer(location: str, **how: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint; the arguments are those of ``load_auto_config``."""
    values = _config_values(location, how.get("revision"))
    if values is not None and not {"model_type", "auto_map", "tokenizer_class"} & values.keys():
        how["config"] = load_auto_config(location, **how)
    return AutoTokenizer.from_pretrained(location, **how)


def pad_with_eos(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Give a tokenizer without a padding token, such as GPT-2's, its end-of-text token, on the right.

    The attention mask hides it, and a classifier that reads the last token looks for the last one before it.
    """
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "right"
        logger.info("The tokenizer of %s has no padding token: padding with %s", name, tokenizer.eos_token)


def set_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Tell a model that finds the last token of a text by it which token is padding."""
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id


def _config_values(location: str, revision: str | None) -> dict[str, Any] | None:
    """The content of config.json; None if there is none, or none that can be read: the Auto classes explain that."""
    path = cached_file(
        location,
        CONFIG,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    try:
        values = None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _from_architectures(names: Any) -> str | None:
    """The model type whose classes include the first of ``architectures``."""
    wanted = names[0] if isinstance(names, list) and names else None
    for table in _CLASSES:
        for kind, classes in getattr(modeling_auto, f"{table}_MAPPING_NAMES").items():
            if wanted in (classes if isinstance(classes, tuple) else (classes,)):
                return str(kind)
    return None


def _from_name(name: str) -> str | None:
    """The longest model type that is part of the name, as in transformers 4."""
    kinds = sorted(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, key=len, reverse=True)
    return next((kind for kind in kinds if kind in name.lower()), None)
