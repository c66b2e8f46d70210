"""From plain values to the sections of a recipe: flags and ``--set``, consent, and a check that finds every problem.

A whole section as a value is merged into the section; a whole setting is replaced. If a ``kind`` changes,
settings of the file that belong to the old kind are left out.

A recipe, a study and a run directory may come from anybody, so a file can request to run code from other people but not
allow it: a flag or a keyword of ``hftune.train`` must.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hftune.config.document import Problem, RecipeError, parse
from hftune.config.section import BaseRecipe, Section, choices, expectation, members, settings, takes_bool
from hftune.errors import HftuneError, closest

logger = logging.getLogger(__name__)


def parse_sets(sets: Sequence[str]) -> tuple[list[tuple[str, Any]], list[Problem]]:
    """Keys and values of ``a.b=c`` texts, the value read as YAML."""
    pairs: list[tuple[str, Any]] = []
    problems: list[Problem] = []
    for text in sets:
        key, equals, written = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            problems.append(
                Problem("", f"expected KEY=VALUE, got {text!r}", "Write --set train.num_train_epochs=2.", "--set")
            )
            continue
        try:
            pairs.append((key, parse(written, "--set")[0]))
        except RecipeError as error:
            problems += [replace(problem, path=key) for problem in error.problems]
    return pairs, problems


def plain(value: Any) -> Any:
    """A value from Python as a YAML reader would return it.

    Raises:
        TypeError: A recipe file can't contain this type.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Integral | Real):  # of NumPy
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    raise TypeError(f"expected a plain value (text, number, list, mapping …); got {type(value).__name__}")


def nested(pairs: Sequence[tuple[str, Any]], below: dict[str, Any] | None = None) -> dict[str, Any]:
    """Dotted keys as nested mappings on top of ``below``; later pairs override earlier ones."""
    result = {} if below is None else below
    for key, value in pairs:
        *parents, leaf = key.split(".")
        place = result
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        if not parents and isinstance(value, dict) and isinstance(place.get(leaf), dict):
            place[leaf] |= deepcopy(value)
        else:
            place[leaf] = deepcopy(value)  # a later pair can change what is inside it
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys, the inverse of ``nested``."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def merge(
    recipe: type[BaseRecipe], document: Mapping[str, Any], pairs: Sequence[tuple[str, Any]], task: str | None = None
) -> dict[str, Any]:
    """The settings of the document, overridden by the given ones.

    Args:
        recipe: The class whose fields are the sections.
        document: Section name → settings, as the file states them.
        pairs: Dotted keys and values, lowest precedence first.
        task: The kind of task if the document has none.
    """
    given, below = nested(pairs), deepcopy(dict(document))
    # Settings of a kind that is replaced go first: `--method lora` over a recipe with prefix's num_virtual_tokens must
    # not become a LoRA with virtual tokens. The kind of the data can change with the task alone.
    before = stated_kind(document, "task") or task
    after = stated_kind(given, "task") or before
    for section, stated in below.items():
        # A section that is not a mapping is kept: the check reports it.
        if isinstance(stated, dict) and section in recipe.section_names() and recipe.section_kinds(section):
            was = stated_kind(document, section) or recipe.default_kind(section, before)
            now = stated_kind(given, section) or stated_kind(document, section) or recipe.default_kind(section, after)
            below[section] = _of_the_same_kind(recipe, section, stated, was, now)
    return nested(pairs, below)


def stated_kind(values: Mapping[str, Any], section: str) -> str | None:
    """The kind of a section, or None."""
    settings = values.get(section)
    kind = settings.get("kind") if isinstance(settings, Mapping) else None
    return kind if isinstance(kind, str) else None


def _of_the_same_kind(
    recipe: type[BaseRecipe], section: str, below: dict[str, Any], was: Any, now: Any
) -> dict[str, Any]:
    """The settings of the file that the new kind of the section has too.

    They are kept if one of the two kinds extends the other (joint data are labeled data).
    """
    if was == now:
        return below
    known = recipe.section_kinds(section)
    mine, other = (known.get(kind) if isinstance(kind, str) else None for kind in (now, was))
    kept: dict[str, Any] = {}
    if mine is not None and other is not None and (issubclass(mine, other) or issubclass(other, mine)):
        kept = {key: value for key, value in below.items() if key != "kind" and key in mine.model_fields}
    left_out = sorted(set(below) - {"kind"} - kept.keys())
    if left_out:
        logger.info("%s.kind is now %s: the recipe's %s for %s left out", section, now, ", ".join(left_out), was)
    return kept


