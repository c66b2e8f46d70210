"""What the pipeline asks of a task, in the order in which it asks. Every entry of TASKS is one of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.model import NO_TRUST, Trust
from hftune.config.recipe import Recipe
from hftune.models.load import LoadedModel
from hftune.training.inputs import TrainingInputs
from hftune.training.progress import Listener


@dataclass(frozen=True)
class DataFacts:
    """The ``data`` object of metrics.json: what was trained and scored on, so that runs can be compared or refused."""

    source: str
    rows: Mapping[str, int]
    fingerprints: Mapping[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Notes that nobody should overlook."""

    def as_dict(self) -> dict[str, Any]:
        """As it stands in metrics.json."""
        return {
            "source": self.source,
            "rows": dict(self.rows),
            "fingerprints": dict(self.fingerprints),
            "notes": [*self.notes, *self.warnings],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Evaluation:
    """Scores and predictions of the splits that were asked for."""

    splits: dict[str, dict[str, Any]]
    predictions: dict[str, list[dict[str, Any]]]
    collapsed: str | None = None
    """Why the predictions look like those of a constant, in words; None when they do not."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Further objects of metrics.json, by key: labels, calibration …"""


Data = TypeVar("Data")


class Task(Protocol[Data]):
    """One run of one task. Data is the task's own type; the pipeline only passes it on."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""

    def load_data(self) -> Data:
        """Read and check the rows. Everything that is wrong with them is said here, before any long work."""

    def describe(self, data: Data) -> DataFacts:
        """What was read."""

    def load_tokenizer(self, data: Data) -> PreTrainedTokenizerBase:
        """The tokenizer, trained on the training rows where the model starts from scratch."""

    def prepare(self, data: Data, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenized splits, collator, metric."""

    def build_model(self, data: Data, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """The network, sized by the data."""

    def baselines(self, data: Data, splits: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """What simple systems score on the same splits: baseline → split → scores."""

    def probe(self, data: Data) -> list[dict[str, Any]]:
        """A few fixed rows on which the saved model is compared with the one in memory."""

    def outputs(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]) -> Any:
        """What the model in memory says of the probe rows: numbers and names that JSON can carry."""

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> Any:
        """The same from the saved artifact; called in a fresh process."""

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Data, folder: Path) -> None:
        """Write the artifact that is published."""

    def evaluate(
        self, folder: Path, data: Data, splits: Sequence[str], listener: Listener, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved artifact: the numbers belong to what is published, not to what was in memory."""


def scored_baselines(
    task: Task[Any], recipe: Recipe, data: Any, splits: Iterable[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What simple systems score, unless the recipe leaves them out."""
    return task.baselines(data, list(splits)) if recipe.task.baselines else {}
