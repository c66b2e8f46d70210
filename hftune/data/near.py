"""Texts that are nearly the same: MinHash over runs of three words, banded, hits checked. Called by ``checks``.

Two texts are near when the runs of words they share are at least ``THRESHOLD`` of the runs they have. Candidates come
from banded signatures (a pair at the threshold is missed less than once in a hundred times), so that the work grows
with the number of texts and not with its square.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.8
RUN = 3
"""Words in a run; a shorter text is one run."""
BANDS, BAND = 10, 4
EARLIER = 6
"""With how many texts before it, of those that share a band, a text is compared: bounds the work on boilerplate."""
CHUNK = 2_000
"""Texts at a time: few enough for the processor's cache."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""A word; one character of the scripts that put no blanks between words."""

Hashes = NDArray[np.uint64]


def near_pairs(texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[tuple[int, int]]:
    """Places of texts that are near each other, the earlier one first.

    Args:
        texts: all different, or the same text is found as its own neighbor.
        seconds: second texts of pairs; then both texts must be near.
    """
    words: dict[str, int] = {}
    parts = [_runs(texts, words)] if seconds is None else [_runs(texts, words), _runs(seconds, words)]
    # The minimum over both texts is that of their runs together: a pair is a candidate as a whole.
    signatures = np.minimum.reduce([_signatures(part) for part in parts])
    found = []
    for one, two in _candidates(signatures):
        # The share of equal minima estimates the overlap; far below the threshold the runs need no look.
        if (signatures[one] == signatures[two]).mean() < THRESHOLD - 0.3:
            continue
        if all(part.overlap(one, two) >= THRESHOLD for part in parts):
            found.append((one, two))
    return found


@dataclass(frozen=True)
class _Runs:
    """The hashes of every text's runs of words, one text after the other."""

    hashes: Hashes
    starts: NDArray[np.int64]
    """Where each text begins, and the end of the last."""

    def overlap(self, one: int, two: int) -> float:
        """Runs in both texts over runs in either."""
        first, second = (np.unique(self.hashes[self.starts[row] : self.starts[row + 1]]) for row in (one, two))
        shared = len(np.intersect1d(first, second, assume_unique=True))
        return float(shared / (len(first) + len(second) - shared))


def _runs(texts: Sequence[str], words: dict[str, int]) -> _Runs:
    """Hash the runs; a text of fewer words than a run has is filled up, so that each text has one at least."""
    hashes, counts = [], []
    for begin in range(0, len(texts), CHUNK):
        numbers: list[int] = []
        lengths: list[int] = []
        for text in texts[begin : begin + CHUNK]:
            found = WORD.findall(text.lower())
            numbers += [words.setdefault(word, len(words) + 1) for word in found] + [0] * (RUN - len(found))
            lengths.append(max(RUN, len(found)))
        flat = np.array(numbers, np.uint64)
        mixed = np.zeros(len(flat) - RUN + 1, np.uint64)
        for place in range(RUN):
            mixed = _mix(mixed * np.uint64(31) + flat[place : place + len(mixed)])
        row = np.repeat(np.arange(len(lengths)), lengths)
        hashes.append(mixed[row[: len(mixed)] == row[RUN - 1 :]])  # no run reaches over the end of its text
        counts += [length - RUN + 1 for length in lengths]
    return _Runs(np.concatenate(hashes), np.concatenate([[0], np.cumsum(counts)]))


def _mix(values: Hashes) -> Hashes:
    """Spread 64-bit numbers evenly (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _signatures(runs: _Runs) -> Hashes:
    """The smallest hash of each text under each of BANDS × BAND hash functions."""
    count = len(runs.starts) - 1
    factors = _mix(np.arange(1, 2 * BANDS * BAND + 1, dtype=np.uint64)) | np.uint64(1)
    signatures = np.zeros((count, BANDS * BAND), np.uint64)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        hashes = runs.hashes[runs.starts[begin] : runs.starts[end]]
        starts = runs.starts[begin:end] - runs.starts[begin]
        for column in range(BANDS * BAND):
            salted = hashes * factors[2 * column] + factors[2 * column + 1]
            signatures[begin:end, column] = np.minimum.reduceat(salted, starts)
    return signatures


def _candidates(signatures: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Pairs that agree in all columns of some band, each once."""
    pairs = []
    for band in range(BANDS):
        columns = signatures[:, band * BAND : (band + 1) * BAND]
        key = np.zeros(len(columns), np.uint64)
        for column in columns.T:
            key = _mix(key * np.uint64(31) + column)
        order = np.argsort(key, kind="stable")
        for back in range(1, EARLIER + 1):
            same = key[order[back:]] == key[order[:-back]]
            pairs.append(np.stack([order[:-back][same], order[back:][same]], axis=1))
    yield from map(tuple, np.unique(np.concatenate(pairs), axis=0).tolist())
