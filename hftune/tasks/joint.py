"""Task ``joint``: classification and masked language modeling in one model, with two batches in every step.

Validation scores, baselines and the published classifier are those of classification: the second
loss is added, and the masked language model is saved in a folder of the classifier. With a constant weight of 0 it
is classification.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.settings import JointData
from hftune.data.splits import Splits
from hftune.data.unlabeled import JointSplits, Unlabeled, load_joint_data
from hftune.errors import HftuneError
from hftune.methods import FullMethod
from hftune.models.joint import IGNORED, as_classifier
from hftune.models.load import LoadedModel, load_config
from hftune.models.masked import MLM_FOLDER, check_family, load_joint, padded, reload_masked_lm, save_masked_lm
from hftune.models.settings import NO_TRUST, Trust
from hftune.tasks.classification import Classification, ClassificationLoss
from hftune.tasks.mlm import MaskedRows, check_block_size, fill_probe, make_examples, masking_for, notes_on
from hftune.tasks.settings import JointTask
from hftune.tasks.task import DataSummary, TaskRecipe
from hftune.training.callbacks import LossComponents
from hftune.training.inputs import AuxiliaryData, AuxiliaryKey, RepeatedKey, TrainingInputs
from hftune.training.launch import world_size

VIRTUAL = "its virtual tokens are for the classifier alone, so the masked language model would not be trained"
REFUSED = {
    "head": "the encoder is frozen, so it can't learn from unlabeled text",
    "bitfit": "the masked language model's output is the word embeddings, which are frozen",
    "prefix": VIRTUAL,
    "prompt": VIRTUAL,
    "ptuning": VIRTUAL,
}
"""Why joint training does not work with a method that freezes weights; those that are not here adapt some layers."""
ADAPTER = "both heads share the word embeddings, which an adapter keeps frozen and can't save"


class Joint(Classification):
    """Fine-tune a sequence classifier while a masked language model is trained on the same encoder."""

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.joint_section = expect(recipe.task, JointTask)
        self.joint_data = expect(recipe.data, JointData)
        self.active = self.joint_section.reads_unlabeled

    def check_method(self) -> None:
        """Refuse methods that freeze weights."""
        kind = self.recipe.method.kind
        if self.active and kind != FullMethod().kind:
            raise HftuneError(
                f"joint training does not work with method {kind}: {REFUSED.get(kind, ADAPTER)}",
                hint="use --method full; or train the masked language model first (`hftune pretrain --objective "
                f"mlm`), then `hftune classify --model RUN --method {kind}`",
            )

    def check_model(self, config: PreTrainedConfig) -> None:
        """Refuse an architecture without a masked language model."""
        super().check_model(config)
        if self.active:
            check_family(config, self.recipe.model.model_name_or_path)

    def load_data(self) -> JointSplits:
        """Labeled examples and unlabeled texts, both checked."""
        return load_joint_data(self.joint_data)

    def describe(self, data: Splits) -> DataSummary:
        """Examples and texts, and how many validation and test texts are among the unlabeled ones."""
        summary = super().describe(data)
        if not self.active:
            note = "task.mlm_alpha is 0: unlabeled text is not used, this is plain classification"
            return dataclasses.replace(summary, notes=(*summary.notes, note))
        unlabeled = _unlabeled(data)
        return dataclasses.replace(
            summary,
            rows={**summary.rows, "unlabeled": len(unlabeled.texts)},
            fingerprints={**summary.fingerprints, "unlabeled": unlabeled.fingerprint()},
            notes=(*summary.notes, *unlabeled.notes),
            warnings=(*summary.warnings, *_joint(data).leak_warnings()),
        )

    def training_texts(self, data: Splits) -> list[str]:
        """Labeled and unlabeled texts."""
        return [*data.texts(), *_unlabeled(data).texts] if self.active else data.texts()

    def prepare(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """What classification prepares, with the unlabeled examples and the second loss."""
        if not self.active:
            return super().prepare(data, tokenizer)
        task, unlabeled = self.joint_section, _unlabeled(data)
        length, block_size = self.joint_data.line_length, self.joint_data.blocks
        batch_size = task.mlm_batch_size or self.recipe.train.per_device_train_batch_size
        masking = masking_for(tokenizer, task.mlm_probability, self.recipe.train.seed)
        config = load_config(self.recipe.model, tokenizer)
        check_block_size(block_size, config)
        inputs = super().prepare(data, tokenizer)
        examples = make_examples(
            tokenizer, unlabeled.texts, max_length=length, block_size=block_size, words=task.whole_word_mask
        )
        if len(examples) < (wanted := batch_size * world_size()):
            raise HftuneError(
                f"the unlabeled text {unlabeled.source} gives {len(examples):,} examples, fewer than one batch of "
                f"{wanted:,}",
                hint="give more text, or a smaller --mlm-batch-size; shorter blocks (--block-size) give more examples",
            )
        # What classification prepared stays as it is. Validation, its metrics and its baselines are those of the
        # classifier; only training has a second half.
        components = LossComponents()
        assert isinstance(inputs.loss, ClassificationLoss)
        return dataclasses.replace(
            inputs,
            train=PairedRows(inputs.train, MaskedRows(examples, masking)),
            collator=PairedCollator(inputs.collator, int(tokenizer.pad_token_id)),
            loss=JointLoss(inputs.loss, components),
            loss_components=components,
            auxiliary=AuxiliaryData(
                lengths=examples.sizes.tolist(),
                batch_size=batch_size,
                weight=task.alpha_at,
                labels="mlm_labels",
                items="mlm_items",
                weight_as="mlm_alpha",
            ),
            tokens=f"{inputs.tokens} {examples.fingerprint}",
            keep_columns=True,
            notes=(*inputs.notes, *notes_on(examples, length, block_size)),
        )

    def build_model(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """The classifier that classification would build, and a second head."""
        if not self.active:
            return super().build_model(data, tokenizer)
        # Built around the plain classifier without drawing random numbers: its head starts as in classification.
        skip = self.recipe.train.cls_only_last_layer
        return load_joint(self.recipe.model, tokenizer, data.labels, cls_only=skip)

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Those of classification, and the loss of filling in the probe's masked tokens."""
        found = super().outputs(model, tokenizer, rows)
        return {**found, "mlm": fill_probe(model, tokenizer, rows)} if self.active else found

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        found = Classification.reload_outputs(folder, rows, trust)
        if not (folder / MLM_FOLDER).is_dir():
            return found
        return {**found, "mlm": fill_probe(*reload_masked_lm(folder / MLM_FOLDER), rows)}

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Splits, folder: Path) -> None:
        """A plain sequence classifier, and in a folder of it the masked language model."""
        super().save(as_classifier(model) if self.active else model, tokenizer, data, folder)
        if self.active:
            save_masked_lm(model, tokenizer, folder / MLM_FOLDER)


