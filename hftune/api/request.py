"""Arguments of the Python API → a checked recipe, and the rows that were given. Used by ``training`` and ``study``.

Keywords are resolved by the same functions as flags, so that both have the same names, checks and errors.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

from hftune.config.consent import refuse_unasked, typed_keys
from hftune.config.document import dump
from hftune.config.kinds import data_kind, default_kind, section_kinds
from hftune.config.load import load_recipe
from hftune.config.names import from_names
from hftune.config.overrides import plain
from hftune.config.problems import RecipeError
from hftune.config.recipe import Recipe
from hftune.data.in_memory import PLACEHOLDER, Data, InMemoryData, from_python
from hftune.errors import HftuneError
from hftune.escapes import redacted
from hftune.runs.directory import is_run, stored_rows
from hftune.suggest import did_you_mean

RecipeLike: TypeAlias = str | Path | Mapping[str, Any] | Recipe
"""A shipped recipe's name, a path, a dict of sections, or a Recipe."""
DATA_NAMES = ("data", "dataset_name", "corpus", "task_name", "data_dir", "train_file")
"""Settings that name data, which rows replace."""
_FLAGS: tuple[tuple[str, str], ...] = (
    (r"--set '?(?:\w+\.)*(\w+)=([^\s,;)']+)'?", r"\1=\2"),
    (r"--output(?:-dir)? ([^\s;,)]+)", r"output_dir='\1'"),
    (r"--output(?:-dir)?\b", "output_dir"),
    (r"--(resume|overwrite|private|int8|onnx)\b", r"\1=True"),
    (r"--trust-remote-code\b", "trust_remote_code=True"),
    (r"--(?:recipe|config) (\S+)", r"recipe='\1'"),
)
"""Flags in a hint, and the keywords that a Python caller writes instead."""
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
"""Any other flag; the keyword has underscores."""
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Request:
    """What was asked for, checked."""

    recipe: Recipe
    rows: InMemoryData | None
    """The data, where they are no path and no Hub id."""
    overrides: dict[str, Any]
    """The settings that were given as keywords, by dotted key."""
    notices: tuple[str, ...]


def resolve(
    recipe: RecipeLike | None,
    data: Data | None,
    task: str | None,
    settings: Mapping[str, Any],
    *,
    resumed: Path | None = None,
) -> Request:
    """A checked recipe and the rows.

    Args:
        recipe: What the settings are laid over; the defaults where None.
        data: A path, a Hub id, or rows.
        task: The kind of task; that of the recipe where None.
        settings: Keywords.
        resumed: A run that is resumed brings its recipe, where none is given.

    Raises:
        HftuneError: A setting, the recipe or a row is wrong; nothing was written.
    """
    if isinstance(recipe, os.PathLike):
        recipe = Path(os.fspath(recipe))
    if recipe is None and resumed is not None and is_run(resumed):
        recipe = resumed
    kind = _kind(recipe, task)
    given, rows = _with_data(settings, data, kind)
    named = from_names(given, kind)
    overrides = dict(named.overrides)
    if rows is not None:
        overrides["data.dataset_name"] = PLACEHOLDER
    made = _over(recipe, overrides, kind)
    if rows is not None:
        rows.check(made.data)
    # A keyword is typed by whoever runs the program; a file or a dict may come from anybody.
    refuse_unasked(made, typed_keys([*overrides.items()]))
    return Request(made, rows, overrides, named.notices)


def _kind(recipe: RecipeLike | None, task: str | None) -> str:
    """The kind of task: as named, or that of the recipe."""
    if task is not None:
        known = list(section_kinds("task"))
        if task not in known:
            raise HftuneError(
                f"expected task to be one of {', '.join(known)}; got {task!r}",
                hint=did_you_mean(str(task), known) or "choose one of them",
            )
        return task
    if recipe is None:
        return default_kind("task")
    return recipe.task.kind if isinstance(recipe, Recipe) else _over(recipe, {}, None).task.kind


def _with_data(settings: Mapping[str, Any], data: Data | None, kind: str) -> tuple[dict[str, Any], InMemoryData | None]:
    """The settings with the name of the data among them, or the rows."""
    given = {name: _as_name(value) for name, value in settings.items()}
    if data is None or isinstance(data, str | os.PathLike):
        return given if data is None else {**given, "data": os.fspath(data)}, None
    also = [name for name in DATA_NAMES if given.get(name) is not None and (name, kind) != ("corpus", "answer")]
    if also:
        raise HftuneError(f"both data and {also[0]} name the data", hint="leave one of them out")
    return given, from_python(data, data_kind(kind))


def _as_name(value: Any) -> Any:
    """A run or a path, where a setting takes a name."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


def _over(recipe: RecipeLike | None, overrides: Mapping[str, Any], task: str | None) -> Recipe:
    """Settings laid over a recipe of any form."""
    if recipe is None:
        return load_recipe(None, overrides, task=task)
    if isinstance(recipe, str | Path):
        return load_recipe(recipe, {**stored_rows(recipe), **overrides}, task=task)
    if isinstance(recipe, Recipe):
        sections: dict[str, Any] = recipe.model_dump()
        if not overrides and task in (None, recipe.task.kind):
            return recipe
    elif isinstance(recipe, Mapping):
        sections = dict(recipe)
        load_recipe(None, sections, task=task)  # names what is wrong with the dict as such
    else:
        raise HftuneError(
            f"expected a recipe by name, path, dict or Recipe; got {type(recipe).__name__}",
            hint="give the data as data=…, and settings as keywords",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"  # as a file, so that settings of another method or task are left out
        path.write_text(dump(plain(sections)), encoding="utf-8")
        try:
            return load_recipe(path, overrides, task=task)
        except RecipeError as error:
            problems = [
                replace(one, source="" if one.source.startswith(str(path)) else one.source) for one in error.problems
            ]
            raise RecipeError("the recipe", problems) from error


def call_text(function: str, arguments: Mapping[str, Any]) -> str:
    """The call as one could write it again, for the report; rows are described, and nothing secret is in it."""
    words = [f"{name}={_shown(value)}" for name, value in arguments.items() if value is not None and value is not False]
    text = redacted(f"hftune.{function}({', '.join(words)})")
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text


def _shown(value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, list | tuple) and all(isinstance(one, bool | int | float | str) for one in value):
        return repr(list(value))
    if isinstance(value, Mapping) and len(repr(value)) < 200:
        return repr(dict(value))
    return f"<{type(value).__name__}>"


def for_python(function: Callable[P, R]) -> Callable[P, R]:
    """Let the hints of errors name keywords in place of flags."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with python_hints():
            return function(*args, **kwargs)

    return called


@contextmanager
def python_hints() -> Iterator[None]:
    """The hints of errors that leave the block name keywords in place of flags."""
    try:
        yield
    except HftuneError as error:
        error.hint = in_python(error.hint)
        raise


def in_python(hint: str) -> str:
    """A hint with ``--output runs/a --resume`` as ``output_dir='runs/a' resume=True``; commands stay commands."""
    parts = re.split(r"(`[^`]*`)", hint)
    for place in range(0, len(parts), 2):
        for flag, keyword in _FLAGS:
            parts[place] = re.sub(flag, keyword, parts[place])
        parts[place] = re.sub(_FLAG, lambda match: match[1].replace("-", "_"), parts[place])
    return "".join(parts)
