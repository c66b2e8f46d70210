"""``hftune.sweep`` and ``hftune.compare``: many runs as one study, and which of them is better."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hftune.api.request import RecipeLike, for_python, resolve
from hftune.api.run import Page, Run, RunGroup, _figure, _frame
from hftune.api.show import shown, shown_study
from hftune.config.consent import refuse_unasked, typed_keys
from hftune.config.document import DocumentError
from hftune.config.kinds import default_kind, spellings
from hftune.config.load import load_recipe
from hftune.config.names import from_names, known_names, unknown
from hftune.config.overrides import plain
from hftune.config.problems import RecipeError
from hftune.config.recipe import Recipe
from hftune.config.shipped import find_study
from hftune.data.in_memory import Data, InMemoryData
from hftune.errors import HftuneError
from hftune.files import file_name, refuse_links
from hftune.runs.directory import DATA, in_use
from hftune.runs.foreign import fitting
from hftune.runs.naming import safe
from hftune.studies.compare import Compared, compare_study, compare_systems
from hftune.studies.estimate import costs
from hftune.studies.folder import StudyDir, is_study
from hftune.studies.page import sections
from hftune.studies.plan import Plan, make_plan, parse_grid, read_values, recipes_of
from hftune.studies.results import PAGE, write_results, write_study
from hftune.studies.select import Selection, select
from hftune.studies.sweep import sweep as carry_out
from hftune.studies.systems import System, collect, of_study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Metric = Literal["accuracy", "loss"]
FILLED_IN = ("learning_rate", "num_train_epochs", "metric_for_best_model")
"""Settings of ``train`` whose defaults depend on other sections; a resolved recipe states them."""


class Comparison:
    """Settings compared on the same rows: mean ± std over seeds, intervals, paired tests.

    Examples:
        >>> found = hftune.compare("runs/first", "runs/second")
        >>> len(found.table()), found.split
        (2, 'test')
        >>> found.best.path.name in ("first", "second")
        True
    """

    def __init__(self, compared: Compared, systems: Sequence[System], study: StudyDir | None = None) -> None:
        """Made by ``hftune.compare`` and ``Study.comparison``."""
        self.compared, self._systems, self._study = compared, systems, study

    def __repr__(self) -> str:
        return f"Comparison({len(self.compared.rows)} settings by {self.compared.metric} on {self.split})"

    @property
    def split(self) -> str:
        """The split that the settings were compared on."""
        return self.compared.split

    @property
    def verdicts(self) -> list[str]:
        """What the paired tests say of each pair, in words."""
        return [pair.words for pair in self.compared.pairs]

    @property
    def notes(self) -> list[str]:
        """What must be known of the comparison."""
        return list(self.compared.notes)

    @property
    def best(self) -> Run:
        """The run with the best validation score of the best setting on validation: test plays no part."""
        rows = self.compared.rows
        row = next((row for row in rows if row.selected), rows[0])
        scores = row.by_seed["validation"]
        place = scores.index(min(scores) if self.compared.metric == "loss" else max(scores))
        system = next(system for system in self._systems if system.name == row.name)
        return Run(system.runs[place].path)

    def table(self) -> pd.DataFrame:
        """One row per setting, best on validation first; scores as mean, standard deviation and 95 % interval.

        Examples:
            >>> list(hftune.compare("runs/first", "runs/second").table().columns)[:4]
            ['setting', 'seeds', 'selected', 'validation_accuracy']
        """
        return _frame(self._row(row) for row in self.compared.rows)

    def _row(self, row: Any) -> dict[str, Any]:
        values: dict[str, Any] = {"setting": row.name, "seeds": len(row.seeds), "selected": row.selected, **row.values}
        for split in self.compared.splits:
            name, found = f"{split}_{self.compared.metric}", row.scores.get(split)
            values |= {
                name: None if found is None else found.mean,
                f"{name}_std": None if found is None else found.std,
                f"{name}_low": None if found is None else found.low,
                f"{name}_high": None if found is None else found.high,
            }
        return {**values, "trainable_parameters": row.trainable, "train_seconds": row.seconds}

    @for_python
    def report(self, output_dir: str | Path) -> Page:
        """Write tables, plots and the page into a folder.

        Args:
            output_dir: A new folder, or one that holds a comparison.

        Examples:
            >>> hftune.compare("runs/first", "runs/second").report("comparison").path.name
            'report.html'
        """
        folder = Path(output_dir)
        if is_study(folder) or (in_use(folder) and not (folder / "comparison.json").is_file()):
            raise HftuneError(f"{folder} is in use and holds no comparison", hint="name another folder")
        refuse_links(folder, "a comparison")
        return Page(write_results(folder, self.compared, self._systems, self._study))

    @for_python
    def plot(self, name: str = "scores") -> Figure:
        """One figure of the page, to show or to save.

        Args:
            name: scores, or any other file name in plots/ without its ending.

        Examples:
            >>> type(hftune.compare("runs/first", "runs/second").plot()).__name__
            'Figure'
        """
        found = sections(self.compared, self._systems, self._study)
        return _figure({picture.name: picture.figure for part in found for picture in part.pictures}, name)


class Study:
    """A study: a grid or a search of settings, times seeds.

    Attributes:
        path: Its folder.

    Examples:
        >>> study = hftune.sweep(
        ...     grid={"learning_rate": [1e-3, 5e-4]}, seeds=[1], data=rows, model="scratch:bert-tiny", max_steps=2,
        ...     output_dir="runs/study", progress=False,
        ... )
        >>> len(study.runs), study.failures
        (2, [])
        >>> study.best.recipe.train.learning_rate in (1e-3, 5e-4)
        True
    """

    def __init__(self, path: str | Path) -> None:
        """Open an existing study."""
        self.path = Path(path)
        self._dir = StudyDir.open(self.path)

    def __repr__(self) -> str:
        return f"Study({str(self.path)!r}, {len(self.runs)} runs)"

    @property
    def runs(self) -> list[Run]:
        """Every complete run."""
        return [Run(run.path) for system in of_study(self._dir) for run in system.runs]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Runs that failed, with setting, seed and reason."""
        return self._dir.failures()

    @property
    def selection(self) -> Selection:
        """The setting with the best mean validation score."""
        return select(self._dir)

    @property
    def best(self) -> Run:
        """Of the selected setting, the run with the best validation score."""
        selected = self.selection
        runs = [Run(run.path) for run in self._dir.runs(selected.setting)]
        sign = 1 if runs[0].recipe.train.prefers_higher else -1
        return max(runs, key=lambda run: sign * run.metrics["splits"]["validation"][selected.metric])

    @for_python
    def comparison(self, split: str | None = None, metric: Metric = "accuracy") -> Comparison:
        """The settings compared with each other.

        Args:
            split: validation or test; test where all settings were scored on it.
            metric: accuracy or loss.

        Examples:
            >>> study.comparison().split
            'validation'
        """
        return Comparison(compare_study(self._dir, split, metric), of_study(self._dir), self._dir)

    def table(self) -> pd.DataFrame:
        """The comparison as a DataFrame: one row per setting, best on validation first.

        Examples:
            >>> len(study.table())
            2
        """
        return self.comparison().table()

    @for_python
    def report(self) -> Page:
        """Write the tables, the plots and the page of the study again.

        Examples:
            >>> study.report().path.name
            'report.html'
        """
        write_study(self._dir)
        return Page(self.path / PAGE)

    def plot(self, name: str = "scores") -> Figure:
        """One figure of the page, to show or to save.

        Args:
            name: scores, or any other file name in plots/ without its ending.

        Examples:
            >>> type(study.plot()).__name__
            'Figure'
        """
        return self.comparison().plot(name)


