"""Pretraining by span corruption: a GPT learns what a corpus says by writing what was taken out. One entry of TASKS."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.data import CorpusData
from hftune.config.model import NO_TRUST, ModelSection, Trust
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.config.task import SpanTask
from hftune.data import load_texts
from hftune.data.corpus import Corpus
from hftune.errors import HftuneError
from hftune.evaluation.language import counting_baselines, language_scores
from hftune.models.answerer import check_marks
from hftune.models.causal import load_causal_lm, load_saved_lm, save_causal_lm
from hftune.models.chars import count_unknown, unknown_in
from hftune.models.decoding import Decoding, Row, decode
from hftune.models.load import LoadedModel, load_config, load_tokenizer
from hftune.models.presets import refuse_other_head
from hftune.models.token_scores import NextTokenBatches, score_sequences, token_scores
from hftune.runs.naming import public_name
from hftune.tasks.corruption import UNSEEN, Corruption, Numbers, Plan, corrupted, plan, refuse_without_room
from hftune.tasks.next_token_proof import next_logits, saved_next_logits
from hftune.tasks.sequences import CorruptedRows, FixedRows, Tokens, characters_of_each
from hftune.tasks.task import DataFacts, Evaluation
from hftune.training.inputs import TrainingInputs
from hftune.training.progress import Listener, counting

logger = logging.getLogger(__name__)

SHORTEST = 4
"""Fewest characters of a document that has room for a span and something around it."""
LITTLE = 0.01
"""Share of the text that may lie behind the longest cut without a word."""
PROBE_ROWS = 8
WRITTEN = 500
"""Documents of a split whose spans the model writes out in predictions."""


class SpanCorruption:
    """Pretrain a causal language model on documents with a hole."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""
        self.recipe = recipe
        self.task_section = expect(recipe.task, SpanTask)
        self.data_section = expect(recipe.data, CorpusData)
        self._warned: set[str] = set()
        self._tokenizer: PreTrainedTokenizerBase | None = None

    def load_data(self) -> Corpus:
        """Read, check and split the documents."""
        drop = self.task_section.short_documents == "drop"
        return load_texts(self.data_section, shortest=SHORTEST, drop_short=drop)

    def describe(self, data: Corpus) -> DataFacts:
        """Documents, fingerprints and what was done to them."""
        rows = {name: len(texts) for name, texts in data.named.items()}
        return DataFacts(data.source, rows, data.fingerprints, data.notes)

    def load_tokenizer(self, data: Corpus) -> PreTrainedTokenizerBase:
        """The model's own, or one of the corpus's characters or pieces."""
        if self._tokenizer is None:
            refuse_other_head(self.recipe.model, causal=True)
            self._tokenizer = load_tokenizer(self.recipe.model, data.train)
            check_marks(self._tokenizer, self.recipe.model.model_name_or_path)
        return self._tokenizer

    def prepare(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; validation is corrupted once, in a way that training never sees."""
        self._check(data, tokenizer)
        corruption, mark = self._corruption(tokenizer), int(tokenizer.mask_token_id)
        tokens = Tokens(data.train, tokenizer)
        refuse_without_room(tokens.sizes, data.train)
        train = CorruptedRows(tokens, corruption, self.recipe.train.seed, mark)
        validation, drawn = self._fixed(data.validation, tokenizer)
        lengths, told = validation.lengths, drawn.told.tolist()

        def compute(outcome: EvalPrediction) -> dict[str, float]:
            losses, hits = (np.asarray(part) for part in outcome.predictions)
            return language_scores(losses, hits, lengths, told, validation.characters)

        return TrainingInputs(
            train=train,
            validation=validation,
            collator=NextTokenBatches(int(tokenizer.pad_token_id)),
            train_lengths=list(train.lengths(0)),
            validation_lengths=lengths,
            compute_metrics=compute,
            loss=None,  # the model's own divides by the tokens of the whole update
            tokens=tokens.fingerprint,
            preprocess_logits=token_scores,
            epoch_lengths=train.lengths,
            notes=self.notes_on_cutting(tokens, tokenizer),
        )

    def build_model(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """A GPT with the tokenizer's vocabulary."""
        return load_causal_lm(self.recipe.model, tokenizer)

    def baselines(self, data: Corpus, splits: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """What counting tokens, and pairs of them, gets on the same corrupted documents."""
        tokenizer = self.load_tokenizer(data)
        tokens, mark = Tokens(data.train, tokenizer), int(tokenizer.mask_token_id)
        rows = CorruptedRows(tokens, self._corruption(tokenizer), self.recipe.train.seed, mark)
        train = [rows[0, row]["input_ids"] for row in range(len(rows))]
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for split in splits:
            fixed, drawn = self._fixed(data.named[split], tokenizer)
            counted = counting_baselines(train, fixed.rows, drawn.told.tolist(), fixed.characters, len(tokenizer))
            for name, scores in counted.items():
                found.setdefault(name, {})[split] = scores
        return found

    def probe(self, data: Corpus) -> list[dict[str, Any]]:
        """The first documents of validation."""
        return [{"text": text} for text in data.validation[:PROBE_ROWS]]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Logits after each probe document."""
        return next_logits(model, tokenizer, rows)

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        return saved_next_logits(folder, rows, trust)

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Corpus, folder: Path) -> None:
        """Weights, code and tokenizer: what transformers loads, and `hftune finetune --from` goes on with."""
        recipe = self.recipe
        save_causal_lm(
            model,
            tokenizer,
            folder,
            task=recipe.task.kind,
            base_model=public_name(recipe.model.model_name_or_path),
            base_revision=recipe.model.model_revision,
            method=recipe.method.kind,
            data=public_name(data.source),
        )

    def evaluate(
        self, folder: Path, data: Corpus, splits: Sequence[str], listener: Listener, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, and let it write the spans of some documents."""
        section = ModelSection(model_name_or_path=str(folder), **trust)
        model, tokenizer, _ = load_saved_lm(str(folder), section)
        self._tokenizer = tokenizer  # baselines are scored with the model's own, whatever the text
        self._warn_of_unknown(data, splits, tokenizer)
        collate = NextTokenBatches(int(tokenizer.pad_token_id))
        scores: dict[str, dict[str, Any]] = {}
        predictions: dict[str, list[dict[str, Any]]] = {}
        for split in splits:
            rows, drawn = self._fixed(data.named[split], tokenizer)
            with counting(listener, len(rows), f"scoring {split}") as advance:
                losses, hits = score_sequences(
                    model,
                    [rows[row] for row in range(len(rows))],
                    collate,
                    batch_size=self.recipe.train.per_device_eval_batch_size,
                    advance=advance,
                )
            scores[split] = dict(language_scores(losses, hits, rows.lengths, drawn.told.tolist(), rows.characters))
            begun = [Row(ids[:told].tolist()) for ids, told in zip(rows.rows[:WRITTEN], drawn.told, strict=False)]
            with counting(listener, len(begun), f"writing spans of {split}") as advance:
                how = Decoding[Row](most=_longest(drawn), ends=frozenset({tokenizer.mask_token_id}), advance=advance)
                decode(model, begun, how, batch_size=self.recipe.train.per_device_eval_batch_size)
            predictions[split] = _written(begun, tokenizer, rows.rows, drawn, losses)
        return Evaluation(splits=scores, predictions=predictions, extras={"corpus": self._corpus_facts(data)})

    def drawn(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, trained: bool) -> tuple[Tokens, Plan]:
        """Documents, and what is done to them: in the first epoch where they are trained on, else for scoring.

        The latter goes by the data's seed, so that all runs on one corpus are scored on the same.
        """
        tokens = Tokens(texts, tokenizer)
        seed, epoch = (self.recipe.train.seed, 0) if trained else (self.data_section.split_seed, UNSEEN)
        return tokens, plan(tokens.sizes, self._corruption(tokenizer), seed, epoch)

    def notes_on_cutting(self, train: Tokens, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
        """What to say where much of the training text lies behind the longest cut, or where nothing is cut at all."""
        corruption = self._corruption(tokenizer)
        if train.sizes.max() <= corruption.shortest:
            return (f"no document is cut: none has more tokens than task.min_document_length ({corruption.shortest})",)
        behind = np.maximum(0, train.sizes - corruption.longest).sum() / train.sizes.sum()
        if corruption.anywhere or behind < LITTLE:
            return ()
        return (
            f"documents are cut at their first {corruption.longest} tokens: {behind:.0%} of the text is never seen "
            "(task.crop=random sees all of it)",
        )

    def _check(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
        if self.recipe.method.kind != "full":
            raise HftuneError(
                f"method.kind is {self.recipe.method.kind!r}, but pretraining moves every weight",
                hint="leave --method out",
            )
        model, unknown = self.recipe.model, count_unknown(tokenizer, data.train)
        if unknown.count:
            raise HftuneError(
                unknown.describe(),
                hint=f"{model.tokenizer_name or model.model_name_or_path} has a vocabulary of its own: take text of "
                "these characters, or "
                "start fresh with --model scratch:mingpt and no --tokenizer",
            )
        self._warn_of_unknown(data, [name for name in ("validation", "test") if name in data.named], tokenizer)
        known = {*language_scores(np.ones((1, 2)), np.ones((1, 2)), [2], [1], [1])}
        if self.recipe.train.best_metric not in known:
            raise HftuneError(
                f"train.metric_for_best_model is {self.recipe.train.best_metric!r}, which is not among the "
                "validation scores",
                hint=f"use one of: {', '.join(sorted(known))}",
            )

    def _warn_of_unknown(self, data: Corpus, splits: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        """Once for each split: before training, and for a run that is scored on other text before that."""
        for split in splits:
            # Training knows all characters of its text: these are of other text, which has no splits.
            where = data.source if split == "train" else split
            told = unknown_in(tokenizer, data.named[split], where)
            if told and split not in self._warned:
                logger.warning(told)
            self._warned.add(split)

    def _corruption(self, tokenizer: PreTrainedTokenizerBase) -> Corruption:
        config = load_config(self.recipe.model, tokenizer)
        return Corruption.of(self.task_section, int(config.max_position_embeddings))

    def _fixed(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> tuple[FixedRows, Plan]:
        """Documents of validation or test, corrupted once."""
        tokens, drawn = self.drawn(texts, tokenizer, trained=False)
        refuse_without_room(tokens.sizes, texts)
        mark = int(tokenizer.mask_token_id)
        rows = [corrupted(tokens[row], drawn, row, mark) for row in range(len(tokens))]
        sizes = characters_of_each(texts, tokenizer)
        return FixedRows(rows, drawn.characters(sizes)), drawn

    def _corpus_facts(self, data: Corpus) -> dict[str, Any]:
        """Sizes of the corpus, for the report."""
        return {"characters": {name: sum(map(len, texts)) for name, texts in data.named.items()}}


def _written(
    begun: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Numbers],
    drawn: Plan,
    losses: np.ndarray,
) -> list[dict[str, Any]]:
    """What the model has written in the (first) hole of the first documents, beside what stood there."""
    told, widths = drawn.told.tolist(), drawn.widths[:, 0].tolist()
    return [
        {
            "id": row,
            "text": tokenizer.decode(rows[row][: told[row] - 1]),
            "gold": span_text(tokenizer, rows[row][told[row] : told[row] + widths[row]]),
            "label": span_text(tokenizer, one.written[:-1] if one.ended else one.written),
            "confidence": round(exp(one.log_probability), 6),
            "ended": one.ended,
            "loss": round(float(losses[row, 1 : len(rows[row])].mean()), 6),
            "span_loss": round(float(losses[row, told[row] : len(rows[row])].mean()), 6),
        }
        for row, one in enumerate(begun)
    ]


def span_text(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] | Numbers) -> str:
    """What was taken out, with its blanks: decoding takes the first one for the beginning of a text, and drops it."""
    text: str = tokenizer.decode([tokenizer.mask_token_id, *tokens])
    return text.removeprefix(tokenizer.mask_token)


def _longest(drawn: Plan) -> int:
    """Tokens of the longest span, with its end mark."""
    return int(drawn.widths[:, 0].max()) + 1
