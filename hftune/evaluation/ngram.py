"""Perplexity and bits per byte of a text, and what counting tokens and pairs of them gets. Called by the task ``clm``.

Perplexity of tokens depends on the tokenizer; that of words, and bits per byte, can be compared between tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hftune.evaluation.language import Counts, Ints

CHUNK = 1 << 22
"""Tokens that are scored together."""
MOST = 700.0
"""Largest exponent that a float can take."""


def text_scores(nats: float, hits: float, tokens: int, *, words: int, size: int) -> dict[str, float]:
    """Scores of a text from the loss of all its tokens.

    Args:
        nats: Loss of all tokens together.
        hits: Tokens that were the likeliest.
        tokens: How many were predicted, ends of text among them.
        words: Words of the text, as blanks separate them.
        size: Bytes of the text as UTF-8.
    """
    return {
        "loss": nats / tokens,
        "perplexity": math.exp(min(nats / tokens, MOST)),
        "word_perplexity": math.exp(min(nats / words, MOST)),
        "bits_per_byte": nats / math.log(2) / size,
        "accuracy": hits / tokens,
    }


def count_tokens(portions: Iterable[NDArray[np.integer]], vocabulary: int) -> Counts:
    """Count tokens and neighbors of a row of any length, which comes in portions.

    Args:
        portions: Parts of the row, each but the first beginning with the last token of the one before.
        vocabulary: How many tokens there are.
    """
    single = np.zeros(vocabulary, dtype=np.int64)
    pairs, times = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for part in portions:
        portion = np.asarray(part, dtype=np.int64)
        single += np.bincount(portion[1:], minlength=vocabulary)
        found, often = np.unique(portion[:-1] * vocabulary + portion[1:], return_counts=True)
        pairs, times = _added(np.concatenate([pairs, found]), np.concatenate([times, often]))
    firsts = np.bincount(pairs // vocabulary, weights=times, minlength=vocabulary).astype(np.int64)
    return Counts(single, pairs, times, firsts)


def ngram_scores(counts: Counts, tokens: NDArray[np.integer], *, words: int, size: int) -> dict[str, dict[str, float]]:
    """What a unigram and a bigram that were counted elsewhere get on these tokens; the first one is given."""
    follows = counts.likeliest()
    nats, hits = np.zeros(2), np.zeros(2)
    for start in range(0, len(tokens) - 1, CHUNK):
        portion = np.asarray(tokens[start : start + CHUNK + 1], dtype=np.int64)
        before, after = portion[:-1], portion[1:]
        nats += [-np.log(counts.unigram[after]).sum(), -np.log(counts.bigram(before, after)).sum()]
        hits += [(after == counts.commonest).sum(), (after == follows[before]).sum()]
    return {
        name: text_scores(float(nats[place]), float(hits[place]), len(tokens) - 1, words=words, size=size)
        for place, name in enumerate(("unigram", "bigram"))
    }


def _added(codes: Ints, times: Ints) -> tuple[Ints, Ints]:
    """Each code once, with how often it occurs in all."""
    order = np.argsort(codes, kind="stable")
    codes, times = codes[order], times[order]
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    return codes[starts], np.add.reduceat(times, starts)
