"""The run directory: every path in it, its files as typed reads and writes, and when it counts as complete.

``hftune.pipeline`` makes one for each run, ``hftune.inference``, the studies and the report open it again.

    runs/<name>/  recipe.yaml  environment.json  metrics.json  history.jsonl  predictions/{validation,test}.jsonl
                  plots/*.png  report.html  model/ (what is published)  checkpoints/ (what resume reads)
                  hub.json (what was published last)  data/*.parquet (rows that were given from Python; never published)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.config.load import load_recipe, recipe_path, recipe_yaml
from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.files import (
    STORED_HERE,
    Damaged,
    checked_name,
    read_json,
    read_jsonl,
    refuse_links,
    write_json,
    write_jsonl,
    write_text,
)
from hftune.runs.lock import LOCK, OWNER, exclusive
from hftune.runs.naming import free_name, refuse_unwritable
from hftune.runs.shapes import Course, Machine, Metrics, Prediction, Pushed, Shape, problem

RECIPE = "recipe.yaml"
SEED_PREFIX = "seed-"
RUN = "a run directory"
DATA = "data"


@dataclass(frozen=True)
class RunDir:
    """One run on disk. Made by ``create`` or ``open``; the attribute names are the file names."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the directory of a new run.

        Args:
            path: Where the run shall lie. Hidden files and empty folders there do no harm; anything else is in use.

        Raises:
            HftuneError: The path is in use, or can't be made.
        """
        refuse_unwritable(path)
        another = f"--output {free_name(path)}"
        if is_run(path):
            raise HftuneError(
                f"the output directory {path} is in use: it holds a run already",
                hint=f"go on with that run: --output {path} --resume; or take a free name: {another}",
            )
        if in_use(path):
            what = "has files in it" if path.is_dir() else "is a file"
            raise HftuneError(
                f"the output directory {path} is in use: it {what}",
                hint=f"take a free name: {another}; a run goes on with --output RUN --resume",
            )
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
        """Open an existing run, finished or not. The path can be a link; links inside the run are refused.

        Args:
            path: The run, or a folder in it.
            wanted: What a message calls that which was asked for.
            to_train: Training continues, which changes files in place: hard links are refused too.

        Raises:
            HftuneError: There is no run at this path (the hint names what may have been meant), or it holds a link.
        """
        found = next((place for place in (path, path.parent) if is_run(place) and path.exists()), None)
        if found is None:
            raise HftuneError(f"expected {wanted}, {_what_is_there(path)}", hint=_what_was_meant(path))
        refuse_links(found, RUN, in_place=to_train)
        return cls(found)

    @property
    def name(self) -> str:
        """The name by which people know the run: the last parts of its path that tell it from others."""
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
        """Scores, baselines, parameters, speed; written when the run is over."""
        return self.path / "metrics.json"

    @property
    def history(self) -> Path:
        """The course of training, one row a log step or evaluation."""
        return self.path / "history.jsonl"

    def predictions(self, split: str) -> Path:
        """One row an example of this split: text, gold, label and every probability."""
        return self.path / "predictions" / f"{checked_name(split, 'the split')}.jsonl"

    @property
    def plots(self) -> Path:
        """The figures as PNG."""
        return self.path / "plots"

    @property
    def report(self) -> Path:
        """The page that shows it all."""
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
        """The rows that were given from Python, as parquet; absent where the data are files or a Hub dataset."""
        return self.path / DATA

    @property
    def published(self) -> Path:
        """What the run brought to the Hub last; absent where nothing was pushed."""
        return self.path / "hub.json"

    @property
    def complete(self) -> bool:
        """Whether the run came to its end and the saved model was reloaded and gave the same answers."""
        return self.metrics.is_file() and read_json(self.metrics).get("verified") is True

    def locked(self) -> AbstractContextManager[None]:
        """Hold the directory for this process alone; a second process that tries gets an HftuneError."""
        return exclusive(self.path)

    def begin(self, recipe: Recipe, environment: Mapping[str, Any]) -> None:
        """Keep recipe and environment of a new run; a run that goes on keeps those it began with."""
        if not self.recipe.is_file():
            self.write_recipe(recipe)
        if not self.environment.is_file():  # not so either where it was killed between the two
            self.write_environment(environment)

    def discard_if_not_begun(self) -> None:
        """Remove the directory again when the request was refused before anything was written."""
        if not self.path.is_dir() or in_use(self.path):
            return
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

    def write_recipe(self, recipe: Recipe) -> None:
        """Keep the resolved recipe; from here on the directory counts as a run."""
        write_text(self.recipe, recipe_yaml(recipe))

    def read_recipe(self) -> Recipe:
        """The recipe of this run; rows that are stored with it are found wherever the run is now."""
        recipe = load_recipe(self.recipe)
        # The seeds of a group and the runs of a study share theirs, some folders up.
        for folder in (parent / DATA for parent in (self.path, *self.path.parents)[:5]):
            if Path(recipe.data.dataset_name).name == DATA and (folder / STORED_HERE).is_file():
                return with_data(recipe, folder)
        return recipe

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Keep what ``hftune.runs.environment.describe`` found."""
        write_json(self.environment, environment)

    def read_environment(self) -> dict[str, Any]:
        """Versions, machine and command line; empty where the run was stopped before it wrote them."""
        return _shaped(self.environment, Machine) if self.environment.is_file() else {}

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Keep the scores."""
        write_json(self.metrics, metrics)

    def read_metrics(self) -> dict[str, Any]:
        """The scores of a run that has come to its end.

        Raises:
            HftuneError: The run is not finished.
        """
        if not self.metrics.is_file():
            raise HftuneError(
                f"the run {self.path} is not finished: it has no metrics.json",
                hint=f"finish it with --output {self.path} --resume",
            )
        return _shaped(self.metrics, Metrics)

    def write_published(self, record: Mapping[str, Any]) -> None:
        """Keep what is on the Hub now."""
        write_json(self.published, record)

    def read_published(self) -> dict[str, Any]:
        """What is on the Hub; empty where nothing was pushed."""
        return _shaped(self.published, Pushed) if self.published.is_file() else {}

    def read_history(self) -> list[dict[str, Any]]:
        """Train and evaluation rows in the order they were written; empty where training has not begun."""
        return _shaped_rows(self.history, Course)

    def write_predictions(self, split: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep the predictions on one split."""
        write_jsonl(self.predictions(split), rows)

    def read_predictions(self, split: str) -> list[dict[str, Any]]:
        """The predictions on one split; empty where it was not scored."""
        return _shaped_rows(self.predictions(split), Prediction)


