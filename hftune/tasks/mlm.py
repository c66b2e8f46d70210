"""Task ``mlm``: a masked language model on plain text, as the first of two stages or as a model of its own.

What is saved is a plain masked language model: ``pipeline("fill-mask", …)`` loads it, and `hftune classify --model RUN`
or `hftune joint --model RUN` continue from it.

As in BERT (arXiv:1810.04805), 80 % of the selected tokens become the mask token, 10 % a random token, and 10 % stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from transformers import EvalPrediction, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.corpus import Corpus, load_texts
from hftune.data.settings import CorpusData
from hftune.errors import HftuneError
from hftune.evaluation.language import items_of, masked_scores, unigram_scores
from hftune.evaluation.scores import SCORES
from hftune.models.hub_files import write_metadata
from hftune.models.joint import IGNORED, row_statistics
from hftune.models.load import LoadedModel, check_length, load_config, load_tokenizer, max_positions
from hftune.models.masked import (
    check_family,
    fill_statistics,
    load_masked_lm,
    load_saved_masked_lm,
    padded,
    reload_masked_lm,
    save_masked_lm,
)
from hftune.models.settings import NO_TRUST, ModelSection, Trust
from hftune.models.tokenizer_stats import plain_text_kwargs
from hftune.progress import ProgressReporter, progress_bar
from hftune.tasks.settings import MaskedLines, MlmTask
from hftune.tasks.task import PROBE_ROWS, Evaluation, SplitScores, Task, TaskRecipe
from hftune.tasks.tokens import IDS, Encoded, truncation_note
from hftune.training.inputs import TrainingInputs

WORDS = "words"
MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
STREAM = 0x6D6C6D
"""Keeps these draws apart from others with the same seed and epoch."""


class MaskedLanguageModel(Task[Corpus]):
    """Train a masked language model."""

    usage: ClassVar[str] = (
        "fine-tune it as a classifier: `hftune classify --model {model} --data NAME|PATH`; or fill masks with it: "
        "`transformers.pipeline('fill-mask', {folder!r})`"
    )
    trains_all: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = tuple(SCORES["mlm"])

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        assert isinstance(recipe.task, MaskedLines), "the table of tasks names this class"
        self.task_section = recipe.task
        self.block_size = recipe.task.block_size if isinstance(recipe.task, MlmTask) else None
        self.data_section = expect(recipe.data, CorpusData)

    def check_model(self, config: PreTrainedConfig) -> None:
        """Refuse an architecture without a masked language model."""
        check_family(config, self.recipe.model.model_name_or_path)

    def load_data(self) -> Corpus:
        """Read, check and split the texts."""
        return load_texts(self.data_section)

    def make_tokenizer(self, data: Corpus) -> PreTrainedTokenizerBase:
        """The model's own, or one trained on the training texts."""
        tokenizer = load_tokenizer(self.recipe.model, data.train)
        tokenizer.model_max_length = self.block_size or self.task_section.max_seq_length
        return tokenizer

    def prepare(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; validation is masked once, with the data's seed."""
        section = self.task_section
        masking = masking_for(tokenizer, section.mlm_probability, self.recipe.train.seed)
        self._check(tokenizer)
        # Training has other masks in each epoch; validation always the same ones, or its loss would be noise.
        train, validation = self._examples(data.train, tokenizer), self._fixed(data.validation, tokenizer)
        lengths = train.sizes.tolist()
        return TrainingInputs(
            train=MaskedRows(train, masking),
            validation=validation,
            collator=MaskedCollator(int(tokenizer.pad_token_id)),
            train_lengths=lengths,
            validation_lengths=validation.examples.sizes.tolist(),
            compute_metrics=_compute_metrics,
            loss=None,  # the model's own divides by the masked tokens of the whole step
            tokens=train.fingerprint,
            preprocess_logits=row_statistics,
            keep_columns=True,
            epoch_lengths=lambda epoch: lengths,
            notes=notes_on(train, section.max_seq_length, self.block_size),
        )

    def build_model(self, data: Corpus, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """An encoder with a masked language model's head."""
        return load_masked_lm(self.recipe.model, tokenizer)

    def baselines(self, data: Corpus, splits: Sequence[str]) -> dict[str, SplitScores]:
        """Each token predicted by its frequency."""
        tokenizer = self.load_tokenizer(data)
        train = self._examples(data.train, tokenizer).columns[IDS]  # of all examples, one after the other
        special = frozenset(tokenizer.all_special_ids)
        scores: SplitScores = {}
        for split in splits:
            truth = [labels for _, labels in self._masked(data, split, tokenizer)]
            scores[split] = dict(unigram_scores(train, truth, special, len(tokenizer)))
        return {"unigram": scores}

    def probe(self, data: Corpus) -> list[dict[str, Any]]:
        """The first texts of validation."""
        return [{"text": text} for text in data.validation[:PROBE_ROWS]]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Loss of filling in the probe's masked tokens."""
        return {"mlm": fill_probe(model, tokenizer, rows)}

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        return {"mlm": fill_probe(*reload_masked_lm(folder), rows)}

    @classmethod
    def load_saved(cls, model: str, settings: ModelSection) -> PreTrainedModel:
        """The masked language model."""
        return load_saved_masked_lm(settings.model_copy(update={"model_name_or_path": model}))

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Corpus, folder: Path) -> None:
        """Weights and tokenizer: what ``fill-mask`` loads."""
        save_masked_lm(model, tokenizer, folder)
        write_metadata(folder, {"task": self.recipe.task.kind, **self.provenance(data.source)})

    def evaluate(
        self, folder: Path, data: Corpus, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, always masked the same way."""
        model, tokenizer = reload_masked_lm(folder)
        self._tokenizer = tokenizer  # baselines are scored with the model's own, whatever the text
        scores: SplitScores = {}
        predictions: dict[str, list[dict[str, Any]]] = {}
        for split in splits:
            rows = self._masked(data, split, tokenizer)
            with progress_bar(progress, len(rows), f"scoring {split}") as advance:
                size = self.recipe.train.per_device_eval_batch_size
                statistics = fill_statistics(model, rows, batch_size=size, advance=advance)
            scores[split] = dict(masked_scores(statistics))
            nats, correct, tokens = statistics.T
            predictions[split] = items_of(nats, tokens, correct)
        return Evaluation(splits=scores, predictions=predictions)

    def _check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        config = load_config(self.recipe.model, tokenizer)
        check_block_size(self.block_size, config)
        if self.block_size is None:
            check_length(config, self.task_section.max_seq_length)

    def _examples(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Encoded:
        section = self.task_section
        return make_examples(
            tokenizer,
            texts,
            max_length=section.max_seq_length,
            block_size=self.block_size,
            words=section.whole_word_mask,
        )

    def _fixed(self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> FixedMaskedRows:
        masking = masking_for(tokenizer, self.task_section.mlm_probability, self.data_section.split_seed)
        return FixedMaskedRows(self._examples(texts, tokenizer), masking)

    def _masked(
        self, data: Corpus, split: str, tokenizer: PreTrainedTokenizerBase
    ) -> list[tuple[list[int], list[int]]]:
        fixed = self._fixed(data.named[split], tokenizer)
        return [masked(fixed.examples, fixed.masking, 0, row) for row in range(len(fixed))]


def _compute_metrics(outcome: EvalPrediction) -> dict[str, float]:
    scores = masked_scores(np.asarray(outcome.predictions))
    return {name: value for name, value in scores.items() if name != "loss"}


@dataclass(frozen=True)
class Masking:
    """How token ids are masked; made by ``masking_for``."""

    seed: int
    probability: float
    mask_id: int
    special: frozenset[int]
    ordinary: np.ndarray = field(compare=False)
    """Every token that can replace another."""

    def __call__(
        self, ids: Sequence[int], epoch: int, example: int, words: Sequence[int] | NDArray[np.int64] | None = None
    ) -> tuple[list[int], list[int]]:
        """The masked tokens of an example, and the labels: the original token where one was selected, else -100.

        ``words`` has, for whole-word masking, the index of each token's word, and -1 for none.
        """
        # DataCollatorForLanguageModeling draws from torch's global generator. The loader fetches one batch ahead, so
        # after a resume that generator is at another place, and the masks differ. A generator made of (seed, epoch,
        # example) gives the same masks in a resumed run, in any number of processes and in data loading workers.
        draw = np.random.default_rng([self.seed, STREAM, epoch, example])
        tokens = np.asarray(ids, dtype=np.int64)
        may = np.fromiter((token not in self.special for token in ids), dtype=bool, count=len(ids))
        if words is None:
            chosen = draw.random(len(tokens)) < self.probability
        else:
            # A word is masked as a whole or not at all: BERT's later checkpoints, since the other tokens of a word give
            # a single one away (https://github.com/google-research/bert).
            of = np.asarray(words)
            # One draw per word; a token that belongs to no word has one of its own.
            drawn, alone = draw.random(int(of.max(initial=-1)) + 1), draw.random(len(tokens))
            chosen = np.where(of >= 0, drawn[of] if len(drawn) else 1.0, alone) < self.probability
        chosen &= may  # special tokens are never masked; padding is added by the collator
        fate = draw.random(len(tokens))
        others = self.ordinary[draw.integers(len(self.ordinary), size=len(tokens))]
        shown = np.where(chosen & (fate < MASKED_SHARE), self.mask_id, tokens)
        at_random = chosen & (fate >= MASKED_SHARE) & (fate < MASKED_SHARE + RANDOM_SHARE)
        shown = np.where(at_random, others, shown)
        return shown.tolist(), np.where(chosen, tokens, IGNORED).tolist()


def masking_for(tokenizer: PreTrainedTokenizerBase, probability: float, seed: int) -> Masking:
    """The masking for a tokenizer's texts; refused without a mask token."""
    if tokenizer.mask_token_id is None:
        raise HftuneError(
            f"the tokenizer ({type(tokenizer).__name__}) has no mask token, so no masked language model can be trained",
            hint="take a BERT or RoBERTa model; a GPT predicts the next token: `hftune pretrain --objective clm`",
        )
    special = frozenset(tokenizer.all_special_ids)
    ordinary = np.asarray([number for number in range(len(tokenizer)) if number not in special], dtype=np.int64)
    return Masking(seed, probability, int(tokenizer.mask_token_id), special, ordinary)


def make_examples(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, max_length: int, block_size: int | None, words: bool
) -> Encoded:
    """Tokenize texts: each one example of at most ``max_length`` tokens, or all of them in blocks of ``block_size``.

    With ``words``, for whole-word masking, examples have the number of each token's word, from 1; 0 for none.
    """
    how: dict[str, Any] = {
        "return_attention_mask": False,
        "return_token_type_ids": False,
        **plain_text_kwargs(tokenizer),
    }
    if block_size is not None:
        encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False, **how)
        return Encoded.of(_blocks(tokenizer, encoded, block_size, words))
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length, **how)
    return Encoded.of(
        {IDS: ids, WORDS: _word_numbers(encoded.word_ids(row))} if words else {IDS: ids}
        for row, ids in enumerate(encoded[IDS])
    )


