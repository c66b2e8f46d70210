"""The contract of every method, on two architectures: what moves, what is saved, what resumes, what is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from method_case import EVERY, NAMES, STEPS, TEXTS, MethodCase, close, losses, model, small, weights_at
from peft import PeftModel
from training_case import same
from transformers import AutoModelForSequenceClassification

from hftune.methods import METHODS
from hftune.methods.head import HeadMethod
from hftune.methods.method import AdapterMethod
from hftune.methods.prefix import PrefixMethod
from hftune.pipeline.verify import fresh_outputs
from hftune.recipe import Recipe

pytestmark = pytest.mark.numeric

ADAPTERS = {kind for kind, section in METHODS.items() if issubclass(section, AdapterMethod)}
SECTIONS = {kind: small(kind) for kind in METHODS}
VARIANTS = {
    "prefix-projected": PrefixMethod(num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8),
    "head-uncached": HeadMethod(cache_features=False),
    **{f"{kind}-merged": small(kind, merge=True) for kind in METHODS if "merge" in METHODS[kind].model_fields},
}
MEAN, RARE_MEAN = ("full", "head", "prefix", "prompt", "lora"), ("head-uncached", "lora-merged", "bitfit")
DAILY = [(name, "bert") for name in (*SECTIONS, *VARIANTS)] + [(name, "roberta") for name in SECTIONS]
DAILY += [(name, "bert-mean") for name in MEAN]
"""What ``make test`` looks at; variants of a method on the other architectures are slow tests."""
CASES = [
    *DAILY,
    *(pytest.param(name, "roberta", marks=pytest.mark.slow) for name in VARIANTS),
    *(pytest.param(name, "bert-mean", marks=pytest.mark.slow) for name in RARE_MEAN),
]
Key = tuple[str, str]
CODE = {"configuration_pooled.py", "modeling_pooled.py"}

# What may move, by a part of its name. Stated here once more, not read off the methods.
INTENDED = {
    "full": ("",),
    "head": ("classifier.",),
    "head-uncached": ("classifier.",),
    "bitfit": (".bias", "classifier."),
    "lora": ("lora_", "classifier.modules_to_save"),
    "ia3": ("ia3_", "classifier.modules_to_save"),
    "prefix": ("prompt_encoder", "classifier.modules_to_save"),
    "prefix-projected": ("prompt_encoder", "classifier.modules_to_save"),
    "prompt": ("prompt_encoder", "classifier.modules_to_save"),
    "ptuning": ("prompt_encoder", "classifier.modules_to_save"),
}


def intended(name: str, case: MethodCase) -> tuple[str, ...]:
    """For an adapter that is not listed: all that the plain model does not have."""
    name = name.removesuffix("-merged")
    if name in INTENDED:
        return INTENDED[name]
    plain = {key for key, _ in model(case.architecture).named_parameters()}
    names = {key.replace(".base_layer.", ".").removeprefix("base_model.model."): key for key in case.before}
    return tuple(key for short, key in names.items() if short not in plain and ".original_module." not in key)


def test_every_kind_has_a_method_and_the_other_way_round() -> None:
    assert set(METHODS) == set(Recipe.section_kinds("method"))


class OnDemand(dict[Key, Any]):
    """Values that are made when they are first read: a slow test needs none of the others."""

    def __init__(self, make: Callable[[Key], dict[Key, Any]]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, key: Key) -> Any:
        self.update(self.make(key))
        return self[key]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Key, MethodCase]]:
    """Each method trained once; its best checkpoint is its first one."""
    root = tmp_path_factory.mktemp("methods")

    def train(key: Key) -> dict[Key, MethodCase]:
        name, kind = key
        case = MethodCase(root / f"{kind}-{name}", kind, {**SECTIONS, **VARIANTS}[name])
        case.train()
        return {key: case}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HFTUNE_CACHE", str(root / "cache"))
        yield OnDemand(train)


@pytest.fixture(scope="module")
def reloaded(trained: dict[Key, MethodCase]) -> dict[Key, Any]:
    """The outputs of each saved model in a new process, one for all of ``make test``."""

    def reload(key: Key) -> dict[Key, Any]:
        keys = DAILY if key in DAILY else [key]
        folders = [trained[one].save() for one in keys]
        outputs = fresh_outputs(folders, "classify", [{"text": text} for text in TEXTS])
        return dict(zip(keys, outputs, strict=True))

    return OnDemand(reload)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_only_the_intended_parameters_move(name: str, kind: str, trained: Any) -> None:
    case = trained[name, kind]
    last = weights_at(case.folder, STEPS)
    names = {key.replace(".backbone.", ".") for key in last}
    parts = intended(name, case)
    trainable = {key for key in case.before if any(part in key for part in parts)}
    assert names & case.before.keys() == trainable
    moved = {key for key in last if key in case.before and not torch.equal(last[key], case.before[key])}
    assert moved == trainable
    for key, value in case.after.items():
        assert key in trainable or torch.equal(value, case.before[key]), key


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_best_checkpoint_is_restored_exactly(name: str, kind: str, trained: Any) -> None:
    case = trained[name, kind]
    assert case.fitted.selection["step"] == EVERY
    best, last = weights_at(case.folder, EVERY), weights_at(case.folder, STEPS)
    assert not same(best, last)
    assert same(best, case.restored)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_resume_equals_uninterrupted(name: str, kind: str, trained: Any) -> None:
    case = trained[name, kind]
    folder = case.resumed()
    assert same(weights_at(folder, STEPS), weights_at(case.folder, STEPS))
    resumed, whole = losses(folder), losses(case.folder)
    assert resumed == {step: loss for step, loss in whole.items() if step > EVERY} and len(resumed) == STEPS - EVERY


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_fresh_process_gives_the_same_answers(name: str, kind: str, trained: Any, reloaded: Any) -> None:
    case = trained[name, kind]
    assert reloaded[name, kind]["labels"] == list(NAMES)
    assert close(reloaded[name, kind]["logits"], case.logits)
    assert abs(case.logits - case.logits[0]).max() > 1e-2, "the texts must differ for this to mean anything"
    files = {path.name for path in (case.folder / "model").iterdir()}
    wanted = {"adapter_config.json", "adapter_model.safetensors", "base"} if name.split("-")[0] in ADAPTERS else set()
    wanted = {"config.json", "model.safetensors"} if name.endswith("-merged") or not wanted else wanted
    if kind == "bert-mean":
        holder = case.folder / "model" / ("base" if "base" in wanted else "")
        assert {path.name for path in holder.glob("*.py")} == CODE
        files -= CODE
    assert files == wanted | {"tokenizer.json", "tokenizer_config.json", "hftune.json"}


@pytest.mark.parametrize(("name", "kind"), [case for case in DAILY if case[0] in ADAPTERS])
def test_an_adapter_loads_with_plain_peft(name: str, kind: str, trained: Any, reloaded: Any) -> None:
    case = trained[name, kind]
    folder: Path = case.folder / "model"
    base = AutoModelForSequenceClassification.from_pretrained(folder / "base", num_labels=len(NAMES))
    adapted = PeftModel.from_pretrained(base, folder).eval()
    batch = case.classifier().tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        assert close(adapted(**batch).logits, case.logits)


@pytest.mark.parametrize(
    "kind", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "bert-mean"))]
)
def test_cached_features_give_what_the_whole_model_gives(kind: str, trained: Any) -> None:
    kept, whole = trained["head", kind], trained["head-uncached", kind]
    assert kept.applied.precomputed and not whole.applied.precomputed
    left, right = losses(kept.folder), losses(whole.folder)
    assert left.keys() == right.keys()
    assert close(list(left.values()), list(right.values()))
    assert close(kept.logits, whole.logits)
    last = weights_at(whole.folder, STEPS)
    for name, value in weights_at(kept.folder, STEPS).items():
        if name.startswith("classifier"):
            assert close(value, last[name], 1e-4), name
