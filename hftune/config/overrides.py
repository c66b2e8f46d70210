"""What flags and ``--set`` change in a recipe's settings. Used by ``load``.

A whole section as a value is merged into the section; a whole setting is replaced. Where a ``kind`` changes,
the file's other settings of that section are left out where they belong to another kind.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from hftune.config.document import DocumentError, parse
from hftune.config.kinds import default_kind, section_kinds, section_names
from hftune.config.problems import Problem

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
        except DocumentError as error:
            found = error.problem
            problems.append(Problem(key, found.message, found.hint, found.source))
    return pairs, problems


def plain(value: Any) -> Any:
    """A value from Python as YAML could have held it.

    Raises:
        TypeError: It is of a kind that a recipe file can't hold.
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


def nested(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Dotted keys as nested mappings; later pairs win over earlier ones."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        *parents, leaf = key.split(".")
        place = result
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        if not parents and isinstance(value, dict) and isinstance(place.get(leaf), dict):
            place[leaf] |= value
        else:
            place[leaf] = value
    return result


def merge(document: Mapping[str, Any], pairs: Sequence[tuple[str, Any]], task: str | None = None) -> dict[str, Any]:
    """The document's settings with the given ones on top.

    Args:
        document: Section name → settings, as the file states them.
        pairs: Dotted keys and values, weakest first.
        task: The task kind of a document that states none.
    """
    given = nested(pairs)
    merged = dict(document)
    before = _stated_kind(document, "task") or task
    after = _stated_kind(given, "task") or before
    for section in {**document, **given}:
        below, changes = document.get(section), given.get(section, {})
        if not isinstance(changes, dict) or not isinstance(below, Mapping):
            # An empty section, or something that is no section: the check names it.
            merged[section] = given.get(section, below)
            continue
        kept = dict(below)
        if section in section_names() and section_kinds(section):
            was = _stated_kind(document, section) or default_kind(section, before)
            now = _stated_kind(given, section) or _stated_kind(document, section) or default_kind(section, after)
            kept = _of_the_same_kind(section, kept, was, now)
        merged[section] = _onto(kept, changes, section, pairs)
    return _without_anothers_steps(document, given, merged)


def _stated_kind(values: Mapping[str, Any], section: str) -> Any:
    settings = values.get(section)
    return settings.get("kind") if isinstance(settings, Mapping) else None


def _without_anothers_steps(
    document: Mapping[str, Any], given: Mapping[str, Any], merged: dict[str, Any]
) -> dict[str, Any]:
    """A learning rate that the file gives for one method says nothing about another: each has its own default.

    Nor does its Muon, which is for whole matrices.
    """
    method, train = given.get("method"), document.get("train")
    if not isinstance(method, Mapping) or "kind" not in method or not isinstance(train, Mapping):
        return merged
    below = document.get("method")
    stated = below.get("kind") if isinstance(below, Mapping) else None
    # Of a method that there is not, the check says so.
    changed = method["kind"] in section_kinds("method") and method["kind"] != (stated or default_kind("method"))
    typed = given.get("train")
    muon = train.get("optim") == "muon" and method["kind"] != "full"
    anothers = [
        key
        for key, matters in (("learning_rate", True), ("optim", muon), ("optim_args", muon))
        if matters and key in train and not (isinstance(typed, Mapping) and key in typed)
    ]
    if changed and anothers and isinstance(merged.get("train"), dict):
        logger.info("method.kind is now %s: the recipe's %s left out", method["kind"], ", ".join(anothers))
        merged["train"] = {key: value for key, value in merged["train"].items() if key not in anothers}
    return merged


def _of_the_same_kind(section: str, below: dict[str, Any], was: Any, now: Any) -> dict[str, Any]:
    """The file's settings, where they still belong to the kind that the section has now.

    Of two kinds where one is the other and more (joint data are labeled data), what both have is kept.
    """
    if was == now:
        return below
    known = section_kinds(section)
    mine, other = (known.get(kind) if isinstance(kind, str) else None for kind in (now, was))
    kept: dict[str, Any] = {}
    if mine is not None and other is not None and (issubclass(mine, other) or issubclass(other, mine)):
        kept = {key: value for key, value in below.items() if key != "kind" and key in mine.model_fields}
    left_out = sorted(set(below) - {"kind"} - kept.keys())
    if left_out:
        logger.info("%s.kind is now %s: the recipe's %s for %s left out", section, now, ", ".join(left_out), was)
    return kept


def _onto(
    below: dict[str, Any], changes: Mapping[str, Any], path: str, pairs: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """Lay changes over settings; a mapping is entered only where the user named something inside it."""
    merged = dict(below)
    for key, value in changes.items():
        inner = f"{path}.{key}"
        entered = not any(given == inner for given, _ in pairs) and isinstance(value, dict)
        held = below.get(key)
        if entered and isinstance(held, dict) and any(given.startswith(f"{inner}.") for given, _ in pairs):
            merged[key] = _onto(held, value, inner, pairs)
        else:
            merged[key] = value
    return merged
