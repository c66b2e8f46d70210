"""The table of commands, each imported when it is called, and the exit code of every error.

A command is a function (or, with subcommands as in ``recipes``, a ``typer.Typer``) and one line in ``COMMANDS``. Its
help is in the table too, so that ``hftune --help`` imports none of the files.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hftune import __version__
from hftune.cache import ensure_home
from hftune.errors import HftuneError, RunFailed


class Entry(NamedTuple):
    """One line of the table of commands."""

    target: str
    """module:name of a function, or of a ``typer.Typer`` with subcommands."""
    help: str
    """What it does, in one line; the docstring of its function begins with it."""
    panel: str
    """Its heading in ``hftune --help``."""


TYPED = "hftune.typed"
"""Key of the command line in a click context."""
HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
MAX_ERROR_LENGTH = 2000
"""Characters shown of an unexpected error: it may quote a whole text."""
CLOSED_PIPE = 141
"""128 plus the number of SIGPIPE, which some platforms lack."""

TRAIN, USE, PREPARE = "Train", "Use and evaluate", "Prepare"

ALIASES = {"env": "doctor"}
"""Names that other tools have for a command."""
SUGGESTED = {
    **{"fit": "train", "run": "train", "serve": "predict", "test": "evaluate", "eval": "evaluate"},
    **{"tune": "sweep", "login": "doctor", "chat": "generate"},
}
"""Names of commands that do not exist, and the command to use."""
WITH_LAUNCHER_ARGUMENTS = ("doctor", "env")
"""Commands that take a launcher's arguments unchanged."""


def _entry(target: str, help_text: str, panel: str) -> Entry:
    return Entry(f"hftune.cli.{target}", help_text, panel)


COMMANDS: dict[str, Entry] = {
    "train": _entry("train:train", "Run a recipe of any task", TRAIN),
    "classify": _entry("train:classify", "Fine-tune a classifier on single texts or pairs", TRAIN),
    "joint": _entry("train:joint", "Fine-tune a classifier and train a masked language model on unlabeled text", TRAIN),
    "pretrain": _entry(
        "train:pretrain", "Train a language model on plain text, from scratch or from a checkpoint", TRAIN
    ),
    "finetune": _entry(
        "train:finetune", "Fine-tune a GPT for question answering, from a pretrained run or from scratch", TRAIN
    ),
    "distill": _entry("train:distill", "Distill a smaller encoder from a teacher on plain text", TRAIN),
    "sweep": _entry("sweep:sweep", "Train a grid or a search of settings with several seeds, and compare them", TRAIN),
    "boolq": _entry("boolq:boolq", "Train on yes/no questions over passages, under one method or several", TRAIN),
    "predict": _entry("predict:predict", "Label texts, or answer questions", USE),
    "generate": _entry("generate:generate", "Generate text from prompts", USE),
    "evaluate": _entry(
        "evaluate:evaluate", "Score a run, a folder or a Hub model on one split of any suitable data", USE
    ),
    "baseline": _entry("baseline:baseline", "Score simple systems on validation and test", USE),
    "compare": _entry(
        "compare:compare", "Compare runs or the settings of a study: mean ± std, intervals, paired tests", USE
    ),
    "report": _entry("report:report", "Make one self-contained HTML page about each run", USE),
    "push": _entry("push:push", "Publish a run on the Hub, then load it from there and verify it", USE),
    "export": _entry("export:export", "Write a classifier as ONNX, with or without 8-bit weights", USE),
    "lab": _entry("lab:app", "Run experiments on what attention can and can't do", USE),
    "bench": _entry("bench:app", "Measure the speed of this machine", USE),
    "recipes": _entry("recipes:app", "List, show, copy and check recipes", PREPARE),
    "data": _entry("data:app", "List, show, check and make datasets", PREPARE),
    "tokenizer": _entry("tokenizer:app", "Train a tokenizer on text, or show one", PREPARE),
    "doctor": _entry("doctor:app", "Check versions, devices, disk, compiler, Hub and the embedded files", PREPARE),
}


class CommandTable(TyperGroup):
    """Lists the table; imports a command when it is called; turns errors into messages and exit codes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept ``--debug`` anywhere: people add it to the end of a command that has just failed."""
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
            end = len(args) if end == len(args) else args.index("--")
        if not any(arg in WITH_LAUNCHER_ARGUMENTS for arg in args[:2]):
            args = [*map(dashed, args[:end]), *args[end:]]
        ctx.meta[TYPED] = args
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command and use it in place of its line in the table."""
        first = ALIASES.get(args[0], args[0])
        if first in SUGGESTED:
            instead = SUGGESTED[first]
            raise HftuneError(f"there is no command {first}", hint=f"use `hftune {instead}`: {COMMANDS[instead].help}")
        name, command, rest = super().resolve_command(ctx, [first, *args[1:]])
        if name in COMMANDS:
            if COMMANDS[name].panel != TRAIN:
                refuse_several(name)
            command = load_command(name)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The table, one heading per panel. Plain text, because rich panels would triple the time of ``--help``."""
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items() if entry.panel == panel])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a traceback is shown with ``--debug`` only."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BrokenPipeError as error:
            raise typer.Exit(drop_output()) from error
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(_handle_error(error, ctx.meta[TYPED], debug=ctx.params["debug"])) from error


