"""Plain values to section objects, with every problem found on the way. Used by ``load``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hftune.config.kinds import (
    all_settings,
    choices,
    data_kind,
    default_kind,
    expectation,
    members,
    section_class,
    section_kinds,
    section_names,
    settings,
    spellings,
    takes_bool,
    task_class,
)
from hftune.config.problems import Problem
from hftune.config.section import Section
from hftune.config.task import Task
from hftune.suggest import closest

Source = Callable[[str], str]
"""Gives the origin of a dotted path, for the reader of an error."""


def check(values: Mapping[str, Any], source: Source) -> tuple[dict[str, Section], list[Problem]]:
    """Check all sections, each on its own, so that one problem does not hide another.

    Args:
        values: Section name → settings.
        source: Where the value of a dotted path came from.

    Returns:
        The sections that are in order, and what is wrong with the others.
    """
    sections: dict[str, Section] = {}
    problems: list[Problem] = [
        Problem(name, "unknown section", _suggestion(name, name, section_names()), source(name))
        for name in values
        if name not in section_names()
    ]
    stated_task = values.get("task")
    task = stated_task.get("kind") if isinstance(stated_task, Mapping) else None
    for name in section_names():
        given = values.get(name)
        if given is not None and not isinstance(given, Mapping):
            problems.append(_not_a_section(name, given, source(name)))
            continue
        if name == "model":
            given = {"model_name_or_path": task_class(task).default_model, **(given or {})}
        made, found = _check_section(
            name, dict(given or {}), source, default_kind(name, task) if section_kinds(name) else None
        )
        problems.extend(found)
        if made is not None:
            sections[name] = made
    return sections, problems + list(_ill_suited(sections, source))


def got(value: Any) -> str:
    """A value as the reader of an error should see it: short, and with its type where that is the trouble."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _not_a_section(name: str, given: Any, source: str) -> Problem:
    key = "kind" if section_kinds(name) else "model_name_or_path" if name == "model" else None
    hint = f"Did you mean {name}.{key}: {given}?" if key and isinstance(given, str) else ""
    return Problem(name, f"expected settings below this key, got {got(given)}", hint, source)


def _ill_suited(sections: Mapping[str, Section], source: Source) -> Iterable[Problem]:
    """Data of a kind that the task does not read."""
    task, data = sections.get("task"), sections.get("data")
    if not isinstance(task, Task) or data is None:
        return
    fitting, given = data_kind(task.kind), data.model_dump()["kind"]
    if given != fitting:
        others = [kind for kind in section_kinds("task") if data_kind(kind) == given]
        hint = f"Leave data.kind out, or set task.kind to {' or '.join(others)}." if others else "Leave data.kind out."
        message = f"task.kind {task.kind} reads data of kind {fitting}; got {given}"
        yield Problem("data.kind", message, hint, source("data.kind"))


def _check_section(
    name: str, given: dict[str, Any], source: Source, default: str | None
) -> tuple[Section | None, list[Problem]]:
    known = section_kinds(name)
    kind: str | None = None
    if known:
        asked = given.setdefault("kind", default)
        if asked not in list(known):
            return None, [_unknown_kind(name, asked, list(known), source)]
        kind = asked
    section_type = section_class(name, kind)
    problems = list(_bools_for_numbers(name, section_type, given, source))
    for key, message, hint in list(section_type.undeclared(given)):
        path = f"{name}.{key}"
        if not hint and not message.startswith("can't"):
            hint = _suggestion(key, path, settings(section_type, f"{name}."))
        problems.append(Problem(path, message, hint, source(path)))
    for problem in problems:
        given.pop(problem.path.partition(".")[2])
    try:
        return section_type.model_validate(given), problems
    except ValidationError as error:
        problems.extend(_problems(error, name, kind, section_type, source))
        return None, problems


def _unknown_kind(name: str, asked: Any, known: list[str], source: Source) -> Problem:
    near = closest(asked, known) if isinstance(asked, str) else None
    expected = f"expected one of {', '.join(known)}"
    hint = f"Did you mean {near}?" if near else ""
    return Problem(f"{name}.kind", f"{expected}; got {got(asked)}", hint, source(f"{name}.kind"))


def _bools_for_numbers(
    name: str, section_type: type[Section], given: Mapping[str, Any], source: Source
) -> Iterable[Problem]:
    """Pydantic reads true as 1; nobody means a batch size of true."""
    for key, value in given.items():
        field = section_type.model_fields.get(key)
        if field is not None and isinstance(value, bool) and not takes_bool(field):
            path = f"{name}.{key}"
            yield Problem(path, f"expected {expectation(field)}; got {got(value)}", source=source(path))