def _blocks(tokenizer: PreTrainedTokenizerBase, encoded: Any, size: int, words: bool) -> Iterator[dict[str, list[int]]]:
    ids: list[int] = []
    of: list[int] = []
    before = 0
    for row, tokens in enumerate(encoded[IDS]):
        ids += [tokenizer.sep_token_id, *tokens] if ids else tokens
        if words:
            numbers = _word_numbers(encoded.word_ids(row))
            of += [0] * (len(ids) - len(of) - len(tokens))  # the separator belongs to no word
            of += [before + number if number else 0 for number in numbers]
            before += max(numbers, default=0)
    # Blocks cross document boundaries, as in RoBERTa's FULL-SENTENCES (arXiv:1907.11692, section 4.2).
    content = size - 2  # [CLS] and [SEP] take two places
    for start in range(0, len(ids), content):
        block = {IDS: [tokenizer.cls_token_id, *ids[start : start + content], tokenizer.sep_token_id]}
        yield block | {WORDS: _from_one([0, *of[start : start + content], 0])} if words else block


def _word_numbers(words: Sequence[int | None]) -> list[int]:
    return [0 if word is None else word + 1 for word in words]


def _from_one(words: list[int]) -> list[int]:
    """The words of a block, counted from its first one."""
    first = min((word for word in words if word), default=1)
    return [word - first + 1 if word else 0 for word in words]


