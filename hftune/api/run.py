"""A trained model of ``hftune.train`` or ``hftune.load``: metrics, predictions, reports, scoring, publishing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hftune.api.call import ProgressOption, for_python, shown
from hftune.data.in_memory import SINGLE, Data, from_python
from hftune.errors import HftuneError, did_you_mean
from hftune.models.settings import NO_TRUST, ModelSection, used_model
from hftune.pipeline import inference
from hftune.pipeline.request import MEMORY
from hftune.recipe import HubSection, Recipe, read_recipe
from hftune.runs.directory import RunDir, is_run, safe
from hftune.runs.group import group_summary, seed_runs
from hftune.runs.report import report_page, write_report
from hftune.studies.plan import is_study
from hftune.tasks.task import EvaluationRequest, EvaluationResult, Prediction, Predictor

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hftune.hub.publish import PublishedModel
    from hftune.pipeline.onnx_export import Exported


@dataclass(frozen=True)
class Page(os.PathLike[str]):
    """An HTML page that was written; a notebook displays it, and it can be used as a path.

    Examples:
        >>> with open(run.report(), encoding="utf-8") as file:
        ...     file.readline().strip()
        '<!doctype html>'
    """

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        page = escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="600" frameborder="0"></iframe>'


class Run:
    """A trained model: a run directory, a model folder or a model of the Hub.

    Attributes:
        source: The path or the Hub id.

    Examples:
        >>> run = hftune.train(data=rows, model="scratch:bert-tiny", max_steps=2, output_dir="runs/first")
        >>> sorted(run.metrics["splits"])
        ['test', 'validation']
        >>> run.recipe.train.max_steps
        2
    """

    @for_python
    def __init__(self, source: str | Path, settings: ModelSection | None = None) -> None:
        """Use ``hftune.load``, which checks the source; ``settings`` has the consent to remote code."""
        self.source = str(source)
        self._settings = settings or ModelSection(model_name_or_path=self.source)
        self._dir = RunDir.open(Path(source)) if is_run(Path(source)) else None

    def __repr__(self) -> str:
        return f"Run({self.source!r})"

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The run directory.

        Raises:
            HftuneError: This is a model without a run directory.
        """
        return self._run("a path").path

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, with every setting filled in."""
        return read_recipe(self._run("a recipe"))

    @property
    def metrics(self) -> dict[str, Any]:
        """Scores, baselines, parameters and speed, as in metrics.json."""
        return self._run("metrics").read_metrics()

    @cached_property
    def model(self) -> PreTrainedModel:
        """The saved model, loaded on first use: a transformers model in evaluation mode, without what hftune adds."""
        with shown(False):
            return inference.load_saved(self.source, self._settings)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model: ``run.model(**run.tokenizer(texts, return_tensors="pt"))``."""
        with shown(False):
            return inference.load_tokenizer(self.source, self._settings)

    @property
    def history(self) -> pd.DataFrame:
        """Training loss and validation scores by step, one row per log entry."""
        return _frame(self._run("a history").read_history())

    @for_python
    def predictions(self, split: str = "test") -> pd.DataFrame:
        """The predictions that were written when the run was scored.

        Args:
            split: test or validation.

        Returns:
            One row per example: text, gold, label, and the probability of each label in a column ``p_<label>``.

        Examples:
            >>> frame = run.predictions("test")
            >>> list(frame.columns)
            ['id', 'text', 'gold', 'label', 'p_bad', 'p_good']
        """
        rows = self._run("predictions of its own").read_predictions(split)
        if not rows:
            scored = sorted(self.metrics["splits"])
            raise HftuneError(
                f"{self.source} has no predictions for {split!r}; it was scored on {', '.join(scored) or 'no split'}",
                hint=did_you_mean(split, scored) or "score data with run.evaluate(data)",
            )
        return _frame(_flat(row) for row in rows)

    @for_python
    def predict(
        self, texts: Iterable[str], pairs: Iterable[str] | None = None, *, batch_size: int = 64
    ) -> list[Prediction]:
        """Label texts, or answer questions. The model is loaded once.

        Args:
            texts: What to label, one string each.
            pairs: The second text of each, for a model that was trained on pairs.
            batch_size: Examples in one forward pass.

        Returns:
            One prediction per text, in order, with ``label``, ``confidence`` and ``probabilities``.

        Examples:
            >>> [answer] = run.predict(["never again"])
            >>> answer.label in ("bad", "good")
            True
        """
        rows = inference.rows_of(texts, pairs)
        with shown(False):
            return list(self._predictor(rows, batch_size))

    @for_python
    def evaluate(
        self,
        data: Data | None = None,
        split: str | None = None,
        *,
        batch_size: int = 64,
        metrics: Sequence[str] = (),
        progress: ProgressOption = True,
        **columns: str,
    ) -> EvaluationResult:
        """Score the model on one split of any suitable data.

        Args:
            data: A path, a Hub id or rows, as ``hftune.train`` takes; the run's own data by default.
            split: train, validation or test; all for data without splits.
            batch_size: Examples in one forward pass.
            metrics: Metrics in addition to those of the task.
            progress: Show progress; False is silent.
            **columns: text_column_name, text_pair_column_name and label_column_name.

        Returns:
            ``scores``, ``baselines`` and ``predictions``.

        Examples:
            >>> found = run.evaluate([{"text": "the food was great", "label": "good"}], progress=False)
            >>> found.split, sorted(found.scores)[:2]
            ('all', ['accuracy', 'ece'])
        """
        with shown(progress) as reporter, _on_disk(data, split, self._kind) as (path, part, name):
            request = EvaluationRequest(
                self.source, self._settings, path, part, _column_settings(columns), metrics, batch_size
            )
            found = inference.evaluate(request, reporter)
        return found if name is None else replace(found, source=MEMORY, split=name)

    @for_python
    def report(self, output: str | Path | None = None) -> Page:
        """Write the HTML report of the run again.

        Args:
            output: Another file; report.html in the run directory by default.

        Examples:
            >>> run.report().path.name
            'report.html'
        """
        if output is not None and Path(output).is_dir():
            raise HftuneError(f"{output} is a folder; expected a file for the page", hint="write output='page.html'")
        return Page(write_report(self._run("a report"), None if output is None else Path(output)))

    @for_python
    def plot(self, name: str = "loss") -> Figure:
        """One figure of the report, to show or to save.

        Args:
            name: loss, or any other file name in plots/ without its ending.

        Examples:
            >>> type(run.plot("loss")).__name__
            'Figure'
        """
        return _figure(report_page(self._run("plots")).figures, name)

    @for_python
    def push(
        self,
        repo: str | None = None,
        *,
        private: bool | None = None,
        revision: str | None = None,
        progress: ProgressOption = True,
    ) -> PublishedModel:
        """Publish the model on the Hub, then load it from there and verify it. Rows and checkpoints are not published.

        Args:
            repo: ``user/name``; named after the run, under your account, by default.
            private: Create the repository as private.
            revision: Branch to push to; main by default.
            progress: Show progress; False is silent.

        Returns:
            The repository, its URL and the commit.

        Examples:
            >>> published = run.push("user/first", progress=False)
            >>> published.repo, published.verified
            ('user/first', True)
        """
        from hftune.hub.publish import push

        run = self._run("a verified model to publish")
        section = HubSection(hub_model_id=repo, hub_private_repo=private, hub_revision=revision, push_to_hub=True)
        with shown(progress) as reporter:
            return push(run, section, reporter, trust=self._settings.trust)

    @for_python
    def export(
        self,
        output_dir: str | Path | None = None,
        *,
        int8: bool = False,
        data: Data | None = None,
        split: str | None = None,
        progress: ProgressOption = True,
    ) -> Exported:
        """Write a classifier as ONNX, and compare its scores with those of the model.

        Args:
            output_dir: A new folder; exports/<name> by default.
            int8: Quantize the weights to 8 bits.
            data: What to compare on, as in ``evaluate``; the run's own data by default.
            split: validation of a run by default.
            progress: Show progress; False is silent.

        Returns:
            The folder, and scores, size and speed before and after.

        Examples:
            >>> made = run.export("exports/first", progress=False)
            >>> made.labels_changed, (made.folder / "model.onnx").is_file()
            (0, True)
        """
        from hftune.pipeline.onnx_export import export

        name = safe(Path(self.source).resolve().name if Path(self.source).exists() else self.source)
        folder = Path("exports") / f"{name}{'-int8' if int8 else ''}" if output_dir is None else Path(output_dir)
        split = split or ("validation" if data is None else None)
        with shown(progress) as reporter, _on_disk(data, split, self._kind) as (path, part, _):
            request = EvaluationRequest(self.source, self._settings, path, part)
            return export(request, folder, int8=int8, progress=reporter)

    @cached_property
    def _kind(self) -> str:
        return inference.kind_of(self.source, self._settings)

    @cached_property
    def _predictor(self) -> Predictor:
        return inference.predictor(self.source, self._settings)[1]

    def _run(self, what: str) -> RunDir:
        if self._dir is None:
            raise HftuneError(
                f"{self.source} is a model without a run directory, so it has no {what.removeprefix('a ')}",
                hint="load the run that it was trained in; predict, evaluate and export work without one",
            )
        return self._dir


