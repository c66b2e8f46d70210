"""Recipes: what a run is, as checked and frozen data. Imports pydantic and PyYAML, never torch."""

from hftune.config.catalogue import RecipeEntry, catalogue
from hftune.config.load import load_recipe, recipe_yaml, schema
from hftune.config.problems import Problem, RecipeError
from hftune.config.recipe import Recipe

__all__ = [
    "Problem",
    "Recipe",
    "RecipeEntry",
    "RecipeError",
    "catalogue",
    "load_recipe",
    "recipe_yaml",
    "schema",
]
