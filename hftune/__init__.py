"""hftune: fine-tuning for the Hugging Face ecosystem. ``load_recipe``, ``train`` and ``predict`` are the Python API.

Names are imported when they are first used, so that ``import hftune`` costs nothing. This file imports nothing at all,
not even ``typing`` or ``__future__``: under ``python -m hftune`` the current folder is still on the path when it runs,
and a typing.py in that folder would be imported instead. ``hftune.__main__`` removes the folder from the path.
"""

TYPE_CHECKING = False  # as typing has it; type checkers take the name for true

if TYPE_CHECKING:
    from typing import Any

    from hftune.config import Recipe as Recipe
    from hftune.config import load_recipe as load_recipe
    from hftune.errors import HftuneError as HftuneError
    from hftune.inference import predict as predict
    from hftune.pipeline import train as train

__version__ = "0.1.0"

_HOME = {
    "Recipe": "hftune.config",
    "load_recipe": "hftune.config",
    "HftuneError": "hftune.errors",
    "train": "hftune.pipeline",
    "predict": "hftune.inference",
}

__all__ = ["HftuneError", "Recipe", "__version__", "load_recipe", "predict", "train"]


def __getattr__(name: str) -> "Any":
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'hftune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
