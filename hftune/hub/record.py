"""hub.json of a run: what it brought to the Hub last. Written after every push, read when one fails.

A Hub that can't be reached can't be asked what it holds; the run knows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hftune.runs.directory import RunDir

MAIN = "main"


@dataclass(frozen=True)
class Record:
    """A commit on the Hub, and what of the run it holds."""

    repo: str
    revision: str
    commit: str
    url: str
    step: int | None = None
    """The update after which the best checkpoint so far was saved; None for the finished model."""

    def keep(self, run: RunDir) -> None:
        """Write it into the run directory."""
        run.write_published(asdict(self))


def whats_there(run: RunDir, repo: str, revision: str) -> str:
    """What of this run is on the Hub, as far as it knows, as the end of a sentence."""
    known = run.read_published()
    if known.get("repo") != repo or known.get("revision") != revision:
        return f"nothing of this run is at {repo} on the Hub"
    where = f"{known['url']} (commit {known['commit'][:10]})"
    if known["step"] is None:
        return f"{where} holds the finished model"
    return f"{where} holds the best checkpoint of step {known['step']}, and its card says that the run is not finished"
