"""Using what was trained: ``predict`` answers texts, ``evaluate`` scores a run or any model on any data that suits it.

Called by ``hftune predict`` and ``hftune evaluate``, and by Python users (``from hftune import predict``). What a model
was trained for stands in the hftune.json beside its weights; one that says nothing is taken for a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hftune import answering, labeling
from hftune.config.data import LabeledData
from hftune.config.load import load_recipe
from hftune.config.model import ModelSection
from hftune.data import DATASETS
from hftune.errors import HftuneError
from hftune.models.answerer import Answerer
from hftune.models.checkpoint import USED, ask_first, explained, locate
from hftune.models.classifier import Classifier
from hftune.models.facts import saved_facts
from hftune.outcomes import Prediction, Request, Scores
from hftune.runs.directory import RunDir, is_run
from hftune.studies.folder import StudyDir, is_study
from hftune.studies.select import select
from hftune.suggest import did_you_mean
from hftune.tasks import TASKS
from hftune.tasks.seen import run_of
from hftune.tasks.task import scored_baselines
from hftune.training.progress import Listener, Silent

Rows = Iterable[dict[str, str]]
Predictor = Callable[[Rows, int], Iterator[Prediction]]
"""Rows and batch size → a prediction a row, in order."""


def _labels(model: str, settings: ModelSection) -> Predictor:
    classifier = Classifier.load(model, section=settings)
    return lambda rows, size: labeling.stream(classifier, rows, batch_size=size)


def _answers(model: str, settings: ModelSection) -> Predictor:
    answerer = Answerer.load(model, settings)
    return lambda rows, size: answering.stream(answerer, rows, batch_size=size)


PREDICTORS: dict[str, Callable[[str, ModelSection], Predictor]] = {
    "classify": _labels,
    "joint": _labels,
    "answer": _answers,
}
"""How a model of each kind answers texts."""

EVALUATORS: dict[str, Callable[[Request, Listener], Scores]] = {
    "classify": labeling.evaluate,
    "joint": labeling.evaluate,
    "answer": answering.evaluate,
}
"""How a model of each kind is scored."""

OTHER_USES = {
    "mlm": "train it further: hftune classify --model {}",
    "span": "teach it to answer: hftune finetune --from {}",
    "clm": "let it write: hftune generate {}",
}
"""What a model is for that gives no labels and no answers."""

ALL = "all"
"""The split of text that has no splits."""
SPLITS = ("train", "validation", "test", ALL)
UNMARKED = "classify"
"""What a model is taken for that does not say what it was trained for."""


def kind_of(model: str, settings: ModelSection) -> str:
    """The kind of task that a run, a folder or a Hub model was trained for."""
    if is_study(Path(model)):
        study = StudyDir.open(Path(model))
        chosen = study.runs(select(study).setting)[0]
        raise HftuneError(
            f"{model} is a study, which holds many runs", hint=f"name one of them; validation selected {chosen.path}"
        )
    location = locate(model)
    ask_first(location, settings, USED)
    with explained(settings, USED):
        return str(saved_facts(location, settings.model_revision).get("task", UNMARKED))


def predictor(model: str, settings: ModelSection) -> tuple[str, Predictor]:
    """The kind of a model, and how to ask it."""
    kind = kind_of(model, settings)
    if kind not in PREDICTORS:
        raise HftuneError(
            f"{model} was trained for the task {kind!r}, which gives texts no labels and no answers",
            hint=OTHER_USES.get(kind, "train it for such a task: hftune classify --model {}").format(model),
        )
    return kind, PREDICTORS[kind](model, settings)


def own_columns(model: str) -> LabeledData:
    """How a run's data names its columns; nothing is named for what is not a run, or has no labeled data."""
    section = RunDir(Path(model)).read_recipe().data if is_run(Path(model)) else None
    if not isinstance(section, LabeledData):
        return LabeledData()
    embedded = DATASETS.get(section.dataset_name)
    return section if embedded is None else embedded.columns(section)


