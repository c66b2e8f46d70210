"""Tokenized rows as a map-style dataset that Trainer can index, padded only when batched.

All token ids of a split lie in one array and not in lists: a row costs a few bytes a token, and an array that was kept
on disk (``hftune.tasks.token_cache``) is read as rows are asked for.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

IDS, MASK = "input_ids", "attention_mask"


def cut_note(lengths: Sequence[int], limit: int, what: str, instead: str) -> tuple[str, ...]:
    """Say how many rows are as long as they may be, and so were cut, but for a few by chance; nothing below 1 %."""
    full = sum(length >= limit for length in lengths)
    if full < 0.01 * len(lengths) or not full:
        return ()
    return (f"{full:,} of {len(lengths):,} {what} are cut at {limit} tokens; {instead}",)


@dataclass(frozen=True)
class Encoded:
    """What a tokenizer made of some texts."""

    columns: Mapping[str, NDArray[Any]]
    """By name, the values of all rows, one after the other; a mask, which is all ones before padding, is left out."""
    ends: NDArray[np.int64]
    """Where each row ends."""
    masked: bool
    """Whether rows have a mask."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Sequence[int]]]) -> Encoded:
        """Rows of numbers as arrays."""
        held: dict[str, array[int]] = {}  # four bytes a number, and nothing for each row
        ends, masked = [0], False
        for row in rows:
            masked = MASK in row
            for name, values in row.items():
                if name != MASK:
                    held.setdefault(name, array("I")).extend(values)
            ends.append(ends[-1] + len(row[IDS]))
        joined = {name: np.frombuffer(numbers, dtype=np.uint32) for name, numbers in held.items()}
        return cls(
            {name: values.astype(np.min_scalar_type(values.max())) for name, values in joined.items()},
            np.array(ends[1:], dtype=np.int64),
            masked,
        )


class TokenizedRows(Dataset[dict[str, Any]]):
    """Encoded texts and their labels."""

    def __init__(self, encoded: Encoded, labels: Sequence[Any]) -> None:
        """One encoding and one label a row."""
        assert len(encoded.ends) == len(labels), "a label for every row"
        self._encoded = encoded
        self._labels = list(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ends = self._encoded.ends
        start, end = (0 if index == 0 else ends[index - 1]), ends[index]
        row = {name: values[start:end].tolist() for name, values in self._encoded.columns.items()}
        if self._encoded.masked:
            row[MASK] = [1] * int(end - start)
        return {**row, "labels": self._labels[index]}

    @property
    def fingerprint(self) -> str:
        """A hash of all token ids, in order."""
        digest = hashlib.sha256(self._encoded.ends.tobytes())
        ids = self._encoded.columns[IDS]
        for start in range(0, len(ids), 1 << 20):  # not a second copy of everything
            digest.update(ids[start : start + (1 << 20)].astype(np.uint32).tobytes())
        return digest.hexdigest()

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, for length buckets."""
        lengths: list[int] = np.diff(self._encoded.ends, prepend=0).tolist()
        return lengths
