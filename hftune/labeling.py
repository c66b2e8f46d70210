"""Classifiers in use: texts to labels, and the scores of a run or any classifier on any labeled data.

Called by ``hftune.inference``, which knows by the kind of a model that it is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hftune import data as datasets
from hftune.config.data import LabeledData
from hftune.config.section import expect
from hftune.errors import HftuneError
from hftune.evaluation.baselines import Majority
from hftune.evaluation.collapse import collapsed
from hftune.evaluation.metrics import classification_scores
from hftune.evaluation.scores import plain_scores
from hftune.models.classifier import Classifier
from hftune.outcomes import Prediction, Request, Scores
from hftune.runs.directory import RunDir, is_run
from hftune.tasks.classification import is_labeled, prediction_rows, score_rows
from hftune.training.progress import Listener

CHUNK = 2048
"""Rows that are sorted by length together: enough for like lengths, few enough to stream an endless input."""


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


def evaluate(request: Request, listener: Listener) -> Scores:
    """Score a classifier on one split: test by default, and all of a single file. No labels, no scores."""
    listener.stage("loading model")
    classifier = Classifier.load(request.model, section=request.settings)
    source, split, rows = rows_to_score(request, classifier.labels, listener, labeled=not request.unlabeled)
    logits = score_rows(classifier, rows, request.batch_size, listener, split)
    if not is_labeled(rows):
        return Scores(source, split, {}, {}, None, prediction_rows(rows.to_list(), logits, classifier.labels))
    gold = np.asarray(rows["label"])
    majority = Majority.fit(gold.tolist(), len(classifier.labels)).logits(rows["text"], None)
    return Scores(
        source=source,
        split=split,
        scores=classification_scores(logits, gold, classifier.labels, request.metrics),
        baselines={"majority of split": plain_scores(majority, gold, classifier.labels)},
        collapsed=collapsed(logits.argmax(axis=1), gold, classifier.labels),
        predictions=prediction_rows(rows.to_list(), logits, classifier.labels),
    )


def rows_to_score(
    request: Request, labels: Sequence[str], listener: Listener, *, labeled: bool = True
) -> tuple[str, str, Any]:
    """The name of the data, the name of the split, and its rows, whose labels the model knows.

    Args:
        request: What to score on.
        labels: The labels of the model.
        listener: Progress callback.
        labeled: Refuse a split without labels.
    """
    listener.stage("loading data")
    model, split = Path(request.model), request.split
    if request.data is not None:
        data = LabeledData(dataset_name=request.data, **request.columns)
        split, rows = datasets.load_split(data, split, labels)
        _warn_of_overlap(model, rows["text"], split, listener)
    else:
        split = split or "test"
        data = _own_data(model)
        rows = _own_split(data, split)
    if labeled and not is_labeled(rows):
        raise HftuneError(
            f"the {split} split of {data.dataset_name} has no labels, so it can't be scored",
            hint="choose a split with labels (--split validation), or write predictions for this one with --output "
            "FILE",
        )
    return data.dataset_name, split, rows


def _warn_of_overlap(model: Path, texts: Sequence[str], split: str, listener: Listener) -> None:
    """Rows that the run was trained on are no test of it."""
    if split == "train" or not is_run(model):
        return
    try:
        trained = set(datasets.load(_own_data(model)).train["text"])
    except HftuneError as error:
        listener.note(f"whether the run was trained on these texts can't be told: {error.message}")
        return
    seen = sum(text in trained for text in texts)
    if seen:
        listener.warn(f"{seen:,} of these {len(texts):,} texts are among the rows that the run was trained on")


def _own_data(model: Path) -> LabeledData:
    """The data section of the run that the model belongs to."""
    if not is_run(model):
        raise HftuneError(f"{model} is not a run, so it has no data of its own", hint="add --data NAME|PATH")
    return expect(RunDir.open(model).read_recipe().data, LabeledData)


def _own_split(section: LabeledData, split: str) -> Any:
    """A split as the run had it: one that was cut from train is cut again in the same way."""
    try:
        splits = datasets.load(section).named
    except HftuneError as error:
        raise HftuneError(
            f"the run's own data can't be read: {error.message}",
            hint="a relative path counts from where the run was trained: go there, or name the data with --data",
        ) from error
    if split not in splits:
        raise HftuneError(f"the run has no {split} split", hint=f"choose one with --split: {', '.join(splits)}")
    return splits[split]
