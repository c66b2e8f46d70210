"""The folder of a study: its plan, its runs, what failed, and what came of it.

studies/<name>/  study.yaml  runs/<setting>/seed-<n>/  failures.jsonl  comparison.{json,csv,md}  plots/  report.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hftune.errors import HftuneError
from hftune.files import read_jsonl, write_jsonl, write_text
from hftune.runs.directory import RunDir, in_use, is_run
from hftune.runs.group import seed_path
from hftune.studies.plan import Plan, Setting, grid, plan_from_yaml, setting_of

PLAN = "study.yaml"


@dataclass(frozen=True)
class StudyDir:
    """One study on disk."""

    path: Path

    @classmethod
    def begin(cls, path: Path, plan: Plan) -> StudyDir:
        """Make the folder, or take a study up again when its plan is the same."""
        study = cls(path)
        if is_study(path):
            before = study.plan()
            if before.model_dump(exclude={"test", "search"}) != plan.model_dump(exclude={"test", "search"}):
                raise HftuneError(
                    f"{path} holds a study with another plan", hint=f"name another folder with --output, not {path}"
                )
        elif in_use(path):
            raise HftuneError(f"{path} is in use and is not a study", hint="name another folder with --output")
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / PLAN, yaml.safe_dump(plan.model_dump(mode="json", exclude_none=True), sort_keys=False))
        return study

    @classmethod
    def open(cls, path: Path) -> StudyDir:
        """An existing study."""
        if not is_study(path):
            raise HftuneError(f"{path} is not a study: it has no {PLAN}", hint="give the folder that hftune sweep made")
        return cls(path)

    def plan(self) -> Plan:
        """The plan it was made with."""
        return plan_from_yaml((self.path / PLAN).read_text(encoding="utf-8"), str(self.path / PLAN))

    def run_path(self, setting: Setting, seed: int) -> Path:
        """Where the run of one setting and seed lies."""
        return seed_path(self.path / "runs" / setting.folder, seed)

    def settings(self) -> list[Setting]:
        """The grid, or what the search has drawn so far."""
        plan = self.plan()
        return grid(plan) if plan.search is None else [setting_of(plan, drawn) for drawn in self.drawn()]

    def runs(self, setting: Setting) -> list[RunDir]:
        """The complete runs of a setting, in order of seeds."""
        paths = [self.run_path(setting, seed) for seed in self.plan().seeds]
        return [RunDir(path) for path in paths if is_run(path) and RunDir(path).complete]

    def drawn(self) -> list[dict[str, Any]]:
        """The values that a search has drawn, in order."""
        return read_jsonl(self.path / "drawn.jsonl") if (self.path / "drawn.jsonl").is_file() else []

    def write_drawn(self, drawn: list[dict[str, Any]]) -> None:
        """Keep what a search has drawn."""
        write_jsonl(self.path / "drawn.jsonl", drawn)

    def failures(self) -> list[dict[str, Any]]:
        """Runs that failed, newest attempt last."""
        return read_jsonl(self.path / "failures.jsonl") if (self.path / "failures.jsonl").is_file() else []

    def write_failures(self, failures: list[Mapping[str, Any]]) -> None:
        """Keep what failed and why."""
        write_jsonl(self.path / "failures.jsonl", failures)


def is_study(path: Path) -> bool:
    """Whether a study lies here."""
    return (path / PLAN).is_file()
