"""Helpers of all functions of the Python API: turn arguments into a recipe, show progress, name keywords in errors."""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar

from pydantic import ValidationError

from hftune.data.in_memory import PLACEHOLDER, SINGLE, Data, InMemoryData, from_python
from hftune.errors import HftuneError, did_you_mean
from hftune.models.settings import ModelSection
from hftune.pipeline.names import from_names
from hftune.pipeline.request import RecipeLike, resolve_recipe
from hftune.progress import ProgressReporter, quiet_libraries
from hftune.recipe import Recipe
from hftune.runs.directory import is_run
from hftune.sanitize import redacted
from hftune.studies.executors import StudyCallback

P = ParamSpec("P")
R = TypeVar("R")
ProgressOption: TypeAlias = bool | ProgressReporter
"""True shows progress, False is silent, your own ProgressReporter receives it."""
DATA_NAMES = ("data", "dataset_name", "corpus", "task_name", "data_dir", "train_file")
"""Settings that name data, not allowed together with rows."""
PATH = "str | Path"
KINDS = {
    PATH: ("a path", "write {}='runs/a'"),
    "bool": ("True or False", "leave the quotes out"),
    "int": ("a whole number from 1 on", "write {}=8"),
    "str": ("text", "write {}='…'"),
    "Metric": ("accuracy or loss", "write {}='loss'"),
    "Sequence[str]": ("a list of texts", "write {}=['…']"),
    "ModelSection": ("a ModelSection", "leave {} out"),
}
"""Annotations of arguments that are checked before a call: what is expected, and a hint."""
_FLAGS: tuple[tuple[str, str], ...] = (
    (r"--set '?(?:\w+\.)*(\w+)=([^\s,;)']+)'?", r"\1=\2"),
    (r"--output(?:-dir)? ([^\s;,)]+) --resume\b", r"output_dir='\1', resume=True"),
    (r"--output(?:-dir)? ([^\s;,)]+)", r"output_dir='\1'"),
    (r"--output(?:-dir)?\b", "output_dir"),
    (r"--(resume|overwrite|private|int8|onnx)\b", r"\1=True"),
    (r"--trust-remote-code\b", "trust_remote_code=True"),
    (r"--(?:recipe|config) (\S+)", r"recipe='\1'"),
)
"""Patterns of flags in an error, and the keywords that replace them."""
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
"""Any other flag; its keyword has underscores."""


# ---- arguments ----


