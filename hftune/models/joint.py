"""BERT and RoBERTa with the head of a masked language model: alone, or as a second head next to a classifier's.

loss of a joint model = classification + mlm_alpha · masked language model

The classifier is transformers' own, untouched; the other head has the names and the tied weights of the plain masked
language model. So a joint model takes what either plain class saved, and ``as_classifier`` and ``as_masked_lm`` give
back plain models that share its weights.

Shapes: B rows, T tokens, B' and T' those of the masked batch, M masked tokens, C hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.models.bert.modeling_bert import BertOnlyMLMHead
from transformers.models.roberta.modeling_roberta import RobertaLMHead

from hftune.models.pooled import PooledForSequenceClassification
from hftune.models.settings import encoder_config

IGNORED = -100
"""The label of a position that is not scored."""


@dataclass
class JointOutput(SequenceClassifierOutput):  # type: ignore[misc]
    """The output of a plain classifier, and the second loss."""

    mlm_loss: Tensor | None = None
    """Loss of the masked tokens, not yet times mlm_alpha; None if there were none to score."""
    mlm_alpha: float | None = None
    """Its weight in ``loss``."""


def masked_lm_sum(head: Callable[[Tensor], Tensor], hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss of the masked positions and their logits [M, V], from hidden states [B, T, C] and labels [B, T]."""
    chosen = labels != IGNORED  # [B, T]
    # The head is the largest matrix product of a small model, and 85 % of its rows would be thrown away: only masked
    # positions go through it.
    logits = head(hidden[chosen])  # [M, V]
    return cross_entropy(logits, labels[chosen], reduction="sum"), logits


class _MaskedHead(PreTrainedModel):  # type: ignore[misc]
    """Finds the head of the masked language model under the name that the architecture gives it."""

    @property
    def head_name(self) -> str:
        """The name that the plain class gives to the head, and so the prefix of its weights in a checkpoint."""
        return "cls" if self.base_model_prefix == "bert" else "lm_head"

    @property
    def mlm_head(self) -> nn.Module:
        """Hidden states → logits over the vocabulary."""
        head: nn.Module = self.get_submodule(self.head_name)
        return head


class _TwoHeads(_MaskedHead):
    """What the joint models have in common; mixed into transformers' own classifiers."""

    head_class: Callable[[Any], nn.Module]

    def post_init(self) -> None:
        """Add the head: the plain class calls this when it has made its own modules, and before weights are tied."""
        self.add_module(self.head_name, type(self).head_class(encoder_config(self.config)))
        super().post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,  # [B, T]
        attention_mask: Tensor | None = None,  # [B, T]
        token_type_ids: Tensor | None = None,  # [B, T]
        labels: Tensor | None = None,  # [B]
        mlm_input_ids: Tensor | None = None,  # [B', T']
        mlm_attention_mask: Tensor | None = None,  # [B', T']
        mlm_labels: Tensor | None = None,  # [B', T'], the true token where one was masked, else -100
        mlm_items: Tensor | int | None = None,
        mlm_alpha: float = 1.0,
        **kwargs: Any,
    ) -> JointOutput:
        """Classify one batch, and fill in the masked tokens of another.

        The loss of the second is divided by ``mlm_items``, the masked tokens of all micro-batches of a step; by those
        of this batch alone if it is None.
        """
        classified: SequenceClassifierOutput = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            labels=labels,
            **{**kwargs, "return_dict": True},
        )
        loss, mlm_loss = classified.loss, None
        # With a weight of 0 the second batch is not read at all, so that its dropout masks are not drawn either: the
        # run is then bit for bit that of a plain classifier.
        if mlm_labels is not None and mlm_alpha != 0:
            # every_token: the last layer may have been changed to compute the classifier's first token only.
            hidden = self.base_model(
                input_ids=mlm_input_ids, attention_mask=mlm_attention_mask, return_dict=True, every_token=True
            ).last_hidden_state  # [B', T', C]
            total, logits = masked_lm_sum(self.mlm_head, hidden, mlm_labels)
            mlm_loss = total / (max(1, len(logits)) if mlm_items is None else mlm_items)
            if loss is not None:
                loss = loss + mlm_alpha * mlm_loss
        return JointOutput(
            loss=loss,
            logits=classified.logits,
            hidden_states=classified.hidden_states,
            attentions=classified.attentions,
            mlm_loss=mlm_loss,
            mlm_alpha=mlm_alpha if mlm_loss is not None else None,
        )

    def estimate_tokens(self, input_dict: Mapping[str, Tensor | Any]) -> int:
        """Tokens of both batches, by which Trainer measures speed."""
        second = input_dict.get("mlm_input_ids")
        return int(super().estimate_tokens(input_dict)) + (0 if second is None else second.numel())


# The decoder of each head is tied to the word embeddings, as in the plain class: transformers reads the names of tied
# weights from `_tied_weights_keys`, and resizes what `get_output_embeddings` returns.


class BertForJoint(_TwoHeads, BertForSequenceClassification):  # type: ignore[misc]
    """BERT, including TinyBERT and MiniLM."""

    head_class = BertOnlyMLMHead
    _tied_weights_keys = BertForMaskedLM._tied_weights_keys
    get_output_embeddings = BertForMaskedLM.get_output_embeddings


