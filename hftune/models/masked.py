"""Masked language models: loading, saving and scoring, alone or with a classifier.

A joint run keeps its masked language model in ``mlm/`` of the published classifier, so that training can start from it
and ``pipeline("fill-mask", …)`` loads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune.errors import HftuneError
from hftune.models.adapter import refuse_adapter
from hftune.models.checkpoint import Checkpoint, open_checkpoint
from hftune.models.classifier import load_sequence_classifier
from hftune.models.hub_files import INFERENCE
from hftune.models.joint import FAMILIES, IGNORED, as_masked_lm, row_statistics, with_mlm_head
from hftune.models.load import (
    LoadedModel,
    check_vocabulary,
    default_device,
    evaluation_mode,
    longest_first,
    modules_of,
    open_model,
)
from hftune.models.settings import ModelSection, encoder_config

logger = logging.getLogger(__name__)

MLM_FOLDER = "mlm"
"""Folder of the masked language model, inside that of the classifier."""
Classes = Mapping[str, type[PreTrainedModel]]
"""By ``model_type``, the class of the model that is trained."""
ONLY_MASKED: Classes = {kind: family.only_masked for kind, family in FAMILIES.items()}
Rows = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Token ids to show, and the true ones where one was masked, else -100."""


def check_family(config: PreTrainedConfig, name: str) -> None:
    """Refuse an architecture that has no masked language model here."""
    kind = encoder_config(config).model_type
    if kind not in FAMILIES:
        raise HftuneError(
            f"{name} is a {kind} model; masked language models can be trained with {', '.join(FAMILIES)}",
            hint="use a BERT or RoBERTa model (TinyBERT and MiniLM are BERT), such as --model scratch:bert-tiny",
        )


def load_joint(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], *, cls_only: bool = True
) -> LoadedModel:
    """The classifier of ``load_sequence_classifier``, with the head of a masked language model.

    The head is that of the checkpoint if it has one; torch's random state does not depend on it.
    """
    loaded = load_sequence_classifier(section, tokenizer, labels, cls_only=cls_only)
    head = None
    if not section.from_scratch:
        checkpoint = open_checkpoint(section)
        head = None if checkpoint.is_adapter else _head(checkpoint, loaded.model)
    joint = with_mlm_head(loaded.model, head)
    fresh = () if head is not None else (joint.head_name,)
    logger.info("the masked language model's head is %s", "new" if fresh else "that of the checkpoint")
    return replace(loaded, model=joint, fresh_modules=(*loaded.fresh_modules, *fresh))


def _head(checkpoint: Checkpoint, classifier: PreTrainedModel) -> dict[str, Tensor] | None:
    """The weights of the checkpoint's masked language model head; None if it has none."""
    model, missing = _from_checkpoint(checkpoint, encoder_config(classifier.config), quiet=True)
    if any(name.startswith(f"{model.head_name}.") for name in missing):
        return None
    # The decoder is tied to this model's own embeddings, which are the same as the classifier's.
    return dict(model.mlm_head.state_dict())


def load_masked_lm(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, classes: Classes = ONLY_MASKED
) -> LoadedModel:
    """A masked language model in fp32, to be trained; its head is the checkpoint's if that has one."""
    checkpoint, config = open_model(section, tokenizer)
    check_family(config, section.model_name_or_path)
    config = encoder_config(config)
    if checkpoint is None:
        config.dtype = torch.float32
        return LoadedModel(classes[config.model_type](config))
    refuse_adapter(checkpoint)
    model, missing = _from_checkpoint(checkpoint, config, classes=classes)
    check_vocabulary(checkpoint, model, tokenizer)
    return LoadedModel(model, modules_of(missing))


def _from_checkpoint(
    checkpoint: Checkpoint, config: PreTrainedConfig, *, classes: Classes = ONLY_MASKED, quiet: bool = False
) -> tuple[PreTrainedModel, set[str]]:
    """The model, and the names of weights that the checkpoint lacks; torch's random state does not change."""
    with torch.random.fork_rng():
        subfolder = MLM_FOLDER if checkpoint.find(f"{MLM_FOLDER}/config.json") else ""
        return checkpoint.weights(classes[config.model_type], config, subfolder=subfolder, quiet=quiet)


def save_masked_lm(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save the plain masked language model of a joint or masked one, with its tokenizer, for ``fill-mask``."""
    as_masked_lm(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def reload_masked_lm(folder: Path, classes: Classes = ONLY_MASKED) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A saved masked language model and its tokenizer, to score it."""
    checkpoint = open_checkpoint(ModelSection(model_name_or_path=str(folder)))
    refuse_adapter(checkpoint)
    config = checkpoint.config()
    check_family(config, checkpoint.name)
    model, missing = _from_checkpoint(checkpoint, config, classes=classes)
    if missing:
        raise HftuneError(
            f"{folder} is not a masked language model: it has no weights for {sorted(missing)[0]}",
            hint="the folder was changed: use the model folder of the run again",
        )
    return model, checkpoint.tokenizer()


def load_saved_masked_lm(section: ModelSection) -> PreTrainedModel:
    """A saved masked language model as transformers loads it, in evaluation mode."""
    checkpoint = open_checkpoint(section, INFERENCE)
    refuse_adapter(checkpoint)
    model, _ = checkpoint.weights(AutoModelForMaskedLM, checkpoint.config())
    return model.to(default_device()).eval()


def fill_statistics(
    model: PreTrainedModel, rows: Rows, *, batch_size: int = 64, advance: Callable[[int], None] = lambda rows: None
) -> np.ndarray:
    """Summed loss, correct tokens and masked tokens of each example [N, 3], by a joint or a masked language model."""
    result = np.zeros((len(rows), 3), dtype=np.float64)
    with evaluation_mode(model):
        for chosen in longest_first([len(shown) for shown, _ in rows], batch_size):
            batch = padded([rows[index] for index in chosen], pad=model.config.pad_token_id or 0)
            ids, mask, labels = (part.to(model.device) for part in batch)  # [B, T]
            hidden = model.base_model(input_ids=ids, attention_mask=mask, every_token=True).last_hidden_state
            logits = model.mlm_head(hidden[labels != IGNORED])  # [M, V]
            result[chosen] = row_statistics(logits, labels).cpu().numpy()
            advance(len(chosen))
    return result


def padded(rows: Rows, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and labels, each [B, T]."""
    ids = [torch.tensor(shown) for shown, _ in rows]
    return (
        pad_sequence(ids, batch_first=True, padding_value=pad),
        pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        pad_sequence([torch.tensor(truth) for _, truth in rows], batch_first=True, padding_value=IGNORED),
    )
