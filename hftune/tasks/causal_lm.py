"""Task ``clm``: a causal language model on plain text, whose documents are packed into blocks.

Text larger than memory is streamed, and its tokens are memory-mapped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.corpus import TextCorpus, TextFacts, TextSplit, stream_corpus
from hftune.data.settings import CorpusData
from hftune.errors import HftuneError
from hftune.evaluation.language import count_tokens, items_of, ngram_scores, text_scores
from hftune.evaluation.scores import SCORES
from hftune.models.causal import NextTokenBatches, load_saved_lm, save_causal_lm, token_scores
from hftune.models.decoding import UNBOUNDED
from hftune.models.generator import Sampling, TextGenerator, encode_prompt
from hftune.models.load import load_config, load_tokenizer, max_positions
from hftune.models.settings import NO_TRUST, ModelSection, Trust
from hftune.models.tokenizers import end_of_text, train_tokenizer
from hftune.progress import ProgressReporter
from hftune.runs.formatting import size
from hftune.tasks.language_model import LONGEST, LanguageModel, score_tokens
from hftune.tasks.settings import ClmTask
from hftune.tasks.task import DataSummary, Evaluation, SplitScores, TaskRecipe, saved_section
from hftune.tasks.tokens import Blocks, Packed, pack
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import main_first

logger = logging.getLogger(__name__)

PROBE_TEXTS = 4
PROBE_CHARACTERS = 2000
TEMPERATURE = 0.8
"""Of the samples in history and report."""
MANY_UNKNOWN = 0.001
FEW_DOCUMENTS = 20
"""Fewer documents than these are divided into sections, so that there are items to resample."""
SECTION = 1000
"""Bytes of a section: neighboring sentences are not independent, so a section holds several."""
MOST_SECTIONS = 10_000


class CausalLanguageModel(LanguageModel[TextCorpus]):
    """Pretrain, or train further, any causal language model."""

    usage: ClassVar[str] = "generate text with it: `hftune generate {model}`"
    scores: ClassVar[tuple[str, ...]] = tuple(SCORES["clm"])

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.section = expect(recipe.task, ClmTask)

    def load_data(self) -> TextCorpus:
        """Find the text and read it once, to count and check it."""
        return stream_corpus(expect(self.recipe.data, CorpusData))

    def describe(self, data: TextCorpus) -> DataSummary:
        """Documents, fingerprints and the size of the text."""
        sizes = ", ".join(f"{name} {size(facts.bytes)}" for name, facts in data.facts.items())
        return replace(super().describe(data), notes=(*data.notes, f"text: {sizes}"))

    def make_tokenizer(self, data: TextCorpus) -> PreTrainedTokenizerBase:
        """The named tokenizer, or the model's own; for a model from scratch one that is trained on train."""
        model = self.recipe.model
        if model.from_scratch and model.tokenizer_name is None:
            texts = data.named["train"].texts
            tokenizer = train_tokenizer(model.tokenizer_type or "bpe", texts, model.vocab_size, exact=False)
        else:
            tokenizer = load_tokenizer(model, (), padded=False)
            asked = model.vocab_size != ModelSection.model_fields["vocab_size"].default
            if model.from_scratch and asked and len(tokenizer) != model.vocab_size:
                logger.info(
                    "the vocabulary is that of %s, %d tokens; model.vocab_size is for a tokenizer that is trained",
                    model.tokenizer_name,
                    len(tokenizer),
                )
        return self.check_tokenizer(tokenizer)

    def prepare(self, data: TextCorpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Pack train and validation into blocks, which are cached."""
        block = self._block(tokenizer)
        self._check_prompts(data, tokenizer)
        name = self.recipe.model.model_name_or_path
        # The main process writes the token files, the others map them: one copy of the text on disk and in memory.
        with main_first():
            packed, packed_validation = (packed_split(data, tokenizer, one, name) for one in ("train", "validation"))
        train = Blocks(packed.tokens, block)
        if not len(train):
            raise HftuneError(
                f"the training text has {len(packed.tokens):,} tokens, fewer than one block of {block}",
                hint=f"set task.block_size to {max(4, len(packed.tokens) // 2)} or less, or give more text",
            )
        validation = Blocks(packed_validation.tokens, block, self.section.stride, rest=True)
        facts, starts = data.facts["validation"], _many_documents(data)

        def compute(outcome: EvalPrediction) -> dict[str, float]:
            losses, hits = (np.asarray(part) for part in outcome.predictions)
            return _scores(losses, hits, validation, facts)

        return TrainingInputs(
            train=train,
            validation=validation,
            collator=NextTokenBatches(end_of_text(tokenizer, name)),
            train_lengths=train.lengths,
            validation_lengths=validation.lengths,
            compute_metrics=compute,
            loss=None,  # the model's own divides by the tokens of the whole step
            tokens=packed.fingerprint,
            # Two numbers per token instead of logits: those of a whole split, [tokens, vocabulary], do not fit into
            # memory.
            preprocess_logits=_token_scores,
            keep_columns=True,  # ``first`` of each block, which the model's forward doesn't take
            decay_embeddings=False,
            samples=(lambda model: self._samples(model, tokenizer, starts)) if self.section.max_new_tokens else None,
        )

    def baselines(self, data: TextCorpus, splits: Sequence[str]) -> dict[str, SplitScores]:
        """Unigrams and bigrams with the same tokenizer."""
        tokenizer, name = self.load_tokenizer(data), self.recipe.model.model_name_or_path
        portions = packed_split(data, tokenizer, "train", name).portions()
        counts = count_tokens(([portion] for portion in portions), len(tokenizer))
        found: dict[str, SplitScores] = {}
        for split in splits:
            facts, tokens = data.facts[split], packed_split(data, tokenizer, split, name).tokens
            for baseline, scores in ngram_scores(counts, tokens, words=facts.words, size=facts.bytes).items():
                found.setdefault(baseline, {})[split] = dict(scores)
        return found

    def probe(self, data: TextCorpus) -> list[dict[str, Any]]:
        """The first texts of validation."""
        texts = (text for text in data.named["validation"].texts() if text.strip())
        return [{"text": text[:PROBE_CHARACTERS]} for text, _ in zip(texts, range(PROBE_TEXTS), strict=False)]

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: TextCorpus, folder: Path) -> None:
        """Weights, code and tokenizer, or the adapter: what `hftune generate` loads."""
        save_causal_lm(
            model,
            tokenizer,
            folder,
            base=self.recipe.model,
            task=self.recipe.task.kind,
            **self.provenance(data.source),
            block_size=self._block(tokenizer),
            document_start=_many_documents(data),
        )

    def evaluate(
        self, folder: Path, data: TextCorpus, splits: Sequence[str], progress: ProgressReporter, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, and generate from the prompts."""
        model, tokenizer, facts = load_saved_lm(str(folder), saved_section(folder, trust))
        self._tokenizer = tokenizer  # baselines are scored with the model's own, whatever the text
        scores, sizes = {}, {}
        predictions: dict[str, list[dict[str, Any]]] = {}
        for split in splits:
            scores[split], predictions[split], packed = score_split(
                model,
                tokenizer,
                data,
                split,
                block=int(facts["block_size"]),
                stride=self.section.stride,
                batch_size=self.recipe.train.per_device_eval_batch_size,
                progress=progress,
            )
            sizes[split] = {**data.facts[split].as_dict(), "tokens": len(packed.tokens) - 1, "unknown": packed.unknown}
            if packed.unknown > MANY_UNKNOWN * len(packed.tokens):
                progress.warn(
                    f"{packed.unknown / len(packed.tokens):.2%} of the tokens of {split} are unknown: the text that "
                    "they replace costs nothing, which flatters perplexity and bits per byte"
                )
        samples = self._samples(model, tokenizer, facts["document_start"]) if self.section.max_new_tokens else []
        return Evaluation(
            scores, predictions, extras={"corpus": sizes, "vocabulary": len(tokenizer), "samples": samples}
        )

    def _block(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """Tokens of a block."""
        model, wanted = self.recipe.model, self.section.block_size
        config = load_config(model, tokenizer)
        limit = max_positions(config)
        if wanted is None:
            return min(limit or LONGEST, LONGEST)
        if limit is not None and wanted > limit:
            more = f", or give the model more with --set model.block_size={wanted}" if model.scratch_mingpt else ""
            raise HftuneError(
                f"task.block_size is {wanted}, but {model.model_name_or_path} has {limit} positions",
                hint=f"set task.block_size to {limit} or less{more}",
            )
        return wanted

    def _check_prompts(self, data: TextCorpus, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse prompts that are too long: the run would fail at its first evaluation."""
        context = max_positions(load_config(self.recipe.model, tokenizer)) or UNBOUNDED
        new = self._sampling(context).max_new_tokens or 0
        for prompt in self.section.prompts if new else ():
            ids = encode_prompt(tokenizer, prompt, _many_documents(data))
            if len(ids) + new > context:
                raise HftuneError(
                    f"task.prompts: {prompt[:60]!r} has {len(ids)} tokens, and with {new} new ones they do not fit "
                    f"into the model's context of {context}",
                    hint="shorten the prompt, or set task.max_new_tokens lower",
                )

    def _sampling(self, context: int) -> Sampling:
        new = min(self.section.max_new_tokens, context // 2)
        return Sampling(max_new_tokens=new, temperature=TEMPERATURE, seed=self.recipe.train.seed)

    def _samples(self, model: Any, tokenizer: PreTrainedTokenizerBase, starts: bool) -> list[dict[str, Any]]:
        """Text generated after each prompt, sampled with the run's seed; torch's random state does not change."""
        writer = TextGenerator(model, tokenizer, document_start=starts)
        written = writer.generate(self.section.prompts, self._sampling(writer.block))
        return [{"prompt": one.prompt, "text": one.text} for (one,) in written]


def packed_split(data: TextCorpus, tokenizer: PreTrainedTokenizerBase, split: str, name: str) -> Packed:
    """The tokens of one split; name is what messages call the model."""
    return pack(data.named[split], data.facts[split], tokenizer, end_of_text(tokenizer, name))


def score_split(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: TextCorpus,
    split: str,
    *,
    block: int,
    stride: int | None,
    batch_size: int,
    progress: ProgressReporter,
) -> tuple[dict[str, float], list[dict[str, Any]], Packed]:
    """Perplexities and bits per byte of a model on one split, its prediction items, and the tokens that were scored."""
    packed = packed_split(data, tokenizer, split, "the model")
    rows, pad = Blocks(packed.tokens, block, stride, rest=True), int(tokenizer.eos_token_id)
    losses, hits = score_tokens(model, rows, pad, batch_size=batch_size, progress=progress, split=split)
    predicted = rows.predicted[:, : losses.shape[1]]
    items = _items(
        losses[predicted],
        hits[predicted],
        np.asarray(packed.tokens[1:]),
        tokenizer,
        data.named[split],
        data.facts[split],
    )
    return _scores(losses, hits, rows, data.facts[split]), items, packed


def _items(
    losses: Any, hits: Any, ids: Any, tokenizer: PreTrainedTokenizerBase, text: TextSplit, facts: TextFacts
) -> list[dict[str, Any]]:
    """The loss on each document; on sections of the text if there are few documents.

    Bytes of text and not blocks of tokens: models with different tokenizers then have the same items.

    Args:
        losses: Of each token after the first, [tokens].
        hits: 1 where it was the most probable one.
        ids: The tokens.
        tokenizer: Theirs.
        text: The split.
        facts: Its sizes.
    """
    is_end = ids == end_of_text(tokenizer, "the model")
    ends = np.flatnonzero(is_end)
    if len(ends) == facts.documents >= FEW_DOCUMENTS:
        item = np.searchsorted(ends, np.arange(len(ids)))  # an end of text belongs to the document before it
        sizes: list[tuple[float, float]] = [
            (len(document.encode()), len(document.split())) for document, _ in text.documents()
        ]
    else:
        count = min(max(facts.bytes // SECTION, min(FEW_DOCUMENTS, facts.words)), MOST_SECTIONS)
        known, which = np.unique(ids, return_inverse=True)
        widths = np.array([len(tokenizer.decode([number]).encode()) for number in known.tolist()])[which] * ~is_end
        begin = np.cumsum(widths) - widths
        item = np.minimum(begin * count // max(int(widths.sum()), 1), count - 1)
        sizes = [(facts.bytes / count, facts.words / count)] * count
    nats, tokens, correct = (
        np.bincount(item, weights=one, minlength=len(sizes)) for one in (losses, np.ones(len(ids)), hits)
    )
    bytes_, words = zip(*sizes, strict=True)
    return items_of(nats, tokens, correct, {"bytes": bytes_, "words": words})


def _scores(losses: Any, hits: Any, rows: Blocks, facts: TextFacts) -> dict[str, float]:
    # Blocks overlap: a token counts in the one that predicts it. Losses are as wide as the longest row, which is
    # shorter than a block if the text is.
    predicted = rows.predicted[:, : losses.shape[1]]
    nats, found = (float(part[predicted].sum(dtype=np.float64)) for part in (losses, hits))
    return text_scores(nats, found, int(predicted.sum()), words=facts.words, size=facts.bytes)


def _token_scores(outputs: Any, labels: Any) -> Any:
    """Loss and hit of each token; a model may return its cache with the logits."""
    return token_scores(outputs[0] if isinstance(outputs, tuple) else outputs, labels)


def _many_documents(data: TextCorpus) -> bool:
    """Whether training has enough starts of documents for the model to learn that one follows an end-of-text token."""
    return data.facts["train"].documents >= 20
