"""How a call from Python shows its progress: bars in a notebook or on a terminal, lines elsewhere, or nothing.

Used by ``hftune.api``. The terminal is drawn by ``hftune.cli.watch`` as for a command; a notebook here.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from hftune.errors import HftuneError
from hftune.escapes import redacted, visible
from hftune.training.progress import Listener, Silent

if TYPE_CHECKING:
    from hftune.studies.sweep import Watcher as StudyWatcher

ProgressOption: TypeAlias = bool | Listener
"""True shows progress, False is silent, a Listener of one's own receives it."""


@contextmanager
def shown(progress: ProgressOption) -> Iterator[Listener]:
    """The listener of a call, with the libraries' own bars and advice off meanwhile."""
    with _libraries_quiet():
        if progress is False:
            yield Silent()
        elif progress is not True:
            if not hasattr(progress, "stage"):
                raise HftuneError(
                    f"expected progress to be True, False or a Listener; got {type(progress).__name__}",
                    hint="progress=False shows nothing",
                )
            yield progress
        elif in_notebook():
            with NotebookProgress() as drawn:
                yield drawn
        else:
            from hftune.cli.watch import Watcher

            with Watcher() as watcher:
                yield watcher


@contextmanager
def shown_study(progress: bool, jobs: int) -> Iterator[StudyWatcher]:
    """The same for the runs of a study."""
    from hftune.studies.sweep import Unwatched

    if not progress:
        yield Unwatched()
    elif in_notebook():
        yield NotebookStudy()
    else:
        from hftune.cli.board import Board

        with Board(jobs) as board:
            yield board


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook (Jupyter, Colab …): output is displayed, and there is no terminal."""
    module = sys.modules.get("IPython")
    shell: Any = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def _console() -> Any:
    from rich.console import Console

    return Console(force_jupyter=True, highlight=False, markup=False, emoji=False)


class NotebookProgress:
    """A Listener that draws with rich in the output of a cell.

    rich's bars need ipywidgets; without it each stage is a line.
    """

    def __init__(self) -> None:
        """Nothing is drawn before the first stage."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = _console()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
            transient=True,
            disable=importlib.util.find_spec("ipywidgets") is None,
        )
        self._task: Any = None

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def stage(self, text: str) -> None:
        """One dim line per stage."""
        self._line(f"· {text}", "dim")

    def begin(self, total: int, unit: str) -> None:
        """Draw a bar."""
        self.end()
        self._progress.start()
        self._task = self._progress.add_task(visible(unit), total=total, facts="")

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """Move the bar."""
        if self._task is not None:
            told = "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items())
            self._progress.update(self._task, completed=done, facts=told)

    def end(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._progress.stop()
            self._task = None

    def note(self, text: str) -> None:
        """A plain line."""
        self._line(f"  {text}", "")

    def warn(self, text: str) -> None:
        """A loud line."""
        self._line(f"WARNING: {text}", "bold yellow")

    def _line(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(visible(redacted(text)), style=style))


class NotebookStudy:
    """A watcher of a study: one line for each run that has ended."""

    def __init__(self) -> None:
        """Nothing has run yet."""
        self._out = NotebookProgress()
        self._expected: set[str] = set()
        self._over: set[str] = set()

    def expect(self, order: Mapping[str, Any]) -> None:
        """One more run."""
        self._expected.add(order["path"])

    def news(self, order: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        """Only warnings are shown."""
        if "warning" in message:
            self._out.warn(f"{order['setting']} seed {order['seed']}: {message['warning']}")

    def done(self, order: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """The run has ended."""
        self._over.add(order["path"])
        scores = outcome.get("splits", {}).get("validation", {})
        score = f", validation accuracy {scores['accuracy']:.4f}" if "accuracy" in scores else ""
        reason = f": {outcome['reason']}" if outcome.get("reason") else ""
        state = "complete from before" if outcome["state"] == "ready" else outcome["state"]
        line = f"[{len(self._over)}/{len(self._expected)}] {order['setting']} seed {order['seed']}: {state}{score}"
        self._out.note(f"{line}{reason}")


@contextmanager
def _libraries_quiet() -> Iterator[None]:
    """Bars and advice of the libraries off, and as the caller had them afterwards."""
    import datasets
    import transformers

    from hftune.quiet import quiet_libraries

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