def _shaped(path: Path, shape: type[Shape]) -> dict[str, Any]:
    """A JSON file that is what its name says."""
    found = read_json(path)
    if wrong := problem(shape, found):
        raise Damaged(path, wrong)
    return found


def _shaped_rows(path: Path, shape: type[Shape]) -> list[dict[str, Any]]:
    """The same for one with an object a line; none where there is no such file."""
    rows = read_jsonl(path) if path.is_file() else []
    for number, row in enumerate(rows, start=1):
        if wrong := problem(shape, row):
            raise Damaged(path, wrong, line=number)
    return rows


def stored_rows(recipe: str | Path) -> dict[str, str]:
    """Where the rows are now that are stored with a run, if the recipe is that of a run that was moved."""
    path = recipe_path(recipe)
    if path.name != RECIPE:
        return {}
    stated, found = (one.data.dataset_name for one in (load_recipe(path), RunDir(path.parent).read_recipe()))
    return {"data.dataset_name": found} if found != stated else {}


def is_run(path: Path) -> bool:
    """Whether this is a run: the recipe is the first file a run writes."""
    return (path / RECIPE).is_file()


def in_use(path: Path) -> bool:
    """Whether there is more here than a run that was killed at its start leaves.

    That is hidden files, empty folders, and rows that it has stored.
    """
    if not path.is_dir():
        return path.exists() or path.is_symlink()
    return any(
        not entry.name.startswith(".")
        and not _is_empty_folder(entry)
        and not (entry.name == DATA and _is_stored_data(entry))
        for entry in path.iterdir()
    )


def with_data(recipe: Recipe, folder: Path | str) -> Recipe:
    """The recipe with its data in this folder."""
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"dataset_name": str(folder)})})


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _is_stored_data(path: Path) -> bool:
    """Whether a folder holds nothing but splits that hftune stored, whole or half written."""
    return (path / STORED_HERE).is_file() and all(
        re.fullmatch(r"\.hftune|\.?(train|validation|test)\.parquet(\..*)?", entry.name) for entry in path.iterdir()
    )


def runs_in(folder: Path) -> list[RunDir]:
    """The runs that lie directly in a folder, by name; numbers inside names sort as numbers."""
    if not folder.is_dir():
        return []
    found = [RunDir(entry) for entry in folder.iterdir() if is_run(entry)]
    return sorted(found, key=lambda run: _by_number(run.path.name))


def _by_number(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return f"but {path} does not exist"
    if not path.is_dir():
        return f"but {path} is a file"
    inside = len(runs_in(path))
    if inside:
        return f"but {path} is a folder that holds {inside} run{'s' * (inside > 1)}"
    return f"but {path} has no {RECIPE}"


def _what_was_meant(path: Path) -> str:
    inside = runs_in(path)
    if inside:
        return f"name one of them: {_listed(inside)}"
    siblings = runs_in(path.parent)
    close = difflib.get_close_matches(path.name, [run.path.name for run in siblings], n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(str(path.parent / name) for name in close)}?"
    if siblings:
        return f"runs in {path.parent}: {_listed(siblings)}"
    return "a run is made by a command that trains, such as: hftune classify --output runs/first"


def _listed(runs: list[RunDir], limit: int = 6) -> str:
    names = ", ".join(str(run.path) for run in runs[:limit])
    return names if len(runs) <= limit else f"{names} … ({len(runs)} in all)"
