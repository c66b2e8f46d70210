"""``--method peft``: every tuner of the installed peft trains and loads again, or is refused with the reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error
from method_case import EVERY, NAMES, STEPS, TEXTS, MethodCase, close, config, losses, model, tokenizer, weights_at
from peft import PEFT_TYPE_TO_CONFIG_MAPPING
from training_case import same

from hftune import methods
from hftune.errors import HftuneError
from hftune.methods.peft import CONTROLLED, REFUSED, PeftMethod, config_fields, trainable_types
from hftune.models.adapter_limits import TYPES
from hftune.models.classifier import Classifier
from hftune.models.settings import ModelSection
from hftune.recipe import load_recipe

pytestmark = pytest.mark.numeric

SMALL: dict[str, dict[str, Any]] = {
    "C3A": {"block_size": 8},
    "FOURIERFT": {"n_frequency": 10},
    "MISS": {"r": 4},
    "OFT": {"oft_block_size": 4},
    "PSOFT": {"r": 4},
    "ROAD": {"group_size": 8},
    "SHIRA": {"r": 2},
    "VBLORA": {"vector_length": 8, "num_vectors": 8},
    "VERA": {"r": 8, "d_initial": 0.2},
    "WAVEFT": {"n_frequency": 10},
}
"""Sizes that fit layers of 16 numbers, where peft's defaults do not."""
RESUMED = ("VERA",)
"""The types that are resumed in every run of the tests; the others with -m slow."""


def section(kind: str, **settings: Any) -> PeftMethod:
    return PeftMethod(peft_type=kind, **{**SMALL.get(kind, {}), **settings})


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(6, 27).reshape(3, 7)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 2])}


def test_every_type_is_trained_or_refused() -> None:
    installed = {kind.value for kind in PEFT_TYPE_TO_CONFIG_MAPPING}
    assert len(installed) >= 40
    assert set(trainable_types()) | set(REFUSED) == installed
    assert not set(trainable_types()) & set(REFUSED) and set(trainable_types()) <= set(TYPES)
    assert len(trainable_types()) >= 30


@pytest.mark.parametrize("kind", sorted(kind.value for kind in PEFT_TYPE_TO_CONFIG_MAPPING))
def test_the_fields_are_those_of_the_class(kind: str) -> None:
    assert set(config_fields(kind)) == {
        field.name for field in dataclasses.fields(PEFT_TYPE_TO_CONFIG_MAPPING[kind]) if field.init
    }


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_can_not_be_trained_is_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(HftuneError) as caught:
        load_recipe(None, {"method.kind": "peft", "method.peft_type": kind}, task="classify")
    assert REFUSED[kind] in str(caught.value)


