"""Run the frozen part of a model once over all examples, and cache the features.

The key covers everything that could change them: frozen weights, architecture, token ids and the libraries' versions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

from hftune.cache import CacheEntry, NewEntry, cache_key, cached
from hftune.errors import HftuneError
from hftune.methods.applied import Applied, Precomputed
from hftune.models.load import evaluation_mode, longest_first
from hftune.progress import ProgressReporter, progress_bar
from hftune.training.checkpoints import frozen_fingerprint
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import main_first

NOT_SHAPE = {"id2label", "label2id", "_name_or_path", "transformers_version", "architectures", "dtype"}
"""Entries of a configuration that the frozen part does not depend on."""
TOLERANCE = 1e-4


class FeatureRows(Dataset[dict[str, Any]]):
    """One vector and one label per example, in place of token ids."""

    def __init__(self, features: Tensor, labels: Sequence[int]) -> None:
        self.features, self.labels = features, labels  # (rows, d), (rows,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"inputs_embeds": self.features[index].unsqueeze(0), "labels": self.labels[index]}


def precompute(
    inputs: TrainingInputs, applied: Applied, *, use_cpu: bool, batch_size: int, progress: ProgressReporter
) -> tuple[TrainingInputs, float]:
    """Token ids → features of a model whose frozen part can run once, and the seconds that this took.

    Refused if the head reads more of the encoder's output than the features hold.
    """
    assert applied.precomputed is not None, "called for such a method only"
    parts: Precomputed = applied.precomputed
    began = time.perf_counter()
    if not use_cpu and torch.accelerator.is_available():
        applied.model.to(torch.accelerator.current_accelerator())
    splits = {
        "train": _Split(inputs.train, inputs.train_lengths, inputs.collator, applied.model.device),
        "validation": _Split(inputs.validation, inputs.validation_lengths, inputs.collator, applied.model.device),
    }
    _check(applied, parts, splits["validation"])
    frozen = _frozen_identity(applied)
    made = {
        name: FeatureRows(_features(split, parts, frozen, batch_size, progress, f"encoding {name} once"), split.labels)
        for name, split in splits.items()
    }
    replaced = dataclasses.replace(
        inputs,
        train=made["train"],
        validation=made["validation"],
        validation_lengths=[1] * len(inputs.validation_lengths),
        collator=_stack,
    )
    return replaced, time.perf_counter() - began


@dataclasses.dataclass(frozen=True)
class _Split:
    rows: Any
    lengths: Sequence[int]
    collator: Any
    device: torch.device

    @property
    def labels(self) -> list[int]:
        return [self.rows[index]["labels"] for index in range(len(self.lengths))]

    def batch(self, chosen: Sequence[int]) -> dict[str, Tensor]:
        batch = self.collator([self.rows[index] for index in chosen])
        return {name: value.to(self.device) for name, value in batch.items() if name != "labels"}

    def fingerprint(self) -> str:
        """Hash of every token id; covers data, tokenizer, length and truncation."""
        digest = hashlib.sha256()
        for index in range(len(self.lengths)):
            row = {name: value for name, value in self.rows[index].items() if name != "labels"}
            digest.update(json.dumps(row, sort_keys=True).encode())
        return digest.hexdigest()


def _features(
    split: _Split, parts: Precomputed, frozen: str, batch_size: int, progress: ProgressReporter, what: str
) -> Tensor:
    """Features from the cache, or computed and stored; the main process computes them first."""

    def make() -> Tensor:
        made: Tensor | None = None
        with progress_bar(progress, len(split.lengths), what) as advance:
            for chosen in longest_first(split.lengths, batch_size):
                # fp32 even if training is in bf16: the cache is the same for every precision.
                features = parts.encode(split.batch(chosen)).float().cpu()  # (batch, d)
                made = torch.empty(len(split.lengths), features.shape[-1]) if made is None else made
                made[chosen] = features
                advance(len(chosen))
        assert made is not None, "a split has examples"
        return made

    def save(features: Tensor, new: NewEntry) -> None:
        new.array("features", np.dtype(np.float32), [features.numpy()])

    def load(entry: CacheEntry) -> Tensor:
        progress.note(f"{what}: found in {entry.path.parent}")
        return torch.from_numpy(np.array(entry.array("features")))

    # The others then find the features in the cache, on a disk that they share, and the frozen model runs once.
    with main_first():
        return cached("features", cache_key(frozen, split.fingerprint()), make, save=save, load=load)


def _check(applied: Applied, parts: Precomputed, split: _Split) -> None:
    """The head over features must give the same logits as the whole model; two examples show it."""
    # Whether a head reads one vector per text or all of them is not in its config, so it is tried.
    batch = split.batch(next(longest_first(split.lengths, batch_size=2)))
    with evaluation_mode(applied.model), evaluation_mode(parts.trained):
        whole = applied.model(**batch).logits
        ahead = parts.trained(inputs_embeds=parts.encode(batch).unsqueeze(1))["logits"]
    if not torch.allclose(whole, ahead, rtol=TOLERANCE, atol=TOLERANCE):
        raise HftuneError(
            f"the head of this {applied.model.config.model_type} model reads more than one vector per text, so its "
            "features can't be cached",
            hint="use --set method.cache_features=false",
        )


def _frozen_identity(applied: Applied) -> str:
    identity = {
        "class": type(applied.model).__name__,
        "config": {name: value for name, value in applied.model.config.to_dict().items() if name not in NOT_SHAPE},
        "weights": frozen_fingerprint(applied.model),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return json.dumps(identity, sort_keys=True, default=str)


def _stack(rows: list[dict[str, Any]]) -> Mapping[str, Tensor]:
    return {
        "inputs_embeds": torch.stack([row["inputs_embeds"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }
