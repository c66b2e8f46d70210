"""Classification of single texts and pairs: data, model and metric joined. One entry of TASKS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune import data as datasets
from hftune import methods
from hftune.config.data import LabeledData
from hftune.config.model import NO_TRUST, ModelSection, Trust
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.config.task import ClassifyTask
from hftune.data.splits import Splits
from hftune.errors import HftuneError
from hftune.evaluation.baselines import classification_baselines
from hftune.evaluation.calibration import calibration
from hftune.evaluation.collapse import collapsed
from hftune.evaluation.metrics import classification_scores
from hftune.models.classifier import Classifier, encode
from hftune.models.load import LoadedModel, load_config, load_sequence_classifier, load_tokenizer
from hftune.models.positions import check_length
from hftune.runs.naming import public_name
from hftune.tasks.classification_loss import ClassificationLoss, class_weights
from hftune.tasks.many_labels import check_memory, listed_labels, untrained_guess
from hftune.tasks.rows import Encoded, TokenizedRows, cut_note
from hftune.tasks.task import DataFacts, Evaluation
from hftune.tasks.token_cache import kept
from hftune.training.inputs import TrainingInputs
from hftune.training.progress import Listener, counting
from hftune.training.room import free_memory

PROBE_ROWS = 8
TOGETHER = 4096
"""Rows that are tokenized together."""


class Classification:
    """Fine-tune a sequence classifier."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""
        self.recipe = recipe
        self.task_section = expect(recipe.task, ClassifyTask)
        self.data_section = expect(recipe.data, LabeledData)

    def load_data(self) -> Splits:
        """Read, check, split and subset the rows."""
        return datasets.load(self.data_section)

    def describe(self, data: Splits) -> DataFacts:
        """Rows, fingerprints and what was done to them."""
        rows = {name: len(split) for name, split in data.named.items()}
        return DataFacts(data.source, rows, data.fingerprints, data.notes)

    def load_tokenizer(self, data: Splits) -> PreTrainedTokenizerBase:
        """The model's own, or one trained on the training texts."""
        tokenizer = load_tokenizer(self.recipe.model, data.texts())
        # pipeline() truncates at this length, so the published model reads what it was trained on.
        tokenizer.model_max_length = self.data_section.max_seq_length
        return tokenizer

    def prepare(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; the test split stays untouched until the end."""
        self._check(data, tokenizer)
        train, validation = self._tokenize(data, "train", tokenizer), self._tokenize(data, "validation", tokenizer)
        section = self.task_section
        return TrainingInputs(
            train=train,
            validation=validation,
            collator=DataCollatorWithPadding(tokenizer),
            train_lengths=train.lengths,
            validation_lengths=validation.lengths,
            compute_metrics=self._metrics(data.labels),
            loss=ClassificationLoss(
                weights=class_weights(section.class_weights, data.labels, data.train["label"]),
                label_smoothing=self.recipe.train.label_smoothing_factor,
            ),
            tokens=train.fingerprint,
            notes=cut_note(
                train.lengths, self.data_section.max_seq_length, "training rows", "--max-length N reads more"
            ),
        )

    def build_model(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """An encoder with a head for the labels of the data."""
        skip = self.recipe.train.cls_only_last_layer
        return load_sequence_classifier(self.recipe.model, tokenizer, data.labels, skip_unread=skip)

    def baselines(self, data: Splits, splits: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """The majority label and a bag of words, fitted on the same training rows."""
        scored = {name: data.named[name] for name in splits}
        return classification_baselines(
            data.train["text"],
            data.train["text_pair"] if data.is_pair else None,
            data.train["label"],
            {
                name: (split["text"], split["text_pair"] if data.is_pair else None, split["label"])
                for name, split in scored.items()
            },
            data.labels,
        )

    def probe(self, data: Splits) -> list[dict[str, Any]]:
        """The first rows of validation."""
        rows = data.validation.select(range(min(PROBE_ROWS, len(data.validation))))
        return [{name: row[name] for name in data.columns} for row in rows]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Logits and label names on the probe rows."""
        names = tuple(model.config.id2label[index] for index in range(model.config.num_labels))
        return _probe_outputs(self._classifier(model, tokenizer, names, "text_pair" in rows[0]), rows)

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder, which knows its own labels and lengths."""
        section = ModelSection(model_name_or_path=str(folder), **trust)
        return _probe_outputs(Classifier.load(str(folder), section=section), rows)

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Splits, folder: Path) -> None:
        """Weights, tokenizer and label names: what pipeline() and `hftune predict` load."""
        recipe = self.recipe
        self._classifier(model, tokenizer, data.labels, data.is_pair).save(
            folder,
            base=recipe.model,
            base_model=public_name(recipe.model.model_name_or_path),
            base_revision=recipe.model.model_revision,
            method=recipe.method.kind,
            data=public_name(data.source),
        )

    def evaluate(
        self, folder: Path, data: Splits, splits: Sequence[str], listener: Listener, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved classifier on each split that has labels, and list what it says of every row."""
        classifier = Classifier.load(str(folder), section=ModelSection(model_name_or_path=str(folder), **trust))
        scores: dict[str, dict[str, Any]] = {}
        predictions, logits = {}, {}
        for name in splits:
            rows = data.named[name]
            logits[name] = score_rows(classifier, rows, self.recipe.train.per_device_eval_batch_size, listener, name)
            predictions[name] = prediction_rows(rows.to_list(), logits[name], data.labels)
            if is_labeled(rows):
                scores[name] = classification_scores(
                    logits[name], np.asarray(rows["label"]), data.labels, self.task_section.metrics
                )
        gold = {name: np.asarray(data.named[name]["label"]) for name in scores}
        return Evaluation(
            splits=scores,
            predictions=predictions,
            collapsed=_first_collapse(logits, gold, data.labels),
            extras={
                "labels": list(data.labels),
                "calibration": calibration({name: (logits[name], gold[name]) for name in gold}),
            },
        )

    def _check(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> None:
        method = self.recipe.method
        config = load_config(self.recipe.model, tokenizer)
        methods.check(method, config, gradient_checkpointing=self.recipe.train.gradient_checkpointing)
        check_length(config, self.data_section.max_seq_length, method.positions)
        if self.data_section.truncation != "longest_first" and not data.is_pair:
            raise HftuneError(
                f"data.truncation is {self.data_section.truncation!r}, but {data.source} has one text a row, not pairs",
                hint="leave data.truncation out, or name the second text with --pair-column",
            )
        check_memory(data, free_memory())
        scores = self._metrics(data.labels)(untrained_guess(data))
        choices = {*scores, "loss"}
        if self.recipe.train.best_metric not in choices:
            raise HftuneError(
                f"train.metric_for_best_model is {self.recipe.train.best_metric!r}, which is not among the "
                "validation scores",
                hint=f"use one of: {', '.join(sorted(choices))}",
            )

    def _metrics(self, labels: tuple[str, ...]) -> Any:
        extra = self.task_section.metrics

        def compute(outcome: EvalPrediction) -> dict[str, float]:
            scores = classification_scores(
                np.asarray(outcome.predictions), np.asarray(outcome.label_ids), labels, extra
            )
            return {name: value for name, value in scores.items() if isinstance(value, float) and name != "loss"}

        return compute

    def _tokenize(self, data: Splits, split: str, tokenizer: PreTrainedTokenizerBase) -> TokenizedRows:
        section, rows = self.data_section, data.named[split]
        how: dict[str, Any] = {"max_length": section.max_seq_length, "truncation": section.truncation}

        def make() -> Encoded:
            return Encoded.of(
                row
                for start in range(0, len(rows), TOGETHER)
                for part in (rows[start : start + TOGETHER],)
                for row in encode(tokenizer, part["text"], part["text_pair"] if data.is_pair else None, **how)
            )

        return TokenizedRows(
            kept(data.fingerprints[split], len(rows), tokenizer, how, make), rows.data.column("label").to_pylist()
        )

    def _classifier(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, labels: tuple[str, ...], pairs: bool
    ) -> Classifier:
        section = self.data_section
        return Classifier(model, tokenizer, labels, section.max_seq_length, section.truncation, pairs)


def prediction_rows(
    rows: Sequence[Mapping[str, Any]], logits: np.ndarray, labels: Sequence[str]
) -> list[dict[str, Any]]:
    """One line of predictions a row: text, gold, the label by name, and probabilities by label name.

    All of them, or with very many labels the highest ones: every one of 1,000 for each row would be gigabytes.
    """
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    result = []
    for index, row in enumerate(rows):
        line: dict[str, Any] = {"id": index, "text": row["text"]}
        if "text_pair" in row:
            line["text_pair"] = row["text_pair"]
        if "label" in row:
            line["gold"] = labels[row["label"]] if row["label"] >= 0 else None
        line["label"] = labels[int(logits[index].argmax())]
        listed = listed_labels(probabilities[index], row.get("label", -1))
        line["probabilities"] = {labels[place]: round(float(probabilities[index, place]), 6) for place in listed}
        result.append(line)
    return result


def _probe_outputs(classifier: Classifier, rows: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [row["text_pair"] for row in rows] if "text_pair" in rows[0] else None
    logits = classifier.logits([row["text"] for row in rows], pairs)
    return {"logits": logits.tolist(), "labels": list(classifier.labels)}


def is_labeled(rows: Any) -> bool:
    """Whether every row has a label; a test split may have none."""
    return bool(min(rows["label"]) >= 0)


def score_rows(classifier: Classifier, rows: Any, batch_size: int, listener: Listener, what: str) -> np.ndarray:
    """Logits of a split, with a progress bar."""
    pairs = rows["text_pair"] if "text_pair" in rows.column_names else None
    with counting(listener, len(rows), f"scoring {what}") as advance:
        return classifier.logits(rows["text"], pairs, batch_size=batch_size, advance=advance)


def _first_collapse(
    logits: Mapping[str, np.ndarray], gold: Mapping[str, np.ndarray], labels: Sequence[str]
) -> str | None:
    for name, truth in gold.items():
        reason = collapsed(logits[name].argmax(axis=1), truth, labels)
        if reason:
            return f"{name}: {reason}"
    return None
