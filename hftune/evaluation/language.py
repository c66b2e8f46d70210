"""Scores of causal and masked language models from the loss of each token, and those of unigram and bigram counts.

Perplexity depends on the tokenizer: fewer, longer tokens have a higher one. Word perplexity, bits per byte (Gao et al.
2020, The Pile) and bits per character divide the same loss by a size of the text, so tokenizers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.evaluation.scores import MAX_EXPONENT

SMOOTHING = 5.0
"""Weight of the unigram in the bigram's estimate, in counts."""
CHUNK = 1 << 22
"""Tokens that are scored together."""
NGRAMS = ("unigram", "bigram")
IGNORED = -100

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


def perplexity(loss: float) -> float:
    """exp(loss), bounded by what a float can hold."""
    return math.exp(min(loss, MAX_EXPONENT))


# ---- causal language models ----


def text_scores(nats: float, hits: float, tokens: int, *, words: int, size: int) -> dict[str, float]:
    """Scores of a text.

    Args:
        nats: Summed loss of all tokens.
        hits: Tokens that were the most probable ones.
        tokens: Predicted tokens, end-of-text tokens included.
        words: Words of the text, separated by whitespace.
        size: Bytes of the text as UTF-8.
    """
    return {
        "loss": nats / tokens,
        "perplexity": perplexity(nats / tokens),
        "word_perplexity": perplexity(nats / words),
        "bits_per_byte": nats / math.log(2) / size,
        "accuracy": hits / tokens,
    }


