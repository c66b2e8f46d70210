"""A causal language model on plain text: documents packed into blocks, each token predicted from those before it.

One entry of TASKS. Text larger than memory streams: it is read piece by piece and its tokens lie on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.data import CorpusData
from hftune.config.model import NO_TRUST, ModelSection, Trust
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.config.task import ClmTask
from hftune.data.stream import TextCorpus, TextFacts, stream_corpus
from hftune.errors import HftuneError
from hftune.evaluation.ngram import count_tokens, ngram_scores, text_scores
from hftune.methods import check as check_method
from hftune.models.causal import load_causal_lm, load_saved_lm, save_causal_lm
from hftune.models.decoding import UNBOUNDED
from hftune.models.load import LoadedModel, load_config, load_tokenizer
from hftune.models.positions import max_positions
from hftune.models.presets import refuse_other_head
from hftune.models.token_scores import NextTokenBatches, score_sequences, token_scores
from hftune.models.vocabulary import Learning, end_of_text, train_vocabulary
from hftune.models.writer import Sampling, Writer, encode_prompt
from hftune.runs.naming import public_name
from hftune.runs.wording import size
from hftune.tasks.next_token_proof import next_logits, saved_next_logits
from hftune.tasks.packing import Blocks, Packed, pack
from hftune.tasks.task import DataFacts, Evaluation
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import main_first
from hftune.training.progress import Listener, counting

logger = logging.getLogger(__name__)

LONGEST = 1024
"""Tokens of a block where nobody says, for models that could take more."""
PROBE_ROWS = 4
PROBE_TEXT = 2000
"""Characters of a probe."""
TEMPERATURE = 0.8
"""Of the samples in history and report."""
MANY_UNKNOWN = 0.001
SCORES = ("loss", "perplexity", "word_perplexity", "bits_per_byte", "accuracy")


class CausalLanguageModel:
    """Pretrain, or train further, any causal language model."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""
        self.recipe = recipe
        self.section = expect(recipe.task, ClmTask)
        self._tokenizer: PreTrainedTokenizerBase | None = None

    def load_data(self) -> TextCorpus:
        """Find the text and read it once, to count and check it."""
        return stream_corpus(expect(self.recipe.data, CorpusData))

    def describe(self, data: TextCorpus) -> DataFacts:
        """Documents, fingerprints and what was done to them."""
        prints = {name: facts.fingerprint for name, facts in data.facts.items()}
        sizes = ", ".join(f"{name} {size(facts.bytes)}" for name, facts in data.facts.items())
        rows = {name: facts.documents for name, facts in data.facts.items()}
        return DataFacts(data.source, rows, prints, (*data.notes, f"text: {sizes}"))

    def load_tokenizer(self, data: TextCorpus) -> PreTrainedTokenizerBase:
        """The one that is named, or the model's own; byte-level BPE learned from train for a scratch model."""
        if self._tokenizer is None:
            model = self.recipe.model
            refuse_other_head(model, causal=True)
            if model.from_scratch and model.tokenizer_name is None:
                train = data.splits["train"]
                made = self._tokenizer = train_vocabulary("bpe", train.texts, Learning(model.vocab_size), exact=False)
                logger.info("the vocabulary is learned from train: byte-level BPE, %d tokens", len(made))
            else:
                self._tokenizer = load_tokenizer(model, (), padded=False)
                asked = model.vocab_size != ModelSection.model_fields["vocab_size"].default
                if model.from_scratch and asked and len(self._tokenizer) != model.vocab_size:
                    logger.info(
                        "the vocabulary is that of %s, %d tokens; model.vocab_size is for one that is learned",
                        model.tokenizer_name,
                        len(self._tokenizer),
                    )
            end_of_text(self._tokenizer, model.tokenizer_name or model.model_name_or_path)
        return self._tokenizer

    def prepare(self, data: TextCorpus, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Pack train and validation; what was packed before comes from the cache."""
        block = self._block(tokenizer)
        self._check_prompts(data, tokenizer)
        with main_first():
            packed, packed_validation = (self._packed(data, tokenizer, split) for split in ("train", "validation"))
        train = Blocks(packed.tokens, block)
        if not len(train):
            raise HftuneError(
                f"the training text has {len(packed.tokens):,} tokens, fewer than one block of {block}",
                hint=f"set task.block_size to {max(4, len(packed.tokens) // 2)} or less, or give more text",
            )
        validation = Blocks(packed_validation.tokens, block, self.section.stride, rest=True)
        facts, predicted, starts = data.facts["validation"], validation.predicted, _starts_often(data)

        def compute(outcome: EvalPrediction) -> dict[str, float]:
            losses, hits = (np.asarray(part) for part in outcome.predictions)
            return _scores(losses, hits, predicted[:, : losses.shape[1]], facts)

        return TrainingInputs(
            train=train,
            validation=validation,
            collator=NextTokenBatches(end_of_text(tokenizer, self.recipe.model.model_name_or_path)),
            train_lengths=train.lengths,
            validation_lengths=validation.lengths,
            compute_metrics=compute,
            loss=None,  # the model's own divides by the tokens of the whole update
            tokens=packed.fingerprint,
            preprocess_logits=_token_scores,
            keep_columns=True,
            decay_embeddings=False,
            samples=(lambda model: self._samples(model, tokenizer, starts)) if self.section.max_new_tokens else None,
        )

    def build_model(self, data: TextCorpus, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """A causal language model with the tokenizer's vocabulary."""
        return load_causal_lm(self.recipe.model, tokenizer)

    def baselines(self, data: TextCorpus, splits: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """What counting tokens, and pairs of them, gets with the same tokenizer."""
        tokenizer = self.load_tokenizer(data)
        counts = count_tokens(self._packed(data, tokenizer, "train").portions(), len(tokenizer))
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for split in splits:
            facts, tokens = data.facts[split], self._packed(data, tokenizer, split).tokens
            scored = ngram_scores(counts, tokens, words=facts.words, size=facts.bytes)
            for name, scores in scored.items():
                found.setdefault(name, {})[split] = dict(scores)
        return found

    def probe(self, data: TextCorpus) -> list[dict[str, Any]]:
        """The first texts of validation."""
        texts = (text for text in data.splits["validation"].texts() if text.strip())
        return [{"text": text[:PROBE_TEXT]} for text, _ in zip(texts, range(PROBE_ROWS), strict=False)]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Logits after each probe text."""
        return next_logits(model, tokenizer, rows)

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        return saved_next_logits(folder, rows, trust)

    def save(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: TextCorpus, folder: Path) -> None:
        """Weights, code and tokenizer, or the adapter: what `hftune generate` loads."""
        recipe = self.recipe
        save_causal_lm(
            model,
            tokenizer,
            folder,
            base=recipe.model,
            task=recipe.task.kind,
            base_model=public_name(recipe.model.model_name_or_path),
            base_revision=recipe.model.model_revision,
            method=recipe.method.kind,
            data=public_name(data.source),
            block_size=self._block(tokenizer),
            document_start=_starts_often(data),
        )

    def evaluate(
        self, folder: Path, data: TextCorpus, splits: Sequence[str], listener: Listener, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Score the saved model on each split, and let it write."""
        section = ModelSection(model_name_or_path=str(folder), **trust)
        model, tokenizer, facts = load_saved_lm(str(folder), section)
        self._tokenizer = tokenizer  # baselines are scored with the model's own, whatever the text
        scores, sizes = {}, {}
        for split in splits:
            scores[split], packed = score_split(
                model,
                tokenizer,
                data,
                split,
                block=int(facts["block_size"]),
                stride=self.section.stride,
                batch_size=self.recipe.train.per_device_eval_batch_size,
                listener=listener,
            )
            sizes[split] = {**data.facts[split].as_dict(), "tokens": len(packed.tokens) - 1, "unknown": packed.unknown}
            if packed.unknown > MANY_UNKNOWN * len(packed.tokens):
                listener.warn(
                    f"{packed.unknown / len(packed.tokens):.2%} of the tokens of {split} are unknown: what they stand "
                    "for costs nothing, which flatters perplexity and bits per byte"
                )
        samples = self._samples(model, tokenizer, facts["document_start"]) if self.section.max_new_tokens else []
        return Evaluation(scores, {}, extras={"corpus": sizes, "vocabulary": len(tokenizer), "samples": samples})

    def _packed(self, data: TextCorpus, tokenizer: PreTrainedTokenizerBase, split: str) -> Packed:
        return packed_split(data, tokenizer, split, self.recipe.model.model_name_or_path)

    def _block(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """Tokens of a block, checked against the model's positions; with it all else that only the config tells."""
        recipe, wanted = self.recipe, self.section.block_size
        config = load_config(recipe.model, tokenizer)
        check_method(recipe.method, config, causal=True)
        if self.recipe.train.best_metric not in SCORES:
            raise HftuneError(
                f"train.metric_for_best_model is {self.recipe.train.best_metric!r}, which is not among the "
                "validation scores",
                hint=f"use one of: {', '.join(SCORES)}",
            )
        limit = max_positions(config)
        if wanted is None:
            return min(limit or LONGEST, LONGEST)
        if limit is not None and wanted > limit:
            more = (
                f", or give the model more with --set model.block_size={wanted}" if recipe.model.scratch_mingpt else ""
            )
            raise HftuneError(
                f"task.block_size is {wanted}, but {recipe.model.model_name_or_path} has {limit} positions",
                hint=f"set task.block_size to {limit} or less{more}",
            )
        return wanted

    def _check_prompts(self, data: TextCorpus, tokenizer: PreTrainedTokenizerBase) -> None:
        """A prompt that can't be gone on from would end the run at its first evaluation."""
        context = max_positions(load_config(self.recipe.model, tokenizer)) or UNBOUNDED
        new = self._sampling(context).max_new_tokens or 0
        for prompt in self.section.prompts if new else ():
            ids = encode_prompt(tokenizer, prompt, _starts_often(data))
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
        """What the model writes after each prompt, drawn with the run's seed and nobody's random state."""
        writer = Writer(model, tokenizer, document_start=starts)
        written = writer.write(self.section.prompts, self._sampling(writer.block))
        return [{"prompt": one.prompt, "text": one.text} for (one,) in written]


def packed_split(data: TextCorpus, tokenizer: PreTrainedTokenizerBase, split: str, name: str) -> Packed:
    """The tokens of one split."""
    return pack(data.splits[split], data.facts[split], tokenizer, end_of_text(tokenizer, name))


def score_split(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: TextCorpus,
    split: str,
    *,
    block: int,
    stride: int | None,
    batch_size: int,
    listener: Listener,
) -> tuple[dict[str, float], Packed]:
    """Perplexities and bits per byte of a model on one split, and the tokens that were scored."""
    packed = packed_split(data, tokenizer, split, "the model")
    rows = Blocks(packed.tokens, block, stride, rest=True)
    blocks, collate = [rows[row] for row in range(len(rows))], NextTokenBatches(int(tokenizer.eos_token_id))
    with counting(listener, len(rows), f"scoring {split}") as advance:
        losses, hits = score_sequences(model, blocks, collate, batch_size=batch_size, advance=advance)
    return _scores(losses, hits, rows.predicted[:, : losses.shape[1]], data.facts[split]), packed


def _scores(losses: Any, hits: Any, predicted: Any, facts: TextFacts) -> dict[str, float]:
    nats, found = (float(part[predicted].sum(dtype=np.float64)) for part in (losses, hits))
    return text_scores(nats, found, int(predicted.sum()), words=facts.words, size=facts.bytes)


def _token_scores(outputs: Any, labels: Any) -> Any:
    """Loss and hit of each token; a model may hand its cache along with the logits."""
    return token_scores(outputs[0] if isinstance(outputs, tuple) else outputs, labels)


def _starts_often(data: TextCorpus) -> bool:
    """Whether the model has seen enough beginnings of documents to know one by the end of text before it."""
    facts = data.facts["train"]
    return facts.documents >= 20
