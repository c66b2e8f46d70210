"""A study as it is seen on a terminal: a table of its runs that is kept up to date, or plain lines where nobody looks.

Everything goes to standard error, so that ``--json`` can be piped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hftune.cli.terminal import err, note, visible

OVER = ("ready", "done", "pruned", "failed", "stopped")
STYLES = {"running": "bold", "failed": "red", "pruned": "yellow", "waiting": "dim", "ready": "dim"}


@dataclass
class _Line:
    """One run's line in the table."""

    setting: str
    seed: int
    state: str = "waiting"
    progress: str = ""
    validation: str = ""
    warning: str = ""
    began: float = 0.0
    seconds: float = 0.0
    facts: dict[str, float] = field(default_factory=dict)


class Board:
    """A ``hftune.studies.sweep.Watcher`` that draws with rich."""

    def __init__(self, jobs: int) -> None:
        """jobs: runs at once, for the estimate of the time left."""
        self._jobs = jobs
        self._lines: dict[str, _Line] = {}
        self._live = Live(console=err(), get_renderable=self._drawn, refresh_per_second=4, transient=True)
        self._drawing = err().is_terminal

    def __enter__(self) -> Board:
        if self._drawing:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back, whatever happened."""
        if self._drawing:
            self._live.stop()

    def expect(self, order: Mapping[str, Any]) -> None:
        """A line for each run."""
        self._lines.setdefault(order["path"], _Line(order["setting"], order["seed"]))

    def news(self, order: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        """Keep the line up to date; warnings are lines of their own."""
        line = self._begun(order)
        if "stage" in message:
            line.progress = message["stage"]
        elif "total" in message:
            total = f" of {message['total']:,}" if message["total"] else ""
            line.progress = f"{message['done']:,}{total}"
            for name, value in message["facts"].items():
                if name.startswith("validation "):
                    line.validation = f"{value:.4f}"
        elif "warning" in message:
            note(f"WARNING: {line.setting} seed {line.seed}: {message['warning']}", style="bold yellow")

    def done(self, order: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """The run's last word; a plain line where no table is drawn, and always for a failure."""
        line = self._begun(order)
        line.state = outcome["state"]
        line.seconds = outcome.get("seconds", 0.0)
        line.progress = outcome.get("reason", "")
        scores = outcome.get("splits", {}).get("validation", {})
        if "accuracy" in scores:
            line.validation = f"{scores['accuracy']:.4f}"
        if not self._drawing or line.state == "failed":
            what = "complete from before" if line.state == "ready" else line.state
            what = f"test {what}" if order["action"] == "score" else what
            told = ", ".join(
                part for part in (what, line.validation and f"validation {line.validation}", line.progress) if part
            )
            over = sum(one.state in OVER for one in self._lines.values())
            text = f"[{over}/{len(self._lines)}] {line.setting} seed {line.seed}: {told} ({line.seconds:.0f} s)"
            note(text, style="red" if line.state == "failed" else "")

    def _begun(self, order: Mapping[str, Any]) -> _Line:
        self.expect(order)
        line = self._lines[order["path"]]
        if line.state != "running":
            line.state, line.began = "running", time.monotonic()
        return line

    def _drawn(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("setting", "seed", "state", "progress", "validation", "seconds"):
            table.add_column(
                name, justify="right" if name in ("seed", "validation", "seconds") else "left", no_wrap=True
            )
        lines = list(self._lines.values())
        for line in self._shown(lines):
            seconds = time.monotonic() - line.began if line.state == "running" else line.seconds
            cells = (line.setting, str(line.seed), line.state, line.progress, line.validation, f"{seconds:.0f}")
            style = STYLES.get(line.state, "")
            table.add_row(*(visible(cell) for cell in cells), style=style)
        return Group(table, Text(self._summary(lines), style="dim"))

    @staticmethod
    def _shown(lines: list[_Line]) -> list[_Line]:
        """What fits the terminal: all that runs, then the latest that is over, then what comes next."""
        room = max(4, err().height - 4)
        if len(lines) <= room:
            return lines
        kept = [line for line in lines if line.state == "running"][:room]
        over = [line for line in lines if line.state in OVER]
        kept += over[len(over) - (room - len(kept)) // 2 :] if room - len(kept) > 1 else []
        kept += [line for line in lines if line.state == "waiting"][: room - len(kept)]
        return [line for line in lines if any(line is one for one in kept)]

    def _summary(self, lines: list[_Line]) -> str:
        over = [line for line in lines if line.state in OVER]
        told = [f"{len(over)} of {len(lines)} runs"]
        for state in ("failed", "pruned"):
            count = sum(line.state == state for line in lines)
            told += [f"{count} {state}"] if count else []
        timed = [line.seconds for line in over if line.state == "done" and line.seconds]
        left = len(lines) - len(over)
        if timed and left:
            told.append(f"about {sum(timed) / len(timed) * left / self._jobs / 60:.0f} min left")
        return ", ".join(told)
