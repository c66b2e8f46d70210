"""Masked language models that score the vocabulary only where a token was masked: a seventh of the positions.

The weights have the names of the plain classes, so that either loads what the other saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertForMaskedLM,
    CamembertForMaskedLM,
    PreTrainedModel,
    RobertaForMaskedLM,
    XLMRobertaForMaskedLM,
)
from transformers.modeling_outputs import MaskedLMOutput

IGNORED = -100
"""The label of a position that is not scored."""


def masked_lm_sum(head: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss of the masked positions, and their logits.

    Args:
        head: Hidden states → logits over the vocabulary.
        hidden: (rows, tokens, d).
        labels: (rows, tokens), the true token where one was masked, else -100.

    Returns:
        A number, and (masked, vocabulary).
    """
    chosen = labels != IGNORED  # (rows, tokens)
    logits = head(hidden[chosen])  # (masked, vocabulary)
    return cross_entropy(logits, labels[chosen], reduction="sum"), logits


class _OnlyMasked(PreTrainedModel):  # type: ignore[misc]
    """What the masked language models here have in common; mixed into transformers' own classes."""

    accepts_loss_kwargs = True
    """Tells Trainer that the loss is divided by the tokens of the whole update."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """With labels: ``loss`` is the mean over masked positions, ``logits`` (masked, vocabulary) are theirs alone.

        Args:
            input_ids: (rows, tokens).
            attention_mask: 0 on padding.
            token_type_ids: Which text of a pair a token is of.
            labels: (rows, tokens), the true token where one was masked, else -100.
            num_items_in_batch: By what the sum is divided where the update has further batches.
            kwargs: Whatever else the plain class takes.
        """
        if labels is None:
            plain: MaskedLMOutput = super().forward(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs
            )
            return plain
        hidden = self.base_model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs
        ).last_hidden_state  # (rows, tokens, d)
        total, logits = masked_lm_sum(self.mlm_head, hidden, labels)
        items = max(1, len(logits)) if num_items_in_batch is None else num_items_in_batch
        return MaskedLMOutput(loss=total / items, logits=logits)

    @property
    def mlm_head(self) -> nn.Module:
        """Hidden states → logits over the vocabulary."""
        head: nn.Module = self.get_submodule("cls" if self.base_model_prefix == "bert" else "lm_head")
        return head


class BertOnlyMasked(_OnlyMasked, BertForMaskedLM):  # type: ignore[misc]
    """BERT's masked language model."""


class RobertaOnlyMasked(_OnlyMasked, RobertaForMaskedLM):  # type: ignore[misc]
    """RoBERTa's masked language model."""


class XLMRobertaOnlyMasked(_OnlyMasked, XLMRobertaForMaskedLM):  # type: ignore[misc]
    """XLM-RoBERTa's masked language model."""


class CamembertOnlyMasked(_OnlyMasked, CamembertForMaskedLM):  # type: ignore[misc]
    """CamemBERT's masked language model."""


MASKED: dict[str, type[PreTrainedModel]] = {
    "bert": BertOnlyMasked,
    "roberta": RobertaOnlyMasked,
    "xlm-roberta": XLMRobertaOnlyMasked,
    "camembert": CamembertOnlyMasked,
}
"""By ``model_type``."""


@torch.no_grad()
def row_statistics(logits: Tensor, labels: Tensor) -> Tensor:
    """(rows, 3): summed loss, correct tokens and masked tokens of each row, from the logits of the masked ones."""
    chosen = labels != IGNORED
    rows = chosen.nonzero()[:, 0]  # (masked,)
    truth = labels[chosen]
    each = cross_entropy(logits.float(), truth, reduction="none")
    right = (logits.argmax(dim=-1) == truth).float()
    table = torch.stack([each, right, torch.ones_like(each)], dim=1)  # (masked, 3)
    return torch.zeros(len(labels), 3, device=logits.device).index_add_(0, rows, table)
