"""Classification and a masked language model in one: labeled and unlabeled batches side by side in every step.

One entry of TASKS. All that is said of classification holds here too (validation scores, baselines, the published
classifier):
the second loss is added, and the masked language model is kept beside the classifier. With a weight of 0 throughout it
*is* classification.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune import data as datasets
from hftune.config.data import JointData
from hftune.config.model import NO_TRUST, Trust
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.config.task import JointTask
from hftune.data.splits import Splits
from hftune.data.unlabeled import JointSplits, Unlabeled
from hftune.errors import HftuneError
from hftune.methods import FullMethod
from hftune.models.joint import as_classifier
from hftune.models.load import LoadedModel, load_config, load_tokenizer
from hftune.models.masked import (
    BESIDE,
    check_family,
    fill_statistics,
    load_joint,
    reload_masked_lm,
    save_masked_lm,
)
from hftune.models.positions import max_positions
from hftune.tasks.classification import Classification
from hftune.tasks.classification_loss import ClassificationLoss
from hftune.tasks.masked_rows import MaskedRows, PairedCollator, PairedRows, make_examples
from hftune.tasks.masking import masking_for
from hftune.tasks.task import DataFacts
from hftune.training.companion import Companion
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import world_size
from hftune.training.parts import LossParts

VIRTUAL = "its vectors serve the classifier alone; the masked language model would train nothing that it keeps"
REFUSED = {
    "head": "the encoder is frozen, so unlabeled text could teach it nothing",
    "bitfit": "the masked language model's output is the word embeddings, which are frozen",
    "prefix": VIRTUAL,
    "prompt": VIRTUAL,
    "ptuning": VIRTUAL,
}
"""Why joint training does not work with a method that freezes weights; those that are not here adapt some layers."""
ADAPTER = "both heads share the word embeddings, which an adapter keeps frozen and can't save"


class Joint(Classification):
    """Fine-tune a sequence classifier while a masked language model is trained on the same encoder."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""
        super().__init__(recipe)
        self.joint_section = expect(recipe.task, JointTask)
        self.joint_data = expect(recipe.data, JointData)
        self.active = self.joint_section.reads_unlabeled

    def load_data(self) -> JointSplits:
        """Labeled rows and unlabeled texts, both checked."""
        kind = self.recipe.method.kind
        if self.active and kind != FullMethod().kind:
            raise HftuneError(
                f"joint training does not go with method {kind}: {REFUSED.get(kind, ADAPTER)}",
                hint="use --method full; or train the masked language model first (hftune pretrain --objective mlm), "
                f"then hftune classify --model RUN --method {kind}",
            )
        return datasets.load_joint(self.joint_data)

    def describe(self, data: Splits) -> DataFacts:
        """Rows and texts, and how many test texts stand among the unlabeled ones."""
        facts = super().describe(data)
        if not self.active:
            note = "task.mlm_alpha is 0: unlabeled text is not used, this is plain classification"
            return dataclasses.replace(facts, notes=(*facts.notes, note))
        unlabeled = _unlabeled(data)
        return dataclasses.replace(
            facts,
            rows={**facts.rows, "unlabeled": len(unlabeled.texts)},
            fingerprints={**facts.fingerprints, "unlabeled": unlabeled.fingerprint()},
            notes=(*facts.notes, *unlabeled.notes),
            warnings=tuple(
                f"{seen:,} of the {facts.rows[split]:,} {split} texts stand in the unlabeled text: the model reads "
                f"what it is scored on, so {split} scores may be too high"
                for split, seen in _joint(data).leaks().items()
            ),
        )

    def load_tokenizer(self, data: Splits) -> PreTrainedTokenizerBase:
        """The model's own; for a scratch model one trained on labeled and unlabeled texts."""
        if not self.active:
            return super().load_tokenizer(data)
        tokenizer = load_tokenizer(self.recipe.model, [*data.texts(), *_unlabeled(data).texts])
        tokenizer.model_max_length = self.data_section.max_seq_length
        return tokenizer

    def prepare(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """What classification prepares, with the unlabeled examples and the second loss."""
        if not self.active:
            return super().prepare(data, tokenizer)
        task, batch_size = (
            self.joint_section,
            self.joint_section.mlm_batch_size or self.recipe.train.per_device_train_batch_size,
        )
        masking = masking_for(tokenizer, task.mlm_probability, self.recipe.train.seed)
        self._check_blocks(tokenizer)
        inputs = super().prepare(data, tokenizer)
        examples = make_examples(
            tokenizer,
            _unlabeled(data).texts,
            max_length=self.joint_data.line_length,
            block_size=self.joint_data.blocks,
            words=task.whole_word_mask,
        )
        _check_enough(len(examples), batch_size * world_size(), _unlabeled(data).source)
        parts = LossParts()
        assert isinstance(inputs.loss, ClassificationLoss), "classification has a loss of its own"
        return dataclasses.replace(
            inputs,
            train=PairedRows(inputs.train, MaskedRows(examples, masking)),
            collator=PairedCollator(inputs.collator, int(tokenizer.pad_token_id)),
            loss=JointLoss(inputs.loss, parts),
            parts=parts,
            companion=Companion(
                lengths=examples.lengths,
                batch_size=batch_size,
                weight=task.alpha_at,
                labels="mlm_labels",
                items="mlm_items",
                weight_as="mlm_alpha",
            ),
            tokens=f"{inputs.tokens} {examples.fingerprint()}",
            keep_columns=True,
            notes=(*inputs.notes, *examples.notes(self.joint_data.line_length, self.joint_data.blocks)),
        )

    def build_model(self, data: Splits, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """The classifier that classification would build, and a second head."""
        if not self.active:
            return super().build_model(data, tokenizer)
        skip = self.recipe.train.cls_only_last_layer
        return load_joint(self.recipe.model, tokenizer, data.labels, skip_unread=skip)

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """What classification says, and how well the probe's masked tokens are filled in."""
        said = super().outputs(model, tokenizer, rows)
        return {**said, "mlm": fill_probe(model, tokenizer, rows)} if self.active else said

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        said = Classification.reload_outputs(folder, rows, trust)
        if not (folder / BESIDE).is_dir():
            return said
        return {**said, "mlm": fill_probe(*reload_masked_lm(folder / BESIDE), rows)}

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Splits, folder: Path) -> None:
        """A plain sequence classifier, and below it the masked language model."""
        super().save(as_classifier(model) if self.active else model, tokenizer, data, folder)
        if self.active:
            save_masked_lm(model, tokenizer, folder / BESIDE)

    def _check_blocks(self, tokenizer: PreTrainedTokenizerBase) -> None:
        config = load_config(self.recipe.model, tokenizer)
        check_family(config, self.recipe.model.model_name_or_path)
        check_block_size(self.joint_data.blocks, config)


class JointLoss:
    """Trainer's ``compute_loss_func``: classification plus alpha times masked language model, each a mean by itself."""

    def __init__(self, classification: ClassificationLoss, parts: LossParts) -> None:
        """parts: where both are kept for the history."""
        self.classification = classification
        self.parts = parts

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Loss of one forward pass, as its share of the update; validation has labeled rows alone."""
        found = {"classification_loss": self.classification(outputs, labels, num_items_in_batch)}
        if "mlm_loss" in outputs:
            found["mlm_loss"] = outputs["mlm_loss"]
        if torch.is_grad_enabled():  # else it is an evaluation
            for name, value in found.items():
                self.parts.add(name, value)
        if "mlm_loss" not in found:
            return found["classification_loss"]
        alpha: float = outputs["mlm_alpha"]
        return found["classification_loss"] + alpha * found["mlm_loss"]


def fill_probe(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
) -> list[list[float]]:
    """Loss on the masked tokens of each probe row, masked always in the same way."""
    examples = make_examples(tokenizer, [row["text"] for row in rows], max_length=128, block_size=None, words=False)
    masking = masking_for(tokenizer, 0.5, seed=0)
    shown = [examples.masked(masking, 0, row) for row in range(len(rows))]
    return [[float(loss)] for loss, _, _ in fill_statistics(model, shown)]


def check_block_size(block_size: int | None, config: PreTrainedConfig) -> None:
    """Refuse blocks that the model has no positions for."""
    limit = max_positions(config)
    if block_size is not None and limit is not None and block_size > limit:
        raise HftuneError(
            f"blocks of {block_size} tokens are too long: this {config.model_type} model has {limit} positions",
            hint=f"use --block-size {limit} or less, or --line-by-line",
        )


def _check_enough(examples: int, wanted: int, source: str) -> None:
    if examples < wanted:
        raise HftuneError(
            f"the unlabeled text {source} gives {examples:,} examples, fewer than one batch of {wanted:,}",
            hint="give more text, or a smaller --mlm-batch-size; shorter blocks (--block-size) give more examples",
        )


def _joint(data: Splits) -> JointSplits:
    assert isinstance(data, JointSplits), "load_data made it"
    return data


def _unlabeled(data: Splits) -> Unlabeled:
    return _joint(data).unlabeled
