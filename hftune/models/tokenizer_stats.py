"""Statistics of a tokenizer on text: compression, unknown characters, its longest tokens, how a sample is split.

Nothing here needs torch or transformers, whose import takes longer than the statistics of a saved tokenizer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from tokenizers import Tokenizer, decoders

from hftune.portability import is_link

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AnyTokenizer: TypeAlias = Union["PreTrainedTokenizerBase", "SavedTokenizer"]

FILES = ("tokenizer.json", "tokenizer_config.json")
BATCH_CHARACTERS = 1 << 19
"""Characters that are tokenized in one call."""
MAX_BYTES = 20_000_000
"""Bytes of a text that are read: more would not change the statistics."""


NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Special tokens with a name, in the order in which transformers lists them."""


class SavedTokenizer:
    """A tokenizer.json, read without transformers: what the functions here need of a fast tokenizer."""

    is_fast = True

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(folder / FILES[0]))
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        self._config = config

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(
        self, texts: str | list[str], *, split_special_tokens: bool = False, **unused: Any
    ) -> dict[str, list[Any]]:
        """Token ids without those that a model adds around a text."""
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        if isinstance(texts, str):
            return {"input_ids": self.backend_tokenizer.encode(texts, add_special_tokens=False).ids}
        found = self.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        return {"input_ids": [one.ids for one in found]}

    @cached_property
    def all_special_tokens(self) -> list[str]:
        """The named special tokens, then further ones."""
        more = self._config.get("extra_special_tokens") or self._config.get("additional_special_tokens") or []
        listed = [*map(self._config.get, NAMED), *(more.values() if isinstance(more, dict) else more)]
        return list(dict.fromkeys(text for one in listed if (text := _content(one)) is not None))

    @property
    def unk_token_id(self) -> int | None:
        """The id of the unknown token."""
        return self._id("unk_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the end-of-text token."""
        return self._id("eos_token")

    def get_vocab(self) -> dict[str, int]:
        """Token → id."""
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids."""
        return [str(self.backend_tokenizer.id_to_token(one)) for one in ids]

    def _id(self, name: str) -> int | None:
        text = _content(self._config.get(name))
        return None if text is None else self.backend_tokenizer.token_to_id(text)


def _content(token: Any) -> str | None:
    """The text of a special token in tokenizer_config.json."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def saved_tokenizer(name: str) -> SavedTokenizer | None:
    """The tokenizer of a run or a folder; None where transformers has to load it, or to say what is wrong."""
    folder = Path(name) / "model" if (Path(name) / "recipe.yaml").is_file() else Path(name)
    if any(not (folder / file).is_file() or is_link(folder / file) for file in FILES) or is_link(folder):
        return None
    try:
        config = json.loads((folder / FILES[1]).read_text(encoding="utf-8"))
        if not isinstance(config, dict) or "auto_map" in config or "tokenizer_class" not in config:
            return None
        found = SavedTokenizer(folder, config)
    except Exception:  # the library has no class of its own for a file that it can't read
        return None
    return found if set(found.get_vocab()) - set(found.all_special_tokens) else None


def unknown_token(tokenizer: AnyTokenizer) -> int | None:
    """The id of the unknown token; None for GPT-2, whose unknown token is its end of text."""
    unknown = tokenizer.unk_token_id
    return None if unknown is None or unknown == tokenizer.eos_token_id else int(unknown)


def plain_text_kwargs(tokenizer: AnyTokenizer) -> dict[str, bool]:
    """Arguments with which a tokenizer reads training text: ``[MASK]`` in the text is not the mask token."""
    return {"split_special_tokens": True} if tokenizer.is_fast else {}


def byte_signs() -> dict[str, int]:
    """Character → byte: how byte-level BPE writes the bytes that are not printable, as GPT-2 defined it."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


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


def compression(tokenizer: AnyTokenizer, texts: Iterable[str]) -> Compression:
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


def count_unknown(tokenizer: AnyTokenizer, texts: Iterable[str], *, examples: int = 5) -> UnknownCharacters:
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


def unknown_in(tokenizer: AnyTokenizer, texts: Iterable[str], where: str) -> str | None:
    """A warning if a text has characters that the tokenizer does not know; None if all are known."""
    found = count_unknown(tokenizer, texts)
    return f"{where}: {found.describe()}; the model reads one token for all of them" if found.count else None


def longest_tokens(tokenizer: AnyTokenizer, most: int = 10) -> list[str]:
    """The longest tokens, without special ones."""
    ordinary = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    return _readable(tokenizer, sorted(ordinary, key=lambda token: (-len(token), token))[:most])


def split_text(tokenizer: AnyTokenizer, text: str) -> list[str]:
    """The tokens of a text, in readable form."""
    return _readable(tokenizer, tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _readable(tokenizer: AnyTokenizer, tokens: Iterable[str]) -> list[str]:
    """Tokens as the vocabulary has them; byte-level ones as text, or as ``<0xC3>`` if they are part of a character."""
    if not (tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel)):
        return list(tokens)
    numbers = byte_signs()

    def text(token: str) -> str:
        if not numbers.keys() >= set(token):
            return token  # an added token, which is not written in bytes
        content = bytes(numbers[sign] for sign in token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in content)

    return [text(token) for token in tokens]
