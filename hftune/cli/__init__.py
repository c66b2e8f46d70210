"""The ``hftune`` command: a table of commands, each imported when it is called, and the end of every error.

A command is one file that holds a function (or, for a family such as ``recipes``, a ``typer.Typer``), and one
line in ``COMMANDS``. Its help stands in the table as well, so that ``hftune --help`` imports none of the files.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hftune import __version__
from hftune.cache import ensure_home
from hftune.cli.processes import first_to_fail, is_first, refuse_several
from hftune.errors import HftuneError, RunFailed


class Entry(NamedTuple):
    """One line of the table of commands."""

    target: str
    """Where it is, as module:name; a function, or a ``typer.Typer`` with commands of its own."""
    help: str
    """What it does, in a line; its docstring begins with it."""
    panel: str
    """The heading it stands under in ``hftune --help``."""


HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
LONGEST = 2000
"""Characters of an error that is not ours: it may quote a whole text."""
CLOSED_PIPE = 141
"""128 plus SIGPIPE, which not every platform has."""

TRAIN, USE, PREPARE = "Train", "Use and judge", "Prepare"

ALIASES = {"env": "doctor"}
"""What other tools call a command."""
SUGGESTED = {
    "fit": "train",
    "run": "train",
    "serve": "predict",
    "test": "evaluate",
    "eval": "evaluate",
    "tune": "sweep",
    "login": "doctor",
    "chat": "generate",
}
"""Commands that people look for, and the one that they want."""
WITH_ARGUMENTS_OF_OTHERS = ("doctor", "env")
"""Commands that take a launcher's arguments as they are."""

COMMANDS: dict[str, Entry] = {
    "train": Entry("hftune.cli.train:train", "Run a recipe of any task", TRAIN),
    "classify": Entry("hftune.cli.classify:classify", "Fine-tune a classifier on single texts or pairs", TRAIN),
    "joint": Entry(
        "hftune.cli.joint:joint",
        "Fine-tune a classifier and train a masked language model on unlabeled text",
        TRAIN,
    ),
    "pretrain": Entry(
        "hftune.cli.pretrain:pretrain", "Train a language model on plain text, from scratch or from a checkpoint", TRAIN
    ),
    "finetune": Entry(
        "hftune.cli.finetune:finetune",
        "Fine-tune a GPT for question answering, from a pretrained run or from scratch",
        TRAIN,
    ),
    "sweep": Entry(
        "hftune.cli.sweep:sweep", "Train a grid or a search of settings with several seeds, and compare them", TRAIN
    ),
    "boolq": Entry(
        "hftune.cli.boolq:boolq", "Answer yes/no questions over passages, under one method or several", TRAIN
    ),
    "predict": Entry("hftune.cli.predict:predict", "Label texts, or answer questions", USE),
    "generate": Entry("hftune.cli.generate:generate", "Generate text from prompts", USE),
    "evaluate": Entry(
        "hftune.cli.evaluate:evaluate",
        "Score a run, a folder or a Hub model on one split of any data that suits it",
        USE,
    ),
    "baseline": Entry(
        "hftune.cli.baseline:baseline",
        "Score simple systems on validation and test",
        USE,
    ),
    "compare": Entry(
        "hftune.cli.compare:compare",
        "Compare runs or the settings of a study: mean ± std, intervals, paired tests",
        USE,
    ),
    "report": Entry("hftune.cli.report:report", "Make one self-contained HTML page about each run", USE),
    "push": Entry("hftune.cli.push:push", "Publish a run on the Hub, then load it from there and check it", USE),
    "export": Entry(
        "hftune.cli.export:export",
        "Write a classifier as ONNX, with or without 8-bit weights",
        USE,
    ),
    "lab": Entry("hftune.cli.lab:app", "Run experiments on what attention can and can't do", USE),
    "bench": Entry("hftune.cli.bench:app", "Measure speed against peers, and devices against each other", USE),
    "recipes": Entry("hftune.cli.recipes:app", "List, show, copy and check recipes", PREPARE),
    "data": Entry("hftune.cli.data:app", "List, look at, check and make datasets", PREPARE),
    "tokenizer": Entry("hftune.cli.tokenizer:app", "Learn a tokenizer from text, and look at one", PREPARE),
    "doctor": Entry(
        "hftune.cli.doctor:app", "Check versions, devices, disk, compiler, Hub and the embedded files", PREPARE
    ),
}