@for_python
def sweep(
    study: str | Path | Mapping[str, Any] | None = None,
    output_dir: str | Path | None = None,
    *,
    grid: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    recipe: RecipeLike | None = None,
    data: Data | None = None,
    task: str | None = None,
    search: int | None = None,
    test: Literal["selected", "all"] | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Any:
    """Train a grid or a search of settings with several seeds. Calling it again continues the study.

    Args:
        study: A shipped study's name, a YAML file, or a dict of what such a file holds.
        output_dir: The folder of the study; runs/<name> by default.
        grid: Setting names and lists of values; with ``search`` also a dict of low and high.
        seeds: Seeds of each setting; 1, 2 and 3 by default.
        recipe: What every run starts from, as for ``train``.
        data: As for ``train``; rows are stored in the folder of the study.
        task: As for ``train``.
        search: Draw this many settings with Optuna instead of the whole grid.
        test: Score test for the setting that validation selects (the default), or for all.
        jobs: Runs at once.
        dry_run: Estimate the time and memory of each setting; train nothing.
        progress: Show progress; False is silent.
        **settings: Settings that all runs share, as for ``train``.

    Returns:
        The ``Study``; with ``dry_run`` a DataFrame of costs.

    Raises:
        HftuneError: The plan can't be carried out; nothing was trained.
        RunFailed: Not one run succeeded. Single failures are in ``Study.failures``.

    Examples:
        >>> again = hftune.sweep(
        ...     grid={"learning_rate": [1e-3, 5e-4]}, seeds=[1], data=rows, model="scratch:bert-tiny", max_steps=2,
        ...     output_dir="runs/study", progress=False,
        ... )
        >>> again.selection.metric
        'accuracy'
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise HftuneError(f"expected jobs to be a whole number from 1 on; got {jobs!r}", hint="write jobs=2")
    values, name, lines = _stated(study)
    typed, rows = _settings(values, recipe, data, task, settings)
    axes = _axes(grid or {}, _task(values, recipe, task))
    if axes:
        values["grid"] = {**values.get("grid", {}), **axes}
    elif "grid" not in values:
        raise HftuneError("there is nothing to vary", hint='say what: grid={"learning_rate": [3e-4, 1e-3]}')
    stated = {"seeds": None if seeds is None else list(seeds), "search": search, "test": test}
    values |= {key: value for key, value in stated.items() if value is not None}
    folder = Path("runs") / (name or _default_name(values)) if output_dir is None else Path(os.fspath(output_dir))
    if rows is not None:
        values["set"] = {**values.get("set", {}), "data.dataset_name": str(folder / DATA)}
    plan = make_plan(values, name or "the study", lines)
    for made in recipes_of(plan):
        refuse_unasked(made, typed_keys([*typed.items(), *axes.items()]))
    return _carried_out(plan, folder, jobs, rows, dry_run=dry_run, progress=progress)


def _carried_out(
    plan: Plan, folder: Path, jobs: int, rows: InMemoryData | None, *, dry_run: bool, progress: bool
) -> Any:
    """Estimate a study, or train it and write its page."""
    if dry_run and rows is not None:
        raise HftuneError(
            "a dry run of a study reads its data from files", hint="try one run out: hftune.train(…, dry_run=True)"
        )
    if dry_run:
        with shown(progress) as listener:
            return _frame(_cost(cost) for cost in costs(plan, folder, jobs, listener))
    with shown_study(progress, jobs) as watcher:
        carry_out(plan, folder, jobs=jobs, watcher=watcher, rows=rows)
    write_study(StudyDir.open(folder))
    return Study(folder)


def _cost(cost: Any) -> dict[str, Any]:
    each = {} if cost.each is None else {"steps": cost.each.updates, "memory_gb": cost.each.estimated_memory_gb}
    return {"setting": cost.setting, "runs": cost.runs, "complete": cost.complete, "minutes": cost.minutes, **each}


def _stated(study: Any) -> tuple[dict[str, Any], str | None, dict[str, int]]:
    """What a study states, its name, and the lines of its file."""
    if study is None:
        return {}, None, {}
    if isinstance(study, Mapping):
        return dict(study), None, {}
    if not isinstance(study, str | Path):
        raise HftuneError(
            f"expected a study by name, path or dict; got {type(study).__name__}",
            hint="write hftune.sweep('reviews-lr'), or give a grid",
        )
    if is_study(Path(study)):
        study = Path(study) / "study.yaml"
    try:
        path = find_study(str(study))
    except DocumentError as error:
        raise RecipeError(str(study), [error.problem]) from error
    values, lines = read_values(path)
    name = path.resolve().parent.name if path.name == "study.yaml" else path.stem
    return values, file_name(name, kept=" =+-"), lines


def _settings(
    values: dict[str, Any], recipe: RecipeLike | None, data: Data | None, task: str | None, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], InMemoryData | None]:
    """Put recipe and settings into the values of a plan; the settings that were typed, and the rows."""
    if recipe is not None:
        name, stated = (str(recipe), {}) if isinstance(recipe, str | Path) else (None, _dotted(recipe))
        values["recipe"] = name
        values["set"] = {**stated, **values.get("set", {})}
    kind = _task(values, recipe, task)
    if settings.get("seed") is not None:
        raise HftuneError("seed can't be set in a study", hint="list the seeds: seeds=[1, 2, 3]")
    # Checks the rows with the recipe and the settings that all runs share.
    base = recipe if recipe is not None else values.get("recipe")
    request = resolve(base, data, kind, settings)
    typed = {key: value for key, value in request.overrides.items() if request.rows is None or key != _NAME}
    if task is not None:
        typed = {"task.kind": task, **typed}
    values["set"] = {**values.get("set", {}), **plain(typed)}
    return typed, request.rows


_NAME = "data.dataset_name"


def _task(values: Mapping[str, Any], recipe: RecipeLike | None, task: str | None) -> str:
    """The kind of task of the runs."""
    if task is not None:
        return task
    if isinstance(recipe, Recipe):
        return recipe.task.kind
    if isinstance(recipe, Mapping):
        return load_recipe(None, recipe).task.kind
    stated = recipe if recipe is not None else values.get("recipe")
    kind = values.get("set", {}).get("task.kind") if isinstance(values.get("set"), Mapping) else None
    return str(kind) if kind else load_recipe(stated).task.kind if stated else default_kind("task")


def _dotted(recipe: Mapping[str, Any] | Recipe) -> dict[str, Any]:
    """A recipe as dotted settings, without those that follow from others."""
    if not isinstance(recipe, Recipe):
        load_recipe(None, recipe)  # names what is wrong with it
        return {f"{name}.{key}": plain(value) for name, part in recipe.items() for key, value in (part or {}).items()}
    sections = {name: getattr(recipe, name).model_dump(exclude_defaults=True) for name in type(recipe).model_fields}
    kinds = {f"{name}.kind": part.kind for name in sections if hasattr(part := getattr(recipe, name), "kind")}
    stated = {f"{name}.{key}": plain(value) for name, part in sections.items() for key, value in part.items()}
    for key in FILLED_IN:
        without = {name: value for name, value in {**kinds, **stated}.items() if name != f"train.{key}"}
        if getattr(load_recipe(None, without).train, key) == getattr(recipe.train, key):
            stated.pop(f"train.{key}", None)
    return {**kinds, **stated}


def _axes(grid: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The axes of a grid by dotted key: lists of values, named settings, or intervals."""
    found: dict[str, Any] = {}
    paths = spellings(kind)
    for name, axis in grid.items():
        if isinstance(axis, Mapping) and not {"low", "high"} <= axis.keys():
            found[name] = {
                str(value): from_names(_undotted(chosen), kind).overrides | _only_dotted(chosen)
                for value, chosen in axis.items()
                if isinstance(chosen, Mapping)
            }
            continue
        if "." not in name and name not in paths:
            raise unknown(name, known_names(kind))
        path = paths.get(name, name)
        if path in found:
            raise HftuneError(f"two axes of the grid are the same setting ({path})", hint="leave one of them out")
        if isinstance(axis, str):
            found[path] = parse_grid([f"{path}={axis}"])[path]
        elif isinstance(axis, Mapping):
            found[path] = dict(axis)
        elif isinstance(axis, Iterable):
            found[path] = plain(list(axis))
        else:
            raise HftuneError(f"grid: expected a list of values for {name}; got {axis!r}", hint=f"write [{axis!r}]")
    return found


def _undotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if "." not in name}


