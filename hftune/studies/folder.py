"""The folder of a study: its plan, its runs, failures and results.

runs/<study>/  study.yaml  runs/<setting>/seed-<n>/  failures.jsonl  comparison.{json,csv,md}  plots/*.png  report.html
               logs/ (output of workers)   depends_on/<name>/seed-<n>/ (runs that others start from)
               data/*.parquet (rows passed from Python)
               for a search: trials.jsonl
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.data.in_memory import InMemoryData
from hftune.errors import HftuneError
from hftune.files import read_jsonl, refuse_links, write_jsonl, write_text
from hftune.runs.directory import DATA, RunDir, exclusive, in_use
from hftune.runs.group import seed_path
from hftune.studies.plan import PLAN, Plan, StudySetting, grid, is_study, setting_of, stage_path
from hftune.studies.request import plan_yaml, read_plan

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

    def settings(self) -> list[StudySetting]:
        """The grid, or what the search has sampled so far."""
        plan = self.plan()
        if plan.search is None:
            return grid(plan)
        sampled = [setting_of(plan, trial["values"]) for trial in self.trials()]
        return list({setting.folder: setting for setting in sampled}.values())  # two trials can be the same setting

    def run(self, setting: StudySetting, seed: int) -> RunDir:
        """The run of one setting and seed, whether it is there yet or not."""
        return RunDir(seed_path(self.path / "runs" / setting.folder, seed))

    def stage_run(self, stage: str, seed: int) -> RunDir:
        """The run of ``depends_on`` with one seed, whether it exists yet or not."""
        return RunDir(stage_path(self.path, stage, seed))

    def runs(self, setting: StudySetting) -> list[RunDir]:
        """The complete runs of a setting, in order of seeds."""
        found = [self.run(setting, seed) for seed in self.plan().seeds]
        return [run for run in found if run.complete]

    def trials(self) -> list[dict[str, Any]]:
        """The trials of a search, in order: values, state, score."""
        return _rows(self.path / "trials.jsonl")

    def write_trials(self, trials: Sequence[Mapping[str, Any]]) -> None:
        """Store the trials of a search."""
        write_jsonl(self.path / "trials.jsonl", trials)

    def failures(self) -> list[dict[str, Any]]:
        """Runs that failed in the last session, and why."""
        return _rows(self.path / "failures.jsonl")

    def write_failures(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Store the failures."""
        write_jsonl(self.path / "failures.jsonl", failures)


@contextmanager
def begun(path: Path, plan: Plan, rows: InMemoryData | None = None) -> Iterator[StudyDir]:
    """Make the folder of a study or continue it, locked for this process.

    Raises:
        HftuneError: The folder is not a study or has another plan, or another process uses it.
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
    """Refuse a folder that is not a study, a study with another plan, or links."""
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
    changed = [name for name in ("recipe", "set", "depends_on") if getattr(before, name) != getattr(plan, name)]
    if (before.search is None) != (plan.search is None) or (before.search or 0) > (plan.search or 0):
        changed.append("search")
    # A search samples from the grid with seeds derived from trial numbers: another grid would change every trial.
    searched = plan.search is not None
    if not _contains(plan.seeds, before.seeds, exactly=searched):
        changed.append("seeds")
    if list(before.grid) != list(plan.grid):
        changed.append("grid")
    else:
        axes = [(key, plan.grid[key], axis) for key, axis in before.grid.items()]
        changed += [f"grid.{key}" for key, now, axis in axes if not _contains(now, axis, exactly=searched)]
    if changed:
        raise HftuneError(
            f"{study.path} holds a study with another plan: {', '.join(changed)} differs",
            hint="name another folder with --output; a grid may only gain values and seeds, a search only trials",
        )


def _contains(now: object, before: object, *, exactly: bool) -> bool:
    """Whether all earlier values, named settings or seeds are still there; an interval has to stay the same."""
    if exactly or type(now) is not type(before):
        return now == before
    if isinstance(now, dict) and isinstance(before, dict):
        return all(now.get(name) == value for name, value in before.items())
    if isinstance(now, Collection) and isinstance(before, Collection):
        return all(value in now for value in before)
    return now == before


def _rows(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path) if path.is_file() else []