def _problems(
    error: ValidationError, name: str, kind: str | None, section_type: type[Section], source: Source
) -> Iterable[Problem]:
    seen: set[str] = set()
    for details in error.errors(include_url=False):
        place = [str(part) for part in details["loc"]]
        path = ".".join([name, *place])
        if details["type"] == "extra_forbidden":
            yield _unknown_key(path, place, name, kind, section_type, source)
            continue
        field = section_type.model_fields.get(place[0]) if place else None
        if field is not None and _is_choice_of_types(field):
            # Pydantic reports each alternative that did not fit; the reader wants the setting, once.
            path = f"{name}.{place[0]}"
            if path in seen:
                continue
            seen.add(path)
            yield _bad_value(path, field, details, _value_at(error, place[0], details), source)
        elif field is not None and len(place) == 1 and not details["type"].endswith(("value_error", "assertion_error")):
            yield _bad_value(path, field, details, details["input"], source)
        else:
            message = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            message = message[:1].lower() + message[1:]
            shown = f"; got {got(details['input'])}" if place else ""
            yield Problem(path, f"{message}{shown}", source=source(path))


def _is_choice_of_types(field: FieldInfo) -> bool:
    return sum(option is not type(None) for option in members(field.annotation)) > 1


def _value_at(error: ValidationError, key: str, details: ErrorDetails) -> Any:
    """The whole value of a setting, where pydantic reports the part of it that one alternative disliked."""
    whole = [found["input"] for found in error.errors() if found["loc"][0] == key and len(found["loc"]) <= 2]
    return whole[0] if whole else details["input"]


def _bad_value(path: str, field: FieldInfo, details: ErrorDetails, value: Any, source: Source) -> Problem:
    near = closest(value, choices(field)) if isinstance(value, str) else None
    hint = f"Did you mean {near}?" if near else ""
    if isinstance(value, str) and details["type"] in ("tuple_type", "list_type"):
        hint = f"Write [{value}] for a list of one."
    elif details["type"] == "string_type":
        hint = "Put quotes around it to make it text."
    return Problem(path, f"expected {expectation(field)}; got {got(value)}", hint, source(path))


def _unknown_key(
    path: str, place: list[str], name: str, kind: str | None, section_type: type[Section], source: Source
) -> Problem:
    here = set(settings(section_type, f"{name}."))
    label = f"{name} of kind {kind}" if kind and len(section_kinds(name)) > 1 else name
    parent = path.rpartition(".")[0]
    siblings = [setting for setting in here if setting.rpartition(".")[0] == parent]
    what = f"{label} has no such setting" if path in all_settings() else f"unknown key in {label}"
    return Problem(path, what, _suggestion(place[-1], path, siblings), source(path))


def _suggestion(word: str, path: str, siblings: Iterable[str]) -> str:
    """Where a misplaced or misspelt key belongs: here, in another kind, in another section, or nowhere."""
    siblings = list(siblings)
    everywhere = all_settings()
    if path in everywhere:
        owners = ", ".join(str(kind) for kind in everywhere[path])
        flag = " (--method; --use-peft is lora)" if path.startswith("method.") else ""
        return f"It belongs to kind {owners}: set {path.partition('.')[0]}.kind{flag} to it."
    by_leaf = {setting.rpartition(".")[2]: setting for setting in siblings}
    same = {name.rpartition(".")[2]: name for name in everywhere if name.startswith(f"{path.partition('.')[0]}.")}
    if near := closest(word, same, cutoff=0.92):  # one letter is wrong, in a setting of any kind
        return f"Did you mean {same[near]}?"
    if near := closest(word, by_leaf, cutoff=0.7):
        return f"Did you mean {by_leaf[near]}?"
    names = spellings(None)
    if word in names:
        return f"Did you mean {names[word]}?"
    if near := closest(word, same, cutoff=0.75):
        return f"Did you mean {same[near]}?"
    if near := closest(word, names, cutoff=0.8):
        return f"Did you mean {names[near]}?"
    inside = {path for name, path in names.items() if len(word) >= 4 and word in name}
    if len(inside) == 1:
        return f"Did you mean {inside.pop()}?"
    elsewhere = {setting.rpartition(".")[2]: setting for setting in reversed(everywhere)}
    if near := closest(word, elsewhere, cutoff=0.75) or closest(word, by_leaf):
        return f"Did you mean {by_leaf.get(near) or elsewhere[near]}?"
    return f"Known here: {', '.join(sorted(by_leaf))}."