def _only_dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if "." in name}


def _default_name(values: Mapping[str, Any]) -> str:
    keys = "-".join(str(key).rpartition(".")[2] for key in values["grid"])
    start = str(values.get("recipe") or "defaults").rstrip("/").rpartition("/")[2].removesuffix(".yaml")
    return safe(f"study-{start}-{keys}")


@for_python
def compare(
    *runs: str | Path | Run | RunGroup | Study, split: str | None = None, metric: Metric = "accuracy"
) -> Comparison:
    """Compare runs, groups of seeds, or the settings of a study. Runs that differ only in the seed are one setting.

    Args:
        *runs: Paths, or the objects that ``train``, ``load`` and ``sweep`` return.
        split: validation or test; test where all were scored on it.
        metric: accuracy or loss.

    Returns:
        The comparison: ``table()``, ``verdicts``, ``best``, ``report(folder)``.

    Raises:
        HftuneError: A run is not complete, or they were not scored on the same rows.

    Examples:
        >>> found = hftune.compare("runs/first", "runs/second", split="validation")
        >>> found.compared.metric
        'accuracy'
    """
    if not runs:
        raise HftuneError("there is nothing to compare", hint="name runs: hftune.compare('runs/a', 'runs/b')")
    paths = [run.path if isinstance(run, Run | RunGroup | Study) else Path(os.fspath(run)) for run in runs]
    with fitting(", ".join(map(str, paths))):
        if len(paths) == 1 and is_study(paths[0]):
            return Study(paths[0]).comparison(split, metric)
        systems = collect(paths)
        return Comparison(compare_systems(systems, split, metric), systems)
