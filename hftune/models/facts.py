"""hftune.json beside the weights: what neither the weights nor the tokenizer can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from hftune.files import read_json

CARD = "hftune.json"


def saved_facts(location: str, revision: str | None = None) -> dict[str, Any]:
    """What was noted beside the weights, in a folder or on the Hub; empty for a model that is not ours."""
    found = cached_file(
        location,
        CARD,
        revision=revision,
        # Most models have no such file, and offline nothing can be asked: both mean the model's own defaults.
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return read_json(Path(found)) if found is not None else {}