# ---- consent ----


def typed_keys(pairs: Sequence[tuple[str, Any]]) -> set[str]:
    """The settings, as section.key, that these pairs set; a value can be a whole section."""
    return {f"{name}.{key}" for name, given in nested(pairs).items() if isinstance(given, dict) for key in given}


def refuse_unasked(recipe: BaseRecipe, typed: Collection[str]) -> None:
    """Refuse a recipe that requests to run code, unless a flag allows it.

    Args:
        recipe: As it was resolved.
        typed: The settings that were given on the command line, as flags or with ``--set``.
    """
    for name, section in recipe:
        assert isinstance(section, Section)
        for key, code, flag in section.runs_code():
            if f"{name}.{key}" not in typed:
                raise HftuneError(
                    f"the recipe requests to run {code}, which a file can't allow, because files can come from anybody",
                    hint=f"if you trust its author, allow it: {flag}",
                )


# ---- validation: every section on its own, so that all problems are reported at once ----


def check(recipe: type[BaseRecipe], values: Mapping[str, Any]) -> tuple[dict[str, Section], list[Problem]]:
    """Check each section separately, so that one problem does not hide another.

    Args:
        recipe: The class whose fields are the sections.
        values: Section name → settings.

    Returns:
        The valid sections, and the problems of the others.
    """
    known, sections = recipe.section_names(), dict[str, Section]()
    problems = [
        Problem(name, "unknown section", _suggestion(recipe, name, name, known)) for name in values if name not in known
    ]
    stated_task = values.get("task")
    task = stated_task.get("kind") if isinstance(stated_task, Mapping) else None
    for name in known:
        given = values.get(name)
        if given is not None and not isinstance(given, Mapping):
            problems.append(_not_a_section(recipe, name, given))
            continue
        made, found = _check_section(recipe, name, {**recipe.defaults(name, task), **(given or {})})
        problems += found
        if made is not None:
            sections[name] = made
    return sections, problems


def got(value: Any) -> str:
    """A value for an error message: short, with its type if it is not obvious."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _not_a_section(recipe: type[BaseRecipe], name: str, given: Any) -> Problem:
    key = next(iter(recipe.defaults(name)), None)
    hint = f"Did you mean {name}.{key}: {given}?" if key and isinstance(given, str) else ""
    return Problem(name, f"expected settings below this key, got {got(given)}", hint)


def _check_section(recipe: type[BaseRecipe], name: str, given: dict[str, Any]) -> tuple[Section | None, list[Problem]]:
    known, kind = recipe.section_kinds(name), None
    if known:
        kind = given["kind"]
        if kind not in list(known):  # a list, because a kind from a file can be anything, also unhashable
            near = closest(kind, known) if isinstance(kind, str) else None
            message = f"expected one of {', '.join(known)}; got {got(kind)}"
            return None, [Problem(f"{name}.kind", message, f"Did you mean {near}?" if near else "")]
    section_type = recipe.section_class(name, kind)
    # What is known to be wrong is taken out before pydantic looks, so that each problem is reported once, by us.
    problems = list(_bools_for_numbers(name, section_type, given))
    for key, message, hint in list(section_type.undeclared(given)):
        path = f"{name}.{key}"
        if not hint and not message.startswith("can't"):
            hint = _suggestion(recipe, key, path, settings(section_type, f"{name}."))
        problems.append(Problem(path, message, hint))
    for problem in problems:
        given.pop(problem.path.partition(".")[2])
    try:
        return section_type.model_validate(given), problems
    except ValidationError as error:
        return None, [*problems, *_problems(error, recipe, name, kind, section_type)]


def _bools_for_numbers(name: str, section_type: type[Section], given: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse true and false as numbers: pydantic would read true as 1."""
    for key, value in given.items():
        field = section_type.model_fields.get(key)
        if field is not None and isinstance(value, bool) and not takes_bool(field):
            yield Problem(f"{name}.{key}", f"expected {expectation(field)}; got {got(value)}")