def items_of(nats: Any, tokens: Any, correct: Any, sizes: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The prediction items of a language model: its mean loss on each text, in nats per token.

    Args:
        nats: Summed loss of each text.
        tokens: Predicted tokens of each text.
        correct: How many of them were the most probable ones.
        sizes: Further numbers of each text, such as its bytes.
    """
    columns = {
        "loss": np.round(nats / np.maximum(tokens, 1), 6).tolist(),
        "tokens": np.asarray(tokens).astype(int).tolist(),
        "correct": np.asarray(correct).astype(int).tolist(),
        **{name: np.asarray(values).tolist() for name, values in (sizes or {}).items()},
    }
    return [
        {"id": index, **dict(zip(columns, row, strict=True))}
        for index, row in enumerate(zip(*columns.values(), strict=True))
    ]


def span_items(
    losses: Floats, hits: Floats, lengths: Sequence[int], prefix_lengths: Sequence[int], characters: Sequence[float]
) -> list[dict[str, Any]]:
    """The prediction items of corrupted documents; arguments as of ``span_scores``."""
    inside, span = _span_masks(losses.shape[1], lengths, prefix_lengths)
    nats, tokens, correct = _sums(losses, hits, span)
    sizes = {
        "characters": np.round(characters, 3),
        "span_loss": np.round(nats / tokens, 6),
        "span_tokens": tokens,
        "span_correct": correct.astype(np.int64),
        "span_exact_match": (~span | (hits == 1)).all(1).astype(np.int64),
    }
    return items_of(*_sums(losses, hits, inside), sizes)


def _sums(losses: Floats, hits: Floats, mask: NDArray[np.bool_]) -> tuple[Floats, Ints, Floats]:
    """Of each row the summed loss, the tokens and the correct ones where the mask is set."""
    nats = np.where(mask, losses, 0).sum(1, dtype=np.float64)
    return nats, mask.sum(1), np.where(mask, hits, 0).sum(1, dtype=np.float64)


def _span_masks(
    width: int, lengths: Sequence[int], prefix_lengths: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which tokens are predicted, and which of them belong to spans, each [rows, T]."""
    positions = np.arange(width)[None]  # [1, T]; compared with [rows, 1] they mask [rows, T]
    inside = (positions >= 1) & (positions < np.asarray(lengths)[:, None])
    return inside, inside & (positions >= np.asarray(prefix_lengths)[:, None])


def span_scores(
    losses: Floats, hits: Floats, lengths: Sequence[int], prefix_lengths: Sequence[int], characters: Sequence[float]
) -> dict[str, float]:
    """Mean scores over all predicted tokens of corrupted documents, and over those of the spans alone.

    Args:
        losses: Loss of each token in nats, [rows, T]; a row's first token is not predicted.
        hits: 1 where the token was the most probable one, [rows, T].
        lengths: Tokens of each row.
        prefix_lengths: For each row, the tokens before its spans; the spans and their end marks fill the rest.
        characters: For each row, the characters of its predicted tokens.

    Returns:
        ``loss`` (nats per token), ``perplexity``, ``bits_per_character`` (a mark counts as a character), ``accuracy``
        of the next token, ``span_loss``, ``span_accuracy`` and ``span_exact_match``: the ratio of rows whose spans are
        right to the last token. Greedy decoding generates these: after every right prefix the next token is right.
    """
    inside, span = _span_masks(losses.shape[1], lengths, prefix_lengths)
    loss, span_loss = (float(losses[mask].mean(dtype=np.float64)) for mask in (inside, span))
    return {
        "loss": loss,
        "perplexity": perplexity(loss),
        "bits_per_character": loss * int(inside.sum()) / (math.log(2) * sum(characters)),
        "accuracy": float(hits[inside].mean(dtype=np.float64)),
        "span_loss": span_loss,
        "span_accuracy": float(hits[span].mean(dtype=np.float64)),
        "span_exact_match": float((~span | (hits == 1)).all(1).mean()),
    }


# ---- unigram and bigram baselines ----


@dataclass(frozen=True)
class Counts:
    """How often each token, and each pair of neighbors, occurs in some sequences."""

    single: Ints
    """[V]."""
    pairs: Ints
    """Codes of the pairs that occur, first · V + second, sorted."""
    times: Ints
    """How often each of them does."""
    firsts: Ints
    """[V]: how often each token is followed by another."""

    @cached_property
    def unigram(self) -> NDArray[np.float64]:
        """[V]: probability of each token, one added to each count."""
        shares: NDArray[np.float64] = (self.single + 1) / (self.single.sum() + len(self.single))
        return shares

    @property
    def most_frequent(self) -> int:
        """The token that occurs most often."""
        return int(self.single.argmax())

    def bigram(self, before: Ints, after: Ints) -> NDArray[np.float64]:
        """Probability of each token after the one before it, backed off to the unigram.

        (count + SMOOTHING · unigram) / (total + SMOOTHING): a Dirichlet prior with the unigram as its mean (MacKay and
        Peto 1995), so that a token after which little was seen is predicted almost by the unigram alone.
        """
        # One number per pair keeps the table as large as the pairs that occur: [V, V] would take gigabytes.
        codes = before * len(self.single) + after
        found = np.minimum(np.searchsorted(self.pairs, codes), len(self.pairs) - 1)
        seen = np.where(self.pairs[found] == codes, self.times[found], 0)
        return (seen + SMOOTHING * self.unigram[after]) / (self.firsts[before] + SMOOTHING)

    @cached_property
    def successors(self) -> Ints:
        """[V]: the most frequent token after each; the most frequent of all where none was seen."""
        best = np.full(len(self.single), self.most_frequent)
        order = np.argsort(self.times, kind="stable")  # ascending: the last assignment wins
        best[self.pairs[order] // len(self.single)] = self.pairs[order] % len(self.single)
        return best

    def predict(self, before: Ints, after: Ints) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Loss of each token and whether it was the most probable one, by unigram and bigram, each [2, tokens]."""
        losses = -np.log([self.unigram[after], self.bigram(before, after)])
        return losses, np.stack([after == self.most_frequent, after == self.successors[before]])


def count_tokens(portions: Iterable[Sequence[NDArray[np.integer]]], vocabulary: int) -> Counts:
    """Count tokens, and neighbors within a row.

    Args:
        portions: Rows that are counted together. A row that is too long for memory can come in several portions, each
            but the first beginning with the last token of the one before, which is counted there.
        vocabulary: Number of tokens.
    """
    single = np.zeros(vocabulary, dtype=np.int64)
    pairs, times = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for portion in portions:
        rows = [np.asarray(row, dtype=np.int64) for row in portion]
        single += np.bincount(np.concatenate([row[1:] for row in rows]), minlength=vocabulary)
        codes = np.concatenate([row[:-1] * vocabulary + row[1:] for row in rows])
        found, often = np.unique(codes, return_counts=True)
        # Merge two sorted tables: sort once more, then add up the runs of equal codes.
        pairs, times = np.concatenate([pairs, found]), np.concatenate([times, often])
        order = np.argsort(pairs, kind="stable")
        pairs, times = pairs[order], times[order]
        starts = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        pairs, times = pairs[starts], np.add.reduceat(times, starts)
    firsts = np.bincount(pairs // vocabulary, weights=times, minlength=vocabulary).astype(np.int64)
    return Counts(single, pairs, times, firsts)


def ngram_scores(counts: Counts, tokens: NDArray[np.integer], *, words: int, size: int) -> dict[str, dict[str, float]]:
    """Scores of the unigram and the bigram on these tokens, of which the first is given."""
    nats, hits = np.zeros(2), np.zeros(2)
    for start in range(0, len(tokens) - 1, CHUNK):
        portion = np.asarray(tokens[start : start + CHUNK + 1], dtype=np.int64)
        losses, right = counts.predict(portion[:-1], portion[1:])
        nats, hits = nats + losses.sum(1), hits + right.sum(1)
    return {
        name: text_scores(float(nats[index]), float(hits[index]), len(tokens) - 1, words=words, size=size)
        for index, name in enumerate(NGRAMS)
    }


def span_baselines(
    train: Sequence[Ints],
    rows: Sequence[Ints],
    prefix_lengths: Sequence[int],
    characters: Sequence[float],
    vocabulary: int,
) -> dict[str, dict[str, float]]:
    """Scores of the unigram and the bigram on corrupted documents; arguments as of ``span_scores``.

    Args:
        train: Sequences to count in.
        rows: Sequences to score.
        prefix_lengths: As in ``span_scores``.
        characters: As in ``span_scores``.
        vocabulary: Number of tokens.
    """
    counts = count_tokens([train], vocabulary)
    lengths = [len(row) for row in rows]
    shape = (2, len(rows), max(lengths))
    losses, hits = np.zeros(shape), np.zeros(shape)
    for index, row in enumerate(rows):
        losses[:, index, 1 : len(row)], hits[:, index, 1 : len(row)] = counts.predict(row[:-1], row[1:])
    return {
        name: span_scores(losses[number], hits[number], lengths, prefix_lengths, characters)
        for number, name in enumerate(NGRAMS)
    }


# ---- masked language models ----


def masked_scores(statistics: Floats) -> dict[str, float]:
    """``loss`` in nats per token, ``perplexity`` and ``accuracy`` over all masked tokens.

    Args:
        statistics: Summed loss, correct and masked tokens of each row, [rows, 3].
    """
    loss, right, masked = np.asarray(statistics, dtype=np.float64).sum(axis=0)
    mean = float(loss / max(masked, 1.0))
    return {"loss": mean, "perplexity": perplexity(mean), "accuracy": float(right / max(masked, 1.0))}


def unigram_scores(
    train: NDArray[np.integer], truth: Iterable[Sequence[int]], special: Iterable[int], vocabulary: int
) -> dict[str, float]:
    """Scores of predicting every masked token by its frequency.

    Args:
        train: Token ids to count in.
        truth: The true token where one was masked, else -100.
        special: Tokens that are never masked, and so not counted.
        vocabulary: Number of tokens.
    """
    counts = np.bincount(train, minlength=vocabulary) + 1.0  # add one: a token that was not seen is still possible
    counts[list(special)] = 0
    asked = np.concatenate([np.asarray(row, dtype=np.int64) for row in truth])
    asked = asked[asked != IGNORED]
    losses = -np.log(counts[asked] / counts.sum())
    return masked_scores(np.asarray([[losses.sum(), (asked == counts.argmax()).sum(), len(asked)]]))
