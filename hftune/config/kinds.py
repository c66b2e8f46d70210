"""What a recipe may hold, read off the section classes: kinds, settings, expected values. Used by ``load``.

A section is one class or a union of classes told apart by ``kind``; nothing here changes when one is added.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from hftune.config.recipe import Recipe
from hftune.config.section import Flag, Section
from hftune.config.task import Task
from hftune.config.training_arguments import argument_fields

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


def section_names() -> tuple[str, ...]:
    """The sections of a recipe, in the order in which they are written."""
    return tuple(Recipe.model_fields)


def section_kinds(section: str) -> dict[str, type[Section]]:
    """The classes of a recipe's section by kind; empty for a section without kinds."""
    return kinds(Recipe.model_fields[section].annotation)


def default_kind(section: str, task: object = None) -> str:
    """The kind that a section takes when none is stated; that of ``data`` follows the task's kind.

    Args:
        section: Name of the section.
        task: The task's kind as the user gave it; the default one where it is none or unknown.
    """
    if section == "data":
        return data_kind(task)
    made: Section = Recipe.model_fields[section].get_default(call_default_factory=True)
    kind = made.model_dump()["kind"]
    assert isinstance(kind, str)
    return kind


def data_kind(task: object) -> str:
    """The kind of data that a kind of task reads."""
    return task_class(task).data_kind


def task_class(kind: object) -> type[Task]:
    """The settings of a kind of task; of the default one where there is no such kind."""
    known = section_kinds("task")
    owner = known[str(kind)] if kind in list(known) else known[default_kind("task")]
    assert issubclass(owner, Task)
    return owner


def section_class(section: str, kind: str | None) -> type[Section]:
    """The class that checks a section."""
    if kind is not None:
        return section_kinds(section)[kind]
    (only,) = members(Recipe.model_fields[section].annotation)
    assert isinstance(only, type) and issubclass(only, Section)
    return only


def settings(section_type: type[Section], prefix: str = "") -> Iterator[str]:
    """Dotted names of everything that can be set in a section."""
    for name, field in section_type.model_fields.items():
        nested = [part for part in members(field.annotation) if isinstance(part, type) and issubclass(part, Section)]
        yield f"{prefix}{name}"
        for part in nested:
            yield from settings(part, f"{prefix}{name}.")


def all_settings() -> dict[str, list[str | None]]:
    """Every dotted path that a recipe knows, with the kinds that know it (None where there are none)."""
    found: dict[str, list[str | None]] = {}
    for section in section_names():
        known: dict[Any, type[Section]] = section_kinds(section) or {None: section_class(section, None)}
        for kind, section_type in known.items():
            for path in settings(section_type, f"{section}."):
                found.setdefault(path, []).append(kind)
    return found


def flag_of(field: FieldInfo) -> Flag:
    """How a setting appears on the command line."""
    return next((part for part in field.metadata if isinstance(part, Flag)), Flag())


def owners(task: str | None) -> Iterator[tuple[str, type[Section]]]:
    """The section classes of a kind of task (of any where None), and the section of each.

    Where two of them have a setting of the same name, the name alone means that of the first.
    """
    tasks = section_kinds("task") if task is None else {task: section_kinds("task")[task]}
    data = section_kinds("data") if task is None else {"": section_kinds("data")[data_kind(task)]}
    for section, known in (("task", tasks), ("data", data), ("method", section_kinds("method"))):
        for section_type in known.values():
            yield section, section_type
    for section in ("train", "model", "hub"):
        yield section, section_class(section, None)


def spellings(task: str | None) -> Mapping[str, str]:
    """Every name by which a setting can be given without its section, with underscores, and its dotted path.

    Args:
        task: The kind of task; None knows the settings of all.
    """
    return _spellings(Recipe, task)


@functools.lru_cache
def _spellings(recipe: type[Recipe], task: str | None) -> Mapping[str, str]:
    """The names of the settings of this class; help asks for them with every flag."""
    found = {"method": "method.kind"}
    for section, section_type in owners(task):
        for name, field in section_type.model_fields.items():
            if name != "kind":
                for spelling in (name, *flag_of(field).names):
                    found.setdefault(spelling.replace("-", "_"), f"{section}.{name}")
    for name in argument_fields():
        found.setdefault(name, f"train.{name}")
    return found


def expectation(field: FieldInfo) -> str:
    """What a setting takes, in words: "a whole number ≥ 1, or null"."""
    options = members(field.annotation)
    words = [_in_words(option) for option in options if option is not types.NoneType]
    bounds = [limit for part in field.metadata if (limit := _bound_in_words(part))]
    text = ", or ".join(words) + (" " + " and ".join(bounds) if bounds else "")
    return text + (", or null" if types.NoneType in options else "")


def takes_bool(field: FieldInfo) -> bool:
    """Whether true and false are among a setting's values."""
    return any(
        option in (bool, Any) or (get_origin(option) is Literal and {True, False} & set(get_args(option)))
        for option in members(field.annotation)
    )


def choices(field: FieldInfo) -> list[str]:
    """The words among which a setting chooses; empty where it is not a choice."""
    return [
        value
        for option in members(field.annotation)
        if get_origin(option) is Literal
        for value in get_args(option)
        if isinstance(value, str)
    ]


def _bound_in_words(bound: Any) -> str | None:
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


def _in_words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(value) for value in arguments)
    if origin in (tuple, list, set, frozenset):
        return f"a list ({_in_words(arguments[0])} each)"
    if origin is dict:
        return f"a mapping of names to values ({_in_words(arguments[1])} each)"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "a mapping of settings"
    return _PLAIN_NAMES.get(annotation, "a value")
