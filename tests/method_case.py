"""Tiny classifiers of eight architectures, and one training of each method that the method tests share."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from training_case import LABELS, collate, rows
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertTokenizerFast,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EvalPrediction,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
)

from hftune import methods
from hftune.files import read_jsonl
from hftune.methods import METHODS, Method
from hftune.methods.applied import Applied
from hftune.models.classifier import Classifier
from hftune.models.pooling import with_pooling
from hftune.models.settings import ModelSection
from hftune.pipeline.precompute import precompute
from hftune.progress import ProgressReporter
from hftune.training.checkpoints import WEIGHTS, trained_weights
from hftune.training.fit import build, fit
from hftune.training.inputs import TrainingInputs
from hftune.training.settings import TrainSection

NAMES = ("bad", "fine", "good")
EVERY = 2
"""Steps between two checkpoints."""
STEPS = 3 * EVERY
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXTS = [" ".join(f"w{number}" for number in range(start, start + 4 + start % 5)) for start in range(6, 40, 7)]
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
}


def config(architecture: str, **more: Any) -> PreTrainedConfig:
    """A configuration of two layers, sixteen wide; bert-mean is a BERT with mean pooling."""
    if "-mean" in architecture or "-max" in architecture:
        encoder, _, pooling = architecture.rpartition("-")
        return with_pooling(config(encoder, **more), pooling)
    shape = {**SHAPE, "id2label": dict(enumerate(NAMES)), "label2id": {name: i for i, name in enumerate(NAMES)}, **more}
    wide = {"initializer_range": 0.3}  # so that logits differ by more than rounding
    if architecture == "distilbert":
        renamed = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        renamed["intermediate_size"] = "hidden_dim"
        return DistilBertConfig(**{renamed.get(name, name): value for name, value in shape.items()}, **wide)
    if architecture == "modernbert":
        special = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
        return ModernBertConfig(**shape, **special)
    if architecture == "albert":
        return AlbertConfig(**shape, **wide, embedding_size=8)
    if architecture == "electra":
        return ElectraConfig(**shape, **wide, embedding_size=8)
    kinds = {"bert": BertConfig, "roberta": RobertaConfig, "deberta-v2": DebertaV2Config, "mpnet": MPNetConfig}
    return kinds[architecture](**shape, **wide)


def small(kind: str, **settings: Any) -> Method:
    """The settings of a method at a size that suits these models."""
    sizes = {"num_virtual_tokens": 3, "r": 2}
    made = METHODS[kind]
    return made(**{**{name: size for name, size in sizes.items() if name in made.model_fields}, **settings})


def model(architecture: str, **more: Any) -> PreTrainedModel:
    torch.manual_seed(7)
    return AutoModelForSequenceClassification.from_config(config(architecture, **more))


def tokenizer(folder: Path) -> BertTokenizerFast:
    """Words w5 … w63, each its own token."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "words.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), 64))]))
    return BertTokenizerFast(str(vocabulary), model_max_length=24)


def snapshot(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


@dataclass
class MethodCase:
    """One method on one architecture; ``start`` makes everything anew, as a new process would."""

    folder: Path
    architecture: str
    section: Method
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluations: int = 0

    def start(self, folder: Path) -> tuple[Applied, Any]:
        applied = methods.apply(model(self.architecture), self.section, ())
        train, validation = rows(48, 1), rows(21, 2)
        inputs = TrainingInputs(
            train=train,
            validation=validation,
            collator=collate,
            train_lengths=[len(row["input_ids"]) for row in train],
            validation_lengths=[len(row["input_ids"]) for row in validation],
            compute_metrics=self.falling,
            loss=None,
        )
        if applied.precomputed is not None:
            inputs, _ = precompute(inputs, applied, use_cpu=True, batch_size=16, progress=ProgressReporter())
        trainer = build(
            TrainSection(
                **{
                    "num_train_epochs": 3,
                    "max_steps": STEPS,
                    "learning_rate": 2e-2,
                    "per_device_train_batch_size": 8,
                    "eval_steps": EVERY,
                }
                | {"logging_steps": 1, "save_total_limit": 9, "metric_for_best_model": "score", **self.settings}
            ),
            inputs,
            model=applied.trained,
            tokenizer=None,
            checkpoints=folder / "checkpoints",
            history=folder / "history.jsonl",
            progress=ProgressReporter(),
            must_match={},
        )
        return applied, trainer

    def falling(self, outcome: EvalPrediction) -> dict[str, float]:
        """The first evaluation is the best, so that restoring it takes the weights back a long way."""
        assert outcome.predictions.shape[-1] == LABELS
        self.evaluations += 1
        return {"score": -float(self.evaluations)}

    def train(self) -> None:
        self.applied, trainer = self.start(self.folder)
        self.before = snapshot(self.applied.model)
        self.fitted = fit(trainer)
        # Kept apart, since merging an adapter changes the model in memory.
        self.after = snapshot(self.applied.model)
        self.restored = {name: value.detach().clone() for name, value in trained_weights(self.applied.trained).items()}
        self.logits = self.classifier().logits(TEXTS)

    def resumed(self) -> Path:
        """Train on from the first checkpoint alone, in another folder."""
        folder = self.folder.with_name(f"{self.folder.name}-resumed")
        first = f"checkpoint-{EVERY}"
        shutil.copytree(self.folder / "checkpoints" / first, folder / "checkpoints" / first)
        _, trainer = self.start(folder)
        fit(trainer, resume=folder / "checkpoints" / first)
        return folder

    def classifier(self) -> Classifier:
        return Classifier(self.applied.model, tokenizer(self.folder / "words"), NAMES, 24, "longest_first")

    def save(self) -> Path:
        saved = self.folder / "model"
        classifier = self.classifier()
        finished = self.applied.finish(self.applied.model)
        Classifier(finished, classifier.tokenizer, NAMES, 24, "longest_first").save(saved, base=ModelSection())
        return saved


def weights_at(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"checkpoint-{step}" / WEIGHTS)


def losses(folder: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_jsonl(folder / "history.jsonl") if "grad_norm" in line}


def close(left: Any, right: Any, tolerance: float = 1e-5) -> bool:
    return bool(np.allclose(np.asarray(left), np.asarray(right), rtol=tolerance, atol=tolerance))
