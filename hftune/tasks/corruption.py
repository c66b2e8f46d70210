"""Span corruption: ``prefix ⁇ suffix ⁇ span ⁇``, as a pure function of seed, epoch and document.

Where documents are cut and what is taken out of them is drawn for a whole epoch at once: ``plan`` gives the numbers,
``corrupted`` the tokens. Nothing here keeps or moves a random generator, so a resumed run sees what the first one saw.
Used by ``hftune.tasks.span_corruption``; ``hftune data peek`` shows what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hftune.config.task import SpanTask
from hftune.errors import HftuneError

STREAM = 0x5BA9
"""Sets these draws apart from others that are made of the same seed and epoch."""
UNSEEN = 2**32 - 1
"""Stands for the epoch of validation and test: training never comes so far."""

LEAST = 2
"""Fewest tokens of a document: something is taken out, something stays."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Corruption:
    """How documents are cut and corrupted, in tokens."""

    shortest: int
    longest: int
    share: float
    spans: int
    anywhere: bool

    @classmethod
    def of(cls, task: SpanTask, block: int) -> Corruption:
        """The settings of a task for a model that reads ``block`` tokens.

        Raises:
            HftuneError: They leave no room for the marks, or none for a document.
        """
        longest = int(block * task.max_prefix_ratio)
        made = cls(task.min_document_length, longest, task.corruption_rate, task.num_spans, task.crop == "random")
        if longest < task.min_document_length:
            raise HftuneError(
                f"documents are cut to {task.min_document_length} tokens at least and {longest} at most, which is "
                f"task.max_prefix_ratio {task.max_prefix_ratio:g} of the block of {block}",
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
        """Mask tokens of a corrupted document: one for each hole, one after the rest, one after each span."""
        return 2 * self.spans + 1


@dataclass(frozen=True)
class Plan:
    """What is done to each document of a corpus in one epoch."""

    starts: Numbers
    """[rows]: where the piece that is kept begins."""
    lengths: Numbers
    """[rows]: tokens of that piece."""
    spans: Numbers
    """[rows, spans]: where each span begins in that piece, in order."""
    widths: Numbers
    """[rows, spans]: tokens of each span."""

    @property
    def totals(self) -> Numbers:
        """[rows]: tokens of each corrupted document, marks among them."""
        totals: Numbers = self.lengths + 2 * self.spans.shape[1] + 1
        return totals

    @property
    def told(self) -> Numbers:
        """[rows]: tokens before the first span is written out; what comes from there on is the span-only loss."""
        told: Numbers = self.lengths - self.widths.sum(1) + self.spans.shape[1] + 1
        return told

    def characters(self, sizes: Sequence[NDArray[np.float64]]) -> list[float]:
        """For each corrupted document the characters that its tokens after the first stand for; a mark counts as one.

        Args:
            sizes: For each document, how many characters each of its tokens stands for.
        """
        marks = 2 * self.spans.shape[1] + 1
        first_is_mark = self.spans[:, 0] == 0
        found = []
        for start, length, marked, size in zip(self.starts, self.lengths, first_is_mark, sizes, strict=True):
            piece = size[start : start + length]
            found.append(float(piece.sum() + marks - (1 if marked else piece[0])))
        return found


def plan(sizes: Numbers, corruption: Corruption, seed: int, epoch: int) -> Plan:
    """Draw what is done to every document.

    Args:
        sizes: Tokens of each document.
        corruption: The settings.
        seed: The run's seed.
        epoch: Counted from 0, or ``UNSEEN``.

    Returns:
        Numbers that depend, for each document, on its size, its place in the corpus, seed and epoch alone.
    """
    count = corruption.spans
    draws = np.random.default_rng([seed, epoch, STREAM]).random((len(sizes), 2 + 2 * count))
    lengths = np.minimum(sizes, _whole(draws[:, 0], corruption.shortest, corruption.longest))
    starts = _whole(draws[:, 1], 0, sizes - lengths) if corruption.anywhere else np.zeros_like(lengths)
    mean = corruption.share * lengths / count
    widths = np.empty((len(sizes), count), dtype=np.int64)
    # One token at least stays: a document that is all span would be told from nothing.
    room = lengths - 1
    for number in range(count):
        least = np.maximum(1, np.round(mean / 2).astype(np.int64))
        most = np.maximum(least, np.round(mean * 1.5).astype(np.int64))
        widths[:, number] = np.minimum(_whole(draws[:, 2 + number], least, most), room)
        room = room - widths[:, number]
    # Where the holes are in what stays, from left to right; each span then pushes the later ones on.
    holes = np.sort(_whole(draws[:, 2 + count :], 0, (lengths - widths.sum(1))[:, None]), axis=1)
    return Plan(starts, lengths, holes + widths.cumsum(1) - widths, widths)


def refuse_without_room(sizes: Numbers, texts: Sequence[str]) -> None:
    """A document of one token has no room for a span, however many characters it has."""
    narrow = np.flatnonzero(sizes < LEAST)
    if len(narrow):
        raise HftuneError(
            f"{len(narrow):,} of {len(sizes):,} documents have fewer than {LEAST} tokens in this vocabulary, and so no "
            f"room for a span, such as {texts[narrow[0]][:60]!r}",
            hint="leave them out of the text, or read characters (model.tokenizer_type)",
        )


def corrupted(tokens: Numbers, drawn: Plan, row: int, mark: int) -> Numbers:
    """One corrupted document.

    Args:
        tokens: The whole document.
        drawn: The epoch's plan.
        row: The document's place in the corpus.
        mark: The mask token.
    """
    piece = tokens[drawn.starts[row] : drawn.starts[row] + drawn.lengths[row]]
    dot = np.array([mark], dtype=tokens.dtype)
    rest: list[Numbers] = []
    spans: list[Numbers] = [dot]
    place = 0
    for start, width in zip(drawn.spans[row].tolist(), drawn.widths[row].tolist(), strict=True):
        rest += [piece[place:start], dot]
        place = start + width
        spans += [piece[start:place], dot]
    return np.concatenate([*rest, piece[place:], *spans])


def _whole(draw: NDArray[np.float64], least: Numbers | int, most: Numbers | int) -> Numbers:
    """Uniform draws from 0 … 1 as whole numbers from least to most, both included."""
    numbers: Numbers = (least + np.floor(draw * (np.asarray(most) - least + 1))).astype(np.int64)
    return numbers
