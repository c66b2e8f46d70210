"""Every setting of a recipe and what it means: as JSON schema for editors, as rows for people.

Used by ``hftune recipes schema``; the sentences are the ones under the fields of the section classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hftune.config.kinds import expectation, section_class, section_kinds, section_names
from hftune.config.load import BY_METHOD
from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.suggest import closest


@dataclass(frozen=True)
class Setting:
    """One setting, for people."""

    path: str
    """Dotted path."""
    kind: str
    """The kind that has it; empty in a section without kinds."""
    expects: str
    """What it takes."""
    default: str
    """What it is when nobody sets it, as YAML would hold it."""
    meaning: str
    """The sentence under the field."""


def schema(section: str | None = None) -> dict[str, Any]:
    """JSON schema of a recipe, or of one section, with the meaning of every setting.

    Raises:
        HftuneError: There is no such section.
    """
    whole = Recipe.model_json_schema()
    if section is None:
        by_method = {kind: {"type": "object"} for kind in section_kinds("method")}
        whole["properties"][BY_METHOD] = {
            "type": "object",
            "description": "Settings that count for one method only: method, section, setting.",
            "properties": by_method,
            "additionalProperties": False,
        }
        return whole
    _known(section)
    part = dict(whole["properties"][section])
    reachable = _definitions(part, whole["$defs"])
    return {**part, "$defs": {name: whole["$defs"][name] for name in whole["$defs"] if name in reachable}}


def setting_rows(section: str | None = None) -> list[Setting]:
    """Every setting of a recipe, or of one section, kind by kind.

    Raises:
        HftuneError: There is no such section.
    """
    names = section_names() if section is None else (_known(section),)
    return [
        Setting(
            f"{name}.{key}",
            kind or "",
            expectation(field),
            _default(field),
            (field.description or "").strip(),
        )
        for name in names
        for kind in section_kinds(name) or [None]
        for key, field in section_class(name, kind).model_fields.items()
        if key != "kind"
    ]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False).strip('"')


def _known(section: str) -> str:
    if section not in section_names():
        near = closest(section, section_names())
        raise HftuneError(
            f"expected a section of a recipe ({', '.join(section_names())}); got {section!r}",
            hint=f"Did you mean {near}?" if near else "Leave --section out to see all of them.",
        )
    return section


def _definitions(part: Any, known: Mapping[str, Any]) -> set[str]:
    """Names of the definitions that a piece of schema refers to, directly or not."""
    if isinstance(part, dict):
        found: set[str] = set()
        if isinstance(part.get("$ref"), str):
            name = part["$ref"].rpartition("/")[2]
            found = {name} | _definitions(known[name], known)
        return found.union(*(_definitions(value, known) for value in part.values()))
    if isinstance(part, list):
        return set().union(*(_definitions(value, known) for value in part))
    return set()
