"""A last layer that computes one token only: the same loss, gradients and predictions as the whole one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from method_case import config
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, pipeline

from hftune import methods
from hftune.methods.lora import LoraMethod
from hftune.methods.prefix import PrefixMethod
from hftune.methods.prompt import PromptMethod
from hftune.models.cls_only import compute_cls_only
from hftune.models.joint import with_mlm_head

pytestmark = pytest.mark.numeric

BERT_LIKE = ("bert", "roberta", "electra")


def classifier(architecture: str, attention: str = "sdpa") -> Any:
    torch.manual_seed(3)
    drawn = config(architecture, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return AutoModelForSequenceClassification.from_config(drawn, attn_implementation=attention)


def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    ids = torch.randint(5, 64, (4, 11))
    mask = torch.ones_like(ids)
    mask[0, 6:], mask[2, 9:] = 0, 0
    return {"input_ids": ids.where(mask == 1, 0), "attention_mask": mask, "labels": torch.tensor([0, 1, 2, 1])}


def gradients(model: Any) -> dict[str, torch.Tensor]:
    model.train()
    model(**batch()).loss.backward()
    return {name: part.grad for name, part in model.named_parameters() if part.grad is not None}


def assert_same(whole: Any, short: Any) -> None:
    assert torch.allclose(whole(**batch()).logits, short(**batch()).logits, atol=1e-5)
    expected, got = gradients(whole), gradients(short)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        assert torch.allclose(value, got[name], atol=1e-5), name


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", BERT_LIKE)
def test_loss_and_gradients_are_those_of_the_whole_model(architecture: str, attention: str) -> None:
    whole = classifier(architecture, attention)
    short = copy.deepcopy(whole)
    assert compute_cls_only(short)
    assert_same(whole, short)


@pytest.mark.parametrize(
    "section", [LoraMethod(), PrefixMethod(num_virtual_tokens=3), PromptMethod(num_virtual_tokens=3)]
)
def test_the_same_under_an_adapter(section: Any) -> None:
    made = []
    for short in (False, True):
        plain = classifier("bert")
        assert not short or compute_cls_only(plain)
        torch.manual_seed(5)
        model = methods.apply(plain, section, ()).model
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        made.append(model)
    assert_same(*made)


def test_only_one_token_is_computed_and_a_caller_may_ask_for_all() -> None:
    model = classifier("bert").eval()
    expected = model.bert(**{name: value for name, value in batch().items() if name != "labels"}).last_hidden_state
    compute_cls_only(model)
    compute_cls_only(model)  # once more changes nothing
    inputs = {name: value for name, value in batch().items() if name != "labels"}
    short = model.bert(**inputs).last_hidden_state
    assert short.shape[1] == 1 and torch.allclose(short[:, 0], expected[:, 0], atol=1e-5)
    assert torch.equal(model.bert(**inputs, every_token=True).last_hidden_state, expected)


def test_the_masked_half_of_a_joint_model_sees_every_token() -> None:
    plain = classifier("bert")
    joint = with_mlm_head(copy.deepcopy(plain)).eval()
    compute_cls_only(plain)
    short = with_mlm_head(plain, joint.cls.state_dict()).eval()
    labels = torch.full_like(batch()["input_ids"], -100)
    labels[:, 3] = 7
    second = {f"mlm_{name}": value for name, value in batch().items() if name != "labels"} | {"mlm_labels": labels}
    expected, got = joint(**batch(), **second), short(**batch(), **second)
    assert torch.allclose(expected.mlm_loss, got.mlm_loss) and torch.allclose(expected.loss, got.loss)


@pytest.mark.parametrize("architecture", ["distilbert", "deberta-v2", "modernbert"])
def test_other_kinds_are_left_alone(architecture: str) -> None:
    model = AutoModelForSequenceClassification.from_config(config(architecture))
    assert not compute_cls_only(model)


def test_a_model_that_reads_every_token_is_left_alone() -> None:
    assert not compute_cls_only(AutoModelForMaskedLM.from_config(config("bert")))


def test_nothing_of_it_is_saved(tmp_path: Any) -> None:
    whole = classifier("bert").eval()
    short = copy.deepcopy(whole)
    compute_cls_only(short)
    short.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(again(**batch()).logits, whole(**batch()).logits)
    assert again.bert(input_ids=batch()["input_ids"]).last_hidden_state.shape[1] == 11


def test_predictions_are_those_of_a_pipeline(tmp_path: Any) -> None:
    import finished_run

    from hftune import predict

    run = finished_run.finished_run(tmp_path / "run")
    texts = ["the soup was cold", "great food", "we will never come back", "kind but bad good"] * 5
    stock = pipeline("text-classification", model=str(run.model), device="cpu", top_k=None)
    for ours, theirs in zip(predict(run.path, texts, batch_size=3), stock(texts, batch_size=4), strict=True):
        assert ours.label == theirs[0]["label"]
        for row in theirs:
            assert ours.probabilities[row["label"]] == pytest.approx(row["score"], abs=1e-5)
