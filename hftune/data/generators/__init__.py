"""The generators of the embedded datasets, by name; `hftune data make NAME` calls them.

Each writes the files of one dataset into a folder. They use the standard library only, and one seed gives the same
bytes on every platform; the files under data/ were made with DEFAULT_SEED.
"""

from collections.abc import Callable
from pathlib import Path

from .births import make_births
from .boolq_mini import make_boolq_mini
from .prose import make_prose
from .reviews import make_reviews

DEFAULT_SEED = 2024
"""The seed the embedded files were made with."""

GENERATORS: dict[str, Callable[[Path, int], None]] = {
    "births": make_births,
    "boolq-mini": make_boolq_mini,
    "prose": make_prose,
    "reviews": make_reviews,
}

__all__ = ["DEFAULT_SEED", "GENERATORS"]
