"""The run directory: its name and paths, typed reading and writing of its files, its lock, and when it is complete.

runs/<name>/  recipe.yaml  environment.json  metrics.json  history.jsonl  predictions/{validation,test}.jsonl
              plots/*.png  report.html  model/ (what is published)  checkpoints/ (what resume reads)
              hub.json (the last upload)  data/*.parquet (in-memory data of the Python API; never published)
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from hftune.config import document
from hftune.config.section import Section
from hftune.config.shipped import find_recipe
from hftune.config.values import plain
from hftune.errors import LONGEST_PATH, HftuneError, listing, nearby_path
from hftune.files import (
    STORED_HERE,
    Damaged,
    checked_name,
    file_name,
    read_json,
    read_jsonl,
    refuse_links,
    write_json,
    write_jsonl,
    write_text,
)
from hftune.runs.schema import (
    VERSION,
    EnvironmentFile,
    HistoryLine,
    MetricsFile,
    PredictionLine,
    PushRecord,
    Schema,
    problem,
)

logger = logging.getLogger(__name__)

RECIPE = "recipe.yaml"
SEED_PREFIX = "seed-"
RUN = "a run directory"
DATA = "data"
LOCK, OWNER = ".lock", ".lock-owner"
RUNS = Path("runs")
_FILE_SUFFIXES = {".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt"}


@dataclass(frozen=True)
class RunDir:
    """One run on disk, made by ``create`` or ``open``."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the directory of a new run; it may contain hidden files and empty folders.

        Raises:
            HftuneError: The path is in use, or can't be made.
        """
        refuse_unwritable(path)
        refuse_used(path)
        refuse_links(path, RUN, depth=1, in_place=True)  # hidden ones, and links to empty folders
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HftuneError(
                f"can't make the run directory {path}: {error.strerror}",
                hint="name a folder that you may write to with --output",
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path, wanted: str = RUN, *, to_train: bool = False) -> RunDir:
        """Open an existing run, complete or not. The path can be a link; links inside the run are refused.

        Args:
            path: The run, or a folder in it.
            wanted: What an error message calls the expected thing.
            to_train: Training continues, which changes files in place: hard links are refused too.

        Raises:
            HftuneError: There is no run at this path (the hint names similar ones), or it contains a link.
        """
        found = next((place for place in (path, path.parent) if is_run(place) and path.exists()), None)
        if found is None:
            raise HftuneError(f"expected {wanted}, {_what_is_there(path)}", hint=_what_was_meant(path))
        refuse_links(found, RUN, in_place=to_train)
        return cls(found)

    @property
    def name(self) -> str:
        """The last part of the path; for a run of a group, also the name of the group."""
        resolved = self.path.resolve()
        if resolved.name.startswith(SEED_PREFIX):
            return f"{resolved.parent.name}/{resolved.name}"
        return resolved.name

    @property
    def recipe(self) -> Path:
        """The resolved recipe; running it again gives the same run."""
        return self.path / RECIPE

    @property
    def environment(self) -> Path:
        """Versions, machine and command line."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """Scores, baselines, parameters, speed; written at the end of the run."""
        return self.path / "metrics.json"

    @property
    def history(self) -> Path:
        """Training and evaluation logs, one row per logging step or evaluation."""
        return self.path / "history.jsonl"

    def predictions(self, split: str) -> Path:
        """One row per example of this split: text, gold, label and every probability."""
        return self.path / "predictions" / f"{checked_name(split, 'the split')}.jsonl"

    @property
    def plots(self) -> Path:
        """The figures as PNG."""
        return self.path / "plots"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    @property
    def model(self) -> Path:
        """What is published and what ``predict`` loads."""
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        """What resume reads."""
        return self.path / "checkpoints"

    @property
    def data(self) -> Path:
        """In-memory data of the Python API, as parquet."""
        return self.path / DATA

    @property
    def published(self) -> Path:
        """What was pushed to the Hub last."""
        return self.path / "hub.json"

    @property
    def complete(self) -> bool:
        """Whether the run is finished and its saved model was reloaded and verified."""
        return self.metrics.is_file() and read_json(self.metrics).get("verified") is True

    def locked(self) -> AbstractContextManager[None]:
        """Lock the directory; a second process that tries gets an HftuneError."""
        return exclusive(self.path)

    def begin(self, recipe: Section, environment: Mapping[str, Any]) -> None:
        """Write recipe and environment of a new run; a resumed run keeps its own."""
        # If the recipe came last, a process that is killed in between would leave a folder that is not a run.
        if not self.recipe.is_file():
            self.write_recipe(recipe)
        if not self.environment.is_file():  # the first session may have been killed between the two
            self.write_environment(environment)

    def discard_if_not_begun(self) -> None:
        """Remove the directory again if the request was refused before anything was written."""
        if not self.path.is_dir() or in_use(self.path):
            return
        # What is left is only what hftune puts there before the recipe: in_use looked for anything else.
        if self.data.is_dir():
            for rows in self.data.iterdir():
                rows.unlink()
            self.data.rmdir()
        for left in (self.path / LOCK, self.path / OWNER):
            left.unlink(missing_ok=True)
        if self.checkpoints.is_dir():
            self.checkpoints.rmdir()
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write_recipe(self, recipe: Section) -> None:
        """Write the resolved recipe, which makes the directory a run."""
        self.write_settings(plain(recipe.model_dump()))

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Write the recipe from plain values by section."""
        write_text(self.recipe, document.dump(settings))

    def read_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of the recipe by section; with the current path of data that is stored with the run.

        Raises:
            Damaged: The recipe can't be read.
        """
        try:
            found, _ = document.read(self.recipe)
        except document.RecipeError as error:
            raise Damaged(self.recipe, str(error.problems[0])) from error
        if not isinstance(found, dict) or not all(isinstance(section, dict) for section in found.values()):
            raise Damaged(self.recipe, "it has no sections")
        # Data passed from Python are stored with the run, and the recipe has their path at that time; a run can move.
        name = found.get("data", {}).get("dataset_name")
        if isinstance(name, str) and Path(name).name == DATA:
            # The seeds of a group and the runs of a study share their data, some folders up.
            folders = (parent / DATA for parent in (self.path, *self.path.parents)[:5])
            found["data"]["dataset_name"] = next((str(one) for one in folders if (one / STORED_HERE).is_file()), name)
        return found

    def read_section(self, name: str, section: Any) -> Any:
        """One section of the recipe, as an object of this class or union of classes."""
        return TypeAdapter(section).validate_python(self.read_settings().get(name, {}))

    def moved_data(self) -> dict[str, str]:
        """The current path of data stored with this run, as an override of its recipe."""
        name = self.read_settings().get("data", {}).get("dataset_name")
        return {} if name is None else {"data.dataset_name": name}

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write the result of ``hftune.runs.environment.describe``."""
        write_json(self.environment, environment)

    def read_environment(self) -> dict[str, Any]:
        """Versions, machine and command line; empty if the run was stopped before it wrote them."""
        return _checked(self.environment, EnvironmentFile) if self.environment.is_file() else {}

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write the scores."""
        write_json(self.metrics, {"version": VERSION, **metrics})

    def read_metrics(self) -> dict[str, Any]:
        """The scores of a finished run.

        Raises:
            HftuneError: The run is not finished, or another version of hftune wrote it.
        """
        if not self.metrics.is_file():
            raise HftuneError(
                f"the run {self.path} is not finished: it has no metrics.json",
                hint=f"finish it with --output {self.path} --resume",
            )
        metrics = _checked(self.metrics, MetricsFile)
        if (version := metrics.get("version")) != VERSION:
            which = "version 0.1" if version is None else f"a later version (format {version})"
            raise HftuneError(
                f"{self.metrics} was written by {which} of hftune, which this version can't read",
                hint="train the run again with this version" if version is None else "upgrade hftune",
            )
        return metrics

    def write_published(self, record: PushRecord) -> None:
        """Write what is on the Hub now."""
        write_json(self.published, record.model_dump())

    def read_published(self) -> PushRecord | None:
        """What is on the Hub; None if nothing was pushed."""
        return PushRecord(**_checked(self.published, PushRecord)) if self.published.is_file() else None

    def read_history(self) -> list[dict[str, Any]]:
        """Training and evaluation logs in order; empty before training."""
        return _checked_lines(self.history, HistoryLine)

    def write_predictions(self, split: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the predictions on one split."""
        write_jsonl(self.predictions(split), rows)

    def read_predictions(self, split: str) -> list[dict[str, Any]]:
        """The predictions on one split; empty if it was not scored."""
        return _checked_lines(self.predictions(split), PredictionLine)


