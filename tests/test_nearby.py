"""A misspelled run, model or recipe: the error names those that exist and can be used there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.errors import nearby_path
from hftune.models.hub_files import models_near

Hftune = Callable[..., tuple[int, str, str]]


def plant(path: Path, task: str) -> Path:
    """A run, as far as a search for names reads it."""
    (path / "model").mkdir(parents=True)
    (path / "recipe.yaml").write_text(f"task: {{kind: {task}}}\n", encoding="utf-8")
    (path / "model" / "config.json").write_text("{}", encoding="utf-8")
    (path / "model" / "hftune.json").write_text(json.dumps({"version": 1, "task": task}), encoding="utf-8")
    return path


@pytest.fixture
def runs(here: Path) -> Path:
    """A classifier and a language model."""
    plant(here / "runs" / "reviews", "classify")
    plant(here / "runs" / "births-span", "span")
    (here / "runs" / "notes").mkdir()
    return here / "runs"


def test_only_the_last_part_of_a_path_is_compared() -> None:
    known = [Path("runs/first"), Path("runs/second")]
    assert nearby_path(Path("runs/frst"), known) == f"did you mean {str(known[0])!r}?"
    assert all(str(path) in nearby_path(Path("runs/nope"), known) for path in known)
    assert nearby_path(Path("runs/nope"), known, similar_only=True) == ""
    assert nearby_path(Path("runs/nope"), []) == ""


@pytest.mark.parametrize("causal", [None, True, False])
def test_models_are_those_that_serve(runs: Path, causal: bool | None) -> None:
    folder = runs / "gpt"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}', encoding="utf-8")
    found = {path.name for path in models_near("runs/nope", causal=causal)}
    assert found == {None: {"reviews", "births-span", "gpt"}, True: {"births-span", "gpt"}, False: {"reviews"}}[causal]


@pytest.mark.parametrize(
    ("arguments", "named", "not_named"),
    [
        (("predict", "runs/nope", "text"), ("runs/reviews", "runs/births-span"), "notes"),
        (("predict", "runs/revews", "text"), ("runs/reviews",), "births-span"),
        (("push", "runs/revews", "user/name"), ("runs/reviews",), "births-span"),
        (("finetune", "--from", "runs/brths-span"), ("runs/births-span",), "bert-tiny"),
        (("finetune", "--from", "runs/revews"), ("runs/births-span",), "runs/reviews"),
        (("finetune", "--from", "births-spam"), ("runs/births-span",), "bert-tiny"),
        (("finetune", "--from", "nobody/nothing"), ("scratch:mingpt",), "bert-tiny"),
        (("finetune", "--from", "scratch:mingtp"), ("scratch:mingpt",), "bert"),
        (("classify", "--model", "runs/births-spam"), ("runs/reviews",), "runs/births-span'"),
    ],
)
def test_a_misspelled_model(
    runs: Path, hftune: Hftune, arguments: tuple[str, ...], named: tuple[str, ...], not_named: str
) -> None:
    code, _, err = hftune(*arguments)
    hint = err.rpartition("→")[2]
    assert code == 2
    assert all(name in hint for name in named)
    assert not_named not in hint


def test_a_recipe_with_the_other_ending(here: Path, hftune: Hftune) -> None:
    (here / "mine.yaml").write_text("train: {seed: 7}\n", encoding="utf-8")
    for name in ("mine.yml", "mine"):
        code, out, _ = hftune("recipes", "show", name)
        assert (code, "seed: 7" in out) == (0, True)
    code, _, err = hftune("recipes", "show", "mein.yml")
    assert (code, "mine.yaml" in err) == (2, True)
