"""Recipes: what a run is, as checked and frozen data. Imports pydantic and PyYAML, never torch."""

from hftune.config.load import load_recipe, recipe_path, recipe_yaml
from hftune.config.problems import Problem, RecipeError
from hftune.config.recipe import Recipe
from hftune.config.settings import schema, setting_rows
from hftune.config.shipped import RecipeEntry, catalogue

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
