"""Which recipe a command starts from: its default for its own data, whatever their name, or that of a resumed run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.data.locate import DATASETS
from hftune.errors import HftuneError
from hftune.pipeline import request
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir

Hftune = Callable[..., tuple[int, str, str]]
Requested = Callable[..., Recipe]


@pytest.fixture
def requested(here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch) -> Requested:
    """The recipe of a command line; nothing is trained."""
    made: list[Recipe] = []

    def carry_out(asked: request.TrainRequest, *_: object) -> None:
        made.append(asked.recipe)
        raise HftuneError("not trained", hint="this is a test")

    monkeypatch.setattr(request, "carry_out", carry_out)

    def run(*arguments: str) -> Recipe:
        _, _, err = hftune(*arguments)
        assert "not trained" in err, err
        return made.pop()

    return run


@pytest.mark.parametrize(
    "names",
    [
        ("--data", "reviews"),
        ("--dataset_name", "reviews"),
        ("--set", "data.dataset_name=reviews"),
        ("--model", "scratch:bert-tiny"),
        ("--model", "scratch:bert-tiny", "--data", "reviews"),
    ],
)
@pytest.mark.parametrize("command", ["classify", "joint"])
def test_the_default_recipe_applies_to_its_own_data(requested: Requested, command: str, names: tuple[str, ...]) -> None:
    assert requested(command, *names) == requested(command) == load_recipe(f"{command}/reviews")


def test_its_folder_is_its_own_data_too(requested: Requested) -> None:
    folder = str(DATASETS["reviews"].folder)
    assert requested("classify", "--data", folder).train == load_recipe("classify/reviews").train


@pytest.mark.parametrize(
    "names", [("--data", "boolq-mini"), ("--set", "data.dataset_name=boolq-mini"), ("--model", "scratch:tinybert")]
)
def test_other_data_or_another_model_take_the_defaults(requested: Requested, names: tuple[str, ...]) -> None:
    assert requested("classify", *names).train == load_recipe(None, {"model.model_name_or_path": "scratch:x"}).train


@pytest.mark.parametrize(
    ("named", "recipe"),
    [
        ((), "pretrain/births-span"),
        (("--corpus", "births"), "pretrain/births-span"),
        (("--corpus", "a.txt"), "pretrain/span"),
    ],
)
@pytest.mark.parametrize("how", ["flag", "set"])
def test_the_recipe_of_a_text(requested: Requested, named: tuple[str, ...], recipe: str, how: str) -> None:
    if named and how == "set":
        named = ("--set", f"data.dataset_name={named[1]}")
    assert requested("pretrain", *named).train == load_recipe(recipe).train


@pytest.mark.parametrize("folder", ["run", "group/seed-1"])
@pytest.mark.parametrize("flags", [(), ("--data", "reviews"), ("--epochs", "2")])
def test_a_resumed_run_has_its_own_recipe(requested: Requested, folder: str, flags: tuple[str, ...]) -> None:
    begun = load_recipe("classify/reviews", {"train.num_train_epochs": 2, "train.seed": 1, "method.kind": "lora"})
    Path(folder).mkdir(parents=True)
    RunDir(Path(folder)).write_recipe(begun)
    seeds = ("--seeds", "1") if "/" in folder else ()
    output = ("--output", folder.partition("/")[0])
    assert requested("classify", *output, "--resume", *seeds, *flags) == begun


def test_only_what_differs_from_the_resumed_run_is_reported(here: Path, hftune: Hftune) -> None:
    begun = load_recipe("classify/reviews", {"train.num_train_epochs": 2, "train.bf16": False, "train.fp16": False})
    (here / "run").mkdir()
    RunDir(here / "run").write_recipe(begun)
    code, _, err = hftune("classify", "--output", "run", "--resume", "--lr", "1e-3")
    assert (code, "train.learning_rate: 0.0007 → 0.001" in err, "num_train_epochs" in err) == (2, True, False)
