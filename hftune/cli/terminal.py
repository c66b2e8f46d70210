"""The terminal: results on standard output, everything else on standard error. Used by ``hftune.cli`` alone.

Text from data, models and recipes is untrusted: control characters in it are shown, not obeyed.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable
from functools import cache
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from hftune.errors import HftuneError
from hftune.escapes import UNSAFE, json_text, redacted, visible

__all__ = ["err", "note", "out", "say", "set_up_logging", "show_error", "show_json", "show_traceback", "visible"]

PIPED_WIDTH = 1000


class _Console(Console):
    """A console that leaves a closed pipe to ``hftune.cli``, and through which no text can steer the terminal."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Whatever is printed, in a table, a bar or alone: only rich's own control codes are obeyed."""
        for segment in super().render(renderable, options):
            if segment.control or not UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Rich would exit with code 1, which is ours for a failed run."""
        raise BrokenPipeError


def _console(*, is_stderr: bool) -> Console:
    """Where nobody looks on, lines are as long as they are: a path that wraps can't be copied or searched for."""
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
    """Text beside the result, on standard error; tokens that were typed are taken out."""
    err().print(Text(visible(redacted(text)), style=style), soft_wrap=True)


def show_json(value: Any) -> None:
    """A result as JSON on standard output, with whatever could steer a terminal as a JSON escape."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def show_error(error: HftuneError) -> None:
    """What was expected and got; below it, what to do."""
    err().print(Text.assemble(("Error: ", "bold red"), visible(error.message)), soft_wrap=True)
    err().print(Text.assemble(("  → ", "bold"), visible(error.hint)), soft_wrap=True)


def show_traceback(error: BaseException) -> None:
    """The whole traceback, for ``--debug``."""
    note("".join(traceback.format_exception(error)).rstrip(), style="dim")


class _TerminalHandler(logging.Handler):
    """Log records through the console, so that they do not tear a progress bar apart."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """One line a record; warnings stand out, and a note is said once, however many runs of a study it holds for."""
        try:
            line = self.format(record)
            if record.levelno >= logging.WARNING:
                note(f"{record.levelname}: {line}", style="bold yellow")
            elif line not in self._said:
                self._said.add(line)
                note(line)
        except Exception:  # as every logging handler does: what goes wrong in a message is shown, and ends nothing
            self.handleError(record)


def set_up_logging(debug: bool, *, quiet: bool = False) -> None:
    """Show what the library logs: notes and warnings, or with ``--debug`` everything.

    Args:
        debug: Everything.
        quiet: Only errors: another process of the same launch tells the rest.
    """
    library = logging.getLogger("hftune")
    library.handlers = [_TerminalHandler()]
    library.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.INFO)
    library.propagate = False