class CommandTable(TyperGroup):
    """Lists the table; imports a command when it is called; turns errors into messages and exit codes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--debug`` from wherever it stands: people add it to the end of what has just failed."""
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
            end = len(args) if end == len(args) else args.index("--")
        if not any(arg in WITH_ARGUMENTS_OF_OTHERS for arg in args[:2]):
            args = [*map(dashed, args[:end]), *args[end:]]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command itself in place of its line in the table."""
        first = ALIASES.get(args[0], args[0])
        if first in SUGGESTED:
            raise HftuneError(
                f"there is no command {first}",
                hint=f"use `hftune {SUGGESTED[first]}`: {COMMANDS[SUGGESTED[first]].help}",
            )
        name, command, rest = super().resolve_command(ctx, [first, *args[1:]])
        if name in COMMANDS:
            if COMMANDS[name].panel != TRAIN:
                refuse_several(name)
            command = load_command(name)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The table, one heading a panel. Plain, because rich panels would triple the time of ``--help``."""
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items() if entry.panel == panel])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Nobody sees a traceback without ``--debug``."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError as error:
            raise typer.Exit(_drop_output()) from error
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(_report(error, debug=ctx.params["debug"])) from error


def dashed(argument: str) -> str:
    """A flag with underscores, as Hugging Face's scripts have them, with dashes."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def load_command(name: str) -> Any:
    """Import a command of the table."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    target = vars(import_module(module))[attribute]
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False, context_settings=HELP_FLAGS)
        single.command(cls=vars(target).get("command_class"))(target)
        target = single
    command = get_command(target)
    command.name = name
    return command


def _report(error: BaseException, *, debug: bool) -> int:
    """Show an error and give its exit code: 2 for a bad request, 1 for a failed run, 130 for Ctrl-C."""
    from hftune.cli import terminal

    if debug:
        terminal.show_traceback(error)
    speaks = first_to_fail()
    if isinstance(error, KeyboardInterrupt):
        if speaks:
            terminal.note("Stopped.")
        return 128 + signal.SIGINT
    if not isinstance(error, HftuneError):
        again = "Run it again with --debug to see where it happened." if not debug else "The traceback is above."
        error = RunFailed(f"unexpected {type(error).__name__}: {str(error)[:LONGEST]}", hint=again)
    if speaks:
        terminal.show_error(error)
    return error.exit_code


def _drop_output() -> int:
    """Whoever read our output has gone, as ``head`` does: write no more, and end as the shell expects."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hftune {__version__}")
        raise typer.Exit


app = typer.Typer(cls=CommandTable, rich_markup_mode=None, no_args_is_help=True, context_settings=HELP_FLAGS)


@app.callback()
def hftune(
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show tracebacks and everything that is logged; may stand anywhere."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Fine-tune small encoders under any tuning method, and believe the results."""
    from hftune.cli import terminal

    terminal.set_up_logging(debug, quiet=not is_first())
    without_home = ensure_home()
    if without_home is not None and is_first():
        terminal.note(without_home, style="dim")


def _use_utf8() -> None:
    """Start again in UTF-8 mode where the locale has another encoding.

    Under ``LC_ALL=C`` without UTF-8 mode Python can't hand a path with an ü to libraries that write files themselves,
    and a run would fail at saving.
    """
    if os.name == "posix" and sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # for child processes too
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with the command's exit code.

    Args:
        arguments: What was typed after ``hftune``; the process's own arguments where not given.
    """
    if arguments is None:
        _use_utf8()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that can't show a character should not end a run.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            get_command(app).main(arguments, prog_name="hftune")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(_drop_output())
