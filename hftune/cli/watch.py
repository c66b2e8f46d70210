"""A run as it is seen on a terminal: stages, a progress bar with loss, score and time left, notes and warnings.

Everything goes to standard error, so that ``--json`` can be piped.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hftune.cli.terminal import err, note, visible


class Watcher:
    """A ``hftune.training.progress.Listener`` that draws with rich."""

    def __init__(self) -> None:
        """Nothing is drawn before the first ``begin``."""
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=err(),
            transient=True,
            disable=not err().is_interactive,  # a log would get an empty line for each bar
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back, whatever happened."""
        self.end()

    def stage(self, text: str) -> None:
        """One dim line a stage."""
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
        """Take the bar away."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.stop()
            self._task = None

    def note(self, text: str) -> None:
        """A plain line."""
        note(f"  {text}")

    def warn(self, text: str) -> None:
        """A loud line."""
        note(f"WARNING: {text}", style="bold yellow")
