"""The base class of the tasks: the methods that the pipeline calls, in this order; using and scoring a saved model.

A new task is a subclass of ``Task``; docs and tests find it in ``TASKS``. torch and transformers are imported by the
module of a task, not here.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from hftune import methods
from hftune.config.section import expect
from hftune.data.settings import CorpusData, DataSection, LabeledData, QuestionData
from hftune.errors import HftuneError
from hftune.methods.method import Method
from hftune.models.settings import NO_TRUST, ModelSection, Trust
from hftune.runs.directory import RunDir, is_run, public_name
from hftune.tasks.settings import TaskSettings
from hftune.training.settings import TrainSection

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from hftune.models.load import LoadedModel
    from hftune.progress import ProgressReporter
    from hftune.training.inputs import TrainingInputs

PROBE_ROWS = 8
CHUNK = 2048
"""Examples that are sorted by length together: enough for little padding, few enough to stream an endless input."""

SplitScores = dict[str, dict[str, Any]]
"""Split → scores."""
Row = dict[str, str]
"""An input: ``text``, and ``text_pair`` for a model of pairs."""
Predictor = Callable[[Iterable[Row], int], Iterator["Prediction"]]
"""Inputs and batch size → one prediction per input, in order."""
Split = TypeVar("Split")
Splits = TypeVar("Splits")
OwnData = TypeVar("OwnData", LabeledData, QuestionData)


class TaskRecipe(Protocol):
    """The sections of a recipe that a task reads."""

    @property
    def task(self) -> TaskSettings: ...  # noqa: D102

    @property
    def data(self) -> LabeledData | CorpusData | QuestionData: ...  # noqa: D102

    @property
    def model(self) -> ModelSection: ...  # noqa: D102

    @property
    def method(self) -> Method: ...  # noqa: D102

    @property
    def train(self) -> TrainSection: ...  # noqa: D102


class TaskData(Protocol):
    """What the data of every task have; how examples are stored is up to the task."""

    @property
    def source(self) -> str: ...  # noqa: D102

    @property
    def rows(self) -> Mapping[str, int]: ...  # noqa: D102

    @property
    def fingerprints(self) -> Mapping[str, str]: ...  # noqa: D102

    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102


Data = TypeVar("Data", bound=TaskData)


@dataclass(frozen=True)
class DataSummary:
    """The ``data`` object of metrics.json: what was trained and scored on, so that runs can be compared."""

    source: str
    rows: Mapping[str, int]
    fingerprints: Mapping[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Important notes."""

    def as_dict(self) -> dict[str, Any]:
        """As it is written to metrics.json."""
        return {
            "source": self.source,
            "rows": dict(self.rows),
            "fingerprints": dict(self.fingerprints),
            "notes": [*self.notes, *self.warnings],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Evaluation:
    """Scores and predictions of some splits."""

    splits: SplitScores
    predictions: dict[str, list[dict[str, Any]]]
    collapsed: str | None = None
    """Why the predictions look like those of a constant; None if they don't."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Further objects of metrics.json, by key: labels, calibration …"""


class Task(ABC, Generic[Data]):
    """One run of one task. Data is the task's own type; the pipeline only passes it on."""

    usage: ClassVar[str]
    """How a model is used that `hftune predict` does not support; {model} is its name, {folder} where its files are."""
    causal: ClassVar[bool] = False
    """Whether its model predicts the next token."""
    trains_all: ClassVar[bool] = False
    """Whether it works with the method ``full`` only."""
    scores: ClassVar[tuple[str, ...]]
    """The validation scores, among which train.metric_for_best_model chooses."""

    def __init__(self, recipe: TaskRecipe) -> None:
        self.recipe = recipe
        self._tokenizer: PreTrainedTokenizerBase | None = None

    # ---- Before any data is read ----

    def check_request(self) -> None:
        """Refuse a method or a model that the task can't use, before any data is read.

        Raises:
            HftuneError: Names both, and what to use instead.
        """
        from hftune.models.hub_files import TRAINING, TRAINING_CAUSAL
        from hftune.models.load import load_config

        # Cheapest first; nothing here needs data or weights. A prefix for DeBERTa or a GPT from scratch for
        # classification would otherwise fail after the data were downloaded, checked and tokenized.
        self.check_best_metric(self.scores)
        self.check_method()
        model, train = self.recipe.model, self.recipe.train
        purpose = TRAINING_CAUSAL if self.causal else TRAINING
        config = load_config(model, _any_tokenizer(), purpose)
        try:
            self.check_model(config)
        except HftuneError as error:
            kind = self.recipe.task.kind
            raise HftuneError(f"task {kind} can't train this model: {error.message}", hint=error.hint) from error
        checkpointing = train.gradient_checkpointing
        methods.check(self.recipe.method, config, gradient_checkpointing=checkpointing, causal=self.causal)

    def check_best_metric(self, known: Iterable[str]) -> None:
        """Refuse a metric for selecting the best checkpoint that evaluation does not give."""
        wanted, choices = self.recipe.train.best_metric, sorted(known)
        if wanted not in choices:
            raise HftuneError(
                f"train.metric_for_best_model is {wanted!r}, which is not among the validation scores",
                hint=f"use one of: {', '.join(choices)}",
            )

    def check_method(self) -> None:
        """Refuse a method that the task rules out whatever the model."""
        kind = self.recipe.method.kind
        if self.trains_all and kind != methods.FullMethod().kind:
            raise HftuneError(
                f"method.kind is {kind!r}, but task {self.recipe.task.kind} trains all parameters",
                hint="leave --method out",
            )

    def check_model(self, config: PreTrainedConfig) -> None:
        """Refuse an architecture that the task can't train; the size of the vocabulary is not known yet."""

    # ---- Training ----

    @abstractmethod
    def load_data(self) -> Data:
        """Read and check the examples. All errors of the data are raised here, before any long work."""

    def describe(self, data: Data) -> DataSummary:
        """Sizes, fingerprints and notes."""
        return DataSummary(data.source, data.rows, data.fingerprints, data.notes)

    def load_tokenizer(self, data: Data) -> PreTrainedTokenizerBase:
        """The tokenizer, loaded or trained once."""
        if self._tokenizer is None:
            self._tokenizer = self.make_tokenizer(data)
        return self._tokenizer

    @abstractmethod
    def make_tokenizer(self, data: Data) -> PreTrainedTokenizerBase:
        """The model's own tokenizer; one trained on the training texts if the model is built from scratch."""

    @abstractmethod
    def prepare(self, data: Data, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenized splits, collator, loss and metrics."""

    def precompute(self, data: Data, inputs: TrainingInputs, progress: ProgressReporter) -> TrainingInputs | None:
        """What takes long and is done once before training, such as what a teacher computes; None for nothing."""
        return None

    @abstractmethod
    def build_model(self, data: Data, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """The model; its head has the size of the labels."""

    # ---- The saved model ----

    @abstractmethod
    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Data, folder: Path) -> None:
        """Write the model that is published."""

    @abstractmethod
    def evaluate(
        self, folder: Path, data: Data, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model, which is what is published."""

    @abstractmethod
    def baselines(self, data: Data, splits: Sequence[str]) -> dict[str, SplitScores]:
        """Scores of simple systems on the same splits: baseline → split → scores."""

    def scored_baselines(self, data: Data, splits: Iterable[str]) -> dict[str, SplitScores]:
        """The baselines, unless the recipe leaves them out."""
        return self.baselines(data, list(splits)) if self.recipe.task.baselines else {}

    @abstractmethod
    def probe(self, data: Data) -> list[dict[str, Any]]:
        """A few fixed examples on which the saved model is compared with the one in memory."""

    @abstractmethod
    def outputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]) -> Any:
        """Outputs of the model in memory for the probe examples: numbers and names that JSON can carry."""

    @staticmethod
    @abstractmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> Any:
        """The same from the saved model; called in a new process."""

    def provenance(self, source: str) -> dict[str, Any]:
        """What hftune.json records about where the model comes from; names only, no paths of this machine."""
        model = self.recipe.model
        return {
            "base_model": public_name(model.model_name_or_path),
            "base_revision": model.model_revision,
            "method": self.recipe.method.kind,
            "data": public_name(source),
        }

    # ---- Using a saved model ----

    @classmethod
    @abstractmethod
    def load_saved(cls, model: str, settings: ModelSection) -> PreTrainedModel:
        """The model of a run, a folder or the Hub, in evaluation mode, as transformers users know it."""

    @classmethod
    def predictor(cls, model: str, settings: ModelSection) -> Predictor:
        """Load a saved model and return how it labels or answers texts.

        Raises:
            HftuneError: Models of this task do neither.
        """
        from hftune.models.hub_files import locate

        raise HftuneError(
            f"{model} was trained for a task that gives texts no labels and no answers",
            hint=cls.usage.format(model=shlex.quote(model), folder=locate(model)),
        )

    @classmethod
    def score(cls, request: EvaluationRequest, progress: ProgressReporter) -> EvaluationResult | None:
        """Score a saved model on any data; None for a task that only scores runs, with ``evaluate``."""
        return None


