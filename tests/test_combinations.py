"""Task × data × model × method: every combination is a recipe that fits, or is refused before anything is loaded."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import CONFIG_MAPPING, PreTrainedTokenizerFast

from hftune.errors import HftuneError
from hftune.methods import METHODS
from hftune.methods.method import ARCHITECTURES
from hftune.models import mingpt
from hftune.models.load import PRESETS
from hftune.recipe import Recipe, load_recipe
from hftune.tasks import TASKS, task_class

DATA = tuple(Recipe.section_kinds("data"))
UNKNOWN = "funnel"
"""An architecture of transformers that is not in the table."""
MODELS = (*(f"scratch:{name}" for name in PRESETS), *ARCHITECTURES, UNKNOWN)
WORDS = {
    "classify": ("task classify",),
    "joint": ("task joint", "joint training"),
    "mlm": ("task mlm",),
    "distill_encoder": ("task distill_encoder",),
    "span": ("task span",),
    "clm": ("task clm", "language models"),
    "answer": ("task answer",),
}
"""How a message names a task."""
PEFT_TYPE = "LOHA"
CLASSIFIERS, ENCODERS = ("classify", "joint"), ("mlm", "joint", "distill_encoder")
FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert")
CAUSAL = ("gpt2", "mingpt")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By model type: a folder with a configuration, a tokenizer, and weights that can't be loaded."""
    mingpt.register()
    folder, paths = tmp_path_factory.mktemp("checkpoints"), {}
    for kind in (*ARCHITECTURES, UNKNOWN):
        CONFIG_MAPPING[kind](vocab_size=9).save_pretrained(folder / kind)
        special = {"pad_token": "[PAD]", "eos_token": "[END]", "mask_token": None if kind == "gpt2" else "⁇"}
        words = {word: number for number, word in enumerate(["a", "b", "[PAD]", "[END]", "⁇"])}
        backend = Tokenizer(WordLevel(words, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder / kind)
        save_file({"none": torch.zeros(1)}, folder / kind / "model.safetensors")
        paths[kind] = str(folder / kind)
    return paths


def request(task: str, data: str, model: str, method: str, teacher: str = "teacher") -> dict[str, Any]:
    values = {"task.kind": task, "data.kind": data, "model.model_name_or_path": model, "method.kind": method}
    values |= {"task.teacher": teacher} if task == "distill_encoder" else {}
    return values | ({"method.peft_type": PEFT_TYPE} if method == "peft" else {})


def resolve(task: str, data: str, model: str, method: str, teacher: str) -> Recipe:
    """The recipe, checked as ``train`` checks it before it reads any data."""
    recipe = load_recipe(None, request(task, data, model, method, teacher))
    task_class(task)(recipe).check_request()
    return recipe


def names(message: str, task: str, data: str, model: str, method: str) -> set[str]:
    """The axes whose entry a message names."""
    words = {"task": WORDS[task], "data": (data,), "model": (model.removeprefix("scratch:"),), "method": (method,)}
    if "task.kind" in message:
        words["task"] = (*words["task"], task)
    return {axis for axis, found in words.items() if any(word in message for word in found)}


def test_data_of_another_kind_are_refused_with_every_model_and_method() -> None:
    refused = Counter[str]()
    scratch = [f"scratch:{name}" for name in PRESETS]
    for task, data, model, method in product(TASKS, DATA, scratch, METHODS):
        if data == Recipe.default_kind("data", task):
            continue
        with pytest.raises(HftuneError) as caught:
            load_recipe(None, request(task, data, model, method))
        assert caught.value.exit_code == 2
        assert {"task", "data"} <= names(caught.value.message, task, data, model, method)
        assert "data.kind" in caught.value.message and caught.value.hint
        refused[task] += 1
    assert set(refused) == set(TASKS)
    assert refused.total() >= 6 * 3 * 6 * 10


def test_every_task_method_and_model_fit_or_are_refused(checkpoints: dict[str, str]) -> None:
    fits, refused = set[tuple[str, str, str]](), set[tuple[str, str, str]]()
    for task, model, method in product(TASKS, MODELS, METHODS):
        data = str(Recipe.default_kind("data", task))
        try:
            recipe = resolve(task, data, checkpoints.get(model, model), method, checkpoints["bert"])
        except HftuneError as error:
            cell, reported = (task, model, method), names(error.message, task, data, model, method)
            assert len(reported) >= 2, f"{cell}: {error.message}"
            assert error.hint and error.exit_code == 2, cell
            refused.add(cell)
        else:
            assert (recipe.task.kind, recipe.data.kind, recipe.method.kind) == (task, data, method)
            fits.add((task, model, method))
    assert len(fits) + len(refused) >= 6 * 19 * 10
    check_what_fits(fits)


def check_what_fits(fits: set[tuple[str, str, str]]) -> None:
    """Facts of the architectures: a check that refuses too much or too little shows here."""
    models = {task: {model for kind, model, method in fits if (kind, method) == (task, "full")} for task in TASKS}
    pretrained, scratch = {*ARCHITECTURES, UNKNOWN}, {f"scratch:{name}" for name in PRESETS}
    encoders = {f"scratch:{name}" for name, preset in PRESETS.items() if not preset.causal}
    assert models["classify"] == pretrained | encoders
    for task in ENCODERS:
        assert encoders <= models[task] and not models[task] & (set(CAUSAL) | (scratch - encoders))
    assert models["clm"] == set(CAUSAL) | (scratch - encoders)
    for task in ("span", "answer"):  # gpt2 has no mask token
        assert models[task] == {"mingpt", "scratch:mingpt", "scratch:mingpt-tiny"}
    by_method = {method: {task for task, _, kind in fits if kind == method} for method in METHODS}
    assert by_method["full"] == set(TASKS)
    assert {task for task in TASKS if any(task in tasks for kind, tasks in by_method.items() if kind != "full")} == {
        "classify",
        "clm",
    }
    assert all("classify" in tasks for tasks in by_method.values())
    assert {method for method, tasks in by_method.items() if "clm" in tasks} >= {
        "full",
        "lora",
        "dora",
        "ia3",
        "bitfit",
    }
    for method in ("prefix", "prompt", "ptuning"):
        assert not any(("classify", model, method) in fits for model in CAUSAL)
        assert ("classify", "bert", method) in fits
    assert ("classify", "mpnet", "prefix") not in fits and ("classify", "mpnet", "prompt") in fits
    assert ("classify", UNKNOWN, "lora") not in fits and ("classify", UNKNOWN, "bitfit") in fits
