"""Recipes: what a run is, as checked and frozen data. Imports pydantic and PyYAML, never torch.

Names are imported when they are first used: a method's settings import ``hftune.config.section``, and a recipe imports
the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hftune.config.load import load_recipe, recipe_path, recipe_yaml
    from hftune.config.problems import Problem, RecipeError
    from hftune.config.recipe import Recipe
    from hftune.config.settings import schema, setting_rows
    from hftune.config.shipped import RecipeEntry, catalogue

_HOME = {
    "Problem": "problems",
    "Recipe": "recipe",
    "RecipeEntry": "shipped",
    "RecipeError": "problems",
    "catalogue": "shipped",
    "load_recipe": "load",
    "recipe_path": "load",
    "recipe_yaml": "load",
    "schema": "settings",
    "setting_rows": "settings",
}

__all__ = [
    "Problem",
    "Recipe",
    "RecipeEntry",
    "RecipeError",
    "catalogue",
    "load_recipe",
    "recipe_path",
    "recipe_yaml",
    "schema",
    "setting_rows",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'hftune.config' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hftune.config.{_HOME[name]}"), name)
