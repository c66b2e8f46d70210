"""Tokenised rows as a map-style dataset that Trainer can index: lists of ids, padded only when batched."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset


class TokenisedRows(Dataset[dict[str, Any]]):
    """Encoded texts and their labels."""

    def __init__(self, encoded: Sequence[dict[str, list[int]]], labels: Sequence[Any]) -> None:
        """One encoding and one label a row."""
        assert len(encoded) == len(labels), "a label for every row"
        self._encoded = encoded
        self._labels = list(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._encoded[index], "labels": self._labels[index]}

    @property
    def fingerprint(self) -> str:
        """A hash of all token ids, in order."""
        digest = hashlib.sha256()
        for row in self._encoded:
            digest.update(array("q", [len(row["input_ids"]), *row["input_ids"]]).tobytes())
        return digest.hexdigest()

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, for length buckets."""
        return [len(row["input_ids"]) for row in self._encoded]
