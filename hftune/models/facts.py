"""hftune.json beside the weights: what neither the weights nor the tokenizer can say.

Written by whatever saves a model, read by whatever loads one, from a run of ours or from anybody's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from transformers.utils import cached_file

from hftune.files import Damaged, read_json

CARD = "hftune.json"
ABSENT: Any = None
"""Stands for a key that is not there; each kind of model has its own."""


class Facts(BaseModel):
    """What the entries are that we read; there may be others."""

    model_config = ConfigDict(extra="allow", strict=True)

    task: str = ABSENT
    labels: Annotated[list[str], Field(min_length=1)] = ABSENT
    max_length: Annotated[int, Field(ge=1, lt=2**31)] = ABSENT
    truncation: Literal["longest_first", "only_first", "only_second"] = ABSENT
    pairs: bool | None = None
    longest_answer: Annotated[int, Field(ge=1, lt=2**31)] = ABSENT
    document_start: bool = ABSENT


def saved_facts(location: str, revision: str | None = None) -> dict[str, Any]:
    """What was noted beside the weights, in a folder or on the Hub; empty for a model that is not ours.

    Raises:
        Damaged: It is not what we write.
    """
    found = cached_file(
        location,
        CARD,
        revision=revision,
        # Most models have no such file, and offline nothing can be asked: both mean the model's own defaults.
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if found is None:
        return {}
    facts = read_json(Path(found))
    try:
        Facts.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Damaged(Path(found), f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    return facts