class RunGroup:
    """Several seeds of one recipe.

    Attributes:
        path: The folder of the group.
        runs: One run per seed.

    Examples:
        >>> group = hftune.train(
        ...     data=rows, model="scratch:bert-tiny", max_steps=2, seeds=[1, 2], output_dir="runs/seeds"
        ... )
        >>> [run.metrics["seed"] for run in group.runs]
        [1, 2]
        >>> sorted(group.metrics["splits"]["test"]["accuracy"])
        ['mean', 'std', 'values']
    """

    @for_python
    def __init__(self, path: str | Path, settings: ModelSection | None = None) -> None:
        """Open an existing group; ``settings`` has the consent to remote code."""
        self.path = Path(path)
        found = seed_runs(self.path)
        if not found:
            raise HftuneError(f"{path} is not a group of seeds", hint="hftune.train(…, seeds=[1, 2, 3]) makes one")
        trust = NO_TRUST if settings is None else settings.trust
        self.runs = [Run(run.path, ModelSection(model_name_or_path=str(run.path), **trust)) for run in found]

    def __repr__(self) -> str:
        return f"RunGroup({str(self.path)!r}, {len(self.runs)} runs)"

    @property
    def metrics(self) -> dict[str, Any]:
        """Mean, standard deviation and values of every score over the seeds."""
        return group_summary([run for run in seed_runs(self.path) if run.complete])

    def table(self) -> pd.DataFrame:
        """Mean ± std by split and score.

        Examples:
            >>> list(group.table().columns)
            ['split', 'score', 'mean', 'std']
        """
        rows = [
            {"split": split, "score": score, "mean": found["mean"], "std": found["std"]}
            for split, scores in self.metrics["splits"].items()
            for score, found in scores.items()
        ]
        return _frame(rows)


