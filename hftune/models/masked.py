"""Loading, saving and scoring masked language models, alone or beside a classifier. Called by tasks mlm and joint.

A joint run keeps its masked language model in ``mlm/`` below the published classifier, so that training can go on from
there and ``pipeline("fill-mask", …)`` loads it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models.adapter import is_adapter, refuse_adapter
from hftune.models.auto import load_auto_config, load_auto_tokenizer
from hftune.models.checkpoint import explained, locate, refuse_unsafe, whose_code
from hftune.models.containment import refuse_leading_out
from hftune.models.joint import FAMILIES, IGNORED, MASKED, as_masked_lm, row_statistics, with_mlm_head
from hftune.models.load import (
    LoadedModel,
    check_vocabulary,
    load_config,
    load_sequence_classifier,
    modules_of,
)
from hftune.models.weights import load_weights

logger = logging.getLogger(__name__)

BESIDE = "mlm"
"""Folder of the masked language model, below that of the classifier."""


def check_family(config: PreTrainedConfig, name: str) -> None:
    """Refuse an architecture that has no masked language model here."""
    if config.model_type not in FAMILIES:
        raise HftuneError(
            f"{name} is a {config.model_type} model; masked language models can be trained with {', '.join(FAMILIES)}",
            hint="take a BERT or RoBERTa model (TinyBERT and MiniLM are BERT), such as --model scratch:bert-tiny",
        )


def load_joint(
    section: ModelSection, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], *, skip_unread: bool = True
) -> LoadedModel:
    """A classifier exactly as ``load_sequence_classifier`` makes it, with a masked language model's head beside it.

    The head comes from the checkpoint where that has one; torch's random state does not depend on it.
    """
    loaded = load_sequence_classifier(section, tokenizer, labels, skip_unread=skip_unread)
    whole = not section.from_scratch and not is_adapter(locate(section.model_name_or_path), section.model_revision)
    head = _brought_head(section, loaded.model) if whole else None
    joint = with_mlm_head(loaded.model, head)
    fresh = () if head is not None else (joint.head_name,)
    logger.info("the masked language model's head is %s", "fresh" if fresh else "that of the checkpoint")
    return LoadedModel(joint, (*loaded.fresh_modules, *fresh))


def load_masked_lm(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """A masked language model, in fp32; its head is the checkpoint's where that has one."""
    config = load_config(section, tokenizer)
    check_family(config, section.model_name_or_path)
    wanted = MASKED[config.model_type]
    if section.from_scratch:
        return LoadedModel(wanted._from_config(config, dtype=torch.float32), ())
    refuse_adapter(locate(section.model_name_or_path), section.model_revision)
    model, missing = _from_checkpoint(wanted, section, config)
    check_vocabulary(section, model, tokenizer)
    return LoadedModel(model, modules_of(missing))


def save_masked_lm(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The plain masked language model in a joint or masked one, with its tokenizer: what ``fill-mask`` loads."""
    as_masked_lm(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def reload_masked_lm(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A saved masked language model, to score it, and its tokenizer."""
    refuse_leading_out(str(folder))
    refuse_adapter(str(folder))
    section = ModelSection(model_name_or_path=str(folder))
    config = load_auto_config(section.model_name_or_path, **whose_code(section.model_name_or_path, section))
    check_family(config, section.model_name_or_path)
    model, missing = _from_checkpoint(MASKED[config.model_type], section, config)
    if missing:
        raise HftuneError(
            f"{folder} is no masked language model: it has no weights for {sorted(missing)[0]}",
            hint="the folder was changed; take the model folder of the run again",
        )
    return model, load_auto_tokenizer(section.model_name_or_path, trust_remote_code=False)


def fill_statistics(
    model: PreTrainedModel,
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda rows: None,
) -> np.ndarray:
    """(rows, 3): summed loss, correct and masked tokens of each row. Longest rows run first.

    Args:
        model: A joint model or one of MASKED.
        rows: Tokens to show, and the true ones where one was masked, else -100.
        batch_size: Rows in one forward pass.
        advance: Told how many rows are done.
    """
    order = sorted(range(len(rows)), key=lambda index: len(rows[index][0]), reverse=True)
    result = np.zeros((len(rows), 3), dtype=np.float64)
    was_training, device = model.training, model.device
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = padded([rows[index] for index in chosen], pad=model.config.pad_token_id or 0)
            ids, mask, labels = (part.to(device) for part in batch)
            hidden = model.base_model(input_ids=ids, attention_mask=mask, every_token=True).last_hidden_state
            logits = model.mlm_head(hidden[labels != IGNORED])
            result[chosen] = row_statistics(logits, labels).cpu().numpy()
            advance(len(chosen))
    model.train(was_training)
    return result


def padded(rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and labels of rows, as long as the longest."""
    ids = [torch.tensor(shown) for shown, _ in rows]
    return (
        pad_sequence(ids, batch_first=True, padding_value=pad),
        pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        pad_sequence([torch.tensor(truth) for _, truth in rows], batch_first=True, padding_value=IGNORED),
    )


def _brought_head(section: ModelSection, classifier: PreTrainedModel) -> dict[str, Tensor] | None:
    """State of the head that the checkpoint, or the joint run it is of, brings along; None where it has none."""
    wanted = MASKED[classifier.config.model_type]
    model, missing = _from_checkpoint(wanted, section, classifier.config, again=True)
    head = next(name for name, _ in model.named_children() if name != model.base_model_prefix)
    if any(name.startswith(f"{head}.") for name in missing):
        return None
    # The decoder is tied to this model's own embeddings, which are those of the classifier.
    return dict(model.mlm_head.state_dict())


def _from_checkpoint(
    wanted: type[PreTrainedModel], section: ModelSection, config: PreTrainedConfig, *, again: bool = False
) -> tuple[PreTrainedModel, set[str]]:
    """The model, and the names of weights that the checkpoint lacks. Draws of fresh weights leave no trace."""
    location = locate(section.model_name_or_path)
    refuse_unsafe(location, section)
    with explained(section), torch.random.fork_rng():
        beside = BESIDE if _has_beside(location, section.model_revision) else ""
        return load_weights(wanted, location, section, config, subfolder=beside, again=again)


def _has_beside(location: str, revision: str | None) -> bool:
    found = cached_file(
        location,
        f"{BESIDE}/config.json",
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found is not None