@pytest.mark.parametrize("kind", trainable_types())
def test_a_type_trains_and_loads_again(kind: str, tmp_path: Path) -> None:
    method = section(kind)
    network = model("bert")
    methods.check(method, network.config)
    applied = methods.apply(network, method, ())
    trained = {name: value for name, value in applied.model.named_parameters() if value.requires_grad}
    assert applied.parameters.trainable == sum(value.numel() for value in trained.values())
    assert applied.parameters.formula is None
    assert any("classifier" in name for name in trained) and len(trained) > 2
    before = {name: value.detach().clone() for name, value in applied.model.named_parameters()}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    applied.model.train()
    for _ in range(3):
        applied.model(**batch()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = {name for name, value in applied.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved <= trained.keys() and any("classifier" not in name for name in moved)
    classifier = Classifier(applied.model.eval(), tokenizer(tmp_path / "words"), NAMES, 24, "longest_first")
    expected = classifier.logits(TEXTS)
    classifier.save(tmp_path / "model", base=ModelSection())
    torch.manual_seed(99)  # nothing that is drawn anew may matter
    loaded = Classifier.load(str(tmp_path / "model"), device="cpu")
    assert loaded.labels == NAMES
    assert close(loaded.logits(TEXTS), expected)


@pytest.mark.parametrize(
    "kind", [kind if kind in RESUMED else pytest.param(kind, marks=pytest.mark.slow) for kind in trainable_types()]
)
def test_a_type_resumes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    case = MethodCase(tmp_path / "run", "bert", section(kind))
    case.train()
    best, last = weights_at(case.folder, EVERY), weights_at(case.folder, STEPS)
    assert same(best, case.restored) and not same(best, last)
    folder = case.resumed()
    assert same(weights_at(folder, STEPS), last)
    whole = losses(case.folder)
    assert losses(folder) == {step: loss for step, loss in whole.items() if step > EVERY}


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"peft_type": "VERRA"}, ("method.peft_type", "VERRA", "VERA")),
        ({"peft_type": "VERA", "d_inital": 0.1}, ("method.d_inital", "VERA", "method.d_initial")),
        ({"peft_type": "VERA", "boft_block_size": 4}, ("method.boft_block_size", "VERA")),
        ({"peft_type": "VERA", "r": "4"}, ("method.r", "int", "'4'")),
        ({"peft_type": "VERA", "r": 4.5}, ("method.r", "int", "4.5")),
        ({"peft_type": "VERA", "save_projection": 3}, ("method.save_projection", "bool", "3")),
        ({"peft_type": "GLORA", "config_C": "full"}, ("method.config_C", "'full'", "vector")),
        ({"peft_type": "LORA", "eva_config": {"rho": 2}}, ("method.eva_config", "EvaConfig")),
        ({"peft_type": "LORA", "init_lora_weights": "pissa"}, ("method.init_lora_weights", "pissa", "gaussian")),
        ({"peft_type": "LOHA", "target_modules": 3}, ("method.target_modules", "3")),
        *(({"peft_type": "LORA", name: 1}, (f"method.{name}", reason)) for name, reason in CONTROLLED.items()),
    ],
)
def test_bad_settings_are_refused_before_anything_is_loaded(settings: dict[str, Any], facts: tuple[str, ...]) -> None:
    overrides = {"method.kind": "peft", **{f"method.{name}": value for name, value in settings.items()}}
    with pytest.raises(HftuneError) as caught:
        load_recipe(None, overrides, task="classify")
    assert all(fact in str(caught.value) for fact in facts), caught.value


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"peft_type": "VERA", "r": 10**6}, ("method.r", "1000000", "1024")),
        ({"peft_type": "PEANUT", "depth": 17}, ("method.depth", "17", "16")),
        ({"peft_type": "TINYLORA", "r": 65}, ("method.r", "65", "64")),
        ({"peft_type": "OSF", "target_svd_config": {"query": 3}}, ("method.target_svd_config",)),
        ({"peft_type": "BOFT", "boft_block_size": 4, "boft_block_num": 4}, ("BOFT", "boft_block_num")),
    ],
)
def test_settings_without_a_bound_are_refused_before_training(settings: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(HftuneError) as caught:
        methods.check(PeftMethod(**settings), config("bert"))
    assert all(fact in str(caught.value) for fact in facts), caught.value


def test_sizes_that_do_not_suit_a_layer_are_refused() -> None:
    with hftune_error("C3A", "bert", "block size", 256):
        methods.apply(model("bert"), PeftMethod(peft_type="C3A"), ())


@pytest.mark.parametrize("start", ["gaussian", "orthogonal"])
def test_an_initialization_of_lora_loads_again(start: str, tmp_path: Path) -> None:
    applied = methods.apply(model("bert"), PeftMethod(peft_type="LORA", r=2, init_lora_weights=start), ())
    with torch.no_grad():
        for value in (value for value in applied.model.parameters() if value.requires_grad):
            value.add_(0.1 * torch.randn_like(value))
    classifier = Classifier(applied.model.eval(), tokenizer(tmp_path / "words"), NAMES, 24, "longest_first")
    expected = classifier.logits(TEXTS)
    classifier.save(tmp_path / "model", base=ModelSection())
    assert close(Classifier.load(str(tmp_path / "model"), device="cpu").logits(TEXTS), expected)