@for_python
def load(
    source: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    trust_base_code: str | None = None,
) -> Run:
    """Open a run, a model folder or a model of the Hub.

    Args:
        source: The path or the Hub id.
        revision: Branch, tag or commit of a Hub model.
        trust_remote_code: Run Python code that comes with the model.
        trust_base_code: Run the Python code of an adapter's base: REPO@COMMIT.

    Returns:
        The same object that ``hftune.train`` returns. Without a run directory it can predict, evaluate and export.

    Examples:
        >>> again = hftune.load("runs/first")
        >>> again.metrics == run.metrics
        True
    """
    name = os.fspath(source)
    if is_study(Path(name)):
        raise HftuneError(f"{name} is a study, which holds many runs", hint=f"open it with hftune.Study({name!r})")
    if not is_run(Path(name)) and seed_runs(Path(name)):
        raise HftuneError(f"{name} is a group of seeds", hint=f"open it with hftune.RunGroup({name!r})")
    run = Run(name, used_model(name, revision, trust_remote_code, trust_base_code))
    if run._dir is None:
        with shown(False):
            _ = run._kind  # raises an error if it is not a model
    return run


@for_python
def evaluate(
    model: str | Path | Run, data: Data | None = None, split: str | None = None, **arguments: Any
) -> EvaluationResult:
    """Score a run, a model folder or a model of the Hub on any suitable data: ``load(model).evaluate(…)``.

    Args:
        model: A run, or what ``load`` takes.
        data: A path, a Hub id or rows; the run's own data by default.
        split: train, validation or test; all for data without splits.
        **arguments: Other arguments of ``Run.evaluate``.

    Examples:
        >>> hftune.evaluate("runs/first", split="test", progress=False).scores == {
        ...     name: value for name, value in run.metrics["splits"]["test"].items()
        ... }
        True
    """
    return (model if isinstance(model, Run) else load(model)).evaluate(data, split, **arguments)