def masked(examples: Encoded, masking: Masking, epoch: int, row: int) -> tuple[list[int], list[int]]:
    """Tokens and labels of one example in an epoch."""
    words = examples.columns.get(WORDS)
    of = None if words is None else words[examples.place(row)].astype(np.int64) - 1
    return masking(examples[row].tolist(), epoch, row, of)


def notes_on(examples: Encoded, max_length: int, block_size: int | None) -> tuple[str, ...]:
    """The number of blocks, or how many texts are truncated."""
    if block_size is not None:
        return (f"unlabeled: {len(examples):,} blocks of at most {block_size} tokens",)
    return truncation_note(examples.sizes.tolist(), max_length, "unlabeled texts", "--block-size N reads all of each")


class MaskedRows(Dataset[dict[str, Any]]):
    """Training examples, indexed by (epoch, row): each epoch has other masks."""

    def __init__(self, examples: Encoded, masking: Masking) -> None:
        self.examples = examples
        self.masking = masking

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        shown, truth = masked(self.examples, self.masking, *key)
        return {"input_ids": shown, "labels": truth}


class FixedMaskedRows(MaskedRows):
    """Examples for evaluation, indexed by row: always masked the same way."""

    def __getitem__(self, key: Any) -> dict[str, Any]:
        return super().__getitem__((0, key))


@dataclass(frozen=True)
class MaskedCollator:
    """Token ids, attention mask and labels of masked examples."""

    pad: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Each [B, T]."""
        ids, mask, labels = padded([(row["input_ids"], row["labels"]) for row in rows], self.pad)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def fill_probe(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
) -> list[list[float]]:
    """Loss on the masked tokens of each probe text, always masked the same way."""
    # Half of the tokens: a short probe text would often have none masked at 15 %.
    examples = make_examples(tokenizer, [row["text"] for row in rows], max_length=128, block_size=None, words=False)
    masking = masking_for(tokenizer, 0.5, seed=0)
    shown = [masked(examples, masking, 0, row) for row in range(len(rows))]
    return [[float(loss)] for loss, _, _ in fill_statistics(model, shown)]


def check_block_size(block_size: int | None, config: PreTrainedConfig) -> None:
    """Refuse blocks that are longer than the model's positions."""
    limit = max_positions(config)
    if block_size is not None and limit is not None and block_size > limit:
        raise HftuneError(
            f"blocks of {block_size} tokens are too long: this {config.model_type} model has {limit} positions",
            hint=f"use --block-size {limit} or less, or --line-by-line",
        )
