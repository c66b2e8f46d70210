"""Statistics of a tokenizer on text: compression, unknown characters, its longest tokens, how a sample is split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hftune.models.tokenizers import plain_text_kwargs, unknown_token

BATCH_CHARACTERS = 1 << 19
"""Characters that are tokenized in one call."""
MAX_BYTES = 20_000_000
"""Bytes of a text that are read: more would not change the statistics."""


@dataclass(frozen=True)
class Compression:
    """How a tokenizer compresses one text."""

    bytes: int
    tokens: int
    unknown: int
    whole: bool
    """Whether all of the text was read, or only its first MAX_BYTES."""

    @property
    def bytes_per_token(self) -> float:
        """Average length of a token."""
        return self.bytes / max(1, self.tokens)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        rate = self.unknown / max(1, self.tokens)
        return {**asdict(self), "bytes_per_token": self.bytes_per_token, "unknown_rate": rate}


def compression(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Compression:
    """Count bytes, tokens and unknown tokens."""
    size = tokens = unknown = characters = 0
    unknown_id = unknown_token(tokenizer)
    batch: list[str] = []
    whole = True

    def count() -> None:
        nonlocal size, tokens, unknown
        if batch:
            for ids in tokenizer(batch, add_special_tokens=False, verbose=False, **plain_text_kwargs(tokenizer))[
                "input_ids"
            ]:
                tokens += len(ids)
                unknown += 0 if unknown_id is None else ids.count(unknown_id)
            size += sum(len(text.encode("utf-8", "surrogatepass")) for text in batch)
            batch.clear()

    for text in texts:
        if size >= MAX_BYTES:
            whole = False
            break
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            count()
            characters = 0
    count()
    return Compression(size, tokens, unknown, whole)


@dataclass(frozen=True)
class UnknownCharacters:
    """Characters of some text that a tokenizer does not know."""

    count: int
    """Occurrences of all unknown characters."""
    total: int
    """Characters of the text."""
    examples: tuple[tuple[str, int], ...]
    """The most frequent unknown characters, each with its occurrences."""

    def describe(self) -> str:
        """One sentence for a log or an error; empty if everything is known."""
        if not self.count:
            return ""
        shown = ", ".join(f"{char!r} (U+{ord(char):04X}) × {times}" for char, times in self.examples)
        return f"{self.count} of {self.total} characters are unknown to the tokenizer: {shown}"


def count_unknown(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, examples: int = 5) -> UnknownCharacters:
    """Count the characters that a tokenizer of any kind can't encode."""
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text)
    unknown_id, characters = unknown_token(tokenizer), sorted(seen)
    known = unknown_id is None or not characters
    encoded = [] if known else tokenizer(characters, add_special_tokens=False)["input_ids"]
    # Ties are ordered by code point, so that the message is the same every time.
    unknown = [(char, seen[char]) for char, ids in zip(characters, encoded, strict=False) if unknown_id in ids]
    ranked = sorted(unknown, key=lambda item: -item[1])
    return UnknownCharacters(sum(times for _, times in unknown), seen.total(), tuple(ranked[:examples]))


def unknown_in(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], where: str) -> str | None:
    """A warning if a text has characters that the tokenizer does not know; None if all are known."""
    found = count_unknown(tokenizer, texts)
    return f"{where}: {found.describe()}; the model reads one token for all of them" if found.count else None


def longest_tokens(tokenizer: PreTrainedTokenizerBase, most: int = 10) -> list[str]:
    """The longest tokens, without special ones."""
    ordinary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    return _readable(tokenizer, sorted(ordinary, key=lambda token: (-len(token), token))[:most])


def split_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The tokens of a text, in readable form."""
    return _readable(tokenizer, tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _readable(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> list[str]:
    """Tokens as the vocabulary has them; byte-level ones as text, or as ``<0xC3>`` if they are part of a character."""
    if not (tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel)):
        return list(tokens)
    numbers = {sign: number for number, sign in bytes_to_unicode().items()}

    def text(token: str) -> str:
        if not numbers.keys() >= set(token):
            return token  # an added token, which is not written in bytes
        content = bytes(numbers[sign] for sign in token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in content)

    return [text(token) for token in tokens]
