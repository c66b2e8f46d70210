"""Scores of language models, from the loss of each token; and what counting tokens gets. Called by tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 5.0
"""Weight of the unigram in the bigram's estimate, in counts."""

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]


def language_scores(
    losses: Floats, hits: Floats, lengths: Sequence[int], told: Sequence[int], characters: Sequence[float]
) -> dict[str, float]:
    """Mean scores over all tokens that are predicted, and over those of the spans alone.

    Args:
        losses: Loss of each token in nats, [rows, T]; that of a row's first token is not looked at.
        hits: 1 where the token was the likeliest, [rows, T].
        lengths: Tokens of each row.
        told: For each row, where its span begins; the span goes to the row's end, its end mark among it.
        characters: For each row, how many characters the tokens stand for that are predicted in it.

    Returns:
        ``loss`` (nats a token), ``perplexity``, ``bits_per_character`` (a mark counts as a character), ``accuracy`` of
        the next token, ``span_loss`` and ``span_accuracy``, and ``span_exact_match``: the share of rows whose spans are
        right to the last token. Greedy decoding writes these, since after every right beginning the likeliest is right.
    """
    places = np.arange(losses.shape[1])[None]
    inside = (places >= 1) & (places < np.asarray(lengths)[:, None])
    span = inside & (places >= np.asarray(told)[:, None])
    loss, span_loss = (float(losses[mask].mean(dtype=np.float64)) for mask in (inside, span))
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_character": loss * int(inside.sum()) / (math.log(2) * sum(characters)),
        "accuracy": float(hits[inside].mean(dtype=np.float64)),
        "span_loss": span_loss,
        "span_accuracy": float(hits[span].mean(dtype=np.float64)),
        "span_exact_match": float((~span | (hits == 1)).all(1).mean()),
    }


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

    @classmethod
    def of(cls, rows: Sequence[Ints], vocabulary: int) -> Counts:
        """Count; neighbors are those within a row."""
        single = np.bincount(np.concatenate([row[1:] for row in rows]), minlength=vocabulary)
        codes = np.concatenate([row[:-1] * vocabulary + row[1:] for row in rows])
        pairs, times = np.unique(codes, return_counts=True)
        firsts = np.bincount(codes // vocabulary, minlength=vocabulary)
        return cls(single, pairs, times, firsts)

    @cached_property
    def unigram(self) -> NDArray[np.float64]:
        """[V]: probability of each token, one added to each count."""
        shares: NDArray[np.float64] = (self.single + 1) / (self.single.sum() + len(self.single))
        return shares

    @property
    def commonest(self) -> int:
        """The token that occurs most often."""
        return int(self.single.argmax())

    def bigram(self, before: Ints, after: Ints) -> NDArray[np.float64]:
        """Probability of each token after the one before it, backed off to the unigram."""
        codes = before * len(self.single) + after
        places = np.minimum(np.searchsorted(self.pairs, codes), len(self.pairs) - 1)
        seen = np.where(self.pairs[places] == codes, self.times[places], 0)
        return (seen + SMOOTHING * self.unigram[after]) / (self.firsts[before] + SMOOTHING)

    def likeliest(self) -> Ints:
        """[V]: the commonest token after each; the commonest of all where none was seen."""
        best = np.full(len(self.single), self.commonest)
        order = np.argsort(self.times, kind="stable")  # the last one written stays
        best[self.pairs[order] // len(self.single)] = self.pairs[order] % len(self.single)
        return best


def counting_baselines(
    train: Sequence[Ints], rows: Sequence[Ints], told: Sequence[int], characters: Sequence[float], vocabulary: int
) -> dict[str, dict[str, float]]:
    """What two models that only count get on the same sequences: unigram and bigram.

    Args:
        train: Sequences to count in.
        rows: Sequences to score.
        told: As in ``language_scores``.
        characters: As there.
        vocabulary: How many tokens there are.
    """
    counts = Counts.of(train, vocabulary)
    follows = counts.likeliest()
    lengths = [len(row) for row in rows]
    shape = (2, len(rows), max(lengths))
    losses, hits = np.zeros(shape), np.zeros(shape)
    for place, row in enumerate(rows):
        before, after = row[:-1], row[1:]
        end = len(row)
        losses[0, place, 1:end] = -np.log(counts.unigram[after])
        losses[1, place, 1:end] = -np.log(counts.bigram(before, after))
        hits[0, place, 1:end] = after == counts.commonest
        hits[1, place, 1:end] = after == follows[before]
    return {
        name: language_scores(losses[number], hits[number], lengths, told, characters)
        for number, name in enumerate(("unigram", "bigram"))
    }
