"""A masked language model on plain text: the first of two stages, or a model of its own. One entry of TASKS.

What is saved is a plain masked language model: ``pipeline("fill-mask", …)`` loads it, and `hftune classify --model RUN`
or `hftune joint --model RUN` go on from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune import data as datasets
from hftune.config.data import CorpusData
from hftune.config.model import NO_TRUST, Trust
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.config.task import MlmTask
from hftune.data.corpus import Corpus
from hftune.errors import HftuneError
from hftune.evaluation.masked import masked_scores, unigram_scores
from hftune.files import write_json
from hftune.models.facts import CARD
from hftune.models.joint import row_statistics
from hftune.models.load import LoadedModel, load_config, load_tokenizer
from hftune.models.masked import check_family, fill_statistics, load_masked_lm, reload_masked_lm, save_masked_lm
from hftune.models.positions import check_length
from hftune.runs.naming import public_name
from hftune.tasks.joint import check_block_size, fill_probe
from hftune.tasks.masked_rows import Examples, FixedMaskedRows, MaskedCollator, MaskedRows, make_examples
from hftune.tasks.masking import Masking, masking_for
from hftune.tasks.task import DataFacts, Evaluation
from hftune.training.inputs import TrainingInputs
from hftune.training.progress import Listener, counting

PROBE_ROWS = 8
SCORES = ("accuracy", "loss", "perplexity")


class MaskedLanguageModel:
    """Train a masked language model."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""
        self.recipe = recipe
        self.task_section = expect(recipe.task, MlmTask)
        self.data_section = expect(recipe.data, CorpusData)

    def load_data(self) -> Corpus:
        """Read, check and split the texts."""
        return datasets.load_texts(self.data_section)

    def describe(self, data: Corpus) -> DataFacts:
        """Texts, fingerprints and what was done to them."""
        rows = {name: len(texts) for name, texts in data.named.items()}
        return DataFacts(data.source, rows, data.fingerprints, data.notes)

    def load_tokenizer(self, data: Corpus) -> PreTrainedTokenizerBase:
        """The model's own, or one trained on the training texts."""
        tokenizer = load_tokenizer(self.recipe.model, data.train)
        tokenizer.model_max_length = self.task_section.block_size or self.task_section.max_seq_length
        return tokenizer

    def prepare(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; validation is masked once, by the data's seed."""
        masking = masking_for(tokenizer, self.task_section.mlm_probability, self.recipe.train.seed)
        self._check(tokenizer)
        train, validation = self._examples(data.train, tokenizer), self._fixed(data.validation, tokenizer)
        lengths = train.lengths
        return TrainingInputs(
            train=MaskedRows(train, masking),
            validation=validation,
            collator=MaskedCollator(int(tokenizer.pad_token_id)),
            train_lengths=lengths,
            validation_lengths=validation.examples.lengths,
            compute_metrics=_compute,
            loss=None,  # the model's own divides by the masked tokens of the whole update
            tokens=train.fingerprint(),
            preprocess_logits=row_statistics,
            keep_columns=True,
            epoch_lengths=lambda epoch: lengths,
            notes=train.notes(self.task_section.max_seq_length, self.task_section.block_size),
        )

    def build_model(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """An encoder with a masked language model's head."""
        return load_masked_lm(self.recipe.model, tokenizer)

    def baselines(self, data: Corpus, splits: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """What guessing each token by its frequency gets."""
        tokenizer = self.load_tokenizer(data)
        train = self._examples(data.train, tokenizer).ids
        special = masking_for(tokenizer, self.task_section.mlm_probability, 0).special
        return {
            "unigram": {
                split: dict(
                    unigram_scores(
                        train, [truth for _, truth in self._masked(data, split, tokenizer)], special, len(tokenizer)
                    )
                )
                for split in splits
            }
        }

    def probe(self, data: Corpus) -> list[dict[str, Any]]:
        """The first texts of validation."""
        return [{"text": text} for text in data.validation[:PROBE_ROWS]]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """How well the probe's masked tokens are filled in."""
        return {"mlm": fill_probe(model, tokenizer, rows)}

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        return {"mlm": fill_probe(*reload_masked_lm(folder), rows)}

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Corpus, folder: Path) -> None:
        """Weights and tokenizer: what ``fill-mask`` loads."""
        save_masked_lm(model, tokenizer, folder)
        facts = {
            "task": self.recipe.task.kind,
            "base_model": public_name(self.recipe.model.model_name_or_path),
            "base_revision": self.recipe.model.model_revision,
            "method": self.recipe.method.kind,
            "data": public_name(data.source),
        }
        write_json(folder / CARD, facts)

    def evaluate(
        self, folder: Path, data: Corpus, splits: Sequence[str], listener: Listener, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, masked always in the same way."""
        model, tokenizer = reload_masked_lm(folder)
        scores: dict[str, dict[str, Any]] = {}
        for split in splits:
            rows = self._masked(data, split, tokenizer)
            with counting(listener, len(rows), f"scoring {split}") as advance:
                size = self.recipe.train.per_device_eval_batch_size
                statistics = fill_statistics(model, rows, batch_size=size, advance=advance)
            scores[split] = dict(masked_scores(statistics))
        return Evaluation(splits=scores, predictions={})

    def _check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if self.recipe.method.kind != "full":
            raise HftuneError(
                f"method.kind is {self.recipe.method.kind!r}, but a masked language model moves every weight",
                hint="leave --method out",
            )
        config = load_config(self.recipe.model, tokenizer)
        check_family(config, self.recipe.model.model_name_or_path)
        check_block_size(self.task_section.block_size, config)
        if self.task_section.block_size is None:
            check_length(config, self.task_section.max_seq_length)
        if self.recipe.train.best_metric not in SCORES:
            raise HftuneError(
                f"train.metric_for_best_model is {self.recipe.train.best_metric!r}, which is not among the "
                "validation scores",
                hint=f"use one of: {', '.join(SCORES)}",
            )

    def _examples(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Examples:
        section = self.task_section
        return make_examples(
            tokenizer,
            texts,
            max_length=section.max_seq_length,
            block_size=section.block_size,
            words=section.whole_word_mask,
        )

    def _fixed(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> FixedMaskedRows:
        masking: Masking = masking_for(tokenizer, self.task_section.mlm_probability, self.data_section.split_seed)
        return FixedMaskedRows(self._examples(texts, tokenizer), masking)

    def _masked(
        self, data: Corpus, split: str, tokenizer: PreTrainedTokenizerBase
    ) -> list[tuple[list[int], list[int]]]:
        fixed = self._fixed(data.named[split], tokenizer)
        return [fixed.examples.masked(fixed.masking, 0, row) for row in range(len(fixed))]


def _compute(outcome: EvalPrediction) -> dict[str, float]:
    scores = masked_scores(np.asarray(outcome.predictions))
    return {name: value for name, value in scores.items() if name != "loss"}
