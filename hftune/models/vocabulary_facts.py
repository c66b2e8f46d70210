"""What a tokenizer does to text: compression, unknown tokens, its longest tokens, how a sample is split.

Called by ``hftune tokenizer``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.models.vocabulary import unknown_token

TOGETHER = 1 << 19
"""Characters that are tokenised together."""
MOST = 20_000_000
"""Bytes of a text that are looked at: more would tell the same."""


@dataclass(frozen=True)
class Compression:
    """A tokenizer on one text."""

    bytes: int
    tokens: int
    unknown: int
    whole: bool
    """Whether all of the text was looked at; a long one is looked at from its start."""

    @property
    def bytes_per_token(self) -> float:
        """How much text a token stands for."""
        return self.bytes / max(1, self.tokens)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        rate = self.unknown / max(1, self.tokens)
        return {**asdict(self), "bytes_per_token": self.bytes_per_token, "unknown_rate": rate}


def compression(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Compression:
    """Count bytes, tokens and unknown tokens."""
    size = tokens = unknown = 0
    sign = unknown_token(tokenizer)
    held: list[str] = []
    whole = True

    def count() -> None:
        nonlocal size, tokens, unknown
        if held:
            for ids in tokenizer(held, add_special_tokens=False, verbose=False)["input_ids"]:
                tokens += len(ids)
                unknown += 0 if sign is None else ids.count(sign)
            size += sum(len(text.encode("utf-8", "surrogatepass")) for text in held)
            held.clear()

    characters = 0
    for text in texts:
        if size >= MOST:
            whole = False
            break
        held.append(text)
        characters += len(text)
        if characters >= TOGETHER:
            count()
            characters = 0
    count()
    return Compression(size, tokens, unknown, whole)


def longest_tokens(tokenizer: PreTrainedTokenizerBase, most: int = 10) -> list[str]:
    """The tokens that stand for the longest texts, special ones left out."""
    special = set(tokenizer.all_special_tokens)
    known = tokenizer.get_vocab()
    shown = {number: shown_token(tokenizer, number) for name, number in known.items() if name not in special}
    return sorted(shown.values(), key=lambda text: (-len(text), text))[:most]


def split_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The tokens of a text, as text; bytes that are no whole character as the vocabulary writes them."""
    return [shown_token(tokenizer, number) for number in tokenizer(text, add_special_tokens=False)["input_ids"]]


def shown_token(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """A token as text; by its name in the vocabulary where it is no text of its own."""
    text = str(tokenizer.decode([number]))
    return str(tokenizer.convert_ids_to_tokens(number)) if "�" in text or not text else text