def predict(
    model: str | Path | Run,
    texts: Iterable[str],
    pairs: Iterable[str] | None = None,
    *,
    batch_size: int = 64,
    settings: ModelSection | None = None,
) -> list[Prediction]:
    """Label texts, or answer questions, with a run, a folder or a Hub model.

    Args:
        model: A run directory, a folder that save_pretrained wrote, or a Hub id.
        texts: What to label, one string each.
        pairs: The second text of each, for a model that was trained on pairs.
        batch_size: Examples in one forward pass.
        settings: Revision of the model and consent to its code; none by default.

    Returns:
        One prediction per text, in the order given.

    Examples:
        >>> [answer] = hftune.predict("runs/first", ["never again"])
        >>> sorted(answer.probabilities)
        ['bad', 'good']
    """
    run = model if isinstance(model, Run) else Run(model, settings)
    return run.predict(texts, pairs, batch_size=batch_size)


@contextmanager
def _on_disk(data: Data | None, split: str | None, kind: str) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Path and split of the data; rows are stored in a temporary file, and the third value is their split."""
    if data is None or isinstance(data, str | os.PathLike):
        yield None if data is None else os.fspath(data), split, None
        return
    kinds = {"answer": "questions", **dict.fromkeys(("span", "clm", "mlm", "distill_encoder"), "corpus")}
    rows = from_python(data, kinds.get(kind, "labeled"))
    splits = list(rows.tables) if isinstance(data, Mapping) else [inference.ALL]
    chosen = split or next((name for name in ("test", "validation") if name in splits), splits[0])
    if chosen not in splits:
        raise HftuneError(
            f"the data has no {chosen} split; its splits are {', '.join(splits)}", hint="choose one of them"
        )
    table = rows.tables[chosen if isinstance(data, Mapping) else SINGLE]
    # Stored as a file, so that rows are read, checked and scored by the code that does so for a path.
    with tempfile.TemporaryDirectory() as folder:
        replace(rows, tables={SINGLE: table}).write(Path(folder))
        stored = (Path(folder) / f"{SINGLE}.parquet").rename(Path(folder) / "data.parquet")  # the name is in errors
        yield str(stored), inference.ALL, chosen


def _column_settings(columns: Mapping[str, str]) -> dict[str, str]:
    known = ("text_column_name", "text_pair_column_name", "label_column_name")
    for name in columns:
        if name not in known:
            raise HftuneError(
                f"no argument has the name {name}", hint=did_you_mean(name, known) or f"columns are {', '.join(known)}"
            )
    return dict(columns)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction with each probability in a column of its own."""
    flat = {name: value for name, value in row.items() if name != "probabilities"}
    return flat | {f"p_{label}": value for label, value in (row.get("probabilities") or {}).items()}


def _frame(rows: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows))


def _figure(figures: Mapping[str, Figure], name: str) -> Figure:
    if name not in figures:
        known = ", ".join(figures) or "none"
        raise HftuneError(f"there is no plot {name!r}", hint=did_you_mean(name, figures) or f"plots are: {known}")
    return figures[name]
