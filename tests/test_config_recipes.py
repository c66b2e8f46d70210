"""The shipped recipes: all found, all valid, all described; and what a name may stand for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from facts import facts

from hftune.config.document import RecipeError
from hftune.config.shipped import NOT_RECIPES, shipped_recipes
from hftune.files import recipes_dir
from hftune.recipe import load_recipe

AT_LEAST = 4


def test_every_shipped_recipe_is_in_order() -> None:
    files = set(recipes_dir().rglob("*.y*ml"))
    known = {path for path in files if path.relative_to(recipes_dir()).parts[0] in NOT_RECIPES}
    entries = shipped_recipes()
    assert {entry.path for entry in entries} == files - known
    assert len(entries) >= AT_LEAST
    for entry in entries:
        recipe = load_recipe(entry.name)
        assert entry.expected and entry.cost, f"{entry.name}: the header lacks Expected or Cost"
        words = shlex.split(entry.command)
        assert words[0] == "hftune", entry.name
        assert words[words.index("--recipe") + 1] == entry.name
        assert recipe == load_recipe(entry.path)


def test_a_header_of_several_lines(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "grid.yaml").write_text("over: {}\n")
    (tmp_path / "task" / "one.yaml").write_text(
        "# hftune classify --recipe task/one\n# Expected: 0.5 on test,\n#   one seed.\n# Cost: a minute\n"
        "#\n# Some words.\n#   indented\ntrain: {}\n# Cost: not this\n"
    )
    (entry,) = shipped_recipes(tmp_path)
    assert entry.name == "task/one"
    assert entry.command == "hftune classify --recipe task/one"
    assert (entry.expected, entry.cost) == ("0.5 on test, one seed.", "a minute")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two recipes that share their last part and one that does not, in place of the shipped ones."""
    root = tmp_path / "shipped"
    for name, seed in (("a/same", 1), ("b/same", 2), ("b/only", 3)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.yaml").write_text(f"train: {{seed: {seed}}}\n")
    monkeypatch.setattr("hftune.config.shipped.recipes_dir", lambda: root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names(shipped: Path) -> None:
    assert load_recipe("b/same").train.seed == 2
    assert load_recipe("only").train.seed == 3
    with pytest.raises(RecipeError, match=facts("a/same", "b/same")):
        load_recipe("same")
    for typo in ("b/onyl", "onnly"):
        with pytest.raises(RecipeError, match=facts("b/only")):
            load_recipe(typo)


def test_files_and_runs_come_before_last_parts(shipped: Path) -> None:
    run = shipped / "only"
    run.mkdir()
    (run / "recipe.yaml").write_text("train: {seed: 9}\n")
    assert load_recipe("only").train.seed == 9
    assert load_recipe(run).train.seed == 9
    (shipped / "mine.yml").write_text("train: {seed: 8}\n")
    assert load_recipe("mine.yml").train.seed == 8
