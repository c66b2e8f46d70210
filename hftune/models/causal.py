"""Causal language models: loaded to be trained or used, saved with their code, and scored token by token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from hftune.errors import HftuneError
from hftune.models import mingpt
from hftune.models.adapter import merge_into
from hftune.models.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from hftune.models.hub_files import INFERENCE
from hftune.models.load import (
    LoadedModel,
    check_vocabulary,
    default_device,
    evaluation_mode,
    longest_first,
    open_model,
    refuse_other_head,
)
from hftune.models.settings import ModelSection

CLASSIFIERS = ("classify", "joint")
"""Tasks whose models are classifiers."""
IGNORED = -100
Collate = Callable[[list[dict[str, Any]]], dict[str, Tensor]]
TokenScores = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Loss of each token, and 1 if it was the most likely, each [N, T]; 0 for the first token and for padding."""


def load_causal_lm(section: ModelSection, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """A language model for this tokenizer in fp32, to be trained: pretrained, or from scratch."""
    refuse_other_head(section, causal=True)
    checkpoint, config = open_model(section, tokenizer)
    if checkpoint is None:
        mingpt.register()
        return LoadedModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    _refuse_other_kinds(checkpoint, config)
    if checkpoint.is_adapter:
        adapted = _load(checkpoint)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        missing = merge_into(adapted, model)
    else:
        model, missing = checkpoint.weights(AutoModelForCausalLM, config)
    _refuse_headless(checkpoint.name, missing)
    check_vocabulary(checkpoint, model, tokenizer)
    return LoadedModel(model)


def check_causal(section: ModelSection, config: PreTrainedConfig) -> None:
    """Refuse an encoder or a classifier, which does not predict the next token, before its weights are loaded."""
    refuse_other_head(section, causal=True)
    if not section.from_scratch:
        _refuse_other_kinds(open_checkpoint(section), config)


def load_saved_lm(
    name: str, section: ModelSection | None = None, device: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """Model in evaluation mode, tokenizer and hftune.json of a folder, a run or a Hub id."""
    checkpoint = open_checkpoint((section or ModelSection()).model_copy(update={"model_name_or_path": name}), INFERENCE)
    tokenizer, model = checkpoint.tokenizer(), _load(checkpoint)
    model.to(device or default_device())
    return model.eval(), tokenizer, checkpoint.metadata


def _load(checkpoint: Checkpoint) -> PreTrainedModel:
    adapter = checkpoint.adapter
    whole = adapter.base if adapter else checkpoint
    config = whole.config()
    _refuse_other_kinds(checkpoint, config)
    model, missing = whole.weights(AutoModelForCausalLM, config)
    _refuse_headless(checkpoint.name, missing)
    if adapter is None:
        return model
    with checkpoint.explained():
        return adapter.join(model)


def _refuse_other_kinds(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Refuse masked language models and classifiers: some load as causal models, and would generate nonsense."""
    name, task = checkpoint.name, checkpoint.metadata.get("task")
    architecture = (config.architectures or [""])[0]
    # The causal class of an encoder (BertLMHeadModel) loads its weights, but they were trained to look ahead.
    kind = config.model_type
    masked = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.is_encoder_decoder
    is_decoder = config.to_dict().get("is_decoder", kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    encoder = masked and not is_decoder
    if task in CLASSIFIERS or (task is None and architecture.endswith("Classification")):
        raise HftuneError(
            f"{name} is a classifier and generates no text", hint=f"predict labels with it: `hftune predict {name}`"
        )
    if task in ("mlm", "distill_encoder") or (task is None and encoder):
        raise HftuneError(
            f"{name} is a masked language model, which can't continue a text",
            hint=f"fill masks with transformers' pipeline('fill-mask', {checkpoint.location!r}); a model that "
            "generates text is trained with `hftune pretrain --objective clm`",
        )


def _refuse_headless(name: str, missing: Collection[str]) -> None:
    """Refuse a model that lacks weights: it would generate random text without any warning."""
    if missing:
        raise HftuneError(
            f"{name} is not a causal language model: it has no weights for {sorted(missing)[0]}",
            hint="use the checkpoint of a GPT, such as a run of `hftune pretrain`",
        )


def save_causal_lm(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    base: ModelSection | None = None,
    **metadata: Any,
) -> None:
    """What ``save_checkpoint`` saves, with the code of a minGPT, and with the cache enabled."""
    mingpt.register()  # a saved minGPT has its code with it
    use_cache, model.config.use_cache = model.config.use_cache, True  # Trainer disables it during training
    save_checkpoint(model, tokenizer, folder, metadata, base=base)
    model.config.use_cache = use_cache


class NextTokenBatches:
    """Collator: pads on the right, where causal attention needs no mask, and never predicts padding."""

    def __init__(self, fill: int) -> None:
        """fill: the token to pad with; which one makes no difference."""
        self.fill = fill

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Ids and labels, each [B, T]; ``first`` of an example is the first token to predict, 1 by default."""
        width = max(len(row["input_ids"]) for row in rows)
        made = np.full((2, len(rows), width), self.fill, dtype=np.int64)
        made[1] = IGNORED
        for place, row in enumerate(rows):
            ids, first = row["input_ids"], row.get("first", 1)
            made[0, place, : len(ids)] = ids
            made[1, place, first : len(ids)] = ids[first:]
        ids, labels = torch.from_numpy(made)
        return {"input_ids": ids, "labels": labels}


def token_scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each token, and 1 if it was the most likely: [B, T, V] and [B, T] → each [B, T].

    Trainer calls it for every evaluation batch, so that no logits are kept.
    """
    before, after = logits[:, :-1].float(), labels[:, 1:]  # [B, T-1, V], [B, T-1]
    # One example at a time: a second copy of the logits of a whole batch would be larger than the model.
    rows = zip(before, after, strict=True)
    losses = torch.stack([cross_entropy(row, truth, ignore_index=IGNORED, reduction="none") for row, truth in rows])
    hits = (before.argmax(-1) == after).float()  # [B, T-1]
    nothing = losses.new_zeros(len(losses), 1)  # [B, 1]
    return torch.cat([nothing, losses], dim=1), torch.cat([nothing, hits], dim=1)


def score_sequences(
    model: PreTrainedModel,
    rows: Sequence[dict[str, Any]],
    collate: Collate,
    *,
    batch_size: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> TokenScores:
    """Score every token of every example, in order."""
    lengths = [len(row["input_ids"]) for row in rows]
    shape = (len(rows), max(lengths))
    found: TokenScores = (np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    with evaluation_mode(model):
        for chosen in longest_first(lengths, batch_size):
            batch = {name: part.to(model.device) for name, part in collate([rows[row] for row in chosen]).items()}
            logits = model(input_ids=batch["input_ids"], use_cache=False).logits  # [B, T, V]
            for whole, part in zip(found, token_scores(logits, batch["labels"]), strict=True):
                whole[chosen, : part.shape[1]] = part.cpu().numpy()
            advance(len(chosen))
    return found
