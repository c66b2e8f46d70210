"""Task ``span``: pretrain a GPT by span corruption: it learns the facts of a corpus by generating the masked spans."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.corpus import Corpus, load_texts
from hftune.data.settings import CorpusData
from hftune.errors import HftuneError
from hftune.evaluation.language import span_baselines, span_items, span_scores
from hftune.evaluation.scores import SCORES
from hftune.models.causal import NextTokenBatches, load_saved_lm, save_causal_lm, token_scores
from hftune.models.decoding import Decoding, Generated, decode
from hftune.models.load import load_config, load_tokenizer
from hftune.models.settings import NO_TRUST, Trust
from hftune.models.tokenizer_stats import count_unknown, unknown_in
from hftune.progress import ProgressReporter, progress_bar
from hftune.tasks.corruption import (
    UNSEEN,
    CorruptedRows,
    Corruption,
    CorruptionPlan,
    FixedRows,
    Ints,
    characters_of_each,
    plan,
    refuse_too_short,
    tokenize_documents,
)
from hftune.tasks.language_model import LanguageModel, score_tokens
from hftune.tasks.settings import SpanTask
from hftune.tasks.task import PROBE_ROWS, Evaluation, SplitScores, TaskRecipe, saved_section
from hftune.tasks.tokens import Encoded
from hftune.training.inputs import TrainingInputs

logger = logging.getLogger(__name__)

SHORTEST = 4
"""Fewest characters of a document that has room for a span and something around it."""
LITTLE = 0.01
"""Ratio of the text that may be truncated without a note."""
GENERATED = 500
"""Documents of a split whose spans the model generates for the predictions."""


class SpanCorruption(LanguageModel[Corpus]):
    """Pretrain a causal language model on documents with masked spans."""

    usage: ClassVar[str] = "fine-tune it for question answering: `hftune finetune --from {model} --data NAME|PATH`"
    marks: ClassVar[bool] = True
    trains_all: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = tuple(SCORES["span"])

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.task_section = expect(recipe.task, SpanTask)
        self.data_section = expect(recipe.data, CorpusData)
        self._warned: set[str] = set()

    def load_data(self) -> Corpus:
        """Read, check and split the documents."""
        return load_documents(self.task_section, self.data_section)

    def make_tokenizer(self, data: Corpus) -> PreTrainedTokenizerBase:
        """The model's own, or one of the corpus's characters or BPE tokens."""
        return self.check_tokenizer(load_tokenizer(self.recipe.model, data.train))

    def prepare(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; validation is corrupted once, in a way that training never sees."""
        self._check(data, tokenizer)
        tokens = tokenize_documents(data.train, tokenizer)
        refuse_too_short(tokens.sizes, data.train)
        train, validation = self._corrupted(tokens, tokenizer), self._fixed(data.validation, tokenizer)

        def compute(outcome: EvalPrediction) -> dict[str, float]:
            losses, hits = (np.asarray(part) for part in outcome.predictions)
            return _scores(losses, hits, validation)

        return TrainingInputs(
            train=train,
            validation=validation,
            collator=NextTokenBatches(int(tokenizer.pad_token_id)),
            train_lengths=list(train.lengths(0)),
            validation_lengths=validation.lengths,
            compute_metrics=compute,
            loss=None,  # the model's own divides by the tokens of the whole step
            tokens=tokens.fingerprint,
            preprocess_logits=token_scores,
            epoch_lengths=train.lengths,
            notes=self.notes_on_truncation(tokens, tokenizer),
        )

    def baselines(self, data: Corpus, splits: Sequence[str]) -> dict[str, SplitScores]:
        """Unigrams and bigrams on the same corrupted documents."""
        tokenizer = self.load_tokenizer(data)
        rows = self._corrupted(tokenize_documents(data.train, tokenizer), tokenizer)
        # Counted in the first epoch of training, with its mask tokens: the model has seen that form, not plain text.
        train = [rows[0, row]["input_ids"] for row in range(len(rows))]
        found: dict[str, SplitScores] = {}
        for split in splits:
            fixed = self._fixed(data.named[split], tokenizer)
            counted = span_baselines(train, fixed.rows, fixed.prefix_lengths, fixed.characters, len(tokenizer))
            for name, scores in counted.items():
                found.setdefault(name, {})[split] = scores
        return found

    def probe(self, data: Corpus) -> list[dict[str, Any]]:
        """The first documents of validation."""
        return [{"text": text} for text in data.validation[:PROBE_ROWS]]

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Corpus, folder: Path) -> None:
        """Weights, code and tokenizer: what transformers loads, and `hftune finetune --from` continues from."""
        save_causal_lm(model, tokenizer, folder, task=self.recipe.task.kind, **self.provenance(data.source))

    def evaluate(
        self, folder: Path, data: Corpus, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, and generate the spans of some documents."""
        model, tokenizer, _ = load_saved_lm(str(folder), saved_section(folder, trust))
        self._tokenizer = tokenizer  # baselines are scored with the model's own, whatever the text
        self._warn_of_unknown(data, splits, tokenizer)
        size, pad = self.recipe.train.per_device_eval_batch_size, int(tokenizer.pad_token_id)
        scores: SplitScores = {}
        predictions: dict[str, list[dict[str, Any]]] = {}
        for split in splits:
            rows = self._fixed(data.named[split], tokenizer)
            losses, hits = score_tokens(model, rows, pad, batch_size=size, progress=progress, split=split)
            scores[split] = dict(_scores(losses, hits, rows))
            # Up to the mask token before the spans: the model continues from there, as in pretraining.
            begun = [
                Generated(ids[:start].tolist())
                for ids, start in zip(rows.rows[:GENERATED], rows.prefix_lengths, strict=False)
            ]
            longest = int(rows.plan.widths[:, 0].max()) + 1  # with the mask token that ends it
            with progress_bar(progress, len(begun), f"generating spans of {split}") as advance:
                how = Decoding[Generated](longest, frozenset({tokenizer.mask_token_id}), advance=advance)
                decode(model, begun, how, batch_size=size)
            items = span_items(losses, hits, rows.lengths, rows.prefix_lengths, rows.characters)
            generated = _generated(begun, tokenizer, rows)
            predictions[split] = [{**one, **item} for one, item in zip(generated, items, strict=False)]
            predictions[split] += items[len(generated) :]
        characters = {name: sum(map(len, texts)) for name, texts in data.named.items()}
        return Evaluation(splits=scores, predictions=predictions, extras={"corpus": {"characters": characters}})

    def drawn(
        self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, trained: bool
    ) -> tuple[Encoded, CorruptionPlan]:
        """Documents and their draws: those of the first epoch if they are trained on, else those for scoring.

        Scoring uses the data's seed, so that all runs on one corpus are scored on the same sequences.
        """
        tokens = tokenize_documents(texts, tokenizer)
        # UNSEEN is an epoch that training never reaches: validation spans are never trained on in the same form.
        seed, epoch = (self.recipe.train.seed, 0) if trained else (self.data_section.split_seed, UNSEEN)
        return tokens, plan(tokens.sizes, self._corruption(tokenizer), seed, epoch)

    def notes_on_truncation(self, train: Encoded, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
        """A note if much of the training text is never seen, or if nothing is truncated at all."""
        corruption = self._corruption(tokenizer)
        if train.sizes.max() <= corruption.shortest:
            return (
                f"no document is truncated: none has more tokens than task.min_document_length ({corruption.shortest})",
            )
        behind = np.maximum(0, train.sizes - corruption.longest).sum() / train.sizes.sum()
        if corruption.anywhere or behind < LITTLE:
            return ()
        return (
            f"documents are truncated to their first {corruption.longest} tokens: {behind:.0%} of the text is unused "
            "(task.crop=random sees all of it)",
        )

    def _check(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
        model, unknown = self.recipe.model, count_unknown(tokenizer, data.train)
        if unknown.count:
            raise HftuneError(
                unknown.describe(),
                hint=f"{model.tokenizer_name or model.model_name_or_path} has a vocabulary of its own: use text of "
                "these characters, or start from scratch with --model scratch:mingpt and no --tokenizer",
            )
        self._warn_of_unknown(data, [name for name in ("validation", "test") if name in data.named], tokenizer)

    def _warn_of_unknown(self, data: Corpus, splits: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        """Check a split for unknown characters: before training, and before scoring other text."""
        for split in splits:
            # Training knows all characters of its text: these are of other text, which has no splits.
            where = data.source if split == "train" else split
            unknown = unknown_in(tokenizer, data.named[split], where)
            if unknown and split not in self._warned:
                logger.warning(unknown)
            self._warned.add(split)

    def _corruption(self, tokenizer: PreTrainedTokenizerBase) -> Corruption:
        config = load_config(self.recipe.model, tokenizer)
        return Corruption.of(self.task_section, int(config.max_position_embeddings))

    def _corrupted(self, tokens: Encoded, tokenizer: PreTrainedTokenizerBase) -> CorruptedRows:
        mark = int(tokenizer.mask_token_id)
        return CorruptedRows(tokens, self._corruption(tokenizer), self.recipe.train.seed, mark)

    def _fixed(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> FixedRows:
        """Documents of validation or test, corrupted once."""
        tokens, drawn = self.drawn(texts, tokenizer, trained=False)
        refuse_too_short(tokens.sizes, texts)
        sizes = characters_of_each(texts, tokenizer)
        return FixedRows(tokens, drawn, int(tokenizer.mask_token_id), drawn.characters(sizes))


def load_documents(task: SpanTask, data: CorpusData) -> Corpus:
    """The documents that span corruption is trained on."""
    return load_texts(data, min_length=SHORTEST, drop_short=task.short_documents == "drop")


def _scores(losses: Any, hits: Any, rows: FixedRows) -> dict[str, float]:
    return span_scores(losses, hits, rows.lengths, rows.prefix_lengths, rows.characters)


def _generated(begun: Sequence[Generated], tokenizer: PreTrainedTokenizerBase, rows: FixedRows) -> list[dict[str, Any]]:
    """The first span of the first documents as the model generates it, with the original."""
    found = []
    widths = rows.plan.widths[:, 0].tolist()
    for index, one in enumerate(begun):
        ids, start = rows.rows[index], rows.prefix_lengths[index]
        found.append(
            {
                "id": index,
                "text": tokenizer.decode(ids[: start - 1]),
                "gold": span_text(tokenizer, ids[start : start + widths[index]]),
                "label": span_text(tokenizer, one.new_ids[:-1] if one.ended else one.new_ids),
                "confidence": round(exp(one.log_probability), 6),
                "ended": one.ended,
            }
        )
    return found


def span_text(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] | Ints) -> str:
    """A span with its blanks: decoding takes the first one for the beginning of a text, and drops it."""
    text: str = tokenizer.decode([tokenizer.mask_token_id, *tokens])
    return text.removeprefix(tokenizer.mask_token)
