"""Recipes and studies of the settings that courses publish: each is dry-run, and has the published numbers.

The models and datasets of the Hub are folders of the same names here, with the real width and few other weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from facts import mentions
from tiny import rows

from hftune.config.shipped import find_study, shipped_recipes
from hftune.files import recipes_dir
from hftune.recipe import load_recipe
from hftune.studies.plan import grid, recipe_for
from hftune.studies.request import read_plan

Hftune = Callable[..., tuple[int, str, str]]
WIDTH = 768
"""The hidden size of BERT-base and RoBERTa-base."""
TRAIN, VALIDATION = 80, 20
BATCHES = 9
"""Of 72 examples (a tenth of train becomes test) in batches of 8."""
QUICK = ("--batch-size", "8", "--dry-run", "--json")
SMALL_GPT = ("--num-hidden-layers", "1", "--hidden-size", "32", "--num-attention-heads", "2")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the names of the Hub are small models and a small BoolQ."""
    from transformers import BertConfig, BertForPreTraining, PreTrainedModel, RobertaConfig, RobertaForMaskedLM

    from hftune.models.tokenizers import train_tokenizer

    folder = tmp_path_factory.mktemp("hub")
    data = folder / "google" / "boolq"
    data.mkdir(parents=True)
    texts: list[str] = []
    for name, count in (("train", TRAIN), ("dev", VALIDATION)):
        found = rows(count, len(name))
        texts += [text for _, text in found]
        lines = [{"question": "was it good", "passage": text, "answer": label == "good"} for label, text in found]
        (data / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    sizes: dict[str, Any] = {"vocab_size": 300, "hidden_size": WIDTH, "num_hidden_layers": 1, "intermediate_size": 64}
    bert = BertForPreTraining(BertConfig(**sizes))
    roberta = RobertaForMaskedLM(RobertaConfig(**sizes, max_position_embeddings=514, type_vocab_size=1))
    models: list[tuple[str, str, PreTrainedModel]] = [
        ("google-bert/bert-base-cased", "wordpiece", bert),
        ("FacebookAI/roberta-base", "bpe", roberta),
    ]
    for name, kind, model in models:
        model.save_pretrained(folder / name)
        tokenizer = train_tokenizer(kind, lambda: texts, 300, family=model.config.model_type, exact=False)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize(
    ("recipe", "command", "published"),
    [
        ("pretrain/births-vanilla", "pretrain", (650, 128, 6e-3)),
        ("finetune/births-vanilla", "finetune", (10, 256, 6e-4)),
        ("finetune/births-vanilla-scratch", "finetune", (75, 256, 6e-4)),
    ],
)
def test_births_with_vanilla_attention(
    recipe: str, command: str, published: tuple[int, int, float], hftune: Hftune, here: Path
) -> None:
    settings = load_recipe(recipe)
    train = settings.train
    assert (train.num_train_epochs, train.per_device_train_batch_size, train.learning_rate) == published
    assert settings.model.attention in ("vanilla", None), "the default; the pretrained run has its own"
    code, out, err = hftune(command, "--recipe", recipe, *SMALL_GPT, "--dry-run", "--json")
    assert code == 0, err
    estimate = json.loads(out)
    per_epoch = -(-estimate["rows"]["train"] // published[1])
    assert estimate["steps"] == per_epoch * published[0]


def test_a_prompt_of_128_has_130d_plus_2_parameters(hub: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hub)
    code, out, err = hftune("boolq", "--recipe", "boolq/prompt-128", *QUICK)
    assert code == 0, err
    estimate = json.loads(out)
    assert (estimate["method"], estimate["trainable_parameters"]) == ("prompt", 130 * WIDTH + 2)
    (entry,) = [entry for entry in shipped_recipes() if entry.name == "boolq/prompt-128"]
    assert mentions(entry.expected, "130d + 2", f"{130 * WIDTH + 2:,}")


@pytest.mark.parametrize("method", ["prompt", "head"])
def test_learning_rates_and_epochs_on_boolq(
    method: str, hub: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = read_plan(find_study("boolq-lr-epochs"))
    recipes = [recipe_for(plan, setting, 1) for setting in grid(plan)]
    pairs = [(recipe.train.learning_rate, recipe.train.num_train_epochs) for recipe in recipes]
    assert pairs == [(1e-3, 9), (5e-4, 7), (1.25e-2, 12), (1.25e-2, 20)]
    assert {recipe.train.early_stopping_patience for recipe in recipes} == {None}
    monkeypatch.chdir(hub)
    code, out, err = hftune("sweep", "boolq-lr-epochs", "--method", method, *QUICK)
    assert code == 0, err
    costs = json.loads(out)["settings"]
    assert [cost["run"]["steps"] for cost in costs] == [epochs * BATCHES for _, epochs in pairs]
    assert {(cost["run"]["method"], cost["runs"]) for cost in costs} == {(method, 3)}


def test_two_encoders_on_boolq(hub: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(find_study("boolq-encoders"))
    for setting in grid(plan):
        assert recipe_for(plan, setting, 1) == load_recipe(f"boolq/{setting.name}"), "the settings of its own recipe"
    monkeypatch.chdir(hub)
    code, out, err = hftune("sweep", "boolq-encoders", *QUICK)
    assert code == 0, err
    costs = json.loads(out)["settings"]
    assert [(cost["setting"], cost["run"]["model"], cost["run"]["steps"]) for cost in costs] == [
        ("bert-base-cased", "google-bert/bert-base-cased", 4 * BATCHES),
        ("roberta-base", "FacebookAI/roberta-base", 10 * BATCHES),
    ]


@pytest.mark.parametrize("path", sorted((recipes_dir() / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_states_its_command_and_cost(path: Path) -> None:
    header = list(takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines()))
    assert header[0].startswith(("# hftune sweep ", "# hftune boolq "))
    for word in ("Expected", "Cost"):
        (line,) = (line for line in header if line.startswith(f"# {word}:"))
        assert len(line) > 20, path
