"""hftune: fine-tuning for the Hugging Face ecosystem. ``train``, ``load``, ``sweep``, ``compare``: the Python API.

Names are imported when they are first used, so that ``import hftune`` costs nothing. This file imports nothing at all,
not even ``typing`` or ``__future__``: under ``python -m hftune`` the current folder is still on the path when it runs,
and a typing.py in that folder would be imported instead. ``hftune.__main__`` removes the folder from the path.
"""

TYPE_CHECKING = False  # as typing has it; type checkers take the name for true

if TYPE_CHECKING:
    from typing import Any

    from hftune.api.run import Page as Page
    from hftune.api.run import Run as Run
    from hftune.api.run import RunGroup as RunGroup
    from hftune.api.run import evaluate as evaluate
    from hftune.api.run import load as load
    from hftune.api.run import predict as predict
    from hftune.api.study import Comparison as Comparison
    from hftune.api.study import Study as Study
    from hftune.api.study import compare as compare
    from hftune.api.study import sweep as sweep
    from hftune.api.training import Prepared as Prepared
    from hftune.api.training import prepare as prepare
    from hftune.api.training import train as train
    from hftune.errors import HftuneError as HftuneError
    from hftune.errors import Interrupted as Interrupted
    from hftune.errors import RunFailed as RunFailed
    from hftune.recipe import Recipe as Recipe
    from hftune.recipe import load_recipe as load_recipe

__version__ = "0.1.0"

_HOME = {
    "train": "hftune.api.training",
    "prepare": "hftune.api.training",
    "Prepared": "hftune.api.training",
    "load": "hftune.api.run",
    "evaluate": "hftune.api.run",
    "Run": "hftune.api.run",
    "RunGroup": "hftune.api.run",
    "Page": "hftune.api.run",
    "sweep": "hftune.api.study",
    "compare": "hftune.api.study",
    "Study": "hftune.api.study",
    "Comparison": "hftune.api.study",
    "predict": "hftune.api.run",
    "Recipe": "hftune.recipe",
    "load_recipe": "hftune.recipe",
    "HftuneError": "hftune.errors",
    "RunFailed": "hftune.errors",
    "Interrupted": "hftune.errors",
}

__all__ = [
    "Comparison",
    "HftuneError",
    "Interrupted",
    "Page",
    "Prepared",
    "Recipe",
    "Run",
    "RunFailed",
    "RunGroup",
    "Study",
    "__version__",
    "compare",
    "evaluate",
    "load",
    "load_recipe",
    "predict",
    "prepare",
    "sweep",
    "train",
]


def __dir__() -> "list[str]":
    """The public names, imported or not."""
    return __all__


def __getattr__(name: str) -> "Any":
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'hftune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
