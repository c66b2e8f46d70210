"""Using what was trained: ``predict`` labels texts, ``evaluate`` scores a run or any classifier on any labelled data.

Called by ``hftune predict`` and ``hftune evaluate``, and by Python users (``from hftune import predict``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hftune import data as datasets
from hftune.config.data import LabelledData
from hftune.config.model import ModelSection
from hftune.config.section import expect
from hftune.errors import HftuneError
from hftune.evaluation.baselines import Majority
from hftune.evaluation.collapse import collapsed
from hftune.evaluation.metrics import classification_scores
from hftune.evaluation.scores import plain_scores
from hftune.models.classifier import Classifier
from hftune.runs.directory import RunDir, is_run
from hftune.tasks.classification import is_labelled, prediction_rows, score_rows
from hftune.training.progress import Listener, Silent

CHUNK = 2048
"""Rows that are sorted by length together: enough for like lengths, few enough to stream an endless input."""


@dataclass(frozen=True)
class Prediction:
    """One answer: the label by name, and the probability of every label."""

    text: str
    text_pair: str | None
    label: str
    probabilities: dict[str, float]

    @property
    def confidence(self) -> float:
        """Probability of the label that was chosen."""
        return self.probabilities[self.label]


@dataclass(frozen=True)
class Scores:
    """A classifier on one split: its scores, the majority rate beside them, and every prediction."""

    source: str
    split: str
    scores: dict[str, Any]
    majority: dict[str, Any]
    collapsed: str | None
    predictions: list[dict[str, Any]]


def predict(
    model: str | Path,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    batch_size: int = 64,
    settings: ModelSection | None = None,
) -> list[Prediction]:
    """Label texts with a run, a folder or a Hub model.

    Args:
        model: A run directory, a folder that save_pretrained wrote, or a Hub id.
        texts: What to label; one string a row.
        pairs: The second text of each row, for a model that was trained on pairs.
        batch_size: Rows in one forward pass.
        settings: Revision, and what may be trusted; nothing is by default.

    Returns:
        One prediction a text, in the order given.
    """
    if isinstance(texts, str):
        raise HftuneError("predict takes a list of texts, got one string", hint="write predict(model, [text])")
    if pairs is not None and len(pairs) != len(texts):
        raise HftuneError(
            f"{len(texts)} texts but {len(pairs)} second texts", hint="give one second text for each text"
        )
    classifier = Classifier.load(str(model), section=settings)
    rows = [
        {"text": text} if pairs is None else {"text": text, "text_pair": pairs[index]}
        for index, text in enumerate(texts)
    ]
    return list(stream(classifier, rows, batch_size=batch_size))


def stream(classifier: Classifier, rows: Iterable[dict[str, str]], *, batch_size: int = 64) -> Iterator[Prediction]:
    """Predictions in the order of the rows, a chunk at a time, so that memory does not grow with the input."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK)):
        has_pair = "text_pair" in chunk[0]
        odd = next((row for row in chunk if ("text_pair" in row) != has_pair), None)
        if odd is not None:
            raise HftuneError(
                f"some rows have a second text and some have none, such as {odd['text'][:60]!r}",
                hint="give text_pair in every row or in none",
            )
        logits = classifier.logits(
            [row["text"] for row in chunk],
            [row["text_pair"] for row in chunk] if has_pair else None,
            batch_size=batch_size,
        )
        for line in prediction_rows(chunk, logits, classifier.labels):
            yield Prediction(line["text"], line.get("text_pair"), line["label"], line["probabilities"])


def evaluate(
    model: str | Path,
    data: LabelledData | None = None,
    split: str | None = None,
    *,
    batch_size: int = 64,
    settings: ModelSection | None = None,
    metrics: Sequence[str] = (),
    listener: Listener | None = None,
) -> Scores:
    """Score a classifier on one split.

    Args:
        model: A run directory, a folder, or a Hub id.
        data: What to score on; the run's own data where not given.
        split: train, dev or test, or all for the rows of a single file; test where not given, and all for a file.
        batch_size: Rows in one forward pass.
        settings: Revision, and what may be trusted.
        metrics: Further metrics beside the built-in ones.
        listener: Who watches.
    """
    listener = listener or Silent()
    listener.stage("loading model")
    classifier = Classifier.load(str(model), section=settings)
    listener.stage("loading data")
    if data is not None:
        split, rows = datasets.load_split(data, split, classifier.labels)
        _warn_of_overlap(Path(model), rows["text"], split, listener)
    else:
        split = split or "test"
        data = _own_data(Path(model))
        rows = _own_split(data, split)
    if not is_labelled(rows):
        raise HftuneError(
            f"the {split} split of {data.name} has no labels, so it can't be scored",
            hint="use `hftune predict --file` to label it",
        )
    logits = score_rows(classifier, rows, batch_size, listener, split)
    gold = np.asarray(rows["label"])
    return Scores(
        source=data.name,
        split=split,
        scores=classification_scores(logits, gold, classifier.labels, metrics),
        majority=plain_scores(
            Majority.fit(gold.tolist(), len(classifier.labels)).logits(rows["text"], None), gold, classifier.labels
        ),
        collapsed=collapsed(logits.argmax(axis=1), gold, classifier.labels),
        predictions=prediction_rows(rows.to_list(), logits, classifier.labels),
    )


def _warn_of_overlap(model: Path, texts: Sequence[str], split: str, listener: Listener) -> None:
    """Rows that the run was trained on are no test of it."""
    if split == "train" or not is_run(model):
        return
    trained = set(datasets.load(_own_data(model)).train["text"])
    seen = sum(text in trained for text in texts)
    if seen:
        listener.warn(f"{seen:,} of these {len(texts):,} texts are among the rows that the run was trained on")


def _own_data(model: Path) -> LabelledData:
    """The data section of the run that the model belongs to."""
    if not is_run(model):
        raise HftuneError(f"{model} is not a run, so it has no data of its own", hint="add --data NAME|PATH")
    return expect(RunDir.open(model).read_recipe().data, LabelledData)


def _own_split(section: LabelledData, split: str) -> Any:
    """A split as the run had it: one that was cut from train is cut again in the same way."""
    splits = datasets.load(section).named
    if split not in splits:
        raise HftuneError(f"the run has no {split} split", hint=f"choose one with --split: {', '.join(splits)}")
    return splits[split]
