"""A tiny training that the training tests share: a two-layer BERT, sixty rows of made-up tokens, a few seconds."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, TrainerCallback

from hftune.files import read_jsonl
from hftune.progress import ProgressReporter
from hftune.training.checkpoints import WEIGHTS
from hftune.training.fit import build
from hftune.training.inputs import TrainingInputs
from hftune.training.settings import TrainSection
from hftune.training.trainer import HftuneTrainer

LABELS = 3
DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 3,
    "learning_rate": 5e-3,
    "per_device_train_batch_size": 8,
    "logging_steps": 2,
    "save_total_limit": 99,
    "metric_for_best_model": "accuracy",
}


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of 6 to 24 tokens whose label depends on one of them."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        label = int(draw.integers(LABELS))
        body = draw.integers(10, 60, int(draw.integers(5, 23))).tolist()
        body[int(draw.integers(len(body)))] = 60 + label
        made.append({"input_ids": [1, *body], "labels": label})
    return made


def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in batch)
    ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in batch]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": (torch.tensor(ids) != 0).long(),
        "labels": torch.tensor([row["labels"] for row in batch]),
    }


def accuracy(outcome: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((outcome.predictions.argmax(-1) == outcome.label_ids).mean())}


def tiny_bert(dropout: float = 0.1) -> BertForSequenceClassification:
    torch.manual_seed(7)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            num_labels=LABELS,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


@dataclass
class Case:
    """One training in its own folder; ``trainer`` makes everything anew, as a new process would."""

    folder: Path
    settings: Mapping[str, Any]
    train_rows: int = 60
    inputs: Mapping[str, Any] | None = None
    must_match: Mapping[str, Any] | None = None

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def history(self) -> list[dict[str, Any]]:
        """history.jsonl without what differs from run to run."""
        path = self.folder / "history.jsonl"
        lines = read_jsonl(path) if path.is_file() else []
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    def trainer(self, model: torch.nn.Module | None = None, progress: Any = None) -> HftuneTrainer:
        train, validation = rows(self.train_rows, 1), rows(21, 2)
        inputs: dict[str, Any] = {
            "train": train,
            "validation": validation,
            "collator": collate,
            "train_lengths": [len(row["input_ids"]) for row in train],
            "validation_lengths": [len(row["input_ids"]) for row in validation],
            "compute_metrics": accuracy,
            "loss": None,
        }
        return build(
            TrainSection(**{**DEFAULTS, **self.settings}),
            TrainingInputs(**{**inputs, **(self.inputs or {})}),
            model=tiny_bert() if model is None else model,
            tokenizer=None,
            checkpoints=self.checkpoints,
            history=self.folder / "history.jsonl",
            progress=progress or ProgressReporter(),
            must_match=self.must_match or {},
        )

    def weights_at(self, step: int) -> dict[str, torch.Tensor]:
        return load_file(self.checkpoints / f"checkpoint-{step}" / WEIGHTS)


class SignalAt(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, step: int, number: int = signal.SIGINT) -> None:
        self.step = step
        self.number = number

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step - 1:
            signal.raise_signal(self.number)


class KilledError(Exception):
    """What a killed process looks like from inside."""


class CrashAt(TrainerCallback):
    """Ends training without a word, as kill -9 does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step - 1:
            raise KilledError


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of weights are equal bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
