"""The settings of a study: points of its grid, named after what differs. Made by ``hftune.studies.plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hftune.files import file_name

Value = bool | int | float | str | None

# These say nothing by themselves: method.kind is the method, data.dataset_name the data.
_EMPTY_NAMES = ("kind", "model_name_or_path", "dataset_name")


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    name: str
    """What differs, for people: ``learning_rate=3e-05 method=full``."""
    overrides: dict[str, Value]
    """Dotted keys of the recipe and their values."""
    values: dict[str, Value]
    """The value on each axis: itself, or the name of the named setting."""

    @property
    def folder(self) -> str:
        """The name as part of a path, on any file system."""
        return file_name(self.name, empty="all")


def make_setting(point: Sequence[tuple[str, Value, Mapping[str, Value]]]) -> Setting:
    """The setting of a point: axis, the value on it, and the recipe keys that this value sets."""
    overrides: dict[str, Value] = {}
    for _, _, chosen in point:
        overrides |= chosen
    values = {axis: value for axis, value, _ in point}
    return Setting(described(values), overrides, values)


def described(values: Mapping[str, Value]) -> str:
    """The values in one line, each behind the shortest name that tells its key from the others."""
    short = short_names(list(values))
    return " ".join(f"{short[key]}={shown(value)}" if short[key] else shown(value) for key, value in values.items())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The telling part of each dotted key; nothing where the value says it all."""
    telling = {key: _telling(key) for key in keys}
    if len(keys) == 1 and keys[0].rpartition(".")[2] in _EMPTY_NAMES:
        return {keys[0]: ""}
    taken = list(telling.values())
    return {key: short if not short or taken.count(short) == 1 else key for key, short in telling.items()}


def shown(value: Value) -> str:
    """A value as YAML would write it, floats as short as they can be."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def _telling(key: str) -> str:
    parents, _, last = key.rpartition(".")
    if not parents:
        return ""  # a free name, whose values are names themselves
    return parents.rpartition(".")[2] if last in _EMPTY_NAMES else last