def _checked(path: Path, schema: type[Schema]) -> dict[str, Any]:
    found = read_json(path)
    if wrong := problem(schema, found):
        raise Damaged(path, wrong)
    return found


def _checked_lines(path: Path, schema: type[Schema]) -> list[dict[str, Any]]:
    rows = read_jsonl(path) if path.is_file() else []
    for number, row in enumerate(rows, start=1):
        if wrong := problem(schema, row):
            raise Damaged(path, wrong, line=number)
    return rows


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock a directory for this process.

    The operating system holds the lock, which ends with the process, even on kill -9. The process id in a second file
    is only for the error message.

    Raises:
        HftuneError: Another process is using the directory.
    """
    lock, owner = FileLock(directory / LOCK), directory / OWNER
    try:
        lock.acquire(blocking=False)
    except Timeout as busy:
        holder = _owner(owner)
        who = f"process {holder}" if holder else "another process"
        raise HftuneError(
            f"the run directory {directory} is being used by {who}",
            hint="wait until it is done, stop it, or take another directory with --output",
        ) from busy
    try:
        before = _owner(owner)
        if before:
            logger.info("process %s ended without unlocking %s; taking it over", before, directory)
        write_text(owner, f"{os.getpid()}\n")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _owner(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def stored_rows(recipe: str | Path) -> dict[str, str]:
    """The current path of data stored with a run, as an override, if the recipe is that of a run."""
    path = find_recipe(recipe)
    return RunDir(path.parent).moved_data() if path.name == RECIPE else {}


def is_run(path: Path) -> bool:
    """Whether a path is a run, that is, has a recipe."""
    return (path / RECIPE).is_file()


def refuse_used(path: Path) -> None:
    """Refuse a path at which there is a run or anything else already."""
    another = f"--output {free_name(path)}"
    if is_run(path):
        raise HftuneError(
            f"the output directory {path} is in use: it holds a run already",
            hint=f"continue that run: --output {path} --resume; or take a free name: {another}",
        )
    if in_use(path):
        what = "has files in it" if path.is_dir() else "is a file"
        raise HftuneError(
            f"the output directory {path} is in use: it {what}",
            hint=f"take a free name: {another}; to continue a run: --output RUN --resume",
        )


def in_use(path: Path) -> bool:
    """Whether a path has more than what a run that was killed at its start leaves behind.

    That is hidden files, empty folders, and data that it stored.
    """
    if not path.is_dir():
        return path.exists() or path.is_symlink()

    def remains(entry: Path) -> bool:
        return entry.name.startswith(".") or (entry.is_dir() and (not any(entry.iterdir()) or _is_stored_data(entry)))

    return not all(remains(entry) for entry in path.iterdir())


def _is_stored_data(path: Path) -> bool:
    # Nothing but splits that hftune stored, complete or half written.
    stored = re.compile(r"\.hftune|\.?(train|validation|test)\.parquet(\..*)?")
    return (
        path.name == DATA
        and (path / STORED_HERE).is_file()
        and all(stored.fullmatch(one.name) for one in path.iterdir())
    )


def runs_in(folder: Path) -> list[RunDir]:
    """The runs directly in a folder, by name; seed-10 comes after seed-9."""

    def by_number(run: RunDir) -> tuple[str, int]:
        name = run.path.name
        stem = name.rstrip("0123456789")
        return stem, int(name[len(stem) :] or 0)

    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((RunDir(entry) for entry in found if is_run(entry)), key=by_number)


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return f"but {path} does not exist"
    if not path.is_dir():
        return f"but {path} is a file"
    inside = len(runs_in(path))
    if inside:
        return f"but {path} is a folder with {inside} run{'s' * (inside > 1)}"
    return f"but {path} has no {RECIPE}"


def _what_was_meant(path: Path) -> str:
    inside = runs_in(path)
    if inside:
        return f"name one of them: {listing((str(run.path) for run in inside), LONGEST_PATH)}"
    near = nearby_path(path, [run.path for run in runs_in(path.parent) or runs_in(RUNS)])
    return near or "commands that train make a run, such as `hftune classify --output runs/first`"


# ---- Names of run directories: made from the recipe, valid on any file system, never one that exists ----


def default_path(recipe: Section, root: Path = RUNS, *, group: bool = False) -> Path:
    """The default path of a run: ``runs/<task>-<data>-<model>-<method>-s<seed>``, with a number if it exists.

    Args:
        recipe: The resolved recipe.
        root: The folder of the runs.
        group: For several seeds of one recipe: the name has no seed.
    """
    settings = recipe.model_dump()
    data, model = settings["data"]["dataset_name"], settings["model"]["model_name_or_path"]
    parts = [settings["task"]["kind"], _last(data), _last(model), settings["method"]["kind"]]
    if not group:
        parts.append(f"s{settings['train']['seed']}")
    path = root / "-".join(safe(part) for part in parts)
    return free_name(path) if _taken(path) else path


def free_name(path: Path) -> Path:
    """The path with the lowest number appended (``-2``, ``-3`` …) that does not exist yet."""
    path = path.resolve() if path.name in ("", "..") else path  # such as ".", which has no name to append to
    number = 2
    while _taken(path.with_name(f"{path.name}-{number}")):
        number += 1
    return path.with_name(f"{path.name}-{number}")


def safe(text: str) -> str:
    """The text as part of a file name: letters, digits, dots, dashes and underscores, at most 48 bytes."""
    # Three parts of this size plus kind, method and seed stay well under the 255 bytes that file systems allow.
    return file_name(text, kept="", gap="-", longest=48)


def refuse_unwritable(path: Path) -> None:
    """Refuse a path that Python can't encode as UTF-8 for the libraries that save weights (locale C)."""
    if not str(path.resolve()).isascii() and sys.getfilesystemencoding() != "utf-8":
        raise HftuneError(
            f"the output directory {path} has letters that Python can't encode under this locale",
            hint="start Python in UTF-8 mode: set PYTHONUTF8=1, or a locale such as LC_ALL=C.UTF-8",
        )


def public_name(source: str) -> str:
    """The source of data or weights for publication: of a local path only the last part."""
    path = Path(source)
    local = source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source or path.exists()
    return path.name if local and path.name else source


def _last(name: str) -> str:
    """The last part of a Hub id or path, without its suffix."""
    path = Path(name)
    if path.name == "model" and path.parent.name:
        # The model folder of a run: the name of the run is better.
        path = path.parent
    if path.suffix.lower() == ".gz" and Path(path.stem).suffix.lower() in _FILE_SUFFIXES:
        path = path.with_suffix("")
    return path.stem if path.suffix.lower() in _FILE_SUFFIXES else path.name or path.resolve().name


def _taken(path: Path) -> bool:
    return path.exists() or path.is_symlink()
