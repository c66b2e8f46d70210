"""Every method on every architecture: what works does, what can't is refused with the reason and a way out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import facts, hftune_error, mentions
from method_case import NAMES, TEXTS, close, config, model, small, tokenizer
from peft import PeftModel
from pydantic import ValidationError
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    FunnelConfig,
    GPT2Config,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from hftune import methods
from hftune.errors import HftuneError
from hftune.methods import METHODS
from hftune.methods.applied import evaluate, letters_of
from hftune.methods.ia3 import Ia3Method
from hftune.methods.lora import LoraMethod
from hftune.methods.prefix import PrefixMethod
from hftune.methods.prompt import PromptMethod
from hftune.models.classifier import Classifier, load_sequence_classifier
from hftune.models.settings import ModelSection
from hftune.recipe import Recipe

ARCHITECTURES = ("bert", "roberta", "electra", "distilbert", "deberta-v2", "modernbert", "albert", "mpnet")
REFUSED = {("prefix", kind) for kind in ("distilbert", "deberta-v2", "modernbert", "albert", "mpnet")}
PAIRS = [(method, kind) for kind in ARCHITECTURES for method in METHODS]
NO_BIASES = ("bitfit", "modernbert")


def section(kind: str, **settings: Any) -> Any:
    return small(kind, **settings)


def batch() -> dict[str, torch.Tensor]:
    ids = torch.arange(6, 27).reshape(3, 7)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 2])}


@pytest.mark.parametrize(("method", "kind"), [pair for pair in PAIRS if pair not in {*REFUSED, NO_BIASES}])
def test_what_works(method: str, kind: str, tmp_path: Path) -> None:
    applied = methods.apply(model(kind), section(method), ())
    output = applied.model(**batch())
    assert output.logits.shape == (3, len(NAMES))
    output.loss.backward()
    trained = {name: value for name, value in applied.model.named_parameters() if value.requires_grad}
    assert all(value.grad is not None for value in trained.values())
    if method != "full":
        assert applied.parameters.trainable < applied.parameters.total / 2
    with torch.no_grad():
        for value in trained.values():
            value.add_(0.1 * torch.randn_like(value))
    classifier = Classifier(applied.model.eval(), tokenizer(tmp_path / "words"), NAMES, 24, "longest_first")
    expected = classifier.logits(TEXTS)
    classifier.save(tmp_path / "model", base=ModelSection())
    loaded = Classifier.load(str(tmp_path / "model"), device="cpu")
    assert loaded.labels == NAMES
    assert close(loaded.logits(TEXTS), expected)


@pytest.mark.parametrize(("method", "kind"), sorted(REFUSED))
def test_what_can_not_work_is_refused(method: str, kind: str) -> None:
    for attempt in (
        lambda: methods.check(section(method), config(kind)),
        lambda: methods.apply(model(kind), section(method), ()),
    ):
        with hftune_error(f"{kind} models", "attention") as caught:
            attempt()
        assert caught.value.hint == (
            "use --method prompt, which puts trained embeddings before the text, or --method lora"
        )


def test_a_model_without_biases_has_none_to_move() -> None:
    method, kind = NO_BIASES
    with hftune_error(f"this {kind} model", "biases") as caught:
        methods.apply(model(kind), section(method), ())
    assert "--method lora" in caught.value.hint
    assert methods.apply(model(kind, norm_bias=True), section(method), ()).parameters.trainable > 0


@pytest.mark.parametrize("method", ["prefix", "prompt", "ptuning"])
def test_a_classifier_that_reads_the_last_token_takes_no_vectors_before_the_text(method: str) -> None:
    with hftune_error("gpt2", "last token") as caught:
        methods.check(section(method), GPT2Config())
    assert caught.value.hint == "use --method lora"
    with pytest.raises(HftuneError) as caught:
        methods.check(section(method), FunnelConfig())
    assert "gpt" not in caught.value.message


@pytest.mark.parametrize("method", ["lora", "ia3"])
def test_targets_that_lead_nowhere_are_refused(method: str) -> None:
    for targets, reported, hint in (
        (("query", "qery"), ("'qery'", "bert"), "'query'"),
        (("LayerNorm",), ("'LayerNorm'", "bert"), "query, value"),
        (("xyz",), ("'xyz'", "bert"), "classifier, dense, key, query, value"),
    ):
        with hftune_error(*reported) as caught:
            methods.apply(model("bert"), section(method, target_modules=targets), ())
        assert hint in caught.value.hint
    applied = methods.apply(model("bert"), section(method, target_modules=("attention.self.query",)), ())
    assert applied.parameters.trainable > 0


def test_an_unknown_architecture_can_be_frozen_or_described() -> None:
    funnel = FunnelConfig()
    for kind in ("full", "head", "bitfit"):
        methods.check(section(kind), funnel)
    for kind in ("lora", "ia3"):
        with hftune_error("funnel") as caught:
            methods.check(section(kind), funnel)
        assert "method.target_modules" in caught.value.hint
        methods.check(section(kind, target_modules=("query",)), funnel)
    with pytest.raises(HftuneError) as caught:
        methods.check(section("prefix"), funnel)
    assert mentions(caught.value.message, "prefix", "funnel", "bert, roberta, xlm-roberta, camembert, electra")


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(HftuneError, match="gradient_checkpointing"):
        methods.check(section("prefix"), config("bert"), gradient_checkpointing=True)
    methods.check(section("lora"), config("bert"), gradient_checkpointing=True)
    with pytest.raises(ValidationError, match=facts("'ffn'", "target_modules")):
        Ia3Method(target_modules=("key",), feedforward_modules=("ffn",))


@pytest.mark.parametrize("method", [kind for kind in METHODS if kind not in ("full", "prefix")])
def test_gradient_checkpointing_reaches_every_trained_weight(method: str) -> None:
    network = model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    settings = {"lora_dropout": 0.0} if "lora_dropout" in METHODS[method].model_fields else {}
    applied = methods.apply(network, section(method, **settings), ())
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            applied.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        applied.model.train()
        applied.model.zero_grad()
        applied.model(**batch()).loss.backward()
        gradients.append([value.grad.clone() for value in applied.model.parameters() if value.requires_grad])
    assert all(close(left, right) for left, right in zip(*gradients, strict=True))


@pytest.mark.parametrize("method", ["head", "bitfit", "prefix", "prompt", "ptuning", "lora", "ia3"])
def test_a_pooler_that_the_checkpoint_lacks_is_trained_and_saved(method: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    BertForMaskedLM(config("bert")).save_pretrained(tmp_path / "masked")
    words = tokenizer(tmp_path / "words")
    base = ModelSection(model_name_or_path=str(tmp_path / "masked"))
    loaded = load_sequence_classifier(base, words, NAMES)
    assert loaded.fresh_modules == ("bert.pooler.dense", "classifier")
    applied = methods.apply(loaded.model, section(method), loaded.fresh_modules)
    trained = [name for name, value in applied.model.named_parameters() if value.requires_grad]
    assert any("pooler.dense" in name for name in trained)
    assert applied.parameters.formula is not None and "d²+d+3d+3" in applied.parameters.formula
    classifier = Classifier(applied.model.eval(), words, NAMES, 24, "longest_first")
    expected = classifier.logits(TEXTS)
    classifier.save(tmp_path / "model", base=base)
    if isinstance(applied.model, PeftModel):
        # With the checkpoint itself as its base: the pooler is drawn anew, and the adapter must bring its own.
        shutil.copytree(tmp_path / "masked", tmp_path / "model" / "base", dirs_exist_ok=True)
    assert close(Classifier.load(str(tmp_path / "model"), device="cpu").logits(TEXTS), expected)


def test_training_does_not_start_from_a_prefix(tmp_path: Path) -> None:
    words = tokenizer(tmp_path / "words")
    applied = methods.apply(model("bert"), section("prefix"), ())
    Classifier(applied.model, words, NAMES, 24, "longest_first").save(tmp_path / "model", base=ModelSection())
    with pytest.raises(HftuneError, match="PREFIX_TUNING") as caught:
        load_sequence_classifier(ModelSection(model_name_or_path=str(tmp_path / "model")), words, NAMES)
    assert "lora or ia3" in caught.value.hint
    (tmp_path / "model" / "hftune.json").unlink()
    with hftune_error("labels", "known"):
        Classifier.load(str(tmp_path / "model"))


# ---- counts ----


@pytest.mark.parametrize("labels", [2, 5])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("method", [kind for kind in METHODS if kind not in ("full", "peft")])
def test_formula_and_count_agree(method: str, kind: str, labels: int) -> None:
    names = {"id2label": {index: str(index) for index in range(labels)}, "label2id": {}}
    network = model(kind, **names, hidden_size=24, num_hidden_layers=3, intermediate_size=40)
    made = section(method, **({"r": 5} if "r" in METHODS[method].model_fields else {}))
    letters = letters_of(network, n=3, r=5, h=24)
    plain = sum(value.numel() for value in network.parameters())
    applied = methods.apply(network, made, ())
    by_hand = sum(value.numel() for value in applied.model.parameters() if value.requires_grad)
    formula = applied.parameters.formula
    assert formula is not None
    assert applied.parameters.trainable == by_hand == evaluate(formula, letters)
    head = f"{labels}d+{labels}" if kind == "bert" else f"d²+d+{labels}d+{labels}"
    if not (kind == "bert" and method == "prompt"):
        assert formula.endswith(head)
    added = 0 if method in ("head", "bitfit") else by_hand - evaluate(head, letters)
    assert applied.parameters.total == plain + added, "peft's copy of the untrained head is not counted"


@pytest.mark.parametrize(
    ("kind", "made", "trainable", "formula"),
    [
        ("bert", section("full"), 109_483_778, None),
        ("bert", section("head"), 1_538, "2d+2"),
        ("bert", PrefixMethod(num_virtual_tokens=20), 370_178, "2·L·n·d + 2d+2"),
        ("bert", PromptMethod(num_virtual_tokens=128), 130 * 768 + 2, "130d+2"),
        ("bert", LoraMethod(r=8), 296_450, "4·L·r·d + 2d+2"),
        ("roberta", section("full"), 124_647_170, None),
        ("roberta", section("head"), 592_130, "d²+d+2d+2"),
        ("roberta", PrefixMethod(num_virtual_tokens=20), 960_770, "2·L·n·d + d²+d+2d+2"),
    ],
)
def test_published_counts(kind: str, made: Any, trainable: int, formula: str | None) -> None:
    with torch.device("meta"):
        if kind == "bert":
            network = BertForSequenceClassification(BertConfig(vocab_size=30522))
        else:
            shape = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
            network = RobertaForSequenceClassification(RobertaConfig(**shape))
    parameters = methods.apply(network, made, ()).parameters
    assert (parameters.trainable, parameters.formula) == (trainable, formula)


def test_a_formula_that_does_not_fit_is_left_out() -> None:
    lora = methods.apply(model("bert"), LoraMethod(target_modules=("query", "key", "value")), ())
    assert lora.parameters.formula is None
    assert evaluate("d²+d+2d+2", {"d": 10}) == 132
    assert evaluate("2·L·n·d + 2d+2", {"L": 3, "n": 5, "d": 10}) == 322


def test_each_method_brings_its_learning_rate() -> None:
    rates = {kind: Recipe(method=section(kind)).train.learning_rate for kind in METHODS}
    pretrained = Recipe.model_validate({"model": {"model_name_or_path": "some/model"}, "method": {"kind": "lora"}})
    assert rates["full"] == 5e-4 and pretrained.train.learning_rate == 5e-4
    assert all(rate is not None and rate >= 1e-3 for kind, rate in rates.items() if kind != "full")
