"""Task ``distill``: a classifier that learns from labels and from the probabilities of a teacher.

loss = hard_label_weight · cross-entropy with the labels + (1 - hard_label_weight) · T² · KL(teacher ‖ student)
       + hidden_weight · hidden states + attention_weight · attention scores

Each is a sum over examples, divided by the examples of the step. An unlabeled text is an example without the first
term: in training, labeled and unlabeled ones are one split. Validation, baselines and the published model are those of
classification, and with a weight of 1 for the labels, so is the training.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import kl_div
from torch.utils.data import Dataset
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.load import load
from hftune.data.settings import JointData
from hftune.data.splits import NO_LABEL, Splits
from hftune.data.unlabeled import JointSplits, Unlabeled, load_joint_data
from hftune.errors import HftuneError, count
from hftune.evaluation.metrics import METRICS, STANDARD, scores_in_parts
from hftune.methods import FullMethod
from hftune.models.classifier import encode
from hftune.models.layer_transfer import (
    Pairs,
    TeacherLayers,
    attention_distance,
    hidden_distance,
    layer_pairs,
    refuse_other_family,
    return_layers,
    without_projections,
)
from hftune.models.load import LoadedModel, check_length
from hftune.models.settings import NO_TRUST, Trust
from hftune.models.teacher import teacher_section
from hftune.models.teacher_classifier import ClassifierTeacher, OpenedClassifier, open_classifier
from hftune.progress import ProgressReporter
from hftune.runs.directory import public_name
from hftune.tasks.classification import Classification, ClassificationLoss, is_labeled
from hftune.tasks.settings import DistillTask
from hftune.tasks.task import DataSummary, Evaluation, SplitScores, TaskRecipe
from hftune.tasks.teacher_outputs import LiveLogits, TeacherLogits, Texts, stored_logits
from hftune.tasks.tokens import Encoded, TokenizedRows, tokens_from_cache
from hftune.training.callbacks import LossComponents
from hftune.training.inputs import IGNORED, TrainingInputs

AGREEMENT = "teacher_agreement"
"""Share of the examples that get the teacher's label."""
TEACHER = "teacher"
"""Name of the teacher among the baselines."""
SAMPLES = 64
"""Training texts on which two tokenizers are compared."""


