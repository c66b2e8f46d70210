"""``hftune.sweep`` and ``hftune.compare``: many runs as one study, and which of them is better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hftune.api.call import for_python, path_of, resolve, shown, shown_study
from hftune.api.run import Page, Run, RunGroup, _figure, _frame
from hftune.cli.options import DO
from hftune.data.in_memory import Data
from hftune.errors import HftuneError
from hftune.files import refuse_links
from hftune.pipeline.request import RecipeLike, list_seeds
from hftune.runs.directory import DATA, in_use
from hftune.runs.schema import consistent
from hftune.studies.compare import Compared, compare_study, compare_systems
from hftune.studies.estimate import costs
from hftune.studies.folder import StudyDir
from hftune.studies.plan import is_study
from hftune.studies.report import PAGE, comparison_page, write_results, write_study
from hftune.studies.request import plan_study, study_recipe, study_task
from hftune.studies.sweep import sweep as train_study
from hftune.studies.systems import Selection, System, collect, of_study, select

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
        """The result of the paired test for each pair, as a sentence."""
        return [pair.verdict for pair in self.compared.pairs]

    @property
    def notes(self) -> list[str]:
        """Notes on the comparison, such as collapsed runs or too few seeds."""
        return list(self.compared.notes)

    @property
    def best(self) -> Run:
        """The run with the best validation score of the setting that is best on validation; test is not used."""
        rows = self.compared.rows
        row = next((row for row in rows if row.selected), rows[0])
        scores = row.by_seed["validation"]
        place = scores.index(max(scores) if self.compared.higher_is_better else min(scores))
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
            output_dir: A new folder, or one with a comparison.

        Examples:
            >>> hftune.compare("runs/first", "runs/second").report("comparison").path.name
            'report.html'
        """
        folder = Path(output_dir)
        if is_study(folder) or (in_use(folder) and not (folder / "comparison.json").is_file()):
            raise HftuneError(f"{folder} is in use and has no comparison", hint="name another folder")
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
        page = comparison_page("comparison", self.compared, self._systems, self._study)
        return _figure(page.figures, name)


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

    @for_python
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
        sign = 1 if runs[0].recipe.train.higher_is_better else -1
        return max(runs, key=lambda run: sign * run.metrics["splits"]["validation"][selected.metric])

    @for_python
    def comparison(self, split: str | None = None, metric: str | None = None) -> Comparison:
        """The settings compared with each other.

        Args:
            split: validation or test; test where all settings were scored on it.
            metric: A score of the task, such as accuracy, loss, f1_macro or perplexity; by default the one that
                selected the checkpoints.

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
    seeds: Iterable[int] | str | None = None,
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
        study: A shipped study's name, a YAML file, or a dict with the content of such a file.
        output_dir: The folder of the study; runs/<name> by default.
        grid: Setting names and lists of values; with ``search`` also a dict of low and high.
        seeds: Seeds of each setting; 1, 2 and 3 by default.
        recipe: What every run starts from, as for ``train``.
        data: As for ``train``; rows are stored in the folder of the study.
        task: As for ``train``.
        search: Sample this many settings with Optuna instead of training the whole grid.
        test: Score test for the setting that validation selects (the default), or for all.
        jobs: Runs at once.
        dry_run: Estimate the time and memory of each setting; train nothing.
        progress: Show progress; False is silent.
        **settings: Settings that all runs share, as for ``train``.

    Returns:
        The ``Study``; with ``dry_run`` a DataFrame of costs.

    Raises:
        HftuneError: The plan can't be carried out; nothing was trained.
        RunFailed: No run succeeded. Single failures are in ``Study.failures``.

    Examples:
        >>> again = hftune.sweep(
        ...     grid={"learning_rate": [1e-3, 5e-4]}, seeds=[1], data=rows, model="scratch:bert-tiny", max_steps=2,
        ...     output_dir="runs/study", progress=False,
        ... )
        >>> again.selection.metric
        'accuracy'
    """
    settings = _shared_settings(settings)
    # The rows are checked with the recipe and the settings that all runs share.
    kind = task or study_task(study, recipe)
    request = resolve(recipe if recipe is not None else study_recipe(study), data, kind, settings)
    shared = {key: value for key, value in request.overrides.items() if request.rows is None or key != _NAME}
    plan, name = plan_study(
        study,
        recipe=recipe,
        task=task,
        grid=grid,
        settings=shared,
        seeds=list_seeds(seeds) or None,
        test=test,
        search=search,
    )
    folder = Path("runs") / name if output_dir is None else Path(output_dir)
    if request.rows is not None:
        plan = plan.model_copy(update={"set": {**plan.set, _NAME: str(folder / DATA)}})
    if dry_run and request.rows is not None:
        raise HftuneError(
            "a dry run of a study reads its data from files", hint="try one run: hftune.train(…, dry_run=True)"
        )
    if dry_run:
        with shown(progress) as reporter:
            return _frame(_cost(cost) for cost in costs(plan, folder, jobs, reporter))
    with shown_study(progress, jobs) as callback:
        train_study(plan, folder, jobs=jobs, callback=callback, rows=request.rows)
    write_study(StudyDir.open(folder))
    return Study(folder)


_NAME = "data.dataset_name"


def _shared_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all runs share; a seed, or a part of a run that is left out, is refused."""
    if given.get("seed") is not None:
        raise HftuneError("seed can't be set in a study", hint="list the seeds: seeds=[1, 2, 3]")
    if left_out := [name for name in DO if given.get(name) is False]:
        raise HftuneError(f"a study trains and scores every setting; got {left_out[0]}=False", hint="leave it out")
    return {name: value for name, value in given.items() if name not in DO}


def _cost(cost: Any) -> dict[str, Any]:
    each = {} if cost.each is None else {"steps": cost.each.steps, "memory_gb": cost.each.estimated_memory_gb}
    return {"setting": cost.setting, "runs": cost.runs, "complete": cost.complete, "minutes": cost.minutes, **each}


@for_python
def compare(
    *runs: str | Path | Run | RunGroup | Study, split: str | None = None, metric: str | None = None
) -> Comparison:
    """Compare runs, groups of seeds, or the settings of a study. Runs that differ only in the seed are one setting.

    Args:
        *runs: Paths, or the objects that ``train``, ``load`` and ``sweep`` return.
        split: validation or test; test where all were scored on it.
        metric: A score of the task, such as accuracy, loss, f1_macro or perplexity; by default the one that
                selected the checkpoints.

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
    paths = [run.path if isinstance(run, Run | RunGroup | Study) else path_of(run, "run") for run in runs]
    with consistent(", ".join(map(str, paths))):
        if len(paths) == 1 and is_study(paths[0]):
            return Study(paths[0]).comparison(split, metric)
        systems = collect(paths)
        return Comparison(compare_systems(systems, split, metric), systems)