def _problems(
    error: ValidationError, recipe: type[BaseRecipe], name: str, kind: str | None, section_type: type[Section]
) -> Iterator[Problem]:
    seen: set[str] = set()
    for details in error.errors(include_url=False):
        place = [str(part) for part in details["loc"]]
        path = ".".join([name, *place])
        if details["type"] == "extra_forbidden":
            label = f"{name} of kind {kind}" if len(recipe.section_kinds(name)) > 1 else name
            what = f"{label} has no such setting" if path in recipe.all_settings() else f"unknown key in {label}"
            parent = path.rpartition(".")[0]
            siblings = {one for one in settings(section_type, f"{name}.") if one.rpartition(".")[0] == parent}
            yield Problem(path, what, _suggestion(recipe, place[-1], path, siblings))
            continue
        field = section_type.model_fields.get(place[0]) if place else None
        if field is not None and _is_choice_of_types(field):
            # Pydantic reports one error per alternative of a union; the setting is reported once.
            path = f"{name}.{place[0]}"
            if path not in seen:
                seen.add(path)
                yield _bad_value(path, field, details, _value_at(error, place[0], details))
        elif field is not None and len(place) == 1 and not details["type"].endswith(("value_error", "assertion_error")):
            yield _bad_value(path, field, details, details["input"])
        else:
            message = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            shown = f"; got {got(details['input'])}" if place else ""
            yield Problem(path, f"{message[:1].lower()}{message[1:]}{shown}")


def _is_choice_of_types(field: FieldInfo) -> bool:
    return sum(option is not type(None) for option in members(field.annotation)) > 1


def _value_at(error: ValidationError, key: str, details: ErrorDetails) -> Any:
    """The whole value of a setting; for a union pydantic reports the part that one alternative refused."""
    whole = [found["input"] for found in error.errors() if found["loc"][0] == key and len(found["loc"]) <= 2]
    return whole[0] if whole else details["input"]


def _bad_value(path: str, field: FieldInfo, details: ErrorDetails, value: Any) -> Problem:
    near = closest(value, choices(field)) if isinstance(value, str) else None
    hint = f"Did you mean {near}?" if near else ""
    if isinstance(value, str) and details["type"] in ("tuple_type", "list_type"):
        hint = f"Write [{value}] for a list of one."
    elif details["type"] == "string_type":
        hint = "Put quotes around it to make it text."
    return Problem(path, f"expected {expectation(field)}; got {got(value)}", hint)


def _suggestion(recipe: type[BaseRecipe], word: str, path: str, siblings: Iterable[str]) -> str:
    """Suggest where a misplaced or misspelled key belongs: here, in another kind or in another section."""
    everywhere, section = recipe.all_settings(), path.partition(".")[0]
    if path in everywhere:
        owners = ", ".join(str(kind) for kind in everywhere[path])
        flag = " (--method; --use-peft is lora)" if section == "method" else ""
        return f"It belongs to kind {owners}: set {section}.kind{flag} to it."
    names = dict(recipe.spellings(None))
    here = {setting.rpartition(".")[2]: setting for setting in siblings}
    same = {setting.rpartition(".")[2]: setting for setting in everywhere if setting.startswith(f"{section}.")}
    elsewhere = {setting.rpartition(".")[2]: setting for setting in reversed(everywhere)} | here
    inside = {setting for name, setting in names.items() if len(word) >= 4 and word in name}
    # From the surest guess to the vaguest. First comes one wrong letter in a setting of any kind of this section; a
    # word inside several names is no suggestion.
    guesses = [(same, 0.92), (here, 0.7), (names, 1.0), (same, 0.75), (names, 0.8)]
    guesses += [({word: inside.pop()} if len(inside) == 1 else {}, 1.0), (elsewhere, 0.75), (here, 0.6)]
    for known, cutoff in guesses:
        if near := closest(word, known, cutoff):
            return f"Did you mean {known[near]}?"
    return f"Known here: {', '.join(sorted(here))}."