class PairedRows(Dataset[dict[str, Any]]):
    """Labeled examples by index, and unlabeled ones by ``AuxiliaryKey``."""

    # One map-style dataset and one collator for both kinds. A loader that zips two others trains as well, but Trainer
    # can't skip batches in it, so a run that stopped within an epoch could not be resumed.

    def __init__(self, labeled: Dataset[dict[str, Any]], unlabeled: MaskedRows) -> None:
        self.labeled = labeled
        self.unlabeled = unlabeled

    def __len__(self) -> int:
        return len(self.labeled)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> dict[str, Any]:
        match key:
            case AuxiliaryKey():
                row = self.unlabeled[key]
                return {"mlm": (row["input_ids"], row["labels"])}
            case RepeatedKey():
                # In the last step a process may have no labeled example left. It repeats one that another process
                # has, so that the classifier runs in all of them, and the loss ignores it.
                return {**self.labeled[key.row], "labels": IGNORED}
            case _:
                return self.labeled[key]


@dataclass(frozen=True)
class PairedCollator:
    """Labeled examples, padded as in classification, and unlabeled ones in one batch."""

    labeled: Any
    pad: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Validation batches have labeled examples only."""
        unlabeled = [row["mlm"] for row in rows if "mlm" in row]
        batch = dict(self.labeled([row for row in rows if "mlm" not in row]))
        if unlabeled:
            ids, mask, labels = padded(unlabeled, self.pad)
            batch |= {"mlm_input_ids": ids, "mlm_attention_mask": mask, "mlm_labels": labels}
        return batch


class JointLoss:
    """Trainer's ``compute_loss_func``: classification loss plus alpha times MLM loss, each a mean of its own."""

    def __init__(self, classification: ClassificationLoss, components: LossComponents) -> None:
        """components: where both are recorded for the history."""
        self.classification = classification
        self.components = components

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Loss of one forward pass, as its share of the step; validation has labeled examples only."""
        found = {"classification_loss": self.classification(outputs, labels, num_items_in_batch)}
        if "mlm_loss" in outputs:
            found["mlm_loss"] = outputs["mlm_loss"]
        # Both are means over the whole step, each over its own items: classified examples, and masked tokens. One
        # divisor for the sum would make the weight of a loss depend on the size of the other's batch.
        if torch.is_grad_enabled():  # else it is an evaluation
            for name, value in found.items():
                self.components.add(name, value)
        if "mlm_loss" not in found:
            return found["classification_loss"]
        alpha: float = outputs["mlm_alpha"]
        return found["classification_loss"] + alpha * found["mlm_loss"]


def _joint(data: Splits) -> JointSplits:
    assert isinstance(data, JointSplits), "load_data made it"
    return data


def _unlabeled(data: Splits) -> Unlabeled:
    return _joint(data).unlabeled
