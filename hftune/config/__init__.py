"""Recipes: what a run is, as checked and frozen data. Imports pydantic and PyYAML, never torch."""

from hftune.config.load import load_recipe
from hftune.config.recipe import Recipe

__all__ = ["Recipe", "load_recipe"]
