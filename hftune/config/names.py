"""Settings by name alone: what flags and Python keywords stand for in a recipe.

``learning_rate``, ``lr`` and ``train.learning_rate`` are one setting. Names come from the section classes and from
TrainingArguments; the few that are no setting of their own are here.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from hftune.config.document import DocumentError, parse
from hftune.config.glue import data_of
from hftune.config.kinds import members, owners, spellings
from hftune.config.train import REFUSED, REMOVED
from hftune.config.training_arguments import argument_fields
from hftune.errors import HftuneError
from hftune.suggest import closest

USE_PEFT = "use_peft"
NOT_PEFT = ("full", "head", "bitfit")
"""Methods that train parameters of the model itself."""
SWITCHES = {USE_PEFT, "group_by_length", "evaluate_during_training", "no_cuda"}
TASK_NAME, DATA_DIR = "task_name", "data_dir"
COMPOSED = {USE_PEFT: bool, TASK_NAME: str, DATA_DIR: str}
"""Names that stand for several settings or for one with a certain value, and the type of their value."""


@dataclass(frozen=True)
class Named:
    """Settings that were given by name."""

    overrides: dict[str, Any]
    """Dotted keys and values, ready for ``load_recipe``."""
    notices: tuple[str, ...]
    """Lines that name today's spelling of a removed name."""


def known_names(task: str | None) -> list[str]:
    """Every name that ``from_names`` takes."""
    return [*spellings(task), *REMOVED, *COMPOSED, *REFUSED]


def from_names(given: Mapping[str, Any], task: str | None, *, dashes: bool = False) -> Named:
    """The settings that names stand for; a value of None is one that was not given.

    Args:
        given: Names, with underscores, and values.
        task: The kind of task; None knows the settings of all.
        dashes: Whether errors write names as flags.

    Raises:
        HftuneError: A name is unknown or refused, or two spellings of one setting have different values.
    """
    paths = spellings(task)
    overrides: dict[str, Any] = {}
    by: dict[str, str] = {}
    notices = []

    def shown(name: str) -> str:
        return f"--{name.replace('_', '-')}" if dashes else name

    def put(path: str, value: Any, name: str) -> None:
        if path in overrides and overrides[path] != value:
            raise HftuneError(
                f"{shown(by[path])} and {shown(name)} are the same setting ({path}) with two values: "
                f"{overrides[path]!r} and {value!r}",
                hint="leave one of them out",
            )
        overrides[path], by[path] = value, name

    stated = {name.replace("-", "_"): value for name, value in given.items() if value is not None}
    for name in stated.keys() & SWITCHES:
        if not isinstance(stated[name], bool):
            raise HftuneError(f"{shown(name)} expects true or false; got {stated[name]!r}", hint="leave the quotes out")
    for name, value in stated.items():
        if name in COMPOSED:
            continue
        if name in REMOVED:
            removed = REMOVED[name]
            if name == "warmup_ratio" and isinstance(value, int | float) and value >= 1:
                raise HftuneError(f"{shown(name)} expects a ratio below 1; got {value}", hint="steps are warmup_steps")
            notices.append(
                f"{shown(name)} was removed from transformers: it is now {shown(removed.field)}{removed.note}"
            )
            if (converted := removed.convert(value)) is not None:
                put(f"train.{removed.field}", converted, name)
        elif name in REFUSED and not paths.get(name, "train.").startswith("hub."):
            if REFUSED[name].used is None or value != REFUSED[name].used:
                raise HftuneError(f"{shown(name)} can't be set: {REFUSED[name].reason}", hint="leave it out")
        elif name in paths:
            put(paths[name], value, name)
        elif name in spellings(None):
            raise HftuneError(
                f"{shown(name)} is no setting of task {task}",
                hint=f"{spellings(None)[name]} belongs to another task: `hftune recipes schema` shows which",
            )
        else:
            raise unknown(name, known_names(task), shown(name))
    if stated.get(USE_PEFT):
        kind = overrides.get("method.kind", "lora")
        if kind in NOT_PEFT:
            raise HftuneError(f"{shown(USE_PEFT)} trains an adapter, and method {kind} is none", hint="leave it out")
        put("method.kind", kind, USE_PEFT)
    if (
        "data.train_file" in overrides
        and "data.dataset_name" not in overrides
        and not stated.keys() & {TASK_NAME, DATA_DIR}
    ):
        # As in Hugging Face's scripts: a training file is the dataset, and the others are next to it or paths.
        overrides["data.dataset_name"] = overrides.pop("data.train_file")
    for path, value in _composed_data(stated).items():
        if path not in overrides or path == "data.dataset_name":  # a column that is named is right for this folder
            put(path, value, TASK_NAME)
    return Named(overrides, tuple(notices))


