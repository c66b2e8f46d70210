"""Studies: a recipe, a grid or a search, and seeds, carried out and compared honestly."""
