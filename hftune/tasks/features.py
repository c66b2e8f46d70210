"""Runs the frozen part of a model once over the rows, and keeps what it says on disk. Called by ``hftune.pipeline``.

Features are found again by a fingerprint of the frozen weights, the architecture, the token ids and the versions of the
libraries: whatever could change them gives another file. ``cache`` says where they lie, and for how long.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import Dataset

from hftune.cache import cache_folder, make_room, use
from hftune.errors import HftuneError
from hftune.methods.applied import Applied, Precomputed
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import main_first
from hftune.training.progress import Listener
from hftune.training.weights import frozen_fingerprint

logger = logging.getLogger(__name__)

NOT_SHAPE = {"id2label", "label2id", "_name_or_path", "transformers_version", "architectures", "dtype"}
"""Entries of a configuration that the frozen part does not depend on."""
TOLERANCE = 1e-4


class FeatureRows(Dataset[dict[str, Any]]):
    """One vector and one label a row, in place of token ids."""

    def __init__(self, features: Tensor, labels: Sequence[int]) -> None:
        """features: (rows, d)."""
        assert len(features) == len(labels), "a label for every row"
        self.features = features
        self.labels = list(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"inputs_embeds": self.features[index].unsqueeze(0), "labels": self.labels[index]}


def precompute(
    inputs: TrainingInputs, applied: Applied, *, use_cpu: bool, batch_size: int, listener: Listener
) -> tuple[TrainingInputs, float]:
    """Token ids → features, where the method has a frozen part that can run ahead; inputs as they are otherwise.

    Args:
        inputs: What the task prepared.
        applied: What the method made of the model.
        use_cpu: The recipe's ``train.use_cpu``.
        batch_size: Rows in one forward pass.
        listener: Who watches.

    Returns:
        What the trainer gets, and the seconds this took.

    Raises:
        HftuneError: The head reads more of the encoder's output than is kept of it.
    """
    parts = applied.precomputed
    if parts is None:
        return inputs, 0.0
    began = time.perf_counter()
    if not use_cpu and torch.accelerator.is_available():
        applied.model.to(torch.accelerator.current_accelerator())
    _check(applied, parts, inputs)
    frozen = _frozen_identity(applied)
    made = {}
    for name, rows, lengths in (
        ("train", inputs.train, inputs.train_lengths),
        ("validation", inputs.validation, inputs.validation_lengths),
    ):
        batches = _Batches(rows, lengths, inputs, batch_size, applied.model.device)
        features = _kept(batches, parts, frozen, listener, f"encoding {name} once")
        made[name] = FeatureRows(features, [rows[index]["labels"] for index in range(len(lengths))])
    replaced = dataclasses.replace(inputs, train=made["train"], validation=made["validation"], collator=_stack)
    return replaced, time.perf_counter() - began


@dataclasses.dataclass(frozen=True)
class _Batches:
    """The rows of a split from long to short: memory trouble shows at once, and little is spent on padding."""

    rows: Any
    lengths: Sequence[int]
    inputs: TrainingInputs
    size: int
    device: torch.device

    def at(self, start: int) -> tuple[list[int], dict[str, Tensor]]:
        """Row numbers and token ids of the batch that begins there."""
        chosen = self.order[start : start + self.size]
        batch = self.inputs.collator([self.rows[index] for index in chosen])
        return chosen, {name: value.to(self.device) for name, value in batch.items() if name != "labels"}

    @property
    def order(self) -> list[int]:
        """Row numbers, longest first."""
        return sorted(range(len(self.lengths)), key=lambda index: -self.lengths[index])

    def fingerprint(self) -> str:
        """Hash of every token id; covers data, tokenizer, length and truncation."""
        digest = hashlib.sha256()
        for index in range(len(self.lengths)):
            row = {name: value for name, value in self.rows[index].items() if name != "labels"}
            digest.update(json.dumps(row, sort_keys=True).encode())
        return digest.hexdigest()


def _kept(batches: _Batches, parts: Precomputed, frozen: str, listener: Listener, what: str) -> Tensor:
    """Features from disk, or made and put there; of several processes the main one goes first."""
    name = hashlib.sha256(f"{frozen} {batches.fingerprint()}".encode()).hexdigest()
    path = cache_folder("features") / f"{name}.safetensors"
    with main_first():
        features = _read(path, len(batches.lengths))
        if features is None:
            features = _encode(batches, parts, listener, what)
            _write(path, features)
        else:
            listener.note(f"{what}: found in {path.parent}")
    return features


def _encode(batches: _Batches, parts: Precomputed, listener: Listener, what: str) -> Tensor:
    total, made = len(batches.lengths), None
    listener.begin(total, what)
    for start in range(0, total, batches.size):
        chosen, batch = batches.at(start)
        features = parts.encode(batch).float().cpu()
        if made is None:
            made = torch.empty(total, features.shape[-1])
        made[chosen] = features
        listener.advance(start + len(chosen), {})
    listener.end()
    assert made is not None, "a split has rows"
    return made


def _check(applied: Applied, parts: Precomputed, inputs: TrainingInputs) -> None:
    """The head over features must say what the whole model says; one row in evaluation mode shows it."""
    _, batch = _Batches(inputs.validation, inputs.validation_lengths, inputs, 2, applied.model.device).at(0)
    was_training = applied.model.training
    applied.model.eval()
    parts.trained.eval()
    with torch.no_grad():
        whole = applied.model(**batch).logits
        ahead = parts.trained(inputs_embeds=parts.encode(batch).unsqueeze(1))["logits"]
    applied.model.train(was_training)
    parts.trained.train(was_training)
    if not torch.allclose(whole, ahead, rtol=TOLERANCE, atol=TOLERANCE):
        raise HftuneError(
            f"the head of this {applied.model.config.model_type} model reads more than one vector a text, so features "
            "can't be kept for it",
            hint="use --set method.cache_features=false",
        )


def _frozen_identity(applied: Applied) -> str:
    shape = {name: value for name, value in applied.model.config.to_dict().items() if name not in NOT_SHAPE}
    return json.dumps(
        {
            "class": type(applied.model).__name__,
            "config": shape,
            "weights": frozen_fingerprint(applied.model),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        sort_keys=True,
        default=str,
    )


def _read(path: Path, rows: int) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        features = load_file(path)["features"]
    except (OSError, SafetensorError, KeyError) as error:
        logger.warning("%s can't be read (%s): its features are made again", path, error)
        return None
    use(path)
    return features if len(features) == rows else None


def _write(path: Path, features: Tensor) -> None:
    """Whole or not at all; a disk that takes nothing costs the next run time, and this one nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            save_file({"features": features}, Path(folder) / path.name)
            (Path(folder) / path.name).replace(path)
        make_room()
    except (OSError, SafetensorError) as error:
        logger.warning("features are not kept: %s can't be written (%s)", path, error)


def _stack(rows: list[dict[str, Any]]) -> Mapping[str, Tensor]:
    return {
        "inputs_embeds": torch.stack([row["inputs_embeds"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }
