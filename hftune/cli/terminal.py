"""The terminal: results on standard output, everything else on standard error; in a notebook, displayed.

Text from data, models and recipes is untrusted: control characters in it are escaped.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Self

from rich.console import Console, ConsoleOptions
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from hftune.errors import HftuneError
from hftune.progress import ProgressReporter
from hftune.sanitize import UNSAFE, json_text, redacted, visible

__all__ = [
    "RunProgress",
    "err",
    "note",
    "out",
    "say",
    "set_up_logging",
    "show_error",
    "show_json",
    "show_traceback",
    "table",
    "visible",
]

PIPED_WIDTH = 1000


class _Console(Console):
    """A console that escapes control characters in text, and raises an error if its pipe is closed."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape control characters in everything that is printed, except rich's own control codes."""
        for segment in super().render(renderable, options):
            if segment.control or not UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Rich would exit with code 1, which is ours for a failed run."""
        raise BrokenPipeError


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook (Jupyter, Colab …): output is displayed, and there is no terminal."""
    module = sys.modules.get("IPython")
    shell: Any = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def _console(*, is_stderr: bool) -> Console:
    if in_notebook():
        return _Console(force_jupyter=True, highlight=False, markup=False, emoji=False)
    # In a pipe or a log, lines are not wrapped: a path that wraps can't be copied or searched for.
    stream = sys.stderr if is_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    return _Console(stderr=is_stderr, highlight=False, markup=False, emoji=False, width=width)


@cache
def out() -> Console:
    """Standard output: results. Takes text as it is, never as markup."""
    return _console(is_stderr=False)


@cache
def err() -> Console:
    """Standard error: progress, notes, warnings, errors. Takes text as it is, never as markup."""
    return _console(is_stderr=True)


def say(text: str, style: str = "") -> None:
    """Text of the result, on standard output; never wrapped, so that it can be piped."""
    out().print(Text(visible(text), style=style), soft_wrap=True)


def note(text: str, style: str = "") -> None:
    """A note on standard error; tokens and passwords are removed."""
    err().print(Text(visible(redacted(text)), style=style), soft_wrap=True)


def table(*columns: str, right: Collection[str] = (), header: bool = True, title: str | None = None) -> Table:
    """A table without lines, as all of ours are; the columns in ``right`` are numbers, which are never wrapped."""
    made = Table(box=None, pad_edge=False, show_header=header, title=title, title_justify="left")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    return made


def show_json(value: Any) -> None:
    """A result as JSON on standard output, with control characters as JSON escapes."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def show_error(error: HftuneError, hint: str | None = None) -> None:
    """The message of an error and its hint, or the form of the hint that fits the command."""
    err().print(Text.assemble(("Error: ", "bold red"), visible(error.message)), soft_wrap=True)
    err().print(Text.assemble(("  → ", "bold"), visible(error.hint if hint is None else hint)), soft_wrap=True)


def show_traceback(error: BaseException) -> None:
    """The whole traceback, for ``--debug``."""
    note("".join(traceback.format_exception(error)).rstrip(), style="dim")


class _TerminalHandler(logging.Handler):
    """Print log records through the console, so that they do not interrupt a progress bar."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line per record: warnings in bold, each note once, also if several runs of a study log it."""
        try:
            line = self.format(record)
            if record.levelno >= logging.WARNING:
                note(f"{record.levelname}: {line}", style="bold yellow")
            elif line not in self._shown:
                self._shown.add(line)
                note(line)
        except Exception:  # as in every logging handler: an error in a message is shown, and does not end the program
            self.handleError(record)


def set_up_logging(debug: bool, *, quiet: bool = False) -> None:
    """Show what the library logs: notes and warnings, or with ``--debug`` everything.

    Args:
        debug: Everything.
        quiet: Only errors: another process of the same launch shows the rest.
    """
    library = logging.getLogger("hftune")
    library.handlers = [_TerminalHandler()]
    library.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.INFO)
    library.propagate = False


# ---- the progress of a run: a bar, stages, notes; on standard error, and in a log without bars ----


class _Facts(TextColumn):
    """Numbers next to a bar, cut off where the terminal ends."""

    def render(self, task: Task) -> Text:
        """Render one line: only the text is ``no_wrap``, because rich never shrinks a ``no_wrap`` column."""
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


def progress_columns() -> tuple[ProgressColumn, ...]:
    """What is next to a bar; on a narrow terminal the bar and the facts give way, not the counts and times."""

    def fixed() -> Column:
        return Column(no_wrap=True)

    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(table_column=fixed()),
        TimeElapsedColumn(table_column=fixed()),
        TextColumn("left"),
        TimeRemainingColumn(table_column=fixed()),
        _Facts("{task.fields[facts]}", markup=False, table_column=Column()),
    )


class RunProgress(ProgressReporter):
    """Draws the progress of a run with rich."""

    def __init__(self) -> None:
        """Nothing is drawn before the first ``begin``."""
        # rich needs ipywidgets to draw a bar in a notebook; in a log each bar would leave an empty line.
        draws = importlib.util.find_spec("ipywidgets") is not None if err().is_jupyter else err().is_interactive
        self._bar = Progress(*progress_columns(), console=err(), transient=True, disable=not draws)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def stage(self, text: str) -> None:
        """Print one dim line per stage."""
        note(f"· {text}", style="dim")

    def begin(self, total: int, unit: str) -> None:
        """Draw a bar."""
        self.end()
        self._bar.start()
        self._task = self._bar.add_task(visible(unit), total=total, facts="")

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """Move the bar."""
        if self._task is not None:
            shown = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items())
            self._bar.update(self._task, completed=done, facts=shown)

    def end(self) -> None:
        """Remove the bar."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.stop()
            self._task = None

    def note(self, text: str) -> None:
        """Print a plain line."""
        note(f"  {text}")

    def warn(self, text: str) -> None:
        """Print a bold line."""
        note(f"WARNING: {text}", style="bold yellow")
