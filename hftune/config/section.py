"""The base class of the recipe sections, and the list of their settings with kinds, expected values and defaults.

Sections are frozen, refuse unknown keys, and are documented by the docstring of each field. A section is one class, or
a union of classes that is discriminated on ``kind``.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hftune.config.training_arguments import argument_fields
from hftune.errors import HftuneError, closest

WHAT = "Model, data and method"
DATA = "Data"
TRAINING = "Training"
PUBLISHING = "Publishing"
"""Headings of ``--help``, in this order."""


class Flag:
    """How a setting appears on the command line, in addition to ``--`` and its own name.

    A setting with a group is listed by ``--help`` under that heading; the others by ``--help-all``.
    """

    def __init__(self, *names: str, group: str | None = None, metavar: str | None = None) -> None:
        """``names`` are further spellings, without the leading dashes; the first one is shown."""
        self.names, self.group, self.metavar = names, group, metavar


class Section(BaseModel):
    """Base of all recipe sections. Unknown keys are errors; field docstrings are the text of ``--help``."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        defer_build=True,  # --help reads the fields only, so validators are built on first use
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values. Unlike pydantic's, it refuses unknown names."""
        strange = [
            name for name in update or () if name not in type(self).model_fields and name not in self._passed_on()
        ]
        if strange:
            raise ValueError(f"{type(self).__name__} has no setting {', '.join(strange)}")
        return super().model_copy(update=update, deep=deep)

    def _passed_on(self) -> Collection[str]:
        """Names that can be set without being declared fields."""
        return ()

    def runs_code(self) -> Iterator[tuple[str, str, str]]:
        """Code of other people that these settings run: the setting, the code, and the flag that allows it."""
        return iter(())

    @classmethod
    def undeclared(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """Problems of keys that are not declared fields: key, message and hint.

        None by default: pydantic refuses such keys.
        """
        return iter(())


Wanted = TypeVar("Wanted", bound=Section)


def expect(section: Section, wanted: type[Wanted]) -> Wanted:
    """Narrow a section to one of its kinds."""
    if not isinstance(section, wanted):
        expected, got = (one.model_fields["kind"].default for one in (wanted, type(section)))
        raise HftuneError(
            f"expected settings of kind {expected}; got {got}",
            hint="use the command that belongs to this kind; `hftune --help` lists them",
        )
    return section


# ---- the settings of the section classes, as values for messages, as JSON schema and as a table ----

_PLAIN_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a type: the parts of a union, else the type itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(part for alternative in get_args(annotation) for part in members(alternative))
    return (annotation,)


def kinds(section_type: Any) -> dict[str, type[Section]]:
    """The classes of a section by their ``kind``; empty for a section that has no kinds.

    Args:
        section_type: One section class, or an (annotated) union of them.
    """
    return {
        kind: member
        for member in members(section_type)
        if "kind" in member.model_fields
        for kind in get_args(member.model_fields["kind"].annotation)
    }


def settings(section_type: type[Section], prefix: str = "") -> Iterator[str]:
    """Dotted names of everything that can be set in a section."""
    for name, field in section_type.model_fields.items():
        nested = [part for part in members(field.annotation) if isinstance(part, type) and issubclass(part, Section)]
        yield f"{prefix}{name}"
        for part in nested:
            yield from settings(part, f"{prefix}{name}.")


def flag_of(field: FieldInfo) -> Flag:
    """How a setting appears on the command line."""
    return next((part for part in field.metadata if isinstance(part, Flag)), Flag())


class BaseRecipe(Section):
    """A pydantic model whose fields are sections; lists the settings of their classes."""

    @classmethod
    def section_names(cls) -> tuple[str, ...]:
        """The sections, in the order in which they are written."""
        return tuple(cls.model_fields)

    @classmethod
    def section_kinds(cls, section: str) -> dict[str, type[Section]]:
        """The classes of a section by kind; empty for a section without kinds."""
        return kinds(cls.model_fields[section].annotation)

    @classmethod
    def section_class(cls, section: str, kind: str | None) -> type[Section]:
        """The class that checks a section."""
        if kind is not None:
            return cls.section_kinds(section)[kind]
        (only,) = members(cls.model_fields[section].annotation)
        assert isinstance(only, type) and issubclass(only, Section)
        return only

    @classmethod
    def defaults(cls, section: str, task: object = None) -> dict[str, str]:
        """Default settings of a section that is not in the file; they can depend on the kind of task."""
        raise NotImplementedError

    @classmethod
    def default_kind(cls, section: str, task: object = None) -> str:
        """The default kind of a section."""
        return cls.defaults(section, task)["kind"]

    @classmethod
    def all_settings(cls) -> dict[str, list[str | None]]:
        """Every dotted path of a recipe, with the kinds that have it (None for a section without kinds)."""
        found: dict[str, list[str | None]] = {}
        for section in cls.section_names():
            known: dict[Any, type[Section]] = cls.section_kinds(section) or {None: cls.section_class(section, None)}
            for kind, section_type in known.items():
                for path in settings(section_type, f"{section}."):
                    found.setdefault(path, []).append(kind)
        return found

    @classmethod
    def owners(cls, task: str | None) -> Iterator[tuple[str, type[Section]]]:
        """The section classes of a kind of task (None: of all), and the section of each.

        If two of them have a setting of the same name, the name alone means that of the first.
        """
        raise NotImplementedError

    @classmethod
    @functools.lru_cache
    def spellings(cls, task: str | None) -> Mapping[str, str]:
        """Every name of a setting without its section, with underscores → its dotted path.

        Args:
            task: The kind of task; None means all.
        """
        found = {"method": "method.kind"}
        # The first owner keeps a name: where task and train share one, the flag means the task's.
        for section, section_type in cls.owners(task):
            for name, field in section_type.model_fields.items():
                if name != "kind":
                    for spelling in (name, *flag_of(field).names):
                        found.setdefault(spelling.replace("-", "_"), f"{section}.{name}")
        for name in argument_fields():
            found.setdefault(name, f"train.{name}")
        return found


def expectation(field: FieldInfo) -> str:
    """The values that a setting takes, as text: "a whole number ≥ 1, or null"."""
    options = members(field.annotation)
    words = [_type_text(option) for option in options if option is not types.NoneType]
    bounds = [limit for part in field.metadata if (limit := _bound_text(part))]
    text = ", or ".join(words) + (" " + " and ".join(bounds) if bounds else "")
    return text + (", or null" if types.NoneType in options else "")


def takes_bool(field: FieldInfo) -> bool:
    """Whether a setting can be true or false."""
    return any(
        option in (bool, Any) or (get_origin(option) is Literal and {True, False} & set(get_args(option)))
        for option in members(field.annotation)
    )


def choices(field: FieldInfo) -> list[str]:
    """The values of a setting with a fixed list of them; empty for any other."""
    return [
        value
        for option in members(field.annotation)
        if get_origin(option) is Literal
        for value in get_args(option)
        if isinstance(value, str)
    ]


def _bound_text(bound: Any) -> str | None:
    match bound:
        case Ge():
            return f"≥ {bound.ge}"
        case Gt():
            return f"> {bound.gt}"
        case Le():
            return f"≤ {bound.le}"
        case Lt():
            return f"< {bound.lt}"
        case _:
            return None


def _type_text(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(value) for value in arguments)
    if origin in (tuple, list, set, frozenset):
        return f"a list ({_type_text(arguments[0])} each)"
    if origin is dict:
        return f"a mapping of names to values ({_type_text(arguments[1])} each)"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "a mapping of settings"
    return _PLAIN_NAMES.get(annotation, "a value")


# ---- schema and table ----


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings."""

    path: str
    """Dotted path."""
    kind: str
    """The kind that has it; empty in a section without kinds."""
    expects: str
    """The values it takes."""
    default: str
    """Its default, as YAML."""
    meaning: str
    """The docstring of the field."""


def schema(recipe: type[BaseRecipe], section: str | None = None) -> dict[str, Any]:
    """JSON schema of a recipe, or of one section, with the meaning of every setting."""
    if section is None:
        return recipe.model_json_schema()
    field = recipe.model_fields[_known(recipe, section)]
    # A model with this one field: pydantic then collects the definitions that the field refers to, and no others.
    fields: dict[str, Any] = {section: (field.annotation, field)}
    part: type[BaseModel] = create_model("Part", **fields)
    whole = part.model_json_schema()
    return {**whole["properties"][section], "$defs": whole["$defs"]}


def setting_rows(recipe: type[BaseRecipe], section: str | None = None) -> list[Setting]:
    """Every setting of a recipe, or of one section, kind by kind."""
    names = recipe.section_names() if section is None else (_known(recipe, section),)
    return [
        Setting(
            f"{name}.{key}",
            kind or "",
            expectation(field),
            default_text(field),
            (field.description or "").strip(),
        )
        for name in names
        for kind in recipe.section_kinds(name) or [None]
        for key, field in recipe.section_class(name, kind).model_fields.items()
        if key != "kind"
    ]


def default_text(field: FieldInfo) -> str:
    """The default of a setting as YAML would write it."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False).strip('"')


def _known(recipe: type[BaseRecipe], section: str) -> str:
    if section not in recipe.section_names():
        near = closest(section, recipe.section_names())
        raise HftuneError(
            f"expected a section of a recipe ({', '.join(recipe.section_names())}); got {section!r}",
            hint=f"Did you mean {near}?" if near else "Leave --section out to see all of them.",
        )
    return section