def predict(
    model: str | Path,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    batch_size: int = 64,
    settings: ModelSection | None = None,
) -> list[Prediction]:
    """Label texts, or answer questions, with a run, a folder or a Hub model.

    Args:
        model: A run directory, a folder that save_pretrained wrote, or a Hub id.
        texts: What to label; one string a row.
        pairs: The second text of each row, for a model that was trained on pairs.
        batch_size: Rows in one forward pass.
        settings: Revision, and what may be trusted; nothing is by default.

    Returns:
        One prediction a text, in the order given.

    Examples:
        >>> [answer] = hftune.predict("runs/first", ["never again"])
        >>> sorted(answer.probabilities)
        ['bad', 'good']
    """
    rows = rows_of(texts, pairs)
    _, ask = predictor(str(model), settings or ModelSection(model_name_or_path=str(model)))
    return list(ask(rows, batch_size))


def rows_of(texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, str]]:
    """What a ``Predictor`` takes, of lists of texts.

    Raises:
        HftuneError: These are no texts, or not as many pairs.
    """
    if isinstance(texts, str):
        raise HftuneError("predict takes a list of texts, got one string", hint="write predict(model, [text])")
    if hasattr(texts, "columns") or isinstance(texts, Mapping):
        raise HftuneError(
            f"predict takes a list of texts, got a {type(texts).__name__}, whose items are the names of columns",
            hint='name the column: predict(frame["text"])',
        )
    texts, pairs = list(texts), None if pairs is None else list(pairs)
    if pairs is not None and len(pairs) != len(texts):
        raise HftuneError(
            f"{len(texts)} texts but {len(pairs)} second texts", hint="give one second text for each text"
        )
    for text in (*texts, *(pairs or ())):
        if not isinstance(text, str):
            raise HftuneError(f"expected texts, got {type(text).__name__} {text!r:.60}", hint="give a list of strings")
    return [
        {"text": text} if pairs is None else {"text": text, "text_pair": pairs[index]}
        for index, text in enumerate(texts)
    ]


def evaluate(request: Request, listener: Listener | None = None) -> Scores:
    """Score a model on one split, in the way of its kind; a kind that has no way of its own by what its task scores."""
    if request.split not in (None, *SPLITS):
        near = did_you_mean(request.split, SPLITS)
        raise HftuneError(
            f"there is no split {request.split!r}", hint=f"{near} choose one of {', '.join(SPLITS)}".strip()
        )
    run = run_of(request.model)
    if run is not None:
        RunDir.open(run.path)  # its predictions may be written there
    kind = kind_of(request.model, request.settings)
    return EVALUATORS.get(kind, _by_task)(request, listener or Silent())


def _by_task(request: Request, listener: Listener) -> Scores:
    """Let the task of a run score it, on its own data or on other data of the same kind."""
    if not is_run(Path(request.model)):
        raise HftuneError(
            f"{request.model} is not a run, so how it was trained is not known", hint="name the run that holds it"
        )
    if request.columns or request.metrics:
        raise HftuneError("a language model is scored on text alone", hint="leave columns and metrics out")
    run = RunDir.open(Path(request.model))
    # Text that is only scored needs no validation: nothing is held out of it.
    other = {} if request.data is None else {"data.dataset_name": request.data, "data.validation_size": 0.0}
    # What the run was allowed to trust when it was trained says nothing about whoever asks now.
    trust = request.settings.trust
    recipe = load_recipe(run.path, {"train.per_device_eval_batch_size": request.batch_size, **other})
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={**trust})})
    task = TASKS[recipe.task.kind](recipe)
    listener.stage("loading data")
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
    found = task.evaluate(run.model, data, [known[split]], listener, trust)
    # Counts of a text say nothing about that text itself.
    counted = {} if split == ALL else scored_baselines(task, recipe, data, [split])
    return Scores(
        source=recipe.data.dataset_name,
        split=split,
        scores=found.splits.get(known[split], {}),
        baselines={name: scores[split] for name, scores in counted.items() if split in scores},
        collapsed=found.collapsed,
        predictions=found.predictions.get(known[split], []),
    )
