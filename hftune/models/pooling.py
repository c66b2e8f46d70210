"""``model.pooling``: which vector of a text a classifier reads, and what a sentence encoder was trained with.

``cls`` is transformers' own class, whose head reads the first token. It expresses ``mean`` for ModernBERT too; the
others are the class in ``pooled/``, whose code is saved with the model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import MODEL_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from hftune.errors import HftuneError
from hftune.models.checkpoint import Checkpoint
from hftune.models.pooled import PooledEncoderConfig, register
from hftune.models.settings import POOLED_TYPE, ModelSection, encoder_config

SENTENCE_POOLING = "1_Pooling/config.json"
"""Where sentence-transformers stores how a sentence encoder was trained."""
RECIPE = "model.pooling"
MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}
STOCK_MEAN = ("modernbert",)
"""Architectures whose own classifier can read the mean: ``classifier_pooling`` in their configuration."""
FIRST_TOKEN = (
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "mpnet", "distilbert", "deberta-v2"),
    *STOCK_MEAN,
)
"""Architectures whose own classifier reads the first token."""
_DROPOUTS = ("classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout", "cls_dropout")
_OTHER_DROPOUTS = ("hidden_dropout_prob", "hidden_dropout", "dropout")


@dataclass(frozen=True)
class Pooling:
    """What a classifier reads: cls, mean or max, or None for whatever the architecture's own class reads."""

    kind: str | None = None
    source: str = ""
    """Who chose it, for the report."""
    note: str = ""
    """Why ``auto`` could not use what it found."""

    def notes(self) -> tuple[str, ...]:
        """Notes for the user; a pooling that the recipe names needs none."""
        if self.kind is None or self.source == RECIPE:
            return (self.note,) if self.note else ()
        return (f"pooling: {self.kind} ({self.source})",)

    def facts(self) -> dict[str, Any]:
        """The entry of metrics.json; none for the architecture's own class."""
        return {} if self.kind is None else {"pooling": {"kind": self.kind, "source": self.source}}


def pooling_of(config: PreTrainedConfig) -> str | None:
    """The pooling that a configuration states; None if the architecture's class has one way only."""
    if config.model_type == POOLED_TYPE:
        return str(config.pooling)
    return str(config.classifier_pooling) if config.model_type in STOCK_MEAN else None


def check_pooling(section: ModelSection, config: PreTrainedConfig) -> None:
    """Refuse a pooling that has no meaning for this architecture, from its configuration alone."""
    kind, encoder = section.pooling, encoder_config(config)
    if kind == "auto":
        return
    reason = _unsuitable(encoder)
    if reason is None and kind == "cls" and encoder.model_type not in FIRST_TOKEN:
        reason = f"cls is known for {', '.join(FIRST_TOKEN)} only"
    if reason is not None:
        raise HftuneError(
            f"model.pooling is {kind}, which does not work with this {encoder.model_type} model: {reason}",
            hint="leave --pooling out: the classifier then reads what the architecture's own class reads",
        )


def _unsuitable(encoder: PreTrainedConfig) -> str | None:
    """Why the vectors of an architecture can't be pooled; None if they can."""
    values, kind = encoder.to_dict(), encoder.model_type
    if encoder.is_encoder_decoder:
        return "it has an encoder and a decoder"
    causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if causal or values.get("is_decoder"):
        return "it reads from left to right, so only its last token has read the whole text"
    if type(encoder) not in MODEL_MAPPING:
        return "its architecture is not in transformers"
    return None


def choose_pooling(section: ModelSection, checkpoint: Checkpoint | None, config: PreTrainedConfig) -> Pooling:
    """The pooling that the recipe states; for ``auto`` the one that the checkpoint was trained with."""
    if section.pooling != "auto":
        check_pooling(section, config)
        return Pooling(section.pooling, RECIPE)
    if checkpoint is None:
        return Pooling()
    stated = checkpoint.metadata.get("pooling") or (pooling_of(config) if config.model_type == POOLED_TYPE else None)
    if stated is not None:
        return Pooling(stated, "that of the classifier it starts from")
    if any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        return Pooling()  # a classifier, whose head knows only what it has read so far
    with checkpoint.explained():
        found = checkpoint.files.values(SENTENCE_POOLING)
    if found is None:
        return Pooling()
    kind, unsuitable = sentence_pooling(found), _unsuitable(config)
    if kind is None or unsuitable:
        why = unsuitable or "it is none of cls, mean and max"
        note = f"{SENTENCE_POOLING} is not used ({why}): the classifier reads what the architecture's own class reads"
        return Pooling(note=note)
    if kind == "cls" and config.model_type not in FIRST_TOKEN:
        return Pooling()
    return Pooling(kind, SENTENCE_POOLING)


def sentence_pooling(values: Mapping[str, Any]) -> str | None:
    """Cls, mean or max, from the configuration of sentence-transformers; None for any other or several together."""
    modes = values.get("pooling_mode")  # newer files; a list concatenates several
    if modes is not None:
        named = modes if isinstance(modes, list) else [modes]
    else:
        named = [MODES.get(key, key) for key, value in values.items() if key.startswith("pooling_mode_") and value]
    return named[0] if len(named) == 1 and named[0] in MODES.values() else None


def with_pooling(config: PreTrainedConfig, kind: str | None) -> PreTrainedConfig:
    """The configuration of a classifier with this pooling, for the same encoder and labels."""
    if kind is None or (kind == pooling_of(config)):
        return config
    encoder = copy.deepcopy(encoder_config(config))
    labels = {"id2label": config.id2label, "label2id": config.label2id}
    if kind == "cls" or (kind == "mean" and encoder.model_type in STOCK_MEAN):
        for name, value in labels.items():
            setattr(encoder, name, value)
        if encoder.model_type in STOCK_MEAN:
            encoder.classifier_pooling = kind
        return encoder
    register()
    made = PooledEncoderConfig(
        encoder_config=encoder,
        pooling=kind,
        classifier_dropout=_dropout(encoder),
        pad_token_id=getattr(encoder, "pad_token_id", None),
        **labels,
    )
    encoder.num_labels = 2  # the labels are those of the classifier
    encoder.architectures = None
    encoder.name_or_path = ""  # it would be saved, and may be a path on this machine
    return made


def _dropout(encoder: PreTrainedConfig) -> float:
    """The dropout before the head: that of the architecture's own classifier."""
    values = encoder.to_dict()
    return next((float(values[name]) for name in (*_DROPOUTS, *_OTHER_DROPOUTS) if values.get(name) is not None), 0.1)
