"""Tokenizers of minGPTs, trained on a few texts."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

from hftune.models.tokenizers import train_tokenizer


def char_tokenizer(texts: Iterable[str], block_size: int | None = None) -> PreTrainedTokenizerBase:
    return train_tokenizer("char", lambda: texts, family="mingpt", block_size=block_size, printable_ascii=False)


def masked_tokenizer(
    kind: str, texts: Iterable[str], vocab_size: int, block_size: int | None = None
) -> PreTrainedTokenizerBase:
    found = list(texts)
    return train_tokenizer(kind, lambda: found, vocab_size, family="mingpt", block_size=block_size, exact=False)
