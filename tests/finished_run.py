"""A small run that is complete: a tiny classifier with real weights, its predictions and its metrics. No training.

Used by the tests of the Hub, which publish it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from hftune.models.classifier import Classifier
from hftune.recipe import Recipe
from hftune.runs.directory import RunDir
from hftune.tasks.classification import prediction_rows

SENTENCES = ("the food was great but we will never come back", "good bad soup cold warm kind")
WORDS = [word for sentence in SENTENCES for word in sentence.split()]
LABELS = ("bad", "fine", "good")
TEXTS = ("the soup was cold", "great food", "we will never come back", "kind but bad")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(folder: Path, max_length: int = 16) -> BertTokenizerFast:
    """Whole words only."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "words.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *WORDS]))
    return BertTokenizerFast(str(vocabulary), model_max_length=max_length)


def metrics(**changes: Any) -> dict[str, Any]:
    """Metrics as the pipeline writes them."""
    per_class = {label: {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2} for label in LABELS}
    scores = {"accuracy": 0.75, "f1_macro": 0.7, "mcc": 0.6, "ece": 0.1, "loss": 0.9, "per_class": per_class}
    plain = {"accuracy": 0.5, "f1_macro": 0.3, "mcc": 0.0, "ece": 0.0, "loss": 1.0}
    bins = [{"low": 0.4, "high": 0.5, "confidence": 0.45, "accuracy": 0.4, "count": 4}]
    calibrated = {"ece": 0.1, "ece_scaled": 0.05, "bins": bins, "bins_scaled": bins}
    return {
        "task": "classify",
        "splits": {"validation": scores, "test": {**scores, "accuracy": 0.625}},
        "baselines": {"majority": {"validation": plain, "test": plain}, "tfidf": {"validation": plain, "test": plain}},
        "parameters": {"trainable": 1000, "total": 1000, "formula": None},
        "speed": {"train_seconds": 12.5, "examples_per_second": 80.0},
        "collapsed": False,
        "verified": True,
        "seed": 1,
        "selection": {"metric": "accuracy", "step": 30, "score": 0.75},
        "data": {
            "source": "reviews",
            "rows": {"train": 40, "validation": 4, "test": 4},
            "fingerprints": {"train": "aa11", "validation": "bb22", "test": "cc33"},
            "notes": ["validation was cut from train"],
        },
        "labels": list(LABELS),
        "calibration": {"temperature": 1.3, "fitted_on": "validation", "validation": calibrated, "test": calibrated},
        **changes,
    }


def finished_run(path: Path, *, labels: tuple[str, ...] = LABELS, **changes: Any) -> RunDir:
    """Make the run; changes replace top-level entries of its metrics."""
    run = RunDir.create(path)
    run.begin(Recipe(), {"hftune": "0"})
    words = tokenizer(path.parent / f"{path.name}-words")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            max_position_embeddings=32,
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
            initializer_range=0.5,
            **shape,
        )
    )
    classifier = Classifier(model, words, labels, 16, "longest_first")
    classifier.save(run.model, base_model="scratch:bert-tiny", method="full", data="reviews")
    logits = np.asarray(classifier.logits(list(TEXTS)))
    rows = [{"text": text, "label": index % len(labels)} for index, text in enumerate(TEXTS)]
    for split in ("validation", "test"):
        run.write_predictions(split, prediction_rows(rows, logits, labels))
    run.write_metrics(metrics(labels=list(labels)) | changes)
    return run
