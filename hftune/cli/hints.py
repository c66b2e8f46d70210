"""Hints that fit the command that shows them.

A hint is written where the error is found, which does not know what was typed: ``name it with --set data.x=NAME``, or
``finish it with --output RUN --resume``. Here an option that the command lacks is replaced: by the flag that it has for
the same setting, else by a whole command that has the option. What is between backticks is a command already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from typer.core import TyperOption

from hftune.cli.commands import ALIASES, COMMANDS, dashed, load_command
from hftune.cli.options import SettingsCommand

GLOBAL = ("--debug", "--help", "--version")
"""Options of every command."""
SAME = {
    ("push", "--hub-revision"): "--revision",
    ("push", "--hub-private-repo"): "--private",
    ("tokenizer train", "--data"): "--corpus",
    ("tokenizer show", "--data"): "--corpus",
}
"""Options of a command that have another name than their setting."""
_VALUE = r"(?:'[^']*'|(?!--)\S*?[A-Z/\d=…]\S*?)(?=[,;:.)]*(?:\s|$))"
_OPTION = re.compile(rf"(?<![\w-])(--[a-z][\w-]*)(?:[ =]({_VALUE}))?")
_OPTIONS = re.compile(rf"{_OPTION.pattern}(?: {_OPTION.pattern})*")
"""An option or several, with values: names in capitals, paths, numbers, or what is quoted."""
_ASSIGNED = re.compile(r"'?([\w.]+)=(.*?)'?")


def fitted(hint: str, words: Sequence[str]) -> str:
    """A hint for the user of a command.

    Args:
        hint: As it was written.
        words: What follows ``hftune`` on the command line; the command and its subcommand are read.
    """
    path = command_path(words) if "--" in hint else None
    if path is None:
        return hint
    parts = hint.split("`")
    parts[::2] = [_OPTIONS.sub(lambda found: _fitted(found[0], path), part) for part in parts[::2]]
    return "`".join(parts)


def command_path(words: Sequence[str]) -> str | None:
    """The command of a command line, such as ``data peek``; None if it names none."""
    names = [word for word in words if not word.startswith("-")]
    name = ALIASES.get(names[0], names[0]) if names else ""
    if name not in COMMANDS:
        return None
    return next((path for path in (" ".join([name, *names[1:2]]), name) if path in leaves()), None)


@cache
def leaves() -> dict[str, Any]:
    """Every command that runs something, by what is typed for it."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = load_command(name)
        for child, subcommand in getattr(command, "commands", {}).items():
            found[f"{name} {child}"] = subcommand
        if not getattr(command, "commands", None):
            found[name] = command
    return found


@cache
def accepts(path: str, option: str) -> bool:
    """Whether a command takes an option, and the option has an effect on it."""
    command, option = leaves()[path], dashed(option)
    own = {name for one in command.params if isinstance(one, TyperOption) for name in (*one.opts, *one.secondary_opts)}
    if option in own or option in GLOBAL:
        return True
    return isinstance(command, SettingsCommand) and command.takes_setting(option[2:].replace("-", "_"))


def _fitted(text: str, path: str) -> str:
    """One option or several in a row, as a command takes them."""
    asked = [(found[1], found[2]) for found in _OPTION.finditer(text)]
    mine = [_spelled(option, value, path) for option, value in asked]
    if None not in mine:
        return " ".join(option for option in mine if option is not None)
    for home in leaves():
        if all(accepts(home, option) for option, _ in asked):
            return f"`hftune {' '.join([home, *_required(home), *(_with_value(home, *one) for one in asked)])}`"
    return text


def _spelled(option: str, value: str | None, path: str) -> str | None:
    """An option as a command takes it; None if it has nothing for it."""
    shown = option if value is None else f"{option} {value}"
    if option == "--set" and value is not None and (assigned := _ASSIGNED.fullmatch(value)):
        key, content = assigned[1], assigned[2]
        flag = f"--{key.rpartition('.')[2].replace('_', '-')}"
        command = leaves()[path]
        taken = isinstance(command, SettingsCommand) and command.takes_setting(flag[2:].replace("-", "_"))
        if accepts(path, option) and (taken or not isinstance(command, SettingsCommand)):
            return shown
        return f"{flag} {content}" if taken else None
    if accepts(path, option):
        return shown
    same = SAME.get((path, dashed(option)))
    return None if same is None else shown.replace(option, same, 1)


def _required(path: str) -> Iterator[str]:
    """The arguments and options that a command can't do without, by the names that its help has for them."""
    for one in leaves()[path].params:
        if one.required:
            name = str(one.metavar or one.name.upper()).strip("[]")
            yield f"{one.opts[0]} {name}" if isinstance(one, TyperOption) else name


def _with_value(path: str, option: str, value: str | None) -> str:
    """An option with its value, or with the name of one if it needs one."""
    from hftune.pipeline.names import is_switch

    if value is not None:
        return f"{option} {value}"
    own = [one for one in leaves()[path].params if isinstance(one, TyperOption) and dashed(option) in one.opts]
    if any(one.is_flag for one in own) or (not own and is_switch(option[2:].replace("-", "_"), None)):
        return option
    return f"{option} {next((one.metavar for one in own if one.metavar), 'VALUE')}"
