"""Token ids of a split: examples padded only when batched, and documents packed into blocks; both are cached.

All ids of a split are in one array and not in lists: an example costs a few bytes per token, and an array from the
cache is memory-mapped. For language models ``pack`` writes ``<end> document <end> document <end>`` into a
cached file named after text and tokenizer, and ``Blocks`` splits it into overlapping blocks.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import transformers
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.cache import CacheEntry, NewEntry, cache_folder, cache_key, cached, locked, new_entry, read_entry
from hftune.errors import HftuneError
from hftune.models.tokenizer_stats import plain_text_kwargs, unknown_token

if TYPE_CHECKING:
    from hftune.data.chunks import Chunk
    from hftune.data.corpus import TextFacts, TextSplit

IDS, MASK, ENDS = "input_ids", "attention_mask", "ends"
MIN_ROWS = 2_000
"""Number of examples from which the cache is faster than tokenizing."""
TOKENS = "tokens"
TOGETHER = 1 << 19
"""Characters that are tokenized together."""
PORTION = 1 << 21
"""Tokens that are counted together."""

Ids = NDArray[Any]


@dataclass(frozen=True)
class Encoded:
    """Some texts as arrays of numbers."""

    columns: Mapping[str, NDArray[Any]]
    """By name, the values of all examples, one after the other; the mask, all ones before padding, is left out."""
    ends: NDArray[np.int64]
    """Where each example ends."""
    masked: bool
    """Whether examples have a mask."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Sequence[int]]]) -> Encoded:
        """From the output of a tokenizer."""
        # Four bytes per number while tokenizing (a list takes 8 and an int object of 28), then as few as the largest
        # value needs: two for most vocabularies, one for token types.
        held: dict[str, array[int]] = {}
        ends, masked = [0], False
        for row in rows:
            masked = MASK in row
            for name, values in row.items():
                if name != MASK:
                    held.setdefault(name, array("I")).extend(values)
            ends.append(ends[-1] + len(row[IDS]))
        joined = {name: np.frombuffer(numbers, dtype=np.uint32) for name, numbers in held.items()}
        columns = {name: values.astype(np.min_scalar_type(values.max())) for name, values in joined.items()}
        return cls(columns, np.array(ends[1:], dtype=np.int64), masked)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> Ids:
        """The token ids of one example as int64, so that arithmetic on them can't overflow."""
        return self.columns[IDS][self.place(row)].astype(np.int64)

    def place(self, row: int) -> slice:
        """Where one example is in the columns."""
        return slice(int(self.ends[row - 1]) if row else 0, int(self.ends[row]))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of tokens of each example."""
        return np.diff(self.ends, prepend=0)

    @property
    def fingerprint(self) -> str:
        """A hash of all token ids, in order."""
        digest = hashlib.sha256(self.ends.tobytes())
        ids = self.columns[IDS]
        for start in range(0, len(ids), 1 << 20):  # in parts, to save memory
            digest.update(ids[start : start + (1 << 20)].astype(np.uint32).tobytes())
        return digest.hexdigest()


class TokenizedRows(Dataset[dict[str, Any]]):
    """Encoded texts and their labels."""

    def __init__(self, encoded: Encoded, labels: Sequence[Any]) -> None:
        assert len(encoded) == len(labels), "a label for every example"
        self._encoded = encoded
        self._labels = list(labels)
        self.lengths: list[int] = encoded.sizes.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = self._encoded.place(index)
        row = {name: values[place].tolist() for name, values in self._encoded.columns.items()}
        if self._encoded.masked:
            row[MASK] = [1] * (place.stop - place.start)
        return {**row, "labels": self._labels[index]}

    @property
    def fingerprint(self) -> str:
        """A hash of all token ids, in order."""
        return self._encoded.fingerprint


def tokens_from_cache(
    text: str, rows: int, tokenizer: PreTrainedTokenizerBase, how: dict[str, Any], make: Callable[[], Encoded]
) -> Encoded:
    """The token ids of a split from the cache, or computed now and stored.

    ``text`` is a hash of the texts in order, ``how`` the other settings of the tokenization.
    """
    if rows < MIN_ROWS or not tokenizer.is_fast:
        return make()

    def save(encoded: Encoded, new: NewEntry) -> None:
        new.info["masked"] = encoded.masked
        for name, values in {ENDS: encoded.ends, **encoded.columns}.items():
            new.array(name, values.dtype, [values])

    def load(entry: CacheEntry) -> Encoded:
        arrays = entry.arrays
        return Encoded(columns=arrays, ends=np.array(arrays.pop(ENDS)), masked=entry.info["masked"])

    # The same tokenizer file can give different tokens in another version of the library.
    versions = [tokenizers.__version__, transformers.__version__]
    key = cache_key(text, tokenizer_fingerprint(tokenizer), how, versions)
    return cached("tokens", key, make, save=save, load=load)


def truncation_note(lengths: Sequence[int], limit: int, what: str, instead: str) -> tuple[str, ...]:
    """A note on truncated examples (those with the maximum length), if there are more than a few."""
    full = sum(length >= limit for length in lengths)
    if full < 0.01 * len(lengths) or not full:
        return ()
    return (f"{full:,} of {len(lengths):,} {what} are truncated to {limit} tokens; {instead}",)


@dataclass(frozen=True)
class Packed:
    """All tokens of a split."""

    path: Path
    tokens: Ids
    """Token ids, an end of text before each document and after the last; memory-mapped."""
    unknown: int
    """Number of unknown tokens."""
    fingerprint: str
    """A hash of all token ids."""

    def portions(self) -> Iterator[Ids]:
        """The tokens from first to last; each portion begins with the last token of the one before.

        Read from the file, because every page of a memory map that was used counts as memory of this process.
        """
        with self.path.open("rb") as file:
            for start in range(0, len(self.tokens) - 1, PORTION):
                file.seek(start * self.tokens.itemsize)
                yield np.frombuffer(file.read((PORTION + 1) * self.tokens.itemsize), dtype=self.tokens.dtype)


def pack(
    split: TextSplit,
    facts: TextFacts,
    tokenizer: PreTrainedTokenizerBase,
    end: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Packed:
    """The tokens of a split, from the cache or written now, with the token ``end`` between documents.

    ``advance`` receives the number of bytes that are done.
    """
    dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    unknown_id, unknowns = unknown_token(tokenizer), 0

    def counted() -> Iterator[Ids]:
        nonlocal unknowns
        for row in _tokenized(split, tokenizer, end, advance):
            ids = np.asarray(row, dtype=dtype)
            unknowns += 0 if unknown_id is None else int((ids == unknown_id).sum())
            yield ids

    # Written while it is tokenized: the text can be larger than memory.
    key = cache_key(facts.fingerprint, tokenizer_fingerprint(tokenizer), end, dtype.str)
    try:
        with locked("blocks", key):
            entry = read_entry("blocks", key)
            if entry is None:
                with new_entry("blocks", key) as new:
                    new.array(TOKENS, dtype, counted())
                    new.info["unknown"] = unknowns
                entry = CacheEntry(cache_folder("blocks") / key, new.info, new.files)
    except OSError as error:
        raise HftuneError(
            f"the tokens of {split.where} can't be written to {cache_folder('blocks')}: {error.strerror}",
            hint="name a folder that has room for them: HFTUNE_CACHE=FOLDER",
        ) from error
    return Packed(
        entry.file(TOKENS), entry.array(TOKENS), entry.info["unknown"], fingerprint=entry.files[TOKENS]["sha256"]
    )


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of everything that decides which tokens a text becomes."""
    if tokenizer.is_fast:
        # Truncation and padding of the last call are stored in it too, and every call sets them again.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    whole = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(tokenizer.get_vocab())
    return hashlib.sha256(f"{type(tokenizer).__name__}\n{whole}".encode()).hexdigest()


