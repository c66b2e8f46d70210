"""BERT and RoBERTa with two heads over one encoder: the plain sequence classifier and the masked language model.

loss = classification + alpha · masked language model

The classifier is transformers' own, untouched; the second head has the names and the tied weights of the plain masked
language model. So a joint model takes what either plain class saved, and ``as_classifier`` and ``as_masked_lm`` give
back plain models that share its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    CamembertForMaskedLM,
    CamembertForSequenceClassification,
    PreTrainedModel,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    XLMRobertaForMaskedLM,
    XLMRobertaForSequenceClassification,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.bert.modeling_bert import BertOnlyMLMHead
from transformers.models.camembert.modeling_camembert import CamembertLMHead
from transformers.models.roberta.modeling_roberta import RobertaLMHead
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLMHead

from .modeling_masked import masked_lm_sum


@dataclass
class JointOutput(SequenceClassifierOutput):  # type: ignore[misc]
    """What a plain classifier returns, and the second loss."""

    mlm_loss: Tensor | None = None
    """Loss of the masked tokens, not yet times alpha; None where there were none to score."""
    mlm_alpha: float | None = None
    """Its weight in ``loss``."""


class _TwoHeads(PreTrainedModel):  # type: ignore[misc]
    """What the joint models have in common; mixed into transformers' own classifiers."""

    head_name: str
    """What the plain class calls the masked language model's head."""
    head_class: Callable[[Any], nn.Module]

    def post_init(self) -> None:
        """Called by the plain class when it has made its own modules: the time to add one more."""
        self.add_module(self.head_name, type(self).head_class(self.config))
        super().post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        mlm_input_ids: Tensor | None = None,
        mlm_attention_mask: Tensor | None = None,
        mlm_labels: Tensor | None = None,
        mlm_items: Tensor | int | None = None,
        mlm_alpha: float = 1.0,
        **kwargs: Any,
    ) -> JointOutput:
        """Classify one batch and fill in the masked tokens of another.

        Args:
            input_ids: (rows, tokens) to classify.
            attention_mask: 0 on padding.
            token_type_ids: Which text of a pair a token is of.
            labels: (rows,).
            mlm_input_ids: (other rows, other tokens) with masked tokens.
            mlm_attention_mask: 0 on padding.
            mlm_labels: The true token where one was masked, else -100.
            mlm_items: By what the sum over masked tokens is divided; their number in this batch where not given.
            mlm_alpha: Weight of the second loss. With 0 the second batch is not looked at, so that the random state is
                that of a plain classifier.
            kwargs: Whatever else the plain classifier takes.
        """
        classified: SequenceClassifierOutput = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            labels=labels,
            **{**kwargs, "return_dict": True},
        )
        loss, mlm_loss = classified.loss, None
        if mlm_labels is not None and mlm_alpha != 0:
            # An encoder whose last layer computes only what a classifier reads is asked for every token here.
            hidden = self.base_model(
                input_ids=mlm_input_ids, attention_mask=mlm_attention_mask, return_dict=True, every_token=True
            ).last_hidden_state  # (other rows, other tokens, d)
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

    @property
    def mlm_head(self) -> nn.Module:
        """The masked language model's head."""
        head: nn.Module = self.get_submodule(self.head_name)
        return head

    def get_output_embeddings(self) -> nn.Module:
        """What is tied to the word embeddings."""
        decoder: nn.Module = self.get_submodule(next(iter(self._tied_weights_keys)).removesuffix(".weight"))
        return decoder

    def estimate_tokens(self, input_dict: Mapping[str, Tensor | Any]) -> int:
        """Tokens of both batches: what speed is counted by."""
        second = input_dict.get("mlm_input_ids")
        return int(super().estimate_tokens(input_dict)) + (0 if second is None else second.numel())


class BertForJoint(_TwoHeads, BertForSequenceClassification):  # type: ignore[misc]
    """BERT, and so TinyBERT, MiniLM and their kin."""

    head_name, head_class = "cls", BertOnlyMLMHead
    _tied_weights_keys = BertForMaskedLM._tied_weights_keys


class RobertaForJoint(_TwoHeads, RobertaForSequenceClassification):  # type: ignore[misc]
    """RoBERTa."""

    head_name, head_class = "lm_head", RobertaLMHead
    _tied_weights_keys = RobertaForMaskedLM._tied_weights_keys


class XLMRobertaForJoint(_TwoHeads, XLMRobertaForSequenceClassification):  # type: ignore[misc]
    """XLM-RoBERTa."""

    head_name, head_class = "lm_head", XLMRobertaLMHead
    _tied_weights_keys = XLMRobertaForMaskedLM._tied_weights_keys


class CamembertForJoint(_TwoHeads, CamembertForSequenceClassification):  # type: ignore[misc]
    """CamemBERT."""

    head_name, head_class = "lm_head", CamembertLMHead
    _tied_weights_keys = CamembertForMaskedLM._tied_weights_keys


@dataclass(frozen=True)
class Family:
    """The classes of one architecture."""

    joint: type[PreTrainedModel]
    classifier: type[PreTrainedModel]
    masked_lm: type[PreTrainedModel]


FAMILIES: dict[str, Family] = {
    "bert": Family(BertForJoint, BertForSequenceClassification, BertForMaskedLM),
    "roberta": Family(RobertaForJoint, RobertaForSequenceClassification, RobertaForMaskedLM),
    "xlm-roberta": Family(XLMRobertaForJoint, XLMRobertaForSequenceClassification, XLMRobertaForMaskedLM),
    "camembert": Family(CamembertForJoint, CamembertForSequenceClassification, CamembertForMaskedLM),
}
"""By ``model_type``."""


def with_mlm_head(classifier: PreTrainedModel, head: Mapping[str, Tensor] | None = None) -> PreTrainedModel:
    """A joint model around a plain classifier, whose modules it takes over as they are.

    Args:
        classifier: The plain model.
        head: State of a trained masked language model's head, whose decoder is tied; fresh weights where None. They
            are drawn aside: torch's random state is afterwards what it was.
    """
    family = FAMILIES[classifier.config.model_type]
    with torch.random.fork_rng():
        joint = family.joint(classifier.config)
    for name, module in classifier.named_children():
        setattr(joint, name, module)
    if head is not None:
        joint.mlm_head.load_state_dict(head)
    joint.tie_weights()
    joint.train(classifier.training)
    return joint


def as_classifier(joint: PreTrainedModel) -> PreTrainedModel:
    """The plain sequence classifier in a joint model, with the same weights."""
    return _plain(FAMILIES[joint.config.model_type].classifier, joint)


def as_masked_lm(joint: PreTrainedModel) -> PreTrainedModel:
    """The plain masked language model in a joint one or in one of MASKED, with the same weights: for ``fill-mask``."""
    return _plain(FAMILIES[joint.config.model_type].masked_lm, joint)


def _plain(wanted: type[PreTrainedModel], joint: PreTrainedModel) -> PreTrainedModel:
    """Made to be saved: its buffers that no file holds are not filled."""
    with torch.device("meta"):
        plain = wanted(joint.config)
    found = joint.state_dict()
    plain.load_state_dict({name: found[name] for name in plain.state_dict()}, assign=True)
    plain.tie_weights()
    return plain
