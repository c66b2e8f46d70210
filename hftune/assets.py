"""Where the recipes and the embedded datasets lie: beside the package in a checkout, inside it in a wheel.

Called by ``hftune.config.load`` and ``hftune.data``; knows nothing of what the files hold.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def asset_root() -> Path:
    """The folder that holds ``recipes/`` and ``data/``."""
    inside_wheel = PACKAGE / "_assets"
    return inside_wheel if inside_wheel.is_dir() else PACKAGE.parent


def recipes_dir() -> Path:
    """The folder of the shipped recipes."""
    return asset_root() / "recipes"


def embedded_data_dir() -> Path:
    """The folder of the embedded datasets, one subfolder each."""
    return asset_root() / "data"