@dataclass(frozen=True)
class ResolvedCall:
    """A checked recipe and the rows that were passed."""

    recipe: Recipe
    rows: InMemoryData | None
    """The data, unless they are a path or a Hub id."""
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
    trains: bool = True,
) -> ResolvedCall:
    """A checked recipe and the rows.

    Args:
        recipe: The recipe that the settings override; None means the defaults.
        data: A path, a Hub id, or rows.
        task: The kind of task; None means that of the recipe.
        settings: Keywords.
        resumed: A run that is resumed; its recipe is used if none is given.
        trains: Whether the call trains, so that the rows must include a train split.

    Raises:
        HftuneError: A setting, the recipe or a row is invalid; nothing was written.
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
    made = resolve_recipe(recipe, overrides, task=kind)
    if rows is not None and (trains or SINGLE in rows.tables):
        rows.check(made.data)
    return ResolvedCall(made, rows, overrides, named.notices)


def _kind(recipe: RecipeLike | None, task: str | None) -> str:
    """The kind of task: as named, or that of the recipe."""
    if task is not None:
        known = list(Recipe.section_kinds("task"))
        if task not in known:
            raise HftuneError(
                f"expected task to be one of {', '.join(known)}; got {task!r}",
                hint=did_you_mean(str(task), known) or "choose one of them",
            )
        return task
    if recipe is None:
        return Recipe.default_kind("task")
    return recipe.task.kind if isinstance(recipe, Recipe) else resolve_recipe(recipe, {}, trusted=True).task.kind


def _with_data(settings: Mapping[str, Any], data: Data | None, kind: str) -> tuple[dict[str, Any], InMemoryData | None]:
    """The settings, with ``data`` as one of them if it is a path or an id, else the rows.

    ``method`` can be a section, as in a recipe: ``{"kind": "lora", "r": 4}``.
    """
    settings = dict(settings)
    # ``dataset_name`` is the long form of ``data``, so it takes rows too.
    if data is None and not isinstance(settings.get("dataset_name"), str | os.PathLike):
        data = settings.pop("dataset_name", None)
    if isinstance(method := settings.get("method"), Mapping):
        settings["method"] = method.get("kind")
        for name, value in method.items():
            if name != "kind" and settings.setdefault(name, value) != value:
                raise HftuneError(f"{name} is {settings[name]!r} and, in method, {value!r}", hint="leave one out")
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()}
    if data is None or isinstance(data, str | os.PathLike):
        return given if data is None else {**given, "data": os.fspath(data)}, None
    also = [name for name in DATA_NAMES if given.get(name) is not None and (name, kind) != ("corpus", "answer")]
    if also:
        raise HftuneError(f"both data and {also[0]} name the data", hint="leave one of them out")
    return given, from_python(data, Recipe.default_kind("data", kind))


def path_of(value: Any, name: str) -> Path:
    """An argument that must be a path.

    Raises:
        HftuneError: It is not.
    """
    _check(name, value, PATH)
    return Path(value)


def _check(name: str, value: Any, annotation: str) -> None:
    """Refuse an argument of another type than its annotation, if that is one of KINDS."""
    kind = annotation.removesuffix(" | None")
    if kind not in KINDS or (value is None and kind != annotation) or _fits(kind, value):
        return
    expected, hint = KINDS[kind]
    raise HftuneError(f"expected {name} to be {expected}; got {value!r:.100}", hint=hint.format(name))


def _fits(kind: str, value: Any) -> bool:
    if kind == PATH:
        return isinstance(value, str | os.PathLike) and str(value) != "" and "\0" not in str(value)
    if kind == "int":
        return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
    if kind == "Sequence[str]":
        return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    return isinstance(value, {"bool": bool, "ModelSection": ModelSection}.get(kind, str))


def call_text(function: str, arguments: Mapping[str, Any]) -> str:
    """The call as Python code, for the report; rows are described, and secrets removed."""
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


# ---- errors ----


def for_python(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: its errors name keywords instead of flags; a wrong type raises ``HftuneError``."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        for name, value in given.items():
            parameter = signature.parameters[name]
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                _check(name, value, str(parameter.annotation))
        try:
            return function(*args, **kwargs)
        except ValidationError as error:
            wrong = error.errors()[0]
            name, message = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
            text = f"{name}: {message}; got {wrong['input']!r:.100}"
            raise HftuneError(text, hint=f"see help(hftune.{function.__qualname__})") from error
        except HftuneError as error:
            error.message, error.hint = in_python(error.message), in_python(error.hint)
            raise

    return called


def in_python(text: str) -> str:
    """Replace flags by keywords: ``--output runs/a`` by ``output_dir='runs/a'``, except between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    for place in range(0, len(parts), 2):
        for flag, keyword in _FLAGS:
            parts[place] = re.sub(flag, keyword, parts[place])
        parts[place] = re.sub(_FLAG, lambda match: match[1].replace("-", "_"), parts[place])
    return "".join(parts)


# ---- progress ----


@contextmanager
def shown(progress: ProgressOption) -> Iterator[ProgressReporter]:
    """The progress callback of a call; the libraries' own progress bars and advice are off in the block."""
    with _libraries_quiet():
        if progress is True:
            from hftune.cli.terminal import RunProgress

            with RunProgress() as drawn:
                yield drawn
        elif progress is False:
            yield ProgressReporter()
        elif hasattr(progress, "stage"):
            yield progress
        else:
            raise HftuneError(
                f"expected progress to be True, False or a ProgressReporter; got {type(progress).__name__}",
                hint="progress=False shows nothing",
            )


@contextmanager
def shown_study(progress: bool, jobs: int) -> Iterator[StudyCallback]:
    """Like ``shown``, for a study: a live table of its runs."""
    if not progress:
        yield StudyCallback()
    else:
        from hftune.cli.live_table import LiveTable

        with LiveTable(jobs) as table:
            yield table


@contextmanager
def _libraries_quiet() -> Iterator[None]:
    """Turn off progress bars and advice of the libraries in the block, and restore them after it."""
    import datasets
    import transformers

    library, rows = transformers.utils.logging, datasets.utils.logging
    before = library.get_verbosity(), rows.get_verbosity()
    bars = library.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    with warnings.catch_warnings():
        quiet_libraries()
        try:
            yield
        finally:
            library.set_verbosity(before[0])
            rows.set_verbosity(before[1])
            if bars[0]:
                library.enable_progress_bar()
            if not bars[1]:
                datasets.enable_progress_bars()
