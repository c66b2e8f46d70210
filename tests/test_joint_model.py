"""The joint model: two losses added, two gradients added, and two plain models that come out of it as they went in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    CamembertConfig,
    PreTrainedModel,
    RobertaConfig,
    XLMRobertaConfig,
)

from hftune.models.joint import FAMILIES, as_classifier, as_masked_lm, row_statistics, with_mlm_head

pytestmark = pytest.mark.numeric

ALPHA = 0.3
CONFIGS: dict[str, Any] = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "xlm-roberta": XLMRobertaConfig,
    "camembert": CamembertConfig,
}


def classifier(kind: str) -> PreTrainedModel:
    torch.manual_seed(3)
    config = CONFIGS[kind](
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        num_labels=3,
        pad_token_id=1,
    )
    return AutoModelForSequenceClassification.from_config(config)


@pytest.fixture(scope="module", params=list(CONFIGS))
def joint(request: pytest.FixtureRequest) -> PreTrainedModel:
    return with_mlm_head(classifier(request.param)).eval()


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    labeled, unlabeled = torch.randint(5, 60, (4, 9), generator=draw), torch.randint(5, 60, (6, 7), generator=draw)
    mask = torch.ones_like(unlabeled)
    unlabeled[0, 5:], mask[0, 5:] = 1, 0
    truth = torch.full_like(unlabeled, -100)
    truth[:, 2], truth[3, 4] = unlabeled[:, 2], unlabeled[3, 4]
    unlabeled = unlabeled.clone()
    unlabeled[:, 2] = 4
    return {
        "input_ids": labeled,
        "attention_mask": torch.ones_like(labeled),
        "labels": torch.tensor([0, 2, 1, 2]),
        "mlm_input_ids": unlabeled,
        "mlm_attention_mask": mask,
        "mlm_labels": truth,
    }


def parts(batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    second = {name.removeprefix("mlm_"): value for name, value in batch.items() if name.startswith("mlm_")}
    return {name: value for name, value in batch.items() if not name.startswith("mlm_")}, second


def saved(model: PreTrainedModel, folder: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Both plain models, by way of the disk."""
    as_classifier(model).save_pretrained(folder / "classifier")
    as_masked_lm(model).save_pretrained(folder / "mlm")
    plain = AutoModelForSequenceClassification.from_pretrained(folder / "classifier")
    return plain.eval(), AutoModelForMaskedLM.from_pretrained(folder / "mlm").eval()


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    # Tied weights under every name they have: which comes first differs from class to class.
    named = model.named_parameters(remove_duplicate=False)
    return {name: value.grad.clone() for name, value in named if value.grad is not None}


def test_loss_and_gradients_are_the_sums_of_those_of_the_plain_models(
    joint: PreTrainedModel, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    plain, filler = saved(joint, tmp_path)
    config = type(joint.config)
    classes = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[config], MODEL_FOR_MASKED_LM_MAPPING[config]
    assert (type(plain), type(filler)) == classes
    assert plain.config.architectures == [classes[0].__name__]
    first, second = parts(batch)
    one, other = plain(**first), filler(**second)
    both = joint(**batch, mlm_alpha=ALPHA)
    assert torch.equal(both.logits, one.logits)
    torch.testing.assert_close(both.mlm_loss, other.loss)
    torch.testing.assert_close(both.loss, one.loss + ALPHA * other.loss)

    together = gradients(joint, both.loss)
    apart, beside = gradients(plain, one.loss), gradients(filler, other.loss)
    assert set(apart) | set(beside) == set(together)
    shared = set(apart) & set(beside)
    assert any("word_embeddings" in name for name in shared) and len(shared) > 30
    for name, value in together.items():
        if name.endswith("decoder.weight"):
            continue  # the embeddings, which are compared under their own name
        expected = apart.get(name, 0) + ALPHA * beside.get(name, torch.zeros(()))
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


def test_the_divisor_of_the_whole_step(joint: PreTrainedModel, batch: dict[str, torch.Tensor]) -> None:
    own = joint(**batch).mlm_loss
    masked = int((batch["mlm_labels"] != -100).sum())
    torch.testing.assert_close(joint(**batch, mlm_items=3 * masked).mlm_loss * 3, own)


def test_a_weight_of_0_leaves_model_and_random_state_alone(batch: dict[str, torch.Tensor]) -> None:
    plain, model = classifier("bert").train(), with_mlm_head(classifier("bert")).train()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    first, _ = parts(batch)
    torch.manual_seed(1)
    expected = [plain(**first).logits for _ in range(2)]
    torch.manual_seed(1)
    got = [model(**batch, mlm_alpha=0).logits for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(expected, got, strict=True)), "dropout draws the same"


def test_adding_the_head_draws_nothing_and_ties_it(joint: PreTrainedModel) -> None:
    plain = classifier(joint.config.model_type)
    before = torch.get_rng_state()
    model = with_mlm_head(plain)
    assert torch.equal(before, torch.get_rng_state())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    own = sum(value.numel() for value in plain.parameters())
    head = 16 * 16 + 16 + 2 * 16 + 60  # a square layer, a norm, a bias for each token; no second embedding
    assert sum(value.numel() for value in model.parameters()) == own + head


def test_a_trained_head_is_taken_over(joint: PreTrainedModel, tmp_path: Path) -> None:
    plain, _ = saved(joint, tmp_path)
    kind = joint.config.model_type
    again = with_mlm_head(plain, FAMILIES[kind].only_masked.from_pretrained(tmp_path / "mlm").mlm_head.state_dict())
    for name, value in joint.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_only_masked_positions_are_scored(
    joint: PreTrainedModel, batch: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    _, filler = saved(joint, tmp_path)
    sparse = FAMILIES[joint.config.model_type].only_masked.from_pretrained(tmp_path / "mlm").eval()
    _, second = parts(batch)
    whole, some = filler(**second), sparse(**second)
    chosen = second["labels"] != -100
    torch.testing.assert_close(some.logits, whole.logits[chosen])
    torch.testing.assert_close(some.loss, whole.loss)
    table = row_statistics(some.logits, second["labels"])
    assert table[:, 2].tolist() == chosen.sum(dim=1).tolist()
    torch.testing.assert_close(table[:, 0].sum() / table[:, 2].sum(), whole.loss)
    hits = (whole.logits.argmax(-1) == second["labels"]) & chosen
    assert table[:, 1].tolist() == hits.sum(dim=1).tolist()
    torch.testing.assert_close(sparse(**{k: v for k, v in second.items() if k != "labels"}).logits, whole.logits)
