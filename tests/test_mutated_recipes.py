"""Thousands of mutated recipes, settings and studies: each ends as a recipe or in our error, never in another one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from mutation import Edit, edited, edits, examples, survives, turned, turns

from hftune.config.shipped import shipped_recipes, shipped_studies
from hftune.config.values import refuse_unasked
from hftune.files import recipes_dir
from hftune.recipe import Recipe, load_recipe, recipe_yaml
from hftune.runs.directory import default_path
from hftune.studies.plan import check
from hftune.studies.request import make_plan, parse_grid, read_values

RECIPES = [entry.path.read_bytes() for entry in shipped_recipes()]
STUDIES = [entry.path.read_bytes() for entry in shipped_studies()]
RESOLVED = [load_recipe(path).model_dump(mode="json") for path in sorted(recipes_dir().glob("classify/*.yaml"))] + [
    load_recipe(None, {"task.kind": kind}).model_dump(mode="json") for kind in ("joint", "mlm", "span", "clm", "answer")
]
SETS = (
    "train.num_train_epochs=2",
    "model={name: scratch:bert-tiny}",
    "data.max_train_samples=50",
    "task.class_weights={a: 1}",
    "hub.hub_model_id=a/b",
)
PLACE = Path(tempfile.mkdtemp(prefix="hftune-mutated-")) / "recipe.yaml"


def written(content: bytes) -> Path:
    PLACE.write_bytes(content)
    return PLACE


def used(recipe: Recipe | None) -> None:
    """What is done with every recipe before anything is loaded; its YAML gives it back."""
    if recipe is None:
        return
    survives(lambda: refuse_unasked(recipe, ()))
    assert len(default_path(recipe).name.encode()) < 255
    assert load_recipe(written(recipe_yaml(recipe).encode("utf-8", "surrogatepass"))) == recipe


@examples(400)
@given(which=st.integers(0, len(RECIPES) - 1), changes=edits)
def test_bytes_of_a_recipe(which: int, changes: list[Edit]) -> None:
    path = written(edited(RECIPES[which], changes))
    used(survives(lambda: load_recipe(path)))


@examples(300)
@given(which=st.integers(0, len(RESOLVED) - 1), changes=turns)
def test_values_of_a_recipe(which: int, changes: list[tuple[float, Any]]) -> None:
    document = turned(RESOLVED[which], changes)
    path = written(yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass"))
    used(survives(lambda: load_recipe(path)))


@examples(400)
@given(which=st.integers(0, len(RESOLVED) - 1), changes=turns)
def test_values_from_python(which: int, changes: list[tuple[float, Any]]) -> None:
    document = turned(RESOLVED[which], changes)
    survives(lambda: load_recipe(None, document))


@examples(400)
@given(text=st.sampled_from(SETS), changes=edits)
def test_settings_of_the_command_line(text: str, changes: list[Edit]) -> None:
    changed = edited(text.encode(), changes).decode("utf-8", "surrogateescape")
    survives(lambda: load_recipe(None, None, [changed]))
    survives(lambda: parse_grid([changed]))


@examples(40)
@given(which=st.integers(0, len(STUDIES) - 1), changes=edits)
def test_bytes_of_a_study(which: int, changes: list[Edit]) -> None:
    path = written(edited(STUDIES[which], changes))

    def planned() -> None:
        values, lines = read_values(path)
        check(make_plan(values, str(path), lines))

    survives(planned)
