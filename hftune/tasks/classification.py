"""Task ``classify``: one label for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hftune.config.section import expect
from hftune.data import load as datasets
from hftune.data.checks import label_shifts
from hftune.data.settings import LabeledData
from hftune.data.splits import Splits
from hftune.errors import HftuneError, did_you_mean
from hftune.evaluation.baselines import Majority, classification_baselines
from hftune.evaluation.collapse import collapsed
from hftune.evaluation.metrics import (
    METRICS,
    STANDARD,
    calibration,
    classification_scores,
    load_metric,
    refuse_unsuitable,
    scores_in_parts,
)
from hftune.models.classifier import Classifier, encode, load_saved_classifier, load_sequence_classifier
from hftune.models.load import LoadedModel, check_length, load_config, load_tokenizer, refuse_other_head
from hftune.models.pooling import check_pooling
from hftune.models.settings import NO_TRUST, ModelSection, Trust
from hftune.progress import ProgressReporter, progress_bar
from hftune.tasks.settings import ClassifyTask
from hftune.tasks.task import (
    PROBE_ROWS,
    DataSummary,
    Evaluation,
    EvaluationRequest,
    EvaluationResult,
    Prediction,
    Predictor,
    Row,
    SplitScores,
    Task,
    TaskRecipe,
    in_chunks,
    own_data,
    own_splits,
    saved_section,
    split_named,
    warn_of_overlap,
)
from hftune.tasks.tokens import Encoded, TokenizedRows, tokens_from_cache, truncation_note
from hftune.training.inputs import TrainingInputs
from hftune.training.memory import available_memory

TOGETHER = 4096
"""Rows that are tokenized together."""
MOST_PROBABILITIES = 100
"""Labels whose probability a prediction lists; of more, the most probable ones and the right one."""
GUESSES = 1 << 22
"""Number of logits on which the metrics are tried."""
BYTES_PER_LOGIT = 64
"""Scoring a split holds its logits as float32 and, for probabilities and calibration, several times as float64; 45 were
measured at 100,000 labels, and training takes memory too."""


class Classification(Task[Splits]):
    """Fine-tune a sequence classifier."""

    scores: ClassVar[tuple[str, ...]] = STANDARD

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.task_section = expect(recipe.task, ClassifyTask)
        self.data_section = expect(recipe.data, LabeledData)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics in addition to the standard ones: those of ``task.metrics``, and the one that selects checkpoints."""
        best = self.recipe.train.best_metric
        return tuple(dict.fromkeys((*self.task_section.metrics, *({best} & set(METRICS)))))

    def check_best_metric(self, known: Iterable[str]) -> None:
        """All built-in metrics count too; the names of loaded ones are known after they were computed."""
        loaded = [load_metric(name) for name in self.task_section.metrics if name not in METRICS]
        if not loaded:
            super().check_best_metric({*known, *METRICS})

    def check_model(self, config: PreTrainedConfig) -> None:
        """Refuse a GPT from scratch, and a pooling that this architecture can't have."""
        refuse_other_head(self.recipe.model, causal=False)
        check_pooling(self.recipe.model, config)

    def load_data(self) -> Splits:
        """Read, check, split and subset the examples."""
        return datasets.load(self.data_section)

    def describe(self, data: Splits) -> DataSummary:
        """Sizes and notes, and whether validation or test has other label shares than train."""
        return replace(super().describe(data), warnings=label_shifts(data))

    def training_texts(self, data: Splits) -> list[str]:
        """The texts that the tokenizer of a model from scratch is trained on."""
        return data.texts()

    def make_tokenizer(self, data: Splits) -> PreTrainedTokenizerBase:
        """The model's own, or one trained on the training texts."""
        tokenizer = load_tokenizer(self.recipe.model, self.training_texts(data))
        # pipeline() truncates at this length, so the published model reads what it was trained on.
        tokenizer.model_max_length = self.data_section.max_seq_length
        return tokenizer

    def prepare(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; the test split is not used until the end."""
        self._check(data, tokenizer)
        train, validation = self._tokenize(data, "train", tokenizer), self._tokenize(data, "validation", tokenizer)
        weights = class_weights(self.task_section.class_weights, data.labels, data.train["label"])
        longest = self.data_section.max_seq_length
        return TrainingInputs(
            train=train,
            validation=validation,
            collator=DataCollatorWithPadding(tokenizer),
            train_lengths=train.lengths,
            validation_lengths=validation.lengths,
            compute_metrics=self._metrics(data.labels),
            loss=ClassificationLoss(weights, self.recipe.train.label_smoothing_factor),
            tokens=train.fingerprint,
            notes=truncation_note(train.lengths, longest, "training rows", "--max-length N reads more"),
        )

    def build_model(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """An encoder with a head for the labels of the data."""
        skip = self.recipe.train.cls_only_last_layer
        return load_sequence_classifier(self.recipe.model, tokenizer, data.labels, cls_only=skip)

    def baselines(self, data: Splits, splits: Sequence[str]) -> dict[str, SplitScores]:
        """The majority label and a bag of words, fitted on the same training examples."""
        columns = {
            name: (rows["text"], rows["text_pair"] if data.is_pair else None, rows["label"])
            for name, rows in data.named.items()
        }
        return classification_baselines(
            *columns["train"], {name: columns[name] for name in splits}, data.labels, self.metrics
        )

    def probe(self, data: Splits) -> list[dict[str, Any]]:
        """The first examples of validation."""
        rows = data.validation.select(range(min(PROBE_ROWS, len(data.validation))))
        return [{name: row[name] for name in data.columns} for row in rows]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Logits and label names."""
        names = tuple(model.config.id2label[index] for index in range(model.config.num_labels))
        return _probe_outputs(self._classifier(model, tokenizer, names, "text_pair" in rows[0]), rows)

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved model, which has its own labels and lengths."""
        return _probe_outputs(Classifier.load(str(folder), section=saved_section(folder, trust)), rows)

    @classmethod
    def load_saved(cls, model: str, settings: ModelSection) -> PreTrainedModel:
        """The classifier."""
        return load_saved_classifier(settings.model_copy(update={"model_name_or_path": model}))

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Splits, folder: Path) -> None:
        """Weights, tokenizer and label names: what pipeline() and `hftune predict` load."""
        classifier = self._classifier(model, tokenizer, data.labels, data.is_pair)
        classifier.save(folder, base=self.recipe.model, **self.provenance(data.source))

    def evaluate(
        self, folder: Path, data: Splits, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Predict every example of each split, and score the splits that have labels."""
        classifier = Classifier.load(str(folder), section=saved_section(folder, trust))
        size, metrics = self.recipe.train.per_device_eval_batch_size, self.metrics
        found = {
            name: score_rows(classifier, data.named[name], size, progress, name, metrics=metrics) for name in splits
        }
        scored = {name: one for name, one in found.items() if one.gold is not None}
        return Evaluation(
            splits={name: one.scores for name, one in scored.items()},
            predictions={name: one.predictions for name, one in found.items()},
            collapsed=next((f"{name}: {one.collapsed}" for name, one in scored.items() if one.collapsed), None),
            extras={
                "labels": list(data.labels),
                "calibration": calibration(
                    {name: (one.logits, one.gold) for name, one in found.items() if one.gold is not None}
                ),
            },
        )

    @classmethod
    def predictor(cls, model: str, settings: ModelSection) -> Predictor:
        """Texts → labels."""
        classifier = Classifier.load(model, section=settings)
        return lambda rows, batch_size: stream(classifier, rows, batch_size=batch_size)

    @classmethod
    def score(cls, request: EvaluationRequest, progress: ProgressReporter) -> EvaluationResult:
        """Score a classifier on one split: test by default, and all of a single file."""
        progress.stage("loading model")
        classifier = Classifier.load(request.model, section=request.settings)
        labels = classifier.labels
        refuse_unsuitable(request.metrics, labels)
        source, split, rows = rows_to_score(request, labels, progress, labeled=not request.unlabeled)
        found = score_rows(classifier, rows, request.batch_size, progress, split, metrics=request.metrics)
        baselines = {}
        if found.gold is not None:
            built_in = [name for name in request.metrics if name in METRICS]
            majority = Majority.fit(found.gold.tolist(), len(labels)).logits(rows["text"], None)
            baselines = {"majority of split": scores_in_parts([(majority, found.gold)], labels, built_in)}
        return EvaluationResult(source, split, found.scores, baselines, found.collapsed, found.predictions)

    def _check(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> None:
        config = load_config(self.recipe.model, tokenizer)
        check_length(config, self.data_section.max_seq_length, self.recipe.method.positions)
        if self.data_section.truncation != "longest_first" and not data.is_pair:
            raise HftuneError(
                f"data.truncation is {self.data_section.truncation!r}, but {data.source} has single texts, not pairs",
                hint="leave data.truncation out, or name the second text with --pair-column",
            )
        # Logits of a split are held at once: temperature scaling and calibration need all of them.
        check_memory(data, available_memory())
        # Runs every metric once, so that one that can't be computed is found before training.
        super().check_best_metric({*self._metrics(data.labels)(untrained_guess(data)), "loss"})

    def _metrics(self, labels: tuple[str, ...]) -> Any:
        # Trainer logs numbers only, so scores per class are left out; it computes a loss of its own, which has class
        # weights and label smoothing in it.
        extra = self.metrics

        def compute(outcome: EvalPrediction) -> dict[str, float]:
            logits, gold = np.asarray(outcome.predictions), np.asarray(outcome.label_ids)
            scores = classification_scores(logits, gold, labels, extra)
            return {name: value for name, value in scores.items() if isinstance(value, float) and name != "loss"}

        return compute

    def _tokenize(self, data: Splits, split: str, tokenizer: PreTrainedTokenizerBase) -> TokenizedRows:
        # Rows are tokenized without padding, which DataCollatorWithPadding adds per batch: of rows of similar length
        # (group_by_length) almost none is needed.
        section, rows = self.data_section, data.named[split]
        how: dict[str, Any] = {"max_length": section.max_seq_length, "truncation": section.truncation}

        def make() -> Encoded:
            return Encoded.of(
                row
                for start in range(0, len(rows), TOGETHER)
                for part in (rows[start : start + TOGETHER],)
                for row in encode(tokenizer, part["text"], part["text_pair"] if data.is_pair else None, **how)
            )

        encoded = tokens_from_cache(data.fingerprints[split], len(rows), tokenizer, how, make)
        return TokenizedRows(encoded, rows.data.column("label").to_pylist())

    def _classifier(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...], pairs: bool
    ) -> Classifier:
        section = self.data_section
        return Classifier(model, tokenizer, labels, section.max_seq_length, section.truncation, pairs)


class ClassificationLoss:
    """Trainer's ``compute_loss_func``: cross-entropy with class weights and label smoothing.

    The sum is divided by ``num_items_in_batch``, which makes the mean right under gradient accumulation, with several
    processes and for a short last batch; the mean that models return is right only without any of these.
    """

    def __init__(self, weights: Tensor | None, label_smoothing: float) -> None:
        """weights: [labels], or None for equal ones."""
        self.weights = weights
        self.label_smoothing = label_smoothing

    def __call__(
        self, outputs: Mapping[str, Tensor], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Loss of one forward pass, as its share of the step."""
        # Reduced here and not by the model: the heads of BERT and RoBERTa return the mean over a micro-batch, which
        # Trainer then doesn't divide by the accumulation steps (huggingface/transformers#47688).
        logits = outputs["logits"]  # [B, labels]
        weights = None if self.weights is None else self.weights.to(logits)
        total = cross_entropy(logits, labels, weight=weights, label_smoothing=self.label_smoothing, reduction="sum")
        return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)


def class_weights(setting: Any, labels: Sequence[str], gold: Sequence[int]) -> Tensor | None:
    """Weights in label order with a mean of 1 over the training rows, so that the learning rate keeps its meaning."""
    if setting is None:
        return None
    counts = np.bincount(np.asarray(gold), minlength=len(labels))  # [labels]
    if setting == "auto":
        # A label that the subset lacks gets no examples, so its weight is never used.
        weights = 1.0 / np.maximum(counts, 1)
    else:
        _check_class_weights(setting, labels)
        weights = np.array([setting[label] for label in labels])
    # Weighted by frequency, so that the expected loss of a step is as large as without weights.
    return torch.tensor(weights * counts.sum() / (weights * counts).sum(), dtype=torch.float32)


def _check_class_weights(setting: Mapping[str, float], labels: Sequence[str]) -> None:
    known = set(labels)
    if unknown := next((label for label in setting if label not in known), None):
        shown = ", ".join(labels[:20]) + (f" … {len(labels):,} in all" if len(labels) > 20 else "")
        raise HftuneError(
            f"task.class_weights names {unknown!r}, which is not a label of the data ({shown})",
            hint=did_you_mean(unknown, labels) or "use the label names as the data has them",
        )
    if len(setting) < len(labels):
        missing = next(label for label in labels if label not in setting)
        raise HftuneError(
            f"task.class_weights has no weight for the label {missing!r}",
            hint="give one for every label, or use task.class_weights=auto",
        )
    if low := next((label for label in labels if setting[label] <= 0), None):
        raise HftuneError(
            f"task.class_weights.{low} is {setting[low]}, expected a number above 0",
            hint="leave rows of that label out of the data if it should not count",
        )


def untrained_guess(data: Splits) -> EvalPrediction:
    """Made-up predictions on validation, or on a part of it if there are very many labels."""
    # Rows evenly spread over the split, so that as many labels as possible occur: some metrics need two at least.
    gold = np.asarray(data.validation["label"])
    rows = min(len(gold), max(2, GUESSES // len(data.labels)))
    gold = gold[np.linspace(0, len(gold) - 1, rows).astype(np.int64)]
    predictions = np.zeros((rows, len(data.labels)), dtype=np.float32)
    predictions[np.arange(rows), gold] = 1
    return EvalPrediction(predictions=predictions, label_ids=gold)


def check_memory(data: Splits, free: int) -> None:
    """Refuse splits whose scores would not fit into memory, before training and not after."""
    for name, rows in data.named.items():
        needed = len(rows) * len(data.labels) * BYTES_PER_LOGIT
        if name != "train" and needed > free:
            raise HftuneError(
                f"scoring {name} takes about {needed / 2**30:.1f} GB: it has {len(rows):,} rows, and there are "
                f"{len(data.labels):,} labels; {free / 2**30:.1f} GB of memory are free",
                hint=f"use fewer labels or a smaller {name} split; check that data.label_column_name names the labels",
            )


def prediction_rows(
    rows: Sequence[Mapping[str, Any]], logits: np.ndarray, labels: Sequence[str]
) -> list[dict[str, Any]]:
    """One line of predictions per example: text, gold, the label by name, and probabilities by label name.

    With very many labels only the highest ones: every one of 1,000 for each example would be gigabytes.
    """
    # Softmax; subtracting the maximum keeps exp from overflowing, and float64 keeps small probabilities apart.
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)  # [rows, labels]
    result = []
    for index, row in enumerate(rows):
        line: dict[str, Any] = {"id": index, "text": row["text"]}
        if "text_pair" in row:
            line["text_pair"] = row["text_pair"]
        if "label" in row:
            line["gold"] = labels[row["label"]] if row["label"] >= 0 else None
        line["label"] = labels[int(logits[index].argmax())]
        listed = _listed_labels(probabilities[index], row.get("label", -1))
        line["probabilities"] = {labels[place]: round(float(probabilities[index, place]), 6) for place in listed}
        result.append(line)
    return result


def _listed_labels(probabilities: np.ndarray, gold: int) -> Iterable[int]:
    """The labels whose probabilities a prediction lists, in label order; the given and the gold one are among them."""
    if len(probabilities) <= MOST_PROBABILITIES:
        return range(len(probabilities))
    # A partition and no sort: of 100,000 labels only these few are needed, for every example.
    highest = np.argpartition(-probabilities, MOST_PROBABILITIES)[:MOST_PROBABILITIES].tolist()
    return sorted({*highest, int(probabilities.argmax()), *([gold] if gold >= 0 else [])})


def _probe_outputs(classifier: Classifier, rows: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [row["text_pair"] for row in rows] if "text_pair" in rows[0] else None
    logits = classifier.logits([row["text"] for row in rows], pairs)
    return {"logits": logits.tolist(), "labels": list(classifier.labels)}


def is_labeled(rows: Any) -> bool:
    """Whether every example has a label; a test split may have none."""
    return bool(min(rows["label"]) >= 0)


@dataclass(frozen=True)
class ScoredRows:
    """Predictions of a classifier for some examples, and their scores if they have labels."""

    predictions: list[dict[str, Any]]
    logits: np.ndarray
    """[rows, labels]"""
    gold: np.ndarray | None = None
    """[rows], or None without labels."""
    scores: dict[str, Any] = field(default_factory=dict)
    collapsed: str | None = None
    """Why the predictions look like those of a constant; None if they don't."""


def score_rows(
    classifier: Classifier,
    rows: Any,
    batch_size: int,
    progress: ProgressReporter,
    what: str,
    *,
    metrics: Sequence[str] = (),
) -> ScoredRows:
    """Predict every example, with a progress bar, and score those of a labeled split."""
    pairs = rows["text_pair"] if "text_pair" in rows.column_names else None
    with progress_bar(progress, len(rows), f"scoring {what}") as advance:
        logits = classifier.logits(rows["text"], pairs, batch_size=batch_size, advance=advance)
    predictions = prediction_rows(rows.to_list(), logits, classifier.labels)
    if not is_labeled(rows):
        return ScoredRows(predictions, logits)
    gold = np.asarray(rows["label"])
    scores = classification_scores(logits, gold, classifier.labels, metrics)
    return ScoredRows(predictions, logits, gold, scores, collapsed(logits.argmax(axis=1), gold, classifier.labels))


def stream(classifier: Classifier, rows: Iterable[Row], *, batch_size: int = 64) -> Iterator[Prediction]:
    """Predictions in the order of the inputs."""
    for chunk in in_chunks(rows):
        has_pair = "text_pair" in chunk[0]
        if odd := next((row for row in chunk if ("text_pair" in row) != has_pair), None):
            raise HftuneError(
                f"some rows have a second text and some have none, such as {odd['text'][:60]!r}",
                hint="give text_pair in every row or in none",
            )
        texts, pairs = [row["text"] for row in chunk], [row["text_pair"] for row in chunk] if has_pair else None
        logits = classifier.logits(texts, pairs, batch_size=batch_size)
        for line in prediction_rows(chunk, logits, classifier.labels):
            yield Prediction(line["text"], line.get("text_pair"), line["label"], line["probabilities"])


def rows_to_score(
    request: EvaluationRequest, labels: Sequence[str], progress: ProgressReporter, *, labeled: bool = True
) -> tuple[str, str, Any]:
    """The name of the data, the name of the split, and its examples, whose labels the model knows.

    A split without labels is refused if it must be ``labeled``.
    """
    progress.stage("loading data")
    own, split = own_data(request.model, LabeledData), request.split
    if request.data is not None:
        source = request.data
        section = LabeledData(dataset_name=source, **request.columns)
        split, rows = datasets.load_split(section, split, labels, own)
        if split != "train" and own is not None:
            warn_of_overlap(lambda: datasets.load(own).train["text"], rows["text"], "texts", progress)
    else:
        source, splits = own_splits(request.model, own, datasets.load)
        split = split or "test"
        rows = split_named(splits.named, split)
    if labeled and not is_labeled(rows):
        raise HftuneError(
            f"the {split} split of {source} has no labels, so it can't be scored",
            hint="choose a split with labels (--split validation), or write predictions for this one with --output "
            "FILE",
        )
    return source, split, rows
