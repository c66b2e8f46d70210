"""What a tokenizer does to text: compression, unknown tokens, its longest tokens, how a sample is split.

Called by ``hftune tokenizer``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hftune.models.vocabulary import as_text, unknown_token

TOGETHER = 1 << 19
"""Characters that are tokenized together."""
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
            for ids in tokenizer(held, add_special_tokens=False, verbose=False, **as_text(tokenizer))["input_ids"]:
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
    ordinary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    return _shown(tokenizer, sorted(ordinary, key=lambda token: (-len(token), token))[:most])


def split_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The tokens of a text, as ``_shown`` has them."""
    return _shown(tokenizer, tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _shown(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> list[str]:
    """Tokens as the vocabulary writes them; those of bytes as their text, or as ``<0xC3>`` where they are no text."""
    if not (tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel)):
        return list(tokens)
    numbers = {sign: number for number, sign in bytes_to_unicode().items()}

    def text(token: str) -> str:
        if not numbers.keys() >= set(token):
            return token  # one that was added as it is
        content = bytes(numbers[sign] for sign in token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in content)

    return [text(token) for token in tokens]