def _composed_data(stated: Mapping[str, Any]) -> dict[str, Any]:
    if TASK_NAME in stated:
        return data_of(str(stated[TASK_NAME]), stated.get(DATA_DIR))
    return {"data.dataset_name": stated[DATA_DIR]} if DATA_DIR in stated else {}


def unknown(name: str, known: Iterable[str], shown: str | None = None) -> HftuneError:
    """The error for a name that nothing has, with the nearest ones."""
    shown = shown or name
    found = closest(name, [one for one in known if one not in REFUSED], cutoff=0.6)
    dashed = shown.startswith("--") and found is not None
    near = f"--{found.replace('_', '-')}" if dashed and found else found
    return HftuneError(
        f"no setting has the name {shown}",
        hint=f"did you mean {near}?" if near else "`hftune recipes schema` lists every setting",
    )


def value_types(name: str, task: str | None) -> tuple[Any, ...]:
    """The alternatives of a setting's type, by the name of the setting."""
    name = name.replace("-", "_")
    if name in COMPOSED:
        return (COMPOSED[name],)
    if name in REMOVED:
        old = {"group_by_length", "evaluate_during_training"}
        return (bool,) if name in old else value_types(REMOVED[name].field, task)
    if name in REFUSED and name not in spellings(None):
        return (bool,) if isinstance(REFUSED[name].used, bool) else (str,)
    if name not in spellings(task):
        task = None  # of another task: reported by from_names
    section, _, field = spellings(task)[name].partition(".")
    found = [
        option
        for owner, section_type in owners(task)
        if owner == section and field in section_type.model_fields
        for option in members(section_type.model_fields[field].annotation)
    ]
    if not found and field in argument_fields():
        found = list(members(argument_fields()[field].annotation))
    return tuple(dict.fromkeys(option for option in found if option is not types.NoneType)) or (str,)


def is_switch(name: str, task: str | None) -> bool:
    """Whether a name can be given without a value: its values are true and false."""
    return value_types(name, task)[0] is bool


def takes_many(name: str, task: str | None) -> bool:
    """Whether a name takes a list of values."""
    return any(option in (list, tuple) or get_origin(option) in (list, tuple) for option in value_types(name, task))


def read_value(name: str, text: str, task: str | None) -> Any:
    """What was typed for a name, as a value of its type: text stays text, the rest is read as YAML.

    Raises:
        HftuneError: It is not YAML.
    """
    options = value_types(name, task)
    if all(option is str or (get_origin(option) is Literal and _words(option)) for option in options):
        return text
    shown = f"--{name.replace('_', '-')}"
    try:
        value = parse(text, shown)[0]
    except DocumentError as error:
        raise HftuneError(
            f"{shown} {text!r}: {error.problem.message}", hint=error.problem.hint or "quote it"
        ) from error
    if takes_many(name, task) and not isinstance(value, list):
        return [part.strip() for part in text.split(",")]
    if isinstance(value, str) and bool in options and value.lower() in ("yes", "no"):
        return value.lower() == "yes"
    plain = str in options and not isinstance(value, dict | list | bool | types.NoneType)
    return text if plain and not any(option in (int, float) for option in options) else value


def _words(option: Any) -> bool:
    return all(isinstance(value, str) for value in get_args(option))
