"""Span corruption: ``prefix ⁇ suffix ⁇ span ⁇``, as a pure function of seed, epoch and document.

Where documents are truncated and which spans are masked is drawn for a whole epoch at once: ``plan`` gives the numbers,
``corrupted`` the tokens. The format is that of the span corruption exercise of Stanford's CS224N, with several spans in
the manner of T5 (arXiv:1910.10683).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.errors import HftuneError
from hftune.models.tokenizer_stats import plain_text_kwargs
from hftune.tasks.settings import SpanTask
from hftune.tasks.tokens import IDS, Encoded

STREAM = 0x5BA9
"""Keeps these draws apart from others with the same seed and epoch."""
UNSEEN = 2**32 - 1
"""The epoch of validation and test: training never reaches it."""
LEAST = 2
"""Fewest tokens of a document: one is masked, one stays."""
TOGETHER = 1000
"""Documents that are tokenized together."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Corruption:
    """How documents are truncated and masked, in tokens."""

    shortest: int
    longest: int
    share: float
    spans: int
    anywhere: bool

    @classmethod
    def of(cls, task: SpanTask, block: int) -> Corruption:
        """The settings of a task for a model that reads ``block`` tokens; refused if no document fits in."""
        longest = int(block * task.max_prefix_ratio)
        made = cls(task.min_document_length, longest, task.corruption_rate, task.num_spans, task.crop == "random")
        if longest < task.min_document_length:
            raise HftuneError(
                f"documents are truncated to {task.min_document_length} tokens at least and {longest} at most, which "
                f"is task.max_prefix_ratio {task.max_prefix_ratio:g} of the block of {block}",
                hint="lower task.min_document_length, or raise task.max_prefix_ratio or model.block_size",
            )
        if longest + made.marks > block:
            raise HftuneError(
                f"documents of up to {longest} tokens and {made.marks} marks do not fit into the block of {block}",
                hint=f"lower task.max_prefix_ratio to {int(1000 * (block - made.marks) / block) / 1000:g}, or "
                "task.num_spans",
            )
        return made

    @property
    def marks(self) -> int:
        """Mask tokens of a corrupted document: one for each gap, one before the spans, one after each span."""
        return 2 * self.spans + 1


@dataclass(frozen=True)
class CorruptionPlan:
    """The random draws for each document of a corpus in one epoch."""

    starts: Ints
    """[rows]: where the part that is kept begins."""
    lengths: Ints
    """[rows]: tokens of that part."""
    spans: Ints
    """[rows, spans]: where each span begins in that part, in order."""
    widths: Ints
    """[rows, spans]: tokens of each span."""

    @property
    def totals(self) -> Ints:
        """[rows]: tokens of each corrupted document, with its mask tokens."""
        totals: Ints = self.lengths + 2 * self.spans.shape[1] + 1
        return totals

    @property
    def prefix_lengths(self) -> Ints:
        """[rows]: tokens before the first span is written out; the tokens from there on have the span loss."""
        lengths: Ints = self.lengths - self.widths.sum(1) + self.spans.shape[1] + 1
        return lengths

    def characters(self, sizes: Sequence[NDArray[np.float64]]) -> list[float]:
        """For each corrupted document, the characters of its tokens after the first; a mask token counts as one.

        ``sizes`` has, for each document, the characters of each of its tokens.
        """
        # The first token is never predicted, so its characters must not count: bits per character would get better
        # with it. It is a mask token if the first span begins the document.
        marks = 2 * self.spans.shape[1] + 1
        first_is_mark = self.spans[:, 0] == 0
        found = []
        for start, length, marked, size in zip(self.starts, self.lengths, first_is_mark, sizes, strict=True):
            part = size[start : start + length]
            found.append(float(part.sum() + marks - (1 if marked else part[0])))
        return found


def plan(sizes: Ints, corruption: Corruption, seed: int, epoch: int) -> CorruptionPlan:
    """Draw truncation and spans of every document of a corpus, given the tokens of each.

    Epochs are counted from 0; validation and test use ``UNSEEN``.
    """
    count = corruption.spans
    # A generator made here from (seed, epoch), one row of draws per document: what happens to a document depends on
    # nothing but its size, its index, seed and epoch. A persistent generator would have to be saved in checkpoints,
    # and data loading workers, which fetch ahead, would leave it at another place than the one that training reached.
    draws = np.random.default_rng([seed, epoch, STREAM]).random((len(sizes), 2 + 2 * count))
    lengths = np.minimum(sizes, _whole(draws[:, 0], corruption.shortest, corruption.longest))
    starts = _whole(draws[:, 1], 0, sizes - lengths) if corruption.anywhere else np.zeros_like(lengths)
    # Each span takes half to one and a half times its share, so that the model can't guess where a span ends.
    mean = corruption.share * lengths / count
    widths = np.empty((len(sizes), count), dtype=np.int64)
    # At least one token stays, so that the span can be predicted from something.
    left = lengths - 1
    for number in range(count):
        least = np.maximum(1, np.round(mean / 2).astype(np.int64))
        most = np.maximum(least, np.round(mean * 1.5).astype(np.int64))
        widths[:, number] = np.minimum(_whole(draws[:, 2 + number], least, most), left)
        left = left - widths[:, number]
    # Drawing span positions directly would make them overlap. Instead the spans are taken out, gaps are drawn among
    # the tokens that stay, from left to right, and each span then moves the later ones by its width.
    gaps = np.sort(_whole(draws[:, 2 + count :], 0, (lengths - widths.sum(1))[:, None]), axis=1)
    return CorruptionPlan(starts, lengths, gaps + widths.cumsum(1) - widths, widths)


