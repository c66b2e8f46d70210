"""Task ``distill_encoder``: general distillation, an encoder that learns from a teacher on plain text without labels.

loss = mlm_weight · masked tokens + word_weight · words + sentence_weight · whole examples

The student reads masked text, as in task ``mlm``, and trains its own head. In the same pass its vectors of words and of
whole examples, projected to the teacher's width, are compared with those that the teacher computes for the text without
masks. Words are found without a tokenizer, so teacher and student may have different ones. What is saved is the plain
masked language model of task ``mlm``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.corpus import Corpus
from hftune.data.words import chunks
from hftune.errors import HftuneError
from hftune.evaluation.language import items_of, masked_scores
from hftune.evaluation.scores import SCORES
from hftune.models.alignment import Aligned, align, refuse_slow
from hftune.models.distilled import (
    STUDENTS,
    DistilledOutput,
    distillation_statistics,
    load_projection,
    save_projection,
)
from hftune.models.load import LoadedModel, evaluation_mode, longest_first
from hftune.models.masked import load_masked_lm, reload_masked_lm
from hftune.models.settings import NO_TRUST, Trust
from hftune.models.teacher import OpenedTeacher, Teacher, open_teacher, teacher_section
from hftune.progress import ProgressReporter, progress_bar
from hftune.runs.directory import public_name
from hftune.tasks.mlm import (
    WORDS,
    FixedMaskedRows,
    MaskedCollator,
    MaskedLanguageModel,
    MaskedRows,
    masking_for,
    notes_on,
)
from hftune.tasks.settings import DistillEncoderTask
from hftune.tasks.task import DataSummary, Evaluation, SplitScores, TaskRecipe
from hftune.tasks.teacher_outputs import LiveOutputs, TeacherOutputs, stored_outputs
from hftune.tasks.tokens import IDS, Encoded, tokenizer_fingerprint
from hftune.training.callbacks import LossComponents
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import world_size


class DistillEncoder(MaskedLanguageModel):
    """Distill an encoder from a teacher on plain text."""

    scores: ClassVar[tuple[str, ...]] = tuple(SCORES["distill_encoder"])

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.section = expect(recipe.task, DistillEncoderTask)
        self._known: dict[tuple[int, str], Aligned] = {}

    @cached_property
    def opened(self) -> OpenedTeacher:
        """The teacher without its weights."""
        section = self.section
        return open_teacher(
            teacher_section(section.teacher, section.teacher_revision, trust=section.trust_teacher_code)
        )

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher."""
        return Teacher(self.opened)

    # ---- Training ----

    def check_request(self) -> None:
        """Refuse a student or a teacher that can't be used, before any data is read."""
        super().check_request()
        assert self.opened, "refused if it is no encoder"

    def load_data(self) -> Corpus:
        """Read the texts and cut long ones into chunks, which are the examples."""
        whole = super().load_data()
        parts = {name: tuple(chunks(texts, self.section.max_words)) for name, texts in whole.named.items()}
        for name, texts in parts.items():
            if not texts:
                raise HftuneError(
                    f"the {name} split of {whole.source} has no words", hint="give text, not numbers or signs alone"
                )
        notes = whole.notes
        if sum(map(len, parts.values())) > sum(map(len, whole.named.values())):
            found = ", ".join(f"{len(texts):,} {name}" for name, texts in parts.items())
            notes = (*notes, f"texts are cut into chunks of at most {self.section.max_words} words: {found}")
        train, validation, test = (parts.get(name) for name in ("train", "validation", "test"))
        assert train is not None and validation is not None, "every corpus has them"
        return dataclasses.replace(whole, train=train, validation=validation, test=test, notes=notes)

    def describe(self, data: Corpus) -> DataSummary:
        """Sizes and fingerprints, that of the teacher too: a run is not resumed with another one."""
        found = super().describe(data)
        return dataclasses.replace(found, fingerprints={**found.fingerprints, "teacher": self.teacher.fingerprint})

    def prepare(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenized examples with the tokens of each word; the teacher computes its outputs on demand until then."""
        section, train = self.section, self.recipe.train
        refuse_slow(tokenizer, self.recipe.model.model_name_or_path)
        self._check(tokenizer)
        examples, fixed = self._rows(data, "train", tokenizer), self._rows(data, "validation", tokenizer)
        if len(examples) < (wanted := train.per_device_train_batch_size * world_size()):
            raise HftuneError(
                f"the text {data.source} gives {len(examples):,} examples, fewer than one batch of {wanted:,}",
                hint="give more text, or lower --batch-size; fewer task.max_words give more examples",
            )
        self._refuse_no_shared_words(data.train, tokenizer)
        lengths, components = examples.examples.sizes.tolist(), LossComponents()
        return TrainingInputs(
            train=examples,
            validation=fixed,
            collator=DistillCollator(int(tokenizer.pad_token_id)),
            train_lengths=lengths,
            validation_lengths=fixed.examples.sizes.tolist(),
            compute_metrics=_compute_metrics,
            loss=EncoderDistillationLoss(section, components),
            tokens=examples.examples.fingerprint,
            preprocess_logits=distillation_statistics,
            keep_columns=True,
            epoch_lengths=lambda epoch: lengths,
            totals={"word_targets": "word_items", "sentence_targets": "sentence_items"},
            loss_components=components,
            notes=notes_on(examples.examples, section.max_seq_length, None),
        )

    def precompute(self, data: Corpus, inputs: TrainingInputs, progress: ProgressReporter) -> TrainingInputs:
        """Let the teacher read the training and the validation texts once."""
        made = stored_outputs(self.teacher, {"train": data.train, "validation": data.validation}, progress)
        assert isinstance(inputs.train, DistillRows) and isinstance(inputs.validation, DistillRows)
        return dataclasses.replace(
            inputs,
            train=inputs.train.with_outputs(made["train"]),
            validation=inputs.validation.with_outputs(made["validation"]),
        )

    def build_model(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """An encoder with the head of a masked language model, and the projection to the teacher's width."""
        loaded = load_masked_lm(self.recipe.model, tokenizer, STUDENTS)
        loaded.model.add_projection(self.teacher.width, self.section.distance)
        return loaded

    # ---- The saved model ----

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Corpus, folder: Path) -> None:
        """The plain masked language model, and the projection in a file that is not published."""
        super().save(model, tokenizer, data, folder)
        save_projection(model, folder)

    def provenance(self, source: str) -> dict[str, Any]:
        """What hftune.json records, the teacher included."""
        section = self.section
        teacher = {"teacher": public_name(section.teacher), "teacher_revision": section.teacher_revision}
        return {**super().provenance(source), **teacher}

    def evaluate(
        self, folder: Path, data: Corpus, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, always masked the same way, and compare it with the teacher."""
        model, tokenizer = reload_masked_lm(folder, STUDENTS)
        load_projection(model, self.teacher.width, folder)
        self._tokenizer = tokenizer
        outputs = stored_outputs(self.teacher, {split: data.named[split] for split in splits}, progress)
        scores: SplitScores = {}
        predictions: dict[str, list[dict[str, Any]]] = {}
        for split in splits:
            rows = self._rows(data, split, tokenizer).with_outputs(outputs[split])
            statistics = self._statistics(model, rows, progress, split)
            scores[split] = dict(_scores(statistics))
            nats, correct, tokens, near, words, alike, _ = statistics.T
            agreement = {"word_agreement": near / np.maximum(words, 1), "sentence_agreement": alike}
            sizes = {name: np.round(values, 6) for name, values in agreement.items()}
            predictions[split] = items_of(nats, tokens, correct, {**sizes, "words": words.astype(int)})
        return Evaluation(splits=scores, predictions=predictions)

    def _statistics(
        self, model: PreTrainedModel, rows: DistillRows, progress: ProgressReporter, split: str
    ) -> np.ndarray:
        collator = DistillCollator(int(model.config.pad_token_id or 0))
        lengths = rows.examples.sizes.tolist()
        found = np.zeros((len(rows), 7))
        with progress_bar(progress, len(rows), f"scoring {split}") as advance, evaluation_mode(model):
            for chosen in longest_first(lengths, self.recipe.train.per_device_eval_batch_size):
                batch = {name: value.to(model.device) for name, value in collator([rows[i] for i in chosen]).items()}
                labels = batch.pop("labels")
                output: DistilledOutput = model(**batch)
                assert output.logits is not None and output.agreement is not None, "labels were given"
                logits = (output.logits, output.agreement)
                found[chosen] = distillation_statistics(logits, labels).cpu().numpy()
                advance(len(chosen))
        return found

    # ---- Examples ----

    def _aligned(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Aligned:
        key = (id(texts), tokenizer_fingerprint(tokenizer))  # scored again at the end, with an equal tokenizer
        if key not in self._known:
            self._known[key] = align(tokenizer, texts, self.section.max_seq_length)
        return self._known[key]

    def _examples(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Encoded:
        aligned = self._aligned(texts, tokenizer)
        columns = {IDS: aligned.ids}
        if self.section.whole_word_mask:
            columns[WORDS] = aligned.first_words()
        return Encoded(columns, aligned.ends, masked=False)

    def _rows(self, data: Corpus, split: str, tokenizer: PreTrainedTokenizerBase) -> DistillRows:
        texts = data.named[split]
        training = split == "train"
        seed = self.recipe.train.seed if training else self.data_section.split_seed
        masking = masking_for(tokenizer, self.section.mlm_probability, seed)
        rows = (MaskedRows if training else FixedMaskedRows)(self._examples(texts, tokenizer), masking)
        return DistillRows(rows, self._aligned(texts, tokenizer), LiveOutputs(self.teacher, texts))

    def _refuse_no_shared_words(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        some = texts[:: max(1, len(texts) // 100)]
        ours, theirs = align(tokenizer, some, self.section.max_seq_length), self.teacher.align(some)
        if not any(np.isin(ours.text(row)[2], theirs.text(row)[2]).any() for row in range(len(some))):
            raise HftuneError(
                f"the student and the teacher {self.section.teacher} share no words of the text: what one tokenizer "
                "reads, the other leaves out",
                hint="check that both models are for the language of the text",
            )


# ---- examples and batches ----


class DistillRows(Dataset[dict[str, Any]]):
    """Masked examples, each with the tokens of its words and the teacher's vectors; indexed as the masked ones."""

    def __init__(self, masked: MaskedRows, aligned: Aligned, outputs: TeacherOutputs) -> None:
        self.masked, self.aligned, self.outputs = masked, aligned, outputs

    def with_outputs(self, outputs: TeacherOutputs) -> DistillRows:
        """The same with other outputs of the teacher."""
        return DistillRows(self.masked, self.aligned, outputs)

    @property
    def examples(self) -> Encoded:
        """The token ids."""
        return self.masked.examples

    def __len__(self) -> int:
        return len(self.masked)

    def pairs(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Tokens and words of the pairs of one example, and the teacher's vectors of these words and of the text.

        Only words that both models have; they are counted from 0 in the order of the vectors.
        """
        _, tokens, words = self.aligned.text(row)
        known, vectors, sentence = self.outputs[row]
        if not len(known):
            return tokens[:0], words[:0], vectors, sentence
        place = np.minimum(np.searchsorted(known, words), len(known) - 1)
        shared = known[place] == words
        used, numbers = np.unique(place[shared], return_inverse=True)
        return tokens[shared], numbers, vectors if len(used) == len(vectors) else vectors[used], sentence

    def __getitem__(self, key: Any) -> dict[str, Any]:
        row = key[1] if isinstance(key, tuple) else key
        tokens, words, vectors, sentence = self.pairs(row)
        return {**self.masked[key], "tokens": tokens, "words": words, "vectors": vectors, "sentence": sentence}


@dataclass(frozen=True)
class DistillCollator:
    """A batch of masked examples with the teacher's vectors."""

    pad: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Token ids, mask and labels [B, T]; pairs of a token and a word [P]; the vectors [W, D] and [B, D]."""
        batch = MaskedCollator(self.pad)(rows)
        width, counts = batch["input_ids"].shape[1], [len(row["vectors"]) for row in rows]
        first_words = np.cumsum([0, *counts[:-1]])
        tokens = [row["tokens"].astype(np.int64) + number * width for number, row in enumerate(rows)]
        words = [row["words"] + first for row, first in zip(rows, first_words, strict=True)]
        return {
            **batch,
            # Trainer counts the ``labels`` and takes them away; the model reads the others.
            "mlm_labels": batch["labels"],
            "word_tokens": torch.from_numpy(np.concatenate(tokens)),
            "words": torch.from_numpy(np.concatenate(words).astype(np.int64)),
            "word_targets": torch.from_numpy(np.concatenate([row["vectors"] for row in rows])),
            "sentence_targets": torch.from_numpy(np.stack([row["sentence"] for row in rows])),
        }


class EncoderDistillationLoss:
    """Trainer's ``compute_loss_func``: the weighted sum of three means; that of the masked tokens in evaluation."""

    def __init__(self, section: DistillEncoderTask, components: LossComponents) -> None:
        """components: where each is recorded for the history."""
        self.weights = {
            "mlm_loss": section.mlm_weight,
            "word_loss": section.word_weight,
            "sentence_loss": section.sentence_weight,
        }
        self.components = components

    def __call__(
        self, outputs: Mapping[str, Any], labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Loss of one forward pass, as its share of the step."""
        if "word_loss" not in outputs:
            found: Tensor = outputs["mlm_loss"]
            return found
        total = torch.zeros_like(outputs["mlm_loss"])
        for name, weight in self.weights.items():
            self.components.add(name, outputs[name])
            total = total + weight * outputs[name]
        return total


def _scores(statistics: np.ndarray) -> dict[str, float]:
    """From the sums of each row (``distillation_statistics``)."""
    near, words, alike, texts = np.asarray(statistics, dtype=np.float64)[:, 3:].sum(axis=0)
    agreement = {"agreement": near / max(words, 1.0), "sentence_agreement": alike / max(texts, 1.0)}
    return {**masked_scores(statistics[:, :3]), **{name: float(value) for name, value in agreement.items()}}


def _compute_metrics(outcome: EvalPrediction) -> dict[str, float]:
    scores = _scores(np.asarray(outcome.predictions))
    return {name: value for name, value in scores.items() if name != "loss"}
