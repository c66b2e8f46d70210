"""Unlabeled text next to labeled rows: lines of a file, a Hub dataset, or the training texts themselves.

Texts that the test split has in common with the unlabeled text are counted: a model that has read the test texts, even
without labels, is scored on what it has seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hftune.data.chunks import PLAIN
from hftune.data.corpus import fingerprint_of, lines_of, open_splits, unescaped
from hftune.data.load import load
from hftune.data.locate import DATASETS, UNLABELED, as_path, words_of
from hftune.data.readers import FORMATS
from hftune.data.settings import CorpusData, JointData
from hftune.data.splits import Splits, subset
from hftune.data.text_files import ending_of
from hftune.errors import HftuneError, count, listing, quote

TRAIN = "train"
"""Name of the training texts, all of them, whatever data.max_train_samples is."""
MIN_LENGTH = 20
"""Characters of a test text that is searched inside others; shorter ones occur by chance."""


@dataclass(frozen=True)
class Unlabeled:
    """Texts without labels."""

    texts: list[str]
    source: str
    """Their name in the recipe."""
    notes: tuple[str, ...]

    def fingerprint(self) -> str:
        """A hash of the texts in their order."""
        return fingerprint_of(self.texts)


@dataclass(frozen=True)
class JointSplits(Splits):
    """Labeled splits, and unlabeled texts."""

    unlabeled: Unlabeled

    def leaks(self) -> dict[str, int]:
        """For validation and test, if any: rows of which a text is among the unlabeled texts."""
        found: dict[str, int] = {}
        for name, rows in self.named.items():
            if name != TRAIN:
                texts = zip(*(rows[column] for column in self.columns), strict=True)
                seen = seen_among(texts, self.unlabeled.texts)
                found |= {name: seen} if seen else {}
        return found

    def leak_warnings(self) -> tuple[str, ...]:
        """A warning for each of them."""
        return tuple(
            f"{seen:,} of the {self.rows[split]:,} {split} texts are in the unlabeled text: the model reads what it is "
            f"scored on, so {split} scores may be too high"
            for split, seen in self.leaks().items()
        )


def load_joint_data(section: JointData) -> JointSplits:
    """Read labeled splits and the unlabeled texts that the section names."""
    splits = load(section)
    embedded = DATASETS.get(section.dataset_name)
    has_unlabeled = embedded is not None and embedded.unlabeled is not None
    name = section.unlabeled or (section.dataset_name if has_unlabeled else TRAIN)
    if name == TRAIN:
        limited = section.max_train_samples is not None
        texts = (load(section.model_copy(update={"max_train_samples": None})) if limited else splits).texts()
    else:
        texts = _texts(name)
    note = f"unlabeled: {count(len(texts), 'text')} of {name}"
    size = section.max_unlabeled_samples
    if size is not None:
        if size > len(texts):
            raise HftuneError(
                f"data.max_unlabeled_samples is {size:,}, but {quote(name)} has {len(texts):,} unlabeled texts",
                hint=f"set it to at most {len(texts)}, or leave --max-unlabeled-samples out to use all",
            )
        texts = [texts[row] for row in subset([""] * len(texts), size, section.split_seed)]
        note += f", {len(texts):,} of them drawn with seed {section.split_seed}"
    return JointSplits(**vars(splits), unlabeled=Unlabeled(texts, name, (note,)))


def seen_among(rows: Iterable[Sequence[str]], others: Sequence[str]) -> int:
    """How many rows have a text that occurs among others, whole or inside one; whitespace and case do not count."""
    lines = {_plain(other) for other in others}
    # A character that no plain text holds keeps texts from being found across the border of two.
    everything = "\0".join(lines)

    @cache  # many questions are asked about one passage
    def seen(text: str) -> bool:
        plain = _plain(text)
        return plain in lines or (len(plain) >= MIN_LENGTH and plain in everything)

    return sum(any(map(seen, row)) for row in rows)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


def _texts(name: str) -> list[str]:
    if name in DATASETS:
        file = DATASETS[name].unlabeled
        if file is None:
            raise HftuneError(
                f"the embedded dataset {quote(name)} has no unlabeled texts",
                hint="use --unlabeled train for its training texts, or name a file of texts",
            )
        return unescaped(lines_of(DATASETS[name].folder / file))
    path = as_path(name)
    known = [TRAIN, *(one for one in DATASETS if DATASETS[one].unlabeled is not None)]
    if path is not None and path.is_dir():
        path = _in_folder(path)
    splits, _ = open_splits(CorpusData(dataset_name=name if path is None else str(path)), known)
    return unescaped(splits[TRAIN])


def _in_folder(folder: Path) -> Path:
    files = sorted(path for path in folder.iterdir() if path.is_file() and ending_of(path) in (*FORMATS, *PLAIN))
    found = [path for path in files if UNLABELED & set(words_of(path))] or (files if len(files) == 1 else [])
    if len(found) == 1:
        return found[0]
    raise HftuneError(
        f"the folder {quote(folder.name)} has {'several files' if found else 'no file'} of unlabeled text: one with "
        f"'unlabeled' in its name is expected; it holds {listing(path.name for path in files)}",
        hint="name the file itself: --unlabeled FOLDER/FILE",
    )
