"""Documents packed into blocks: one row of token ids on disk, read through the file system's cache, never as a whole.

``pack`` writes the tokens of a split once, ``<end> document <end> document <end>``, into a file named after text and
tokenizer, which ``cache`` says where to keep. ``Blocks`` cuts it. Used by the task ``clm``.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.cache import cache_folder, make_room, use
from hftune.data.stream import TextFacts, TextSplit
from hftune.errors import HftuneError
from hftune.files import read_json, write_json
from hftune.models.vocabulary import as_text, unknown_token

FORMAT = 2
"""Changes when what is written changes."""
TOGETHER = 1 << 19
"""Characters that are tokenized together."""
PORTION = 1 << 21
"""Tokens that are looked at together."""

Ids = NDArray[Any]


@dataclass(frozen=True)
class Packed:
    """All tokens of a split."""

    path: Path
    tokens: Ids
    """Token ids, an end of text before each document and after the last; lies on disk."""
    unknown: int
    """Tokens that stand for what the vocabulary can't say."""
    fingerprint: str
    """A hash of all token ids."""

    def portions(self) -> Iterator[Ids]:
        """The tokens from first to last; each portion begins with the last token of the one before.

        They are read, not mapped: pages of the map that were looked at once would count as memory that is held.
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
    """The tokens of a split, from the cache or written now.

    Args:
        split: The text.
        facts: Its fingerprint tells whether the file is there already.
        tokenizer: What makes tokens of it.
        end: The token between documents.
        advance: Told how many bytes of the text are done.
    """
    width = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32)
    key = json.dumps([FORMAT, facts.fingerprint, tokenizer_fingerprint(tokenizer), end, width.str])
    path = cache_folder("blocks") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.bin"
    note = path.with_suffix(".json")
    if not (path.is_file() and note.is_file() and read_json(note)["tokens"] * width.itemsize == path.stat().st_size):
        try:
            _write(path, note, _tokenized(split, tokenizer, end, advance), width, unknown_token(tokenizer))
            make_room()
        except OSError as error:
            raise HftuneError(
                f"the tokens of {split.where} can't be written to {path.parent}: {error.strerror}",
                hint="name a folder that has room for them: HFTUNE_CACHE=FOLDER",
            ) from error
    use(path)
    known = read_json(note)
    return Packed(path, np.memmap(path, dtype=width, mode="r"), known["unknown"], known["fingerprint"])


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of everything that decides which tokens a text becomes."""
    if tokenizer.is_fast:
        # How it cut and padded last is no part of it, and is said anew with each call.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    whole = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(tokenizer.get_vocab())
    return hashlib.sha256(f"{type(tokenizer).__name__}\n{whole}".encode()).hexdigest()


def _tokenized(
    split: TextSplit, tokenizer: PreTrainedTokenizerBase, end: int, advance: Callable[[int], None]
) -> Iterator[list[int]]:
    yield [end]
    held: list[tuple[str, bool]] = []
    size = done = 0
    for piece in split:
        held.append(piece)
        size += len(piece.text)
        if size >= TOGETHER:
            yield from _ids(held, tokenizer, end)
            done += sum(len(text.encode("utf-8", "surrogatepass")) for text, _ in held)
            advance(done)
            held, size = [], 0
    yield from _ids(held, tokenizer, end)


def _ids(held: Sequence[tuple[str, bool]], tokenizer: PreTrainedTokenizerBase, end: int) -> Iterator[list[int]]:
    if not held:
        return
    texts, how = [text for text, _ in held], as_text(tokenizer)
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False, return_attention_mask=False, **how)
    for ids, (_, ends) in zip(encoded["input_ids"], held, strict=True):
        yield [*ids, end] if ends else ids


def _write(path: Path, note: Path, rows: Iterator[list[int]], width: np.dtype[Any], unknown: int | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, total, unknowns = hashlib.sha256(), 0, 0
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for row in rows:
                ids = np.asarray(row, dtype=width)
                content = ids.tobytes()
                file.write(content)
                digest.update(content)
                total += len(ids)
                unknowns += 0 if unknown is None else int((ids == unknown).sum())
        Path(staged).replace(path)
    except BaseException:
        Path(staged).unlink(missing_ok=True)
        raise
    write_json(note, {"tokens": total, "unknown": unknowns, "fingerprint": digest.hexdigest()})


class Blocks(Dataset[dict[str, Any]]):
    """Tokens in blocks of one length, without padding; each token but the first is predicted in exactly one of them."""

    def __init__(self, tokens: Ids, block: int, stride: int | None = None, *, rest: bool = False) -> None:
        """Cut.

        Args:
            tokens: All tokens in a row.
            block: Tokens of a block.
            stride: Tokens between the beginnings of two blocks; one less than the block where not given: the last
                token of a block, which has been predicted, is the first of the next, which it helps to predict.
            rest: Whether what is left at the end becomes a shorter block, as in scoring; it is left out otherwise.
        """
        self.tokens, self.block, self.stride, self.rest = tokens, block, stride or block - 1, rest
        if not 1 <= self.stride < block:
            raise HftuneError(
                f"task.stride is {self.stride}, but a block of {block} tokens predicts {block - 1}",
                hint=f"set task.stride to {block - 1} or less, or leave it out",
            )
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
