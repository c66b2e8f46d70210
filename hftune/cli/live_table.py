"""Progress of a study, in a terminal or a notebook: a live table of its runs; a log gets a line per run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.text import Text

from hftune.cli.terminal import err, note, table, visible
from hftune.runs.formatting import score_name
from hftune.studies.executors import StudyCallback

FINISHED = ("ready", "done", "pruned", "failed", "stopped")
STYLES = {"running": "bold", "failed": "red", "pruned": "yellow", "waiting": "dim", "ready": "dim"}


@dataclass
class _Line:
    """One run's line in the table."""

    setting: str
    seed: int
    state: str = "waiting"
    progress: str = ""
    validation: str = ""
    began: float = 0.0
    seconds: float = 0.0


class LiveTable(StudyCallback):
    """Progress callback of a study: a table of its runs, or a line for each run that has ended."""

    def __init__(self, jobs: int) -> None:
        """jobs: runs at once, for the estimate of the time left."""
        self._jobs = jobs
        self._lines: dict[str, _Line] = {}
        self._live = Live(console=err(), get_renderable=self._drawn, refresh_per_second=4, transient=True)
        self._drawing = err().is_terminal

    def __enter__(self) -> Self:
        if self._drawing:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawing:
            self._live.stop()

    def on_job(self, job: Mapping[str, Any]) -> None:
        """Add a line for the run."""
        self._lines.setdefault(job["path"], _Line(job["setting"], job["seed"]))

    def on_event(self, job: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        """Update the run's line; warnings are lines of their own."""
        line = self._begun(job)
        if "stage" in event:
            line.progress = event["stage"]
        elif "total" in event:
            total = f" of {event['total']:,}" if event["total"] else ""
            line.progress = f"{event['done']:,}{total}"
            for name, value in event["facts"].items():
                if name.startswith("validation "):
                    line.validation = f"{name.removeprefix('validation ')} {value:.4f}"
        elif "warning" in event:
            note(f"WARNING: {line.setting} seed {line.seed}: {event['warning']}", style="bold yellow")

    def on_end(self, job: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """Mark the run as ended; print a plain line if there is no table, and for every failure."""
        line = self._begun(job)
        line.state = outcome["state"]
        line.seconds = outcome.get("seconds", 0.0)
        line.progress = outcome.get("reason", "")
        scores = outcome.get("splits", {}).get("validation", {})
        metric = str(outcome.get("metric"))
        if metric in scores:
            line.validation = f"{score_name(metric)} {scores[metric]:.4f}"
        if not self._drawing or line.state == "failed":
            what = "already complete" if line.state == "ready" else line.state
            what = f"test {what}" if job["action"] == "score" else what
            facts = [what, line.validation and f"validation {line.validation}", line.progress]
            finished = sum(one.state in FINISHED for one in self._lines.values())
            text = f"[{finished}/{len(self._lines)}] {line.setting} seed {line.seed}: {', '.join(filter(None, facts))}"
            note(f"{text} ({line.seconds:.0f} s)", style="red" if line.state == "failed" else "")

    def _begun(self, job: Mapping[str, Any]) -> _Line:
        self.on_job(job)
        line = self._lines[job["path"]]
        if line.state != "running":
            line.state, line.began = "running", time.monotonic()
        return line

    def _drawn(self) -> Group:
        columns = ("setting", "seed", "state", "progress", "validation", "seconds")
        shown = table(*columns, right=("seed", "validation", "seconds"))
        for column in shown.columns:
            column.no_wrap = True
        lines = list(self._lines.values())
        for line in self._shown(lines):
            seconds = time.monotonic() - line.began if line.state == "running" else line.seconds
            cells = (line.setting, str(line.seed), line.state, line.progress, line.validation, f"{seconds:.0f}")
            shown.add_row(*map(visible, cells), style=STYLES.get(line.state, ""))
        return Group(shown, Text(self._summary(lines), style="dim"))

    @staticmethod
    def _shown(lines: list[_Line]) -> list[_Line]:
        """The lines that fit the terminal: all running ones, then the latest finished ones, then the next ones."""
        height = max(4, err().height - 4)
        if len(lines) <= height:
            return lines
        chosen = [line for line in lines if line.state == "running"][:height]
        finished = [line for line in lines if line.state in FINISHED]
        # Half of the lines that are left show finished runs, the others waiting ones.
        chosen += finished[len(finished) - (height - len(chosen)) // 2 :] if height - len(chosen) > 1 else []
        chosen += [line for line in lines if line.state == "waiting"][: height - len(chosen)]
        return [line for line in lines if any(line is one for one in chosen)]

    def _summary(self, lines: list[_Line]) -> str:
        finished = [line for line in lines if line.state in FINISHED]
        parts = [f"{len(finished)} of {len(lines)} runs"]
        for state in ("failed", "pruned"):
            count = sum(line.state == state for line in lines)
            parts += [f"{count} {state}"] if count else []
        timed = [line.seconds for line in finished if line.state == "done" and line.seconds]
        left = len(lines) - len(finished)
        if timed and left:
            parts.append(f"about {sum(timed) / len(timed) * left / self._jobs / 60:.0f} min left")
        return ", ".join(parts)
