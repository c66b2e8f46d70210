"""The three splits of a dataset in canonical columns, with a hash of what they hold. Made by ``load``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hftune.data.rows import Rows

if TYPE_CHECKING:
    from datasets import Dataset

NO_LABEL = -1


@dataclass(frozen=True)
class Splits:
    """Labeled texts or pairs: columns ``text``, ``text_pair`` (only for pairs) and ``label``."""

    train: Dataset
    validation: Dataset
    test: Dataset | None
    labels: tuple[str, ...]
    """Label names; the column ``label`` holds their places here, -1 where test has no labels."""
    source: str
    """The dataset as the recipe names it."""
    fingerprints: dict[str, str]
    """A hash of each split's rows and label names, the same on every machine."""
    notes: tuple[str, ...]
    """What was decided on the way and a reader of the results should know."""

    @property
    def is_pair(self) -> bool:
        """Whether a row has two texts."""
        return "text_pair" in self.train.column_names

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that hold text."""
        return ("text", "text_pair") if self.is_pair else ("text",)

    def texts(self, split: str = "train") -> list[str]:
        """All texts of a split: of pairs the first ones, then the second ones."""
        return [text for column in self.columns for text in self.named[split][column][:]]

    @property
    def named(self) -> dict[str, Dataset]:
        """The splits there are, by name."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in every.items() if rows is not None}


def fingerprint(rows: Rows, labels: Sequence[str]) -> str:
    """A hash of the rows in their order and of the label names."""
    digest = hashlib.sha256()
    pairs = rows.pairs if rows.pairs is not None else [""] * len(rows)
    names = rows.labels if rows.labels is not None else [""] * len(rows)
    for part in (f"{len(labels)} {rows.pairs is not None} {rows.labels is not None}", *labels):
        digest.update(_framed(part))
    framed = {name: _framed(name) for name in set(names)}
    for text, pair, name in zip(rows.texts, pairs, names, strict=True):
        digest.update(_framed(text) + _framed(pair) + framed[name])
    return digest.hexdigest()


def as_dataset(rows: Rows, labels: Sequence[str], content_hash: str) -> Dataset:
    """Rows as a Dataset in memory; its own fingerprint follows the content, so that cached maps are found."""
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    place = {name: index for index, name in enumerate(labels)}
    numbers = [NO_LABEL] * len(rows) if rows.labels is None else [place[name] for name in rows.labels]
    columns = {"text": pa.array(rows.texts, pa.string())}
    if rows.pairs is not None:
        columns["text_pair"] = pa.array(rows.pairs, pa.string())
    columns["label"] = pa.array(numbers, pa.int64())
    return Dataset(InMemoryTable(pa.table(columns)), fingerprint=content_hash[:16])


def _framed(text: str) -> bytes:
    """The length before the bytes, so that no two different tables give one stream."""
    content = text.encode()
    return len(content).to_bytes(8, "little") + content
