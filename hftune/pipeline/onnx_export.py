"""Export a trained classifier to ONNX, and compare its scores and speed with those of the original.

An exported folder is a model like any other: ``hftune predict`` and ``evaluate`` take it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peft import PeftModel
from transformers import PreTrainedModel

from hftune.errors import HftuneError
from hftune.evaluation.metrics import scores_in_parts
from hftune.files import write_json
from hftune.models.classifier import Classifier
from hftune.models.hub_files import ONNX, write_metadata
from hftune.models.onnx_model import need_onnx, write_onnx
from hftune.pipeline.inference import kind_of
from hftune.progress import ProgressReporter
from hftune.tasks.classification import rows_to_score
from hftune.tasks.task import EvaluationRequest

KINDS = {"classify", "joint"}
TURNS = 3


@dataclass(frozen=True)
class Exported:
    """The exported folder, and the comparison with the original."""

    folder: Path
    split: str
    rows: int
    scores: dict[str, dict[str, float]]
    """Of the model as it was trained (``trained``) and as it was written (``exported``)."""
    accuracy_lost: float
    """Can be below 0 by chance."""
    labels_changed: int
    """Examples that get another label."""
    largest_difference: float
    """Between two logits."""
    megabytes: dict[str, float]
    texts_per_second: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For --json and the note in the folder."""
        return {**asdict(self), "folder": str(self.folder)}


def export(
    request: EvaluationRequest, folder: Path, *, int8: bool, progress: ProgressReporter | None = None
) -> Exported:
    """Write a classifier as ONNX and score both on the same examples.

    Args:
        request: The model, and what to score on; a run's own validation split by default.
        folder: Output folder; must not exist.
        int8: With 8-bit weights.
        progress: Progress callback.

    Raises:
        HftuneError: It is not a classifier, or can't be exported; no files are left behind.
    """
    progress = progress or ProgressReporter()
    need_onnx()
    if folder.exists():
        raise HftuneError(f"{folder} exists already", hint="name another folder with --output; nothing is overwritten")
    kind = kind_of(request.model, request.settings)
    if kind not in KINDS:
        raise HftuneError(
            f"{request.model} was trained for the task {kind!r}, and only classifiers can be exported",
            hint="load it with transformers, whose exporters know other kinds",
        )
    progress.stage("loading model")
    trained = Classifier.load(request.model, section=request.settings, device="cpu")
    # Another copy: merging an adapter changes the model it is merged into.
    plain = _plain(Classifier.load(request.model, section=request.settings, device="cpu").model, request.model)
    source, split, rows = rows_to_score(request, trained.labels, progress)
    texts, pairs = rows["text"][:], rows["text_pair"][:] if "text_pair" in rows.column_names else None

    progress.stage("writing ONNX")
    batch = trained.tokenizer.pad(trained.encode(texts[:2], pairs[:2] if pairs else None), return_tensors="pt")
    folder.mkdir(parents=True)
    try:
        write_onnx(plain, dict(batch), folder / ONNX, int8=int8)
        plain.config.save_pretrained(folder)
        trained.tokenizer.save_pretrained(folder)
        write_metadata(folder, {**trained.metadata(), "task": kind, "format": "onnx", "int8": int8})
        progress.stage(f"comparing on {split} of {source}")
        written = Classifier.load(str(folder))
        made = _compare(trained, written, texts, pairs, np.asarray(rows["label"]), folder, split)
    except BaseException:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        raise
    write_json(folder / "export.json", made.as_dict())
    return made


def _plain(model: PreTrainedModel, name: str) -> PreTrainedModel:
    """A model without an adapter around it."""
    if not isinstance(model, PeftModel):
        return model.eval()
    if model.peft_config[model.active_adapter].is_prompt_learning:
        raise HftuneError(
            f"{name} is an adapter with virtual tokens or a prefix, which a plain model can't contain",
            hint="export a model of another method: full, head, bitfit, lora or ia3",
        )
    return model.merge_and_unload().eval()


def _compare(
    trained: Classifier,
    written: Classifier,
    texts: list[str],
    pairs: list[str] | None,
    gold: np.ndarray,
    folder: Path,
    split: str,
) -> Exported:
    """Score both on the same examples in turns, so that other work on the machine slows both down."""
    answers: dict[str, np.ndarray] = {}
    seconds: dict[str, list[float]] = {"trained": [], "exported": []}
    for _ in range(TURNS):
        for name, classifier in (("trained", trained), ("exported", written)):
            taken, answers[name] = _timed(partial(classifier.logits, texts, pairs))
            seconds[name].append(taken)
    before, after = answers["trained"], answers["exported"]
    weights = sum(value.numel() * value.element_size() for value in trained.model.state_dict().values())
    scores = {name: _scores(logits, gold, trained.labels) for name, logits in answers.items()}
    return Exported(
        folder=folder,
        split=split,
        rows=len(texts),
        scores=scores,
        accuracy_lost=round(scores["trained"]["accuracy"] - scores["exported"]["accuracy"], 6),
        labels_changed=int((before.argmax(1) != after.argmax(1)).sum()),
        largest_difference=float(np.abs(before - after).max()),
        megabytes={
            "trained": round(weights / 1e6, 2),
            "exported": round((folder / ONNX).stat().st_size / 1e6, 2),
        },
        texts_per_second={name: round(len(texts) / min(taken), 1) for name, taken in seconds.items()},
    )


def _timed(action: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    began = time.perf_counter()
    found = action()
    return time.perf_counter() - began, found


def _scores(logits: np.ndarray, gold: np.ndarray, labels: tuple[str, ...]) -> dict[str, float]:
    found = scores_in_parts([(logits, gold)], labels)
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