def _tokenized(
    split: TextSplit, tokenizer: PreTrainedTokenizerBase, end: int, advance: Callable[[int], None]
) -> Iterator[list[int]]:
    yield [end]
    held: list[Chunk] = []
    size = done = 0
    for chunk in split:
        held.append(chunk)
        size += len(chunk.text)
        if size >= TOGETHER:
            yield from _ids(held, tokenizer, end)
            done += sum(len(chunk.text.encode("utf-8", "surrogatepass")) for chunk in held)
            advance(done)
            held, size = [], 0
    yield from _ids(held, tokenizer, end)


def _ids(held: Sequence[Chunk], tokenizer: PreTrainedTokenizerBase, end: int) -> Iterator[list[int]]:
    if not held:
        return
    # A document can be longer than a chunk: only its last chunk is followed by the end of text.
    texts, how = [chunk.text for chunk in held], plain_text_kwargs(tokenizer)
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False, return_attention_mask=False, **how)
    for ids, chunk in zip(encoded["input_ids"], held, strict=True):
        yield [*ids, end] if chunk.ends else ids


class Blocks(Dataset[dict[str, Any]]):
    """Tokens in blocks of one length, without padding; each token but the first is predicted in exactly one of them."""

    def __init__(self, tokens: Ids, block: int, stride: int | None = None, *, rest: bool = False) -> None:
        """Split ``tokens`` into blocks of ``block`` tokens whose starts are ``stride`` apart.

        With ``rest``, as in scoring, what is left at the end is a shorter block; training leaves it out.
        """
        # A model predicts every token of a block but the first, from those before it. Blocks that only touched would
        # leave each first token unscored, and the published perplexity would depend on the block size. So the last
        # token of a block is also the first of the next: predicted here, context there. A smaller stride gives each
        # token more context, and what the block before has scored already is masked out (``first``), as in
        # https://huggingface.co/docs/transformers/perplexity.
        self.tokens, self.block, self.stride, self.rest = tokens, block, stride or block - 1, rest
        if not 1 <= self.stride < block:
            raise HftuneError(
                f"task.stride is {self.stride}, but a block of {block} tokens predicts {block - 1}",
                hint=f"set task.stride to {block - 1} or less, or leave it out",
            )
        # The first block takes ``block`` tokens, each further one ``stride`` more; with ``rest`` rounded up.
        after_first = len(tokens) - block
        whole = after_first // self.stride + 1 if after_first >= 0 else 0
        self._rows = 1 + max(0, -(-after_first // self.stride)) if rest else whole

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < self._rows:
            raise IndexError(row)
        start = row * self.stride
        return {"input_ids": self.tokens[start : start + self.block], "first": self.first(row)}

    def first(self, row: int) -> int:
        """The first token of a block that is predicted there, and not in the one before."""
        return 1 if row == 0 else self.block - self.stride

    @property
    def lengths(self) -> list[int]:
        """Tokens of each block."""
        last = len(self.tokens) - (self._rows - 1) * self.stride
        return [self.block] * (self._rows - 1) + [min(self.block, last)] if self._rows else []

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """[rows, block]: which tokens are predicted."""
        places = np.arange(self.block)[None]
        firsts = np.array([self.first(row) for row in range(self._rows)])[:, None]
        inside: NDArray[np.bool_] = (places >= firsts) & (places < np.array(self.lengths)[:, None])
        return inside
