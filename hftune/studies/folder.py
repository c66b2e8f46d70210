"""The folder of a study: its plan, its runs, what failed, and what came of it.

runs/<study>/  study.yaml  runs/<setting>/seed-<n>/  failures.jsonl  comparison.{json,csv,md}  plots/*.png  report.html
               logs/ (what workers said)   depends_on/<name>/seed-<n>/ (runs that others start from)
               data/*.parquet (rows that were given from Python)
               for a search: drawn.jsonl (its trials)  search.journal (Optuna's storage)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.data.in_memory import InMemoryData
from hftune.errors import HftuneError
from hftune.files import read_jsonl, refuse_links, write_jsonl, write_text
from hftune.runs.directory import DATA, RunDir, in_use
from hftune.runs.group import seed_path
from hftune.runs.lock import exclusive
from hftune.studies.plan import Plan, grid, plan_yaml, read_plan, setting_of
from hftune.studies.settings import Setting
from hftune.studies.stages import stage_path

PLAN = "study.yaml"
STUDY = "a study"


@dataclass(frozen=True)
class StudyDir:
    """One study on disk."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> StudyDir:
        """An existing study. Links inside it are refused, as inside a run.

        Raises:
            HftuneError: There is no study at this path, or it holds a link.
        """
        if not is_study(path):
            raise HftuneError(f"{path} is not a study: it has no {PLAN}", hint="give the folder that hftune sweep made")
        refuse_links(path, STUDY)
        return cls(path)

    def plan(self) -> Plan:
        """The plan it was made with."""
        return read_plan(self.path / PLAN)

    def settings(self) -> list[Setting]:
        """The grid, or what the search has drawn so far."""
        plan = self.plan()
        if plan.search is None:
            return grid(plan)
        drawn = [setting_of(plan, trial["values"]) for trial in self.drawn()]
        return list({setting.folder: setting for setting in drawn}.values())

    def run(self, setting: Setting, seed: int) -> RunDir:
        """The run of one setting and seed, whether it is there yet or not."""
        return RunDir(seed_path(self.path / "runs" / setting.folder, seed))

    def before(self, stage: str, seed: int) -> RunDir:
        """The run of one seed that others start from, whether it is there yet or not."""
        return RunDir(stage_path(self.path, stage, seed))

    def runs(self, setting: Setting) -> list[RunDir]:
        """The complete runs of a setting, in order of seeds."""
        found = [self.run(setting, seed) for seed in self.plan().seeds]
        return [run for run in found if run.complete]

    def drawn(self) -> list[dict[str, Any]]:
        """The trials of a search, in order: values, state, score."""
        return _rows(self.path / "drawn.jsonl")

    def write_drawn(self, drawn: Sequence[Mapping[str, Any]]) -> None:
        """Keep what a search has drawn."""
        write_jsonl(self.path / "drawn.jsonl", drawn)

    def failures(self) -> list[dict[str, Any]]:
        """Runs that failed in the last sitting, and why."""
        return _rows(self.path / "failures.jsonl")

    def write_failures(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Keep what failed and why."""
        write_jsonl(self.path / "failures.jsonl", failures)


def is_study(path: Path) -> bool:
    """Whether a study lies here."""
    return (path / PLAN).is_file()


@contextmanager
def begun(path: Path, plan: Plan, rows: InMemoryData | None = None) -> Iterator[StudyDir]:
    """Make the folder of a study, or take it up again, and hold it for this process alone.

    Raises:
        HftuneError: Something else lies there, another plan, or another process is at it.
    """
    study = StudyDir(path)
    refuse_unfit(path, plan)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HftuneError(
            f"can't make the study's folder {path}: {error.strerror}", hint="name another folder with --output"
        ) from error
    with exclusive(path):
        if rows is not None:
            rows.store(path / DATA, begun=is_study(path))
        write_text(path / PLAN, plan_yaml(plan))
        yield study


def refuse_unfit(path: Path, plan: Plan) -> None:
    """Refuse a folder that holds something else, a study with another plan, or links."""
    if is_study(path):
        refuse_links(path, STUDY, in_place=True)
        _refuse_other_plan(StudyDir(path), plan)
    elif in_use(path):
        raise HftuneError(f"{path} is in use and is not a study", hint="name another folder with --output")
    else:
        refuse_links(path, STUDY, depth=1, in_place=True)


def _refuse_other_plan(study: StudyDir, plan: Plan) -> None:
    """A study may grow (values, seeds, trials), but not turn into another one."""
    before = study.plan()
    changed = [name for name, one, other in _fixed(before, plan) if one != other]
    if (before.search is None) != (plan.search is None) or (before.search or 0) > (plan.search or 0):
        changed.append("search")
    searched = plan.search is not None
    if not _grown(before.seeds, plan.seeds, exactly=searched):
        changed.append("seeds")
    if list(before.grid) != list(plan.grid):
        changed.append("grid")
    else:
        changed += [
            f"grid.{key}" for key, axis in before.grid.items() if not _grown_axis(axis, plan.grid[key], searched)
        ]
    if changed:
        raise HftuneError(
            f"{study.path} holds a study with another plan: {', '.join(changed)} differs",
            hint="name another folder with --output; a grid may only gain values and seeds, a search only trials",
        )


def _fixed(before: Plan, after: Plan) -> list[tuple[str, object, object]]:
    return [(name, vars(before)[name], vars(after)[name]) for name in ("recipe", "set", "depends_on")]


def _grown_axis(before: object, after: object, exactly: bool) -> bool:
    if isinstance(before, list) and isinstance(after, list):
        return _grown(before, after, exactly=exactly)
    if isinstance(before, dict) and isinstance(after, dict) and not exactly:
        return all(after.get(name) == values for name, values in before.items())
    return before == after


def _grown(before: Sequence[object], after: Sequence[object], *, exactly: bool) -> bool:
    return list(before) == list(after) if exactly else all(value in after for value in before)


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path) if path.is_file() else []