class RobertaForJoint(_TwoHeads, RobertaForSequenceClassification):  # type: ignore[misc]
    """RoBERTa, and so XLM-RoBERTa and CamemBERT, which are its code under other names."""

    head_class = RobertaLMHead
    _tied_weights_keys = RobertaForMaskedLM._tied_weights_keys
    get_output_embeddings = RobertaForMaskedLM.get_output_embeddings


class PooledBertForJoint(_TwoHeads, PooledForSequenceClassification):
    """BERT with mean or max pooling."""

    head_class = BertOnlyMLMHead
    _tied_weights_keys = BertForMaskedLM._tied_weights_keys
    get_output_embeddings = BertForMaskedLM.get_output_embeddings


class PooledRobertaForJoint(_TwoHeads, PooledForSequenceClassification):
    """RoBERTa with mean or max pooling."""

    head_class = RobertaLMHead
    _tied_weights_keys = RobertaForMaskedLM._tied_weights_keys
    get_output_embeddings = RobertaForMaskedLM.get_output_embeddings


class _OnlyMasked(_MaskedHead):
    """What the masked language models have in common; mixed into transformers' own classes."""

    accepts_loss_kwargs = True
    """Trainer passes ``num_items_in_batch`` and does not divide the loss by the accumulation steps."""

    def forward(
        self,
        input_ids: Tensor,  # [B, T]
        attention_mask: Tensor | None = None,  # [B, T]
        token_type_ids: Tensor | None = None,  # [B, T]
        labels: Tensor | None = None,  # [B, T], the true token where one was masked, else -100
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """With labels: ``loss`` is the mean over masked tokens, and ``logits`` [M, V] are theirs alone.

        The mean is over the masked tokens of all micro-batches of a step, if Trainer passes their number.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids, **kwargs}
        if labels is None:
            plain: MaskedLMOutput = super().forward(**inputs)
            return plain
        hidden = self.base_model(**inputs).last_hidden_state  # [B, T, C]
        total, logits = masked_lm_sum(self.mlm_head, hidden, labels)
        items = max(1, len(logits)) if num_items_in_batch is None else num_items_in_batch
        return MaskedLMOutput(loss=total / items, logits=logits)


class BertOnlyMasked(_OnlyMasked, BertForMaskedLM):  # type: ignore[misc]
    """BERT's masked language model."""


class RobertaOnlyMasked(_OnlyMasked, RobertaForMaskedLM):  # type: ignore[misc]
    """RoBERTa's masked language model, and that of XLM-RoBERTa and CamemBERT."""


class Family(NamedTuple):
    """The classes of an architecture that are trained here."""

    joint: type[PreTrainedModel]
    pooled_joint: type[PreTrainedModel]
    """The same with mean or max pooling."""
    only_masked: type[PreTrainedModel]


_ROBERTA = Family(RobertaForJoint, PooledRobertaForJoint, RobertaOnlyMasked)
FAMILIES: dict[str, Family] = {
    "bert": Family(BertForJoint, PooledBertForJoint, BertOnlyMasked),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTA),
}
"""By ``model_type``."""


def with_mlm_head(classifier: PreTrainedModel, head: Mapping[str, Tensor] | None = None) -> PreTrainedModel:
    """A joint model around a plain classifier, whose modules it shares.

    Args:
        classifier: The plain model.
        head: State of a trained head, whose decoder is tied; None for random initialization, which does not change
            torch's random state.
    """
    encoder = encoder_config(classifier.config)
    family = FAMILIES[encoder.model_type]
    made = family.joint if encoder is classifier.config else family.pooled_joint
    with torch.random.fork_rng():
        joint = made(classifier.config)
    for name, module in classifier.named_children():
        setattr(joint, name, module)
    if head is not None:
        joint.mlm_head.load_state_dict(head)
    joint.tie_weights()  # to the embeddings of the classifier, which have replaced those of the new model
    joint.train(classifier.training)
    return joint


def as_classifier(joint: PreTrainedModel) -> PreTrainedModel:
    """The plain sequence classifier in a joint model, with the same weights."""
    return _plain(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, joint, joint.config)


def as_masked_lm(model: PreTrainedModel) -> PreTrainedModel:
    """The plain masked language model in a joint or a masked one, with the same weights: for ``fill-mask``."""
    return _plain(MODEL_FOR_MASKED_LM_MAPPING, model, encoder_config(model.config))


def _plain(
    classes: Mapping[Any, type[PreTrainedModel]], model: PreTrainedModel, config: PreTrainedConfig
) -> PreTrainedModel:
    """A model to be saved, not run: on the meta device, buffers that no file has stay empty."""
    with torch.device("meta"):
        plain = classes[type(config)](config)
    found = model.state_dict()
    plain.load_state_dict({name: found[name] for name in plain.state_dict()}, assign=True)
    plain.tie_weights()  # assign=True has put two parameters in place of one
    return plain


@torch.no_grad()
def row_statistics(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed loss, correct tokens and masked tokens of each row [B, 3], from logits [M, V] and labels [B, T]."""
    chosen = labels != IGNORED  # [B, T]
    rows = chosen.nonzero()[:, 0]  # [M]
    truth = labels[chosen]  # [M]
    each = cross_entropy(logits.float(), truth, reduction="none")  # [M]
    right = (logits.argmax(dim=-1) == truth).float()  # [M]
    table = torch.stack([each, right, torch.ones_like(each)], dim=1)  # [M, 3]
    return torch.zeros(len(labels), 3, device=logits.device).index_add_(0, rows, table)
