"""Unlabeled text beside labeled rows: one text a line of a file, or the training texts themselves.

``load_joint`` is called by the task ``joint``. What the test split has in common with the unlabeled text is counted: a
model that has read the test texts, even without labels, is scored on what it has seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from random import Random

from hftune.config.data import CorpusData, JointData
from hftune.data.compressed import ending_of
from hftune.data.corpus import fingerprint_of, load_corpus
from hftune.data.decode import decode, read_bytes
from hftune.data.delimited import numbered_lines
from hftune.data.embedded import Embedded
from hftune.data.locate import UNLABELED, as_path, is_hub_id, refuse_missing, words_of
from hftune.data.sources import FORMATS
from hftune.data.splits import Splits
from hftune.data.wording import count, listing, quote
from hftune.errors import HftuneError

TRAIN = "train"
"""Stands for the texts of the training split, all of them, whatever data.max_train_samples says."""
PLAIN = (".txt", ".text", "")
SHORTEST = 20
"""Characters of a test text that is looked for inside others; shorter ones occur by chance."""


@dataclass(frozen=True)
class Unlabeled:
    """Texts without labels."""

    texts: list[str]
    source: str
    """What they were called."""
    notes: tuple[str, ...]

    def fingerprint(self) -> str:
        """A hash of the texts in their order."""
        return fingerprint_of(self.texts)


@dataclass(frozen=True)
class JointSplits(Splits):
    """Labeled splits, and unlabeled texts beside them."""

    unlabeled: Unlabeled

    def leaks(self) -> dict[str, int]:
        """Rows of validation and test of which a text stands in the unlabeled texts, for the splits that have any."""
        found: dict[str, int] = {}
        for name, rows in self.named.items():
            if name != TRAIN:
                texts = zip(*(rows[column] for column in self.columns), strict=True)
                seen = seen_among(texts, self.unlabeled.texts)
                found |= {name: seen} if seen else {}
        return found


def with_unlabeled(splits: Splits, whole: Splits, section: JointData, embedded: dict[str, Embedded]) -> JointSplits:
    """Labeled splits with the unlabeled texts that the section names.

    Args:
        splits: the labeled rows.
        whole: the same with all training rows.
        section: what is read, and how much of it.
        embedded: the embedded datasets, some of which have unlabeled texts.

    Raises:
        HftuneError: there is no such text, or it can't be read.
    """
    name = section.unlabeled or _default_source(section, embedded)
    texts = whole.texts() if name == TRAIN else _texts(name, embedded)
    notes = [f"unlabeled: {count(len(texts), 'text')} of {name}"]
    if section.max_unlabeled_samples is not None:
        if section.max_unlabeled_samples > len(texts):
            raise HftuneError(
                f"data.max_unlabeled_samples asks for {section.max_unlabeled_samples:,} unlabeled texts, "
                f"{quote(name)} has "
                f"{len(texts):,}",
                hint=f"ask for at most {len(texts)}, or leave --max-unlabeled-samples out to use all",
            )
        texts = [texts[index] for index in _some(len(texts), section.max_unlabeled_samples, section.split_seed)]
        notes = [f"{notes[0]}, {len(texts):,} of them drawn with seed {section.split_seed}"]
    labeled = {field.name: getattr(splits, field.name) for field in fields(Splits)}
    return JointSplits(**labeled, unlabeled=Unlabeled(texts, name, tuple(notes)))


def seen_among(rows: Iterable[Sequence[str]], others: Sequence[str]) -> int:
    """How many rows have a text that stands among others, whole or inside one; blanks and capitals do not count."""
    lines = {_plain(other) for other in others}
    # A character that no plain text holds keeps texts from being found across the border of two.
    everything = "\0".join(lines)

    @cache  # many questions are asked about one passage
    def seen(text: str) -> bool:
        plain = _plain(text)
        return plain in lines or (len(plain) >= SHORTEST and plain in everything)

    return sum(any(map(seen, row)) for row in rows)


def _default_source(section: JointData, embedded: dict[str, Embedded]) -> str:
    known = embedded.get(section.dataset_name)
    return section.dataset_name if known is not None and known.unlabeled is not None else TRAIN


def _texts(name: str, embedded: dict[str, Embedded]) -> list[str]:
    if name in embedded:
        file = embedded[name].unlabeled
        if file is None:
            raise HftuneError(
                f"the embedded dataset {quote(name)} has no unlabeled texts",
                hint="use --unlabeled train for its training texts, or name a file of texts",
            )
        return read_lines(embedded[name].folder / file)
    path = as_path(name)
    known = [TRAIN, *(one for one in embedded if embedded[one].unlabeled is not None)]
    if path is None and not is_hub_id(name):
        raise refuse_missing(name, known)
    if path is not None and path.is_dir():
        path = _in_folder(path)
    corpus = load_corpus(CorpusData(dataset_name=name if path is None else str(path), validation_size=0.0), known=known)
    return [_unspelled(text) for text in corpus.train]


def read_lines(path: Path) -> list[str]:
    """One text a line; a line break inside a text is spelled as backslash and n."""
    texts = [_unspelled(line) for _, line in numbered_lines(decode(read_bytes(path), path))]
    if not texts:
        raise HftuneError(f"{quote(path.name)} holds no text", hint="give a file with one text a line")
    return texts


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


def _some(total: int, size: int, seed: int) -> list[int]:
    """So many row numbers in their order; a smaller choice lies in a larger one."""
    random = Random(seed)
    drawn = [random.random() for _ in range(total)]
    return sorted(sorted(range(total), key=drawn.__getitem__)[:size])


def _unspelled(line: str) -> str:
    return line.replace("\\n", "\n").strip()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()