class Distillation(Classification):
    """Fine-tune a sequence classifier on labels and on what a teacher makes of the same texts, and of others."""

    scores: ClassVar[tuple[str, ...]] = (*STANDARD, AGREEMENT)

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.section = expect(recipe.task, DistillTask)
        self.joint_data = expect(recipe.data, JointData)
        self.active = self.section.reads_teacher
        self._teachers: list[ClassifierTeacher] | None = None

    # ---- The teacher ----

    @cached_property
    def opened(self) -> tuple[OpenedClassifier, ...]:
        """The teachers without their weights."""
        revision, trust = self.section.teacher_revision, self.section.trust_teacher_code
        return tuple(open_classifier(teacher_section(name, revision, trust=trust)) for name in self.section.teachers)

    def teachers(self, data: Splits) -> list[ClassifierTeacher]:
        """The teachers, loaded once; their logits are in the label order of the data."""
        if self._teachers is None:
            self._teachers = [ClassifierTeacher(one, one.order_for(data.labels, data.source)) for one in self.opened]
        return self._teachers

    def _targets(
        self, data: Splits, splits: Sequence[str], progress: ProgressReporter | None
    ) -> dict[str, SoftTargets]:
        """What the teachers make of some splits: from the cache, or computed on demand if there is no ``progress``."""
        found: dict[str, list[TeacherLogits]] = {split: [] for split in splits}
        texts = {split: self._texts(data, split) for split in splits}
        for teacher in self.teachers(data):
            made = None if progress is None else stored_logits(teacher, texts, progress)
            for split in splits:
                found[split].append(LiveLogits(teacher, texts[split]) if made is None else made[split])
        return {split: SoftTargets(logits) for split, logits in found.items()}

    def _texts(self, data: Splits, split: str) -> Texts:
        rows = data.named[split]
        more = _joint(data).unlabeled.texts if split == "train" else []
        return Texts([*rows["text"][:], *more], rows["text_pair"][:] if data.is_pair else None)

    # ---- Before any data is read ----

    def check_request(self) -> None:
        """Refuse a student, a method or a teacher that can't be used, before any data is read."""
        super().check_request()
        if self.active:
            assert self.opened, "refused if one is no classifier"
        if self.section.reads_layers:
            assert self._pairs, "refused if the layers can't be compared"

    def check_best_metric(self, known: Iterable[str]) -> None:
        """Without a teacher there is no agreement with it."""
        super().check_best_metric(set(known) - (set() if self.active else {AGREEMENT}))

    def check_method(self) -> None:
        """Refuse methods and settings of training that don't suit the comparison of layers."""
        super().check_method()
        section, kind, train = self.section, self.recipe.method.kind, self.recipe.train
        if section.hidden_weight and kind != FullMethod().kind:
            raise HftuneError(
                f"task.hidden_weight does not work with method {kind}: the projections to the teacher's width would be "
                "saved with the adapter",
                hint="use --method full, or task.attention_weight, which needs no projection",
            )
        if section.attention_weight and kind == "head":
            raise HftuneError(
                "task.attention_weight does not work with method head: the encoder is frozen, so its attention stays",
                hint="use another method, or leave task.attention_weight out",
            )
        for name in ("gradient_checkpointing", "torch_compile"):
            if section.reads_layers and getattr(train, name):
                raise HftuneError(
                    f"train.{name} does not work with task.hidden_weight and task.attention_weight, which read the "
                    "layers while they compute",
                    hint=f"leave train.{name} out",
                )

    def check_model(self, config: PreTrainedConfig) -> None:
        """Refuse an architecture whose layers can't be compared."""
        super().check_model(config)
        if self.section.reads_layers:
            refuse_other_family(config, self.recipe.model.model_name_or_path)
            self._layers = int(config.num_hidden_layers)

    @cached_property
    def _pairs(self) -> Pairs:
        """The layers that are compared."""
        checkpoint = self.opened[0].checkpoint
        if checkpoint.is_adapter:
            raise HftuneError(
                f"the teacher {checkpoint.name} is an adapter, whose layers can't be compared with the student's",
                hint="train it with --merge, or set task.hidden_weight and task.attention_weight to 0",
            )
        config = checkpoint.config()
        refuse_other_family(config, f"the teacher {checkpoint.name}")
        check_length(config, self.data_section.max_seq_length)
        return layer_pairs(self.section.layer_map, self._layers, int(config.num_hidden_layers))

    # ---- Training ----

    def load_data(self) -> JointSplits:
        """Labeled examples and unlabeled texts, both checked; the labels are compared with the teacher's."""
        section = self.joint_data
        if self.active and section.unlabeled is not None:
            data = _without_labeled(load_joint_data(section))
        else:
            data = JointSplits(**vars(load(section)), unlabeled=Unlabeled([], "", ()))
        if self.active:
            for one in self.opened:
                one.order_for(data.labels, data.source)
                one.refuse_other_inputs(data.source, pairs=data.is_pair)
        return data

    def describe(self, data: Splits) -> DataSummary:
        """Sizes and fingerprints, those of the teachers too: a run is not resumed with another one."""
        summary = super().describe(data)
        if not self.active:
            unread = " and unlabeled text is not read" if self.joint_data.unlabeled is not None else ""
            note = f"task.hard_label_weight is 1: the teacher is not used{unread}, this is plain classification"
            return dataclasses.replace(summary, notes=(*summary.notes, note))
        joint = _joint(data)
        prints = " ".join(one.fingerprint for one in self.teachers(data))
        found = {"teacher": hashlib.sha256(prints.encode()).hexdigest()}
        if joint.unlabeled.texts:
            found["unlabeled"] = joint.unlabeled.fingerprint()
        return dataclasses.replace(
            summary,
            rows={**summary.rows, **({"unlabeled": len(joint.unlabeled.texts)} if joint.unlabeled.texts else {})},
            fingerprints={**summary.fingerprints, **found},
            notes=(*summary.notes, *joint.unlabeled.notes),
            warnings=(*summary.warnings, *joint.leak_warnings()),
        )

    def training_texts(self, data: Splits) -> list[str]:
        """Labeled and unlabeled texts."""
        return [*super().training_texts(data), *_joint(data).unlabeled.texts]

    def prepare(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """What classification prepares, with the unlabeled texts and the loss; the teacher answers on demand."""
        inputs = super().prepare(data, tokenizer)
        if not self.active:
            return inputs
        assert isinstance(inputs.train, TokenizedRows) and isinstance(inputs.validation, TokenizedRows)
        assert isinstance(inputs.loss, ClassificationLoss)
        more = self._tokenize_unlabeled(_joint(data).unlabeled, tokenizer)
        train = NumberedRows(inputs.train, *more)
        layers = None
        if self.section.reads_layers:
            self._refuse_other_tokenizer(data, tokenizer)
            layers = LayerBatches(self.teachers(data)[0], self._pairs, train, inputs.collator)
        targets, components = self._targets(data, ("train", "validation"), None), LossComponents()
        return dataclasses.replace(
            inputs,
            train=train,
            validation=NumberedRows(inputs.validation),
            train_lengths=[*inputs.train_lengths, *(length for rows in more for length in rows.lengths)],
            compute_metrics=with_agreement(inputs.compute_metrics, targets["validation"]),
            loss=DistillationLoss(self.section, inputs.loss, targets["train"], components, layers),
            loss_components=components,
            tokens=" ".join([inputs.tokens, *(rows.fingerprint for rows in more)]),
        )

    def precompute(self, data: Splits, inputs: TrainingInputs, progress: ProgressReporter) -> TrainingInputs | None:
        """Let the teacher read the training and the validation texts once."""
        if not self.active:
            return None
        targets = self._targets(data, ("train", "validation"), progress)
        assert isinstance(inputs.loss, DistillationLoss)
        return dataclasses.replace(
            inputs,
            loss=inputs.loss.with_targets(targets["train"]),
            compute_metrics=with_agreement(self._metrics(data.labels), targets["validation"]),
        )

    def build_model(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """The classifier that classification would build; it returns its layers if they are compared."""
        loaded = super().build_model(data, tokenizer)
        section = self.section
        if section.reads_layers:
            hidden, attention = section.hidden_weight > 0, section.attention_weight > 0
            width = self.teachers(data)[0].classifier.model.config.hidden_size
            return_layers(loaded.model, self._pairs, width, hidden=hidden, attention=attention)
        return loaded

    @property
    def computes_cls_only(self) -> bool:
        """Layers are compared at every token."""
        return super().computes_cls_only and not self.section.reads_layers

    def _tokenize_unlabeled(
        self, unlabeled: Unlabeled, tokenizer: PreTrainedTokenizerBase
    ) -> tuple[TokenizedRows, ...]:
        texts, section = unlabeled.texts, self.data_section
        if not texts:
            return ()
        how: dict[str, Any] = {"max_length": section.max_seq_length, "truncation": section.truncation}
        encoded = tokens_from_cache(
            unlabeled.fingerprint(),
            len(texts),
            tokenizer,
            how,
            lambda: Encoded.of(encode(tokenizer, texts, None, **how)),
        )
        return (TokenizedRows(encoded, [NO_LABEL] * len(texts)),)

    def _refuse_other_tokenizer(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> None:
        theirs, texts = self.teachers(data)[0].classifier.tokenizer, data.train["text"][:SAMPLES]
        same = tokenizer.get_vocab() == theirs.get_vocab()
        if not same or tokenizer(texts)["input_ids"] != theirs(texts)["input_ids"]:
            raise HftuneError(
                f"the student and the teacher {self.section.teachers[0]} have other tokenizers, so their tokens have "
                "no layers to compare",
                hint="give the student the teacher's (--tokenizer-name TEACHER), or set task.hidden_weight and "
                "task.attention_weight to 0",
            )

    # ---- The saved model ----

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Splits, folder: Path) -> None:
        """A plain classifier."""
        with without_projections(model):
            super().save(model, tokenizer, data, folder)

    def provenance(self, source: str) -> dict[str, Any]:
        """What hftune.json records, the teachers included."""
        found = super().provenance(source)
        if not self.active:
            return found
        names = [public_name(name) for name in self.section.teachers]
        return {**found, "teacher": names if len(names) > 1 else names[0]}

    def evaluate(
        self, folder: Path, data: Splits, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """As in classification, with the teacher's label of each example."""
        found = super().evaluate(folder, data, splits, progress, trust)
        if not self.active:
            return found
        targets, scores, predictions = (
            self._targets(data, splits, progress),
            dict(found.splits),
            dict(found.predictions),
        )
        for split, lines in found.predictions.items():
            names = [data.labels[place] for place in targets[split].labels(range(len(lines)))]
            predictions[split] = [{**line, TEACHER: name} for line, name in zip(lines, names, strict=True)]
            if split in scores:
                same = [line["label"] == name for line, name in zip(lines, names, strict=True)]
                scores[split] = {**scores[split], AGREEMENT: float(np.mean(same))}
        return dataclasses.replace(found, splits=scores, predictions=predictions)

    def baselines(self, data: Splits, splits: Sequence[str]) -> dict[str, SplitScores]:
        """Those of classification, and the teacher."""
        found = super().baselines(data, splits)
        if not self.active:
            return found
        labeled = [split for split in splits if is_labeled(data.named[split])]
        targets = self._targets(data, labeled, ProgressReporter())
        known = [name for name in self.metrics if name in METRICS]
        scored = {}
        for split in labeled:
            gold = np.asarray(data.named[split]["label"])
            logits = np.log(np.maximum(targets[split].probabilities(range(len(gold))), np.finfo(np.float32).tiny))
            scored[split] = scores_in_parts([(logits, gold)], data.labels, known)
        return {**found, TEACHER: scored}


# ---- examples ----


class NumberedRows(Dataset[dict[str, Any]]):
    """Tokenized examples, one part after the other, whose ``labels`` are the label and the number of the example."""

    # The number refers to the teacher's probabilities. Labels are the one entry of a batch that every model, adapter
    # and cached feature passes on to the loss and to the metrics, as integers that no precision rounds.

    def __init__(self, *parts: TokenizedRows) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        part = int(np.searchsorted(self.ends, index, side="right"))
        row = self.parts[part][index - (int(self.ends[part - 1]) if part else 0)]
        return {**row, "labels": [row["labels"], index]}


class SoftTargets:
    """The probabilities that the teachers give to the labels of a split's examples."""

    def __init__(self, logits: Sequence[TeacherLogits]) -> None:
        self.logits = logits

    def probabilities(self, rows: Sequence[int], temperature: float = 1.0) -> NDArray[np.float64]:
        """Probabilities [rows, labels], of several teachers the mean."""
        found = [torch.from_numpy(one[rows]).double().div(temperature).softmax(dim=1).numpy() for one in self.logits]
        mean: NDArray[np.float64] = np.mean(found, axis=0)
        return mean

    def labels(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """The most probable label of each [rows]."""
        found: NDArray[np.int64] = self.probabilities(rows).argmax(axis=1)
        return found


class LayerBatches:
    """The teacher's layers for the batches of the student."""

    def __init__(
        self,
        teacher: ClassifierTeacher,
        pairs: Pairs,
        rows: NumberedRows,
        collator: Callable[..., Mapping[str, Tensor]],
    ) -> None:
        self.layers = TeacherLayers(teacher.classifier.model, pairs)
        self.rows, self.collator = rows, collator

    def __call__(self, rows: Sequence[int], device: torch.device) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Hidden states, attention scores and mask of the batch that the student has read."""
        # Padded as the student's: to the longest of the same rows.
        batch = dict(self.collator([self.rows[row] for row in rows]))
        del batch["labels"]
        return *self.layers(batch, device), batch["attention_mask"].to(device)


# ---- the loss and the metric ----


class DistillationLoss:
    """Trainer's ``compute_loss_func``: the weighted sum of up to four losses; that of the labels in evaluation."""

    def __init__(
        self,
        section: DistillTask,
        classification: ClassificationLoss,
        targets: SoftTargets,
        components: LossComponents,
        layers: LayerBatches | None = None,
    ) -> None:
        """components: where each is recorded for the history."""
        self.section, self.classification = section, classification
        self.targets, self.components, self.layers = targets, components, layers

    def with_targets(self, targets: SoftTargets) -> DistillationLoss:
        """The same with other outputs of the teacher."""
        return DistillationLoss(self.section, self.classification, targets, self.components, self.layers)

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Loss of one forward pass, as its share of the step; labels [B, 2] are those of ``NumberedRows``."""
        # Trainer counts all numbers of the labels in the step, and each example has two, a missing label too.
        examples = len(labels) if num_items_in_batch is None else num_items_in_batch // 2
        gold = labels[:, 0].masked_fill(labels[:, 0] == NO_LABEL, IGNORED)
        found = {"hard_loss": self.classification(outputs, gold, examples)}
        if not torch.is_grad_enabled():  # an evaluation
            return found["hard_loss"]
        hard = self.section.hard_label_weight
        weights = {"hard_loss": hard}
        rows, logits = labels[:, 1].tolist(), outputs["logits"]  # [B, labels]
        if hard < 1:
            found["soft_loss"] = self._soft(rows, logits) / examples
            weights["soft_loss"] = 1 - hard
        if self.layers is not None:
            hidden, scores, mask = self.layers(rows, logits.device)
            if self.section.hidden_weight:
                found["hidden_loss"] = hidden_distance(outputs["hidden_states"], hidden, mask) / examples
                weights["hidden_loss"] = self.section.hidden_weight
            if self.section.attention_weight:
                found["attention_loss"] = attention_distance(outputs["attentions"], scores, mask) / examples
                weights["attention_loss"] = self.section.attention_weight
        for name, value in found.items():
            self.components.add(name, value)
        return torch.stack([weights[name] * value for name, value in found.items()]).sum()

    def _soft(self, rows: Sequence[int], logits: Tensor) -> Tensor:
        # The gradients of softened probabilities shrink with the square of the temperature (Hinton et al. 2015), so its
        # square keeps the balance with the labels when the temperature changes.
        temperature = self.section.temperature
        wanted = torch.from_numpy(self.targets.probabilities(rows, temperature)).to(logits.device, torch.float32)
        ours = (logits.float() / temperature).log_softmax(dim=1)
        return kl_div(ours, wanted, reduction="sum") * temperature**2


def with_agreement(
    metrics: Callable[[EvalPrediction], dict[str, float]], targets: SoftTargets
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Metrics of classification, and the agreement with the teacher, from the labels of ``NumberedRows``."""

    def compute(outcome: EvalPrediction) -> dict[str, float]:
        gold, rows = np.asarray(outcome.label_ids).T
        logits = np.asarray(outcome.predictions)
        scores = metrics(EvalPrediction(predictions=logits, label_ids=gold))
        return {**scores, AGREEMENT: float((logits.argmax(axis=1) == targets.labels(rows.tolist())).mean())}

    return compute


def _joint(data: Splits) -> JointSplits:
    assert isinstance(data, JointSplits), "load_data made it"
    return data


def _without_labeled(data: JointSplits) -> JointSplits:
    """Unlabeled texts that are not among the labeled training texts, which the teacher labels anyway."""
    unlabeled = data.unlabeled
    if data.is_pair:
        raise HftuneError(
            f"{data.source} has pairs of texts, and {unlabeled.source} has single ones, which neither the teacher nor "
            "the student can label",
            hint="leave --unlabeled out",
        )
    known = set(data.texts())
    texts = [text for text in unlabeled.texts if text not in known]
    if not texts:
        raise HftuneError(
            f"every unlabeled text of {unlabeled.source} is a labeled training text already",
            hint="give other text, or fewer labels (--max-train-samples), or leave --unlabeled out",
        )
    left_out = len(unlabeled.texts) - len(texts)
    note = (f"{count(left_out, 'unlabeled text')} left out: labeled training texts",) if left_out else ()
    return dataclasses.replace(
        data, unlabeled=dataclasses.replace(unlabeled, texts=texts, notes=(*unlabeled.notes, *note))
    )
