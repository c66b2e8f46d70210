"""Use a trained model: ``predict`` labels texts or answers questions, ``evaluate`` scores a model on any suitable data.

The task of a model is recorded in the hftune.json next to its weights; a model without one is used as a classifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hftune.data import locate
from hftune.data.settings import LabeledData
from hftune.errors import HftuneError, did_you_mean
from hftune.models.checkpoint import open_checkpoint
from hftune.models.hub_files import INFERENCE
from hftune.models.settings import ModelSection
from hftune.progress import ProgressReporter
from hftune.recipe import load_recipe, read_recipe
from hftune.runs.directory import RunDir, is_run
from hftune.studies.folder import StudyDir
from hftune.studies.plan import is_study
from hftune.studies.systems import select
from hftune.tasks import TASKS, task_class
from hftune.tasks.task import EvaluationRequest, EvaluationResult, Predictor, Row, run_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ALL = "all"
"""The split of text that has no splits."""
SPLITS = ("train", "validation", "test", ALL)
DEFAULT_KIND = "classify"
"""The task of a model that does not record one."""


def kind_of(model: str, settings: ModelSection) -> str:
    """The kind of task that a run, a folder or a Hub model was trained for."""
    if is_study(Path(model)):
        study = StudyDir.open(Path(model))
        chosen = study.runs(select(study).setting)[0]
        raise HftuneError(
            f"{model} is a study, which holds many runs", hint=f"name one of them; validation selected {chosen.path}"
        )
    checkpoint = open_checkpoint(settings.model_copy(update={"model_name_or_path": model}), INFERENCE)
    kind = str(checkpoint.metadata.get("task", DEFAULT_KIND))
    if kind not in TASKS:
        raise HftuneError(
            f"{model} was trained for the task {kind!r}; this version of hftune has {', '.join(TASKS)}",
            hint="use the version of hftune that saved it",
        )
    return kind


def predictor(model: str, settings: ModelSection) -> tuple[str, Predictor]:
    """The kind of a model, and a function that labels texts or answers questions with it."""
    kind = kind_of(model, settings)
    return kind, task_class(kind).predictor(model, settings)


def load_saved(model: str, settings: ModelSection) -> PreTrainedModel:
    """The model of a run, a folder or the Hub, as its task uses it."""
    return task_class(kind_of(model, settings)).load_saved(model, settings)


def load_tokenizer(model: str, settings: ModelSection) -> PreTrainedTokenizerBase:
    """The tokenizer of a run, a folder or a Hub model."""
    return open_checkpoint(settings.model_copy(update={"model_name_or_path": model}), INFERENCE).tokenizer()


def own_columns(model: str) -> LabeledData:
    """The column names of a run's data; the defaults for a model without a run, or without labeled data."""
    section = read_recipe(RunDir(Path(model))).data if is_run(Path(model)) else None
    if not isinstance(section, LabeledData):
        return LabeledData()
    return locate.own_columns(section)


def rows_of(texts: Iterable[str], pairs: Iterable[str] | None = None) -> list[Row]:
    """Lists of texts as the inputs of a ``Predictor``.

    Raises:
        HftuneError: They are not texts, or the number of pairs differs.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise HftuneError("predict takes a list of texts, got one string", hint="put it in a list: [text]")
    if hasattr(texts, "columns") or isinstance(texts, Mapping):
        raise HftuneError(
            f"predict takes a list of texts, got a {type(texts).__name__}, whose items are the names of columns",
            hint='name the column: predict(frame["text"])',
        )
    for given in (texts, () if pairs is None else pairs):
        if isinstance(given, bytes) or not isinstance(given, Iterable):
            raise HftuneError(f"expected a list of texts; got {given!r:.60}", hint="give a list of strings")
    texts, pairs = list(texts), None if pairs is None else list(pairs)
    if pairs is not None and len(pairs) != len(texts):
        raise HftuneError(
            f"{len(texts)} texts but {len(pairs)} second texts", hint="give one second text for each text"
        )
    for text in (*texts, *(pairs or ())):
        if not isinstance(text, str):
            raise HftuneError(f"expected texts, got {type(text).__name__} {text!r:.60}", hint="give a list of strings")
    if pairs is None:
        return [{"text": text} for text in texts]
    return [{"text": text, "text_pair": pair} for text, pair in zip(texts, pairs, strict=True)]


def evaluate(request: EvaluationRequest, progress: ProgressReporter | None = None) -> EvaluationResult:
    """Score a model on one split with the method of its task; a task without one scores runs only."""
    if request.split not in (None, *SPLITS):
        near = did_you_mean(request.split, SPLITS)
        raise HftuneError(
            f"there is no split {request.split!r}", hint=f"{near} choose one of {', '.join(SPLITS)}".strip()
        )
    run = run_of(request.model)
    if run is not None:
        RunDir.open(run.path)  # checks the folder: predictions may be written there
    progress = progress or ProgressReporter()
    task = task_class(kind_of(request.model, request.settings))
    return task.score(request, progress) or _score_run(request, progress)


def _score_run(request: EvaluationRequest, progress: ProgressReporter) -> EvaluationResult:
    """Score a run with its own recipe, on its own data or on other data of the same kind."""
    if not is_run(Path(request.model)):
        raise HftuneError(
            f"{request.model} is not a run, so its recipe is not known", hint="name the run that it was trained in"
        )
    if request.columns or request.metrics:
        raise HftuneError("a language model is scored on text alone", hint="leave columns and metrics out")
    run = RunDir.open(Path(request.model))
    # Nothing is held out of a text that is only scored.
    other = {} if request.data is None else {"data.dataset_name": request.data, "data.validation_size": 0.0}
    recipe = load_recipe(run.path, {"train.per_device_eval_batch_size": request.batch_size, **other})
    # The consent in the run's recipe was given for training, and not by the user who scores it now.
    trust = request.settings.trust
    recipe = recipe.changed("model", **trust)
    task = task_class(recipe.task.kind)(recipe)
    progress.stage("loading data")
    data = task.load_data()
    known = {name: name for name in task.describe(data).rows}
    if request.data is not None and data.validation_is_train:
        known.pop("validation")
        known = {ALL: "train"} if len(known) == 1 else known
    split = request.split or next(name for name in ("test", "validation", ALL, "train") if name in known)
    if split not in known:
        raise HftuneError(
            f"{recipe.data.dataset_name} has no {split} split", hint=f"choose one with --split: {', '.join(known)}"
        )
    found = task.evaluate(run.model, data, [known[split]], progress, trust)
    # n-gram counts of a text are no baseline for the same text.
    counted = {} if split == ALL else task.scored_baselines(data, [split])
    return EvaluationResult(
        source=recipe.data.dataset_name,
        split=split,
        scores=found.splits.get(known[split], {}),
        baselines={name: scores[split] for name, scores in counted.items() if split in scores},
        collapsed=found.collapsed,
        predictions=found.predictions.get(known[split], []),
    )