def _any_tokenizer() -> PreTrainedTokenizerBase:
    """A placeholder for the tokenizer of a model from scratch, which is trained on data that have not been read yet.

    An architecture takes only the size of its vocabulary and the ids of its special tokens from there.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"": 0}, unk_token="")))


def saved_section(folder: Path, trust: Trust) -> ModelSection:
    """The model section of a saved model."""
    return ModelSection(model_name_or_path=str(folder), **trust)


# ---- Predicting and scoring with a saved model ----


@dataclass(frozen=True)
class Prediction:
    """A label by name with the probability of every label; a generated answer is its own label."""

    text: str
    text_pair: str | None
    label: str
    probabilities: dict[str, float]
    ended: bool = True
    """Whether a generated answer is complete; false for one that was truncated."""
    seen: Mapping[str, bool | None] = field(default_factory=dict)
    """Of an answer: whether its name was seen in pretraining and in fine-tuning; None if it is not known."""

    @property
    def confidence(self) -> float:
        """Probability of the predicted label."""
        return self.probabilities[self.label]


@dataclass(frozen=True)
class EvaluationRequest:
    """A model, and what to score it on."""

    model: str
    settings: ModelSection
    """Revision, and what may be trusted."""
    data: str | None = None
    """What to score on; the run's own data by default."""
    split: str | None = None
    """train, validation or test, or all for the examples of a single file."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Settings of labeled data that name columns."""
    metrics: Sequence[str] = ()
    """Metrics in addition to the built-in ones."""
    batch_size: int = 64
    unlabeled: bool = False
    """Whether a split without labels gets predictions; it is refused otherwise."""