def _whole(draw: NDArray[np.float64], least: Ints | int, most: Ints | int) -> Ints:
    """Uniform draws from [0, 1) as integers from least to most, both included."""
    numbers: Ints = (least + np.floor(draw * (np.asarray(most) - least + 1))).astype(np.int64)
    return numbers


def corrupted(tokens: Ints, drawn: CorruptionPlan, row: int, mark: int) -> Ints:
    """One corrupted document: ``tokens`` with the spans that were drawn for ``row`` behind the rest.

    "Ada was born in 1815 in London" with the span "1815" becomes "Ada was born in ⁇ in London⁇1815⁇".
    """
    part = tokens[drawn.starts[row] : drawn.starts[row] + drawn.lengths[row]]
    mask = np.array([mark], dtype=tokens.dtype)
    rest: list[Ints] = []
    spans: list[Ints] = [mask]
    place = 0
    for start, width in zip(drawn.spans[row].tolist(), drawn.widths[row].tolist(), strict=True):
        rest += [part[place:start], mask]
        place = start + width
        spans += [part[start:place], mask]
    return np.concatenate([*rest, part[place:], *spans])


def refuse_too_short(sizes: Ints, texts: Sequence[str]) -> None:
    """A document of one token has no room for a span, whatever its number of characters."""
    short = np.flatnonzero(sizes < LEAST)
    if len(short):
        raise HftuneError(
            f"{len(short):,} of {len(sizes):,} documents have fewer than {LEAST} tokens in this vocabulary, and so no "
            f"room for a span, such as {texts[short[0]][:60]!r}",
            hint="leave them out of the text, or use characters (model.tokenizer_type)",
        )


def tokenize_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """All documents of a split, without special tokens."""
    return Encoded.of({IDS: ids} for _, part in encoded(texts, tokenizer) for ids in part[IDS])


def characters_of_each(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[NDArray[np.float64]]:
    """For each token of each text the number of characters it covers, so that vocabularies can be compared.

    What a vocabulary leaves out, such as blanks, counts with the token after it, or with the last. If a tokenizer gives
    no offsets, all tokens of a text count alike.
    """
    found: list[NDArray[np.float64]] = []
    for part, batch in encoded(texts, tokenizer, return_offsets_mapping=tokenizer.is_fast):
        for text, ids, places in zip(part, batch["input_ids"], batch.get("offset_mapping", part), strict=True):
            ends = [end for _, end in places] if tokenizer.is_fast else np.linspace(0, len(text), len(ids) + 1)[1:]
            reached = np.asarray(ends, dtype=np.float64)
            reached[-1:] = len(text)
            found.append(np.diff(reached, prepend=0.0))
    return found


def encoded(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, **how: Any) -> Iterator[tuple[list[str], Any]]:
    """Texts and their encodings, some at a time."""
    for start in range(0, len(texts), TOGETHER):
        part = list(texts[start : start + TOGETHER])
        yield part, tokenizer(part, add_special_tokens=False, verbose=False, **how, **plain_text_kwargs(tokenizer))


class CorruptedRows(Dataset[dict[str, Any]]):
    """Training documents, indexed by (epoch, row): corrupted differently in every epoch."""

    def __init__(self, tokens: Encoded, corruption: Corruption, seed: int, mark: int) -> None:
        """mark: the mask token."""
        self._tokens = tokens
        self._corruption = corruption
        self._seed = seed
        self._mark = mark
        self._planned: tuple[int, CorruptionPlan] | None = None

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, row = key
        return {"input_ids": corrupted(self._tokens[row], self.plan(epoch), row, self._mark)}

    def plan(self, epoch: int) -> CorruptionPlan:
        """The draws of an epoch; those of the latest epoch are kept."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = (epoch, plan(self._tokens.sizes, self._corruption, self._seed, epoch))
        return self._planned[1]

    def lengths(self, epoch: int) -> Sequence[int]:
        """Tokens of each corrupted document in an epoch."""
        return self.plan(epoch).totals.tolist()  # type: ignore[no-any-return]


class FixedRows(Dataset[dict[str, Any]]):
    """Documents for evaluation, corrupted once."""

    def __init__(self, tokens: Encoded, drawn: CorruptionPlan, mark: int, characters: Sequence[float]) -> None:
        """characters: of the tokens after the first, for each document."""
        self.rows = [corrupted(tokens[row], drawn, row, mark) for row in range(len(tokens))]
        self.plan = drawn
        self.characters = list(characters)
        self.lengths = [len(row) for row in self.rows]
        self.prefix_lengths: list[int] = drawn.prefix_lengths.tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": self.rows[row]}