def dashed(argument: str) -> str:
    """Replace the underscores in a flag by dashes."""
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if name.startswith("--") else argument


def load_command(name: str) -> Any:
    """Import a command of the table."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    target = vars(import_module(module))[attribute]
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP_FLAGS)
        single.command(cls=vars(target).get("command_class"))(target)
        target = single
    command = get_command(target)
    command.name = name
    return command


app = typer.Typer(cls=CommandTable, rich_markup_mode=None, no_args_is_help=True, context_settings=HELP_FLAGS)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hftune {__version__}")
        raise typer.Exit


_DEBUG = typer.Option("--debug", help="Show tracebacks and all log messages; can be anywhere.")
_VERSION = typer.Option("--version", help="Show the version and stop.", callback=_show_version, is_eager=True)


@app.callback()
def hftune(debug: Annotated[bool, _DEBUG] = False, version: Annotated[bool, _VERSION] = False) -> None:
    """Fine-tune small encoders under any tuning method, with results you can trust."""
    from hftune.cli import terminal

    terminal.set_up_logging(debug, quiet=not is_main_process())
    without_home = ensure_home()
    if without_home is not None and is_main_process():
        terminal.note(without_home, style="dim")


def run(arguments: Sequence[str] | None = None) -> None:
    """Run a command line; ends the process with the command's exit code.

    Args:
        arguments: The arguments after ``hftune``; those of the process by default.
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
        sys.exit(drop_output())


def run_and_cache(arguments: Sequence[str] | None, store: Callable[[str], None]) -> None:
    """Like ``run``; if it ends without an error, call ``store`` with the text of standard output."""
    stream, copied = sys.stdout, StringIO()
    try:
        with redirect_stdout(copied):
            run(arguments)
    except SystemExit as end:
        if not end.code:
            store(copied.getvalue())
        raise
    finally:
        try:
            stream.write(copied.getvalue())
            stream.flush()
        except BrokenPipeError:
            sys.exit(drop_output())


def _use_utf8() -> None:
    """Start again in UTF-8 mode if the locale has another encoding.

    Under ``LC_ALL=C`` without UTF-8 mode Python can't hand a path with an ü to libraries that write files themselves,
    and a run would fail at saving.
    """
    if os.name == "posix" and sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # for child processes too
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _handle_error(error: BaseException, typed: Sequence[str], *, debug: bool) -> int:
    """Show an error and return its exit code: 2 for a bad request, 1 for a failed run, 130 for Ctrl-C."""
    from hftune.cli import terminal

    if debug:
        terminal.show_traceback(error)
    shows = first_to_fail()
    if isinstance(error, KeyboardInterrupt):
        if shows:
            terminal.note("Stopped.")
        return 128 + signal.SIGINT
    if not isinstance(error, HftuneError):
        again = "Run it again with --debug to see where it happened." if not debug else "The traceback is above."
        error = RunFailed(f"unexpected {type(error).__name__}: {str(error)[:MAX_ERROR_LENGTH]}", hint=again)
    if shows:
        from hftune.cli.hints import fitted

        terminal.show_error(error, fitted(error.hint, typed))
    return error.exit_code


def drop_output() -> int:
    """Stop writing to a pipe that its reader has closed (as ``head`` does); return the exit code of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


# ---- several processes: under a launcher, each is a whole command line ----


def refuse_several(command: str) -> None:
    """Refuse several processes for a command that runs in one.

    Raises:
        HftuneError: A launcher has started several.
    """
    count = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    if count > 1:
        raise HftuneError(
            f"{command} runs in one process, but a launcher has started {count}",
            hint=f"leave the launcher out: `hftune {command} …`",
        )


def is_main_process() -> bool:
    """Whether this is the main process."""
    return os.environ.get("RANK", "0") == "0"


def first_to_fail() -> bool:
    """Whether no other process of this launch, on this machine, has shown an error yet.

    The other processes fail for the same reason, or because the first one has ended: its message is the one that
    matters. torchrun gives each process a file below a folder that they share.
    """
    mine = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not mine:
        return True
    try:
        os.close(os.open(Path(mine).parent.parent / "hftune-error", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:
        return True  # an error shown twice is better than none
    return True