@dataclass(frozen=True)
class EvaluationResult:
    """A model on one split: its scores, those of simple baselines, and every prediction."""

    source: str
    split: str
    scores: dict[str, Any]
    """Empty for a split without labels or answers."""
    baselines: dict[str, dict[str, Any]]
    collapsed: str | None
    predictions: list[dict[str, Any]]
    extras: dict[str, Any] = field(default_factory=dict)
    """Further objects of the result, by key."""
    lines: list[str] | None = None
    """The predictions as plain text, one per line, if the task has such a form."""
    default_file: Path | None = None
    """The file that the lines are written to unless another one is named; None to write none."""


def in_chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Consecutive parts of an input of any length, so that memory does not grow with it."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def run_of(model: str) -> RunDir | None:
    """The run that a model belongs to, given its path or that of its model folder."""
    path = Path(model)
    return next((RunDir(place) for place in (path, path.parent) if is_run(place)), None)


def own_data(model: str, section: type[OwnData]) -> OwnData | None:
    """The data that a run was trained on; None for a model without a run."""
    run = run_of(model)
    return None if run is None else expect(run.read_section("data", DataSection), section)


def own_splits(model: str, own: OwnData | None, load: Callable[[OwnData], Splits]) -> tuple[str, Splits]:
    """The name of a run's own data and their splits; they may be missing, or named relative to another folder."""
    if own is None:
        raise HftuneError(f"{model} is not a run, so it has no data of its own", hint="add --data NAME|PATH")
    try:
        return own.dataset_name, load(own)
    except HftuneError as error:
        raise HftuneError(
            f"the run's own data can't be read: {error.message}",
            hint="a relative path counts from where the run was trained: go there, or name the data with --data",
        ) from error


def split_named(splits: Mapping[str, Split], name: str) -> Split:
    """One split of the run's own data."""
    if name not in splits:
        raise HftuneError(f"the run has no {name} split", hint=f"choose one with --split: {', '.join(splits)}")
    return splits[name]


def warn_of_overlap(
    trained: Callable[[], Iterable[str]], texts: Sequence[str], what: str, progress: ProgressReporter
) -> None:
    """Warn of examples that the run was trained on."""
    try:
        known = set(trained())
    except HftuneError as error:
        progress.note(f"whether the run was trained on these {what} is unknown: {error.message}")
        return
    if seen := sum(text in known for text in texts):
        progress.warn(f"{seen:,} of these {len(texts):,} {what} are in the data that the run was trained on")
