"""A masked language model that also learns the vectors of a teacher: BERT and RoBERTa with a projection.

The projection maps the student's width to the teacher's. Everything else has the names of the plain class, so
``joint.as_masked_lm`` gives the plain model, without the projection.

Shapes: B rows, T tokens, M masked tokens, W words, P pairs of a token and a word, C hidden size, D the teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, layer_norm
from transformers import PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from hftune.errors import HftuneError
from hftune.models.alignment import text_means, word_means
from hftune.models.joint import IGNORED, BertOnlyMasked, RobertaOnlyMasked, masked_lm_sum, row_statistics

PROJECTION = "projection.safetensors"
"""The projection, next to the saved model: it scores the model against its teacher, and is not published."""
STATISTICS = 7
"""Columns of ``distillation_statistics``."""


@dataclass
class DistilledOutput(MaskedLMOutput):  # type: ignore[misc]
    """The logits of the masked tokens [M, V], and the losses, not yet weighted and added."""

    mlm_loss: Tensor | None = None
    word_loss: Tensor | None = None
    sentence_loss: Tensor | None = None
    agreement: Tensor | None = None
    """In evaluation: for each row the sum of the cosines of its words, their number, and the cosine of the whole text
    [B, 3]."""


class _Distilled:
    """What the students have in common; mixed into masked language models."""

    distance = "cosine"

    def add_projection(self: Any, width: int, distance: str) -> None:
        """Add the projection to the width of the teacher, with new weights."""
        self.projection = nn.Linear(self.config.hidden_size, width)
        nn.init.normal_(self.projection.weight, std=self.config.hidden_size**-0.5)
        nn.init.zeros_(self.projection.bias)
        self.distance = distance

    def forward(
        self: Any,
        input_ids: Tensor,  # [B, T]
        attention_mask: Tensor | None = None,  # [B, T]
        token_type_ids: Tensor | None = None,  # [B, T]
        mlm_labels: Tensor | None = None,  # [B, T], the true token where one was masked, else -100
        word_tokens: Tensor | None = None,  # [P], the token of each pair, among all of the batch
        words: Tensor | None = None,  # [P], the word of each pair, among all of the batch
        word_targets: Tensor | None = None,  # [W, D]
        sentence_targets: Tensor | None = None,  # [B, D]
        num_items_in_batch: Tensor | int | None = None,
        word_items: Tensor | int | None = None,
        sentence_items: Tensor | int | None = None,
        **kwargs: Any,
    ) -> DistilledOutput | MaskedLMOutput:
        """The losses, each a sum over its items divided by the number of items of the whole step.

        Without the numbers, by those of this batch. In evaluation the words are those of the text without masks.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids, **kwargs}
        if mlm_labels is None:
            plain: MaskedLMOutput = super().forward(**inputs)  # type: ignore[misc]
            return plain
        assert word_tokens is not None and words is not None, "the collator makes both"
        assert attention_mask is not None and word_targets is not None and sentence_targets is not None
        hidden = self.base_model(**inputs).last_hidden_state  # [B, T, C]
        total, logits = masked_lm_sum(self.mlm_head, hidden, mlm_labels)
        mlm_loss = total / (max(1, len(logits)) if num_items_in_batch is None else num_items_in_batch)
        if not torch.is_grad_enabled():
            # Nothing is masked where the student is compared with the teacher, as nothing is where it is used.
            whole = torch.where(mlm_labels == IGNORED, input_ids, mlm_labels)
            hidden = self.base_model(**{**inputs, "input_ids": whole}).last_hidden_state
        vectors = self.projection(word_means(hidden.flatten(0, 1), word_tokens, words, len(word_targets)))  # [W, D]
        sentences = self.projection(text_means(hidden, attention_mask))  # [B, D]
        word_targets, sentence_targets = word_targets.to(vectors.dtype), sentence_targets.to(vectors.dtype)
        if not torch.is_grad_enabled():
            near, alike = cosine_similarity(vectors, word_targets), cosine_similarity(sentences, sentence_targets)
            rows = words.new_zeros(len(near)).scatter(0, words, word_tokens // hidden.shape[1])  # [W]
            table = torch.stack([near, torch.ones_like(near)], dim=1)  # [W, 2]
            sums = table.new_zeros(len(input_ids), 2).index_add(0, rows, table)  # [B, 2]
            return DistilledOutput(logits=logits, mlm_loss=mlm_loss, agreement=torch.cat([sums, alike[:, None]], dim=1))
        word_items = max(1, len(word_targets)) if word_items is None else word_items
        sentence_items = len(sentence_targets) if sentence_items is None else sentence_items
        return DistilledOutput(
            logits=logits,
            mlm_loss=mlm_loss,
            word_loss=distances(vectors, word_targets, self.distance).sum() / word_items,
            sentence_loss=distances(sentences, sentence_targets, self.distance).sum() / sentence_items,
        )


def distances(found: Tensor, wanted: Tensor, kind: str) -> Tensor:
    """How far each vector is from the one that it should be [N], both [N, D]."""
    if kind == "cosine":
        return 1 - cosine_similarity(found, wanted)
    # Layer normalization puts every dimension and every teacher on one scale.
    return (found - layer_norm(wanted, wanted.shape[1:])).square().mean(dim=1)


class BertDistilled(_Distilled, BertOnlyMasked):  # type: ignore[misc]
    """BERT, including TinyBERT and MiniLM."""


class RobertaDistilled(_Distilled, RobertaOnlyMasked):  # type: ignore[misc]
    """RoBERTa, XLM-RoBERTa and CamemBERT."""


STUDENTS: dict[str, type[PreTrainedModel]] = {
    "bert": BertDistilled,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), RobertaDistilled),
}
"""By ``model_type``."""


@torch.no_grad()
def distillation_statistics(logits: tuple[Tensor, ...], labels: Tensor) -> Tensor:
    """Of each row summed loss, correct and masked tokens, and the three columns of ``agreement`` and a one [B, 7]."""
    agreement = logits[-1].float()  # [B, 3]
    return torch.cat([row_statistics(logits[0], labels), agreement, torch.ones_like(agreement[:, :1])], dim=1)


def save_projection(model: Any, folder: Path) -> None:
    """Write the projection next to the model."""
    state: Mapping[str, Tensor] = model.projection.state_dict()
    save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, folder / PROJECTION)


def load_projection(model: Any, width: int, folder: Path) -> None:
    """Add the projection that was saved next to the model."""
    model.add_projection(width, "cosine")
    path = folder / PROJECTION
    try:
        model.projection.load_state_dict(load_file(path))
    except (OSError, RuntimeError, ValueError) as error:
        raise HftuneError(
            f"the model in {folder} can't be compared with its teacher: {PROJECTION} is missing or does not fit",
            hint="use the model folder of the run as it was saved",
        ) from error
