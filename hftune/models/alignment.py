"""Tokens and words: which tokens of a text belong to which of its words, for any fast tokenizer.

Words come from ``data.words``, so that they are the same for every tokenizer. A word's vector is the mean over its
tokens. A word has no vector if no token covers it (the tokenizer strips it) or if it was cut off at the maximum length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hftune.data.words import word_spans
from hftune.errors import HftuneError
from hftune.models.tokenizer_stats import plain_text_kwargs

TOGETHER = 1000
"""Texts that are tokenized together: the offsets of all texts at once, as Python objects, would take gigabytes."""

Ints = NDArray[Any]


@dataclass(frozen=True)
class Aligned:
    """Tokens of some texts, and pairs of a token and a word that it is part of; texts one after the other."""

    ids: Ints
    """Token ids, special tokens included."""
    ends: NDArray[np.int64]
    """Where the tokens of each text end."""
    tokens: Ints
    """Of each pair the token, counted within its text."""
    words: Ints
    """Of each pair the word, counted within its text; never decreasing within a text."""
    pair_ends: NDArray[np.int64]
    """Where the pairs of each text end."""

    def __len__(self) -> int:
        return len(self.ends)

    def text(self, row: int) -> tuple[Ints, Ints, Ints]:
        """Token ids of one text, and the tokens and words of its pairs."""
        ids = self.ids[slice(int(self.ends[row - 1]) if row else 0, int(self.ends[row]))]
        pairs = slice(int(self.pair_ends[row - 1]) if row else 0, int(self.pair_ends[row]))
        return ids, self.tokens[pairs], self.words[pairs]

    def first_words(self) -> NDArray[np.uint16]:
        """Of each token the number of its first word in the text, from 1; 0 for none."""
        found = np.zeros(len(self.ids), dtype=np.uint16)
        starts = np.repeat(np.concatenate([[0], self.ends[:-1]]), np.diff(self.pair_ends, prepend=0))
        # From last to first: of several words the first one stays.
        found[(self.tokens + starts)[::-1]] = self.words[::-1] + 1
        return found


def refuse_slow(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a tokenizer that does not know where in a text its tokens are."""
    if not tokenizer.is_fast:
        raise HftuneError(
            f"the tokenizer of {name} ({type(tokenizer).__name__}) is a slow one: it does not tell where in the text a "
            "token is, so its tokens can't be matched with words",
            hint="use a model with a fast tokenizer (a tokenizer.json)",
        )


def align(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    advance: Callable[[int], None] = lambda texts: None,
) -> Aligned:
    """Tokenize texts, each truncated to ``max_length`` tokens, and find the tokens of each word."""
    small = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    found = []
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        found.append(_align(tokenizer, part, max_length))
        advance(len(part))
    ids, sizes, tokens, words, pairs = (np.concatenate(column) for column in zip(*found, strict=True))
    return Aligned(
        ids.astype(small), np.cumsum(sizes), tokens.astype(np.uint16), words.astype(np.uint16), np.cumsum(pairs)
    )


def _align(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> tuple[Ints, ...]:
    encoded = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        **plain_text_kwargs(tokenizer),
    )
    sizes = np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
    ids = np.fromiter(chain.from_iterable(encoded["input_ids"]), dtype=np.int64, count=int(sizes.sum()))
    flat = chain.from_iterable(chain.from_iterable(encoded["offset_mapping"]))
    offsets = np.fromiter(flat, dtype=np.int64, count=2 * len(ids)).reshape(-1, 2)

    # All texts are laid out one after the other, so that one binary search finds the words of all tokens.
    spans = [word_spans(text) for text in texts]
    counts = np.array([len(one) for one in spans], dtype=np.int64)
    bases = np.cumsum([0, *(len(text) + 1 for text in texts[:-1])])
    starts, stops = (np.concatenate(spans).astype(np.int64) + np.repeat(bases, counts)[:, None]).T
    of_text = np.repeat(np.arange(len(texts)), sizes)  # the text of each token
    begins, ends = (offsets + bases[of_text][:, None]).T
    first = np.searchsorted(stops, begins, side="right")  # the first word that ends after the token begins
    last = np.searchsorted(starts, ends, side="left")  # the first word that begins where the token ends, or later
    # Special tokens have no place in the text; a token of white space alone is part of no word.
    covers = np.where(ends > begins, np.maximum(last - first, 0), 0)

    token = np.repeat(np.arange(len(ids)), covers)
    within = np.arange(len(token)) - np.repeat(np.cumsum(covers) - covers, covers)
    word = np.repeat(first, covers) + within
    # The last word of a truncated text may have lost tokens: its vector would be that of another word.
    whole = np.ones(len(token), dtype=bool)
    if len(token):
        reached = np.zeros(len(texts), dtype=np.int64)
        np.maximum.at(reached, of_text[token], ends[token])
        cut = (sizes >= max_length)[of_text[token]] & (stops[word] > reached[of_text[token]])
        whole = ~cut
    token, word = token[whole], word[whole]
    order = np.lexsort((token, word))  # offsets of some tokenizers overlap or go back
    token, word = token[order], word[order]
    text_of_pair = of_text[token]
    firsts = np.cumsum(sizes) - sizes
    return (
        ids,
        sizes,
        token - firsts[text_of_pair],
        word - (np.cumsum(counts) - counts)[text_of_pair],
        np.bincount(text_of_pair, minlength=len(texts)),
    )


def word_means(hidden: Tensor, tokens: Tensor, words: Tensor, count: int) -> Tensor:
    """The mean of the vectors of each word's tokens [count, C], from all vectors [N, C] and pairs of token and word."""
    sums = hidden.new_zeros(count, hidden.shape[1]).index_add(0, words, hidden[tokens])  # [count, C]
    sizes = torch.bincount(words, minlength=count).clamp(min=1)  # [count]
    return sums / sizes[:, None]


def text_means(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean over all tokens of each text [B, C], from [B, T, C] and the attention mask [B, T]."""
    weights = mask.to(hidden.dtype).unsqueeze(-1)  # [B, T, 1]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
