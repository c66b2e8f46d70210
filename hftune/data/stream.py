"""Text of any size, split, as a stream that can be read again and again. Called by the task ``clm`` and by tokenizers.

``hftune.data.corpus`` holds a whole corpus in memory, for tasks that draw documents; nothing here does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hftune.config.data import CorpusData
from hftune.data import DATASETS, load_texts
from hftune.data.corpus import CORPORA, DRAWN, corpus_files, refuse_cut_of_hub
from hftune.data.pieces import Piece, file_pieces, hub_pieces
from hftune.data.wording import count, quote
from hftune.errors import HftuneError

DOCUMENT_END = b"\xff"
"""Goes into the hash after each document; no UTF-8 text holds this byte."""


@dataclass(frozen=True)
class TextFacts:
    """What a split amounts to."""

    documents: int
    bytes: int
    """Of the text as UTF-8, without what separates documents."""
    words: int
    """What blanks separate."""
    fingerprint: str

    def as_dict(self) -> dict[str, int]:
        """The sizes, for metrics.json."""
        return {"documents": self.documents, "bytes": self.bytes, "words": self.words}


@dataclass(frozen=True)
class TextSplit:
    """The documents of one split, or those of it that were chosen."""

    where: str
    """What the messages call it."""
    read: Callable[[], Iterator[Piece]]
    chosen: NDArray[np.bool_] | None = None
    """For each document whether it is among these; None takes all."""

    def __iter__(self) -> Iterator[Piece]:
        """The pieces in their order, read anew."""
        if self.chosen is None:
            yield from self.read()
            return
        number = 0
        for piece in self.read():
            if self.chosen[number]:
                yield piece
            number += piece.ends

    def texts(self) -> Iterator[str]:
        """The text of the pieces, blank ones left out: what a tokenizer is trained on."""
        return (piece.text for piece in self if piece.text)


@dataclass(frozen=True)
class TextCorpus:
    """The splits of a corpus and their sizes."""

    source: str
    splits: Mapping[str, TextSplit]
    facts: Mapping[str, TextFacts]
    validation_is_train: bool
    notes: tuple[str, ...]


def stream_corpus(section: CorpusData) -> TextCorpus:
    """Find the splits of a corpus and read each once, to count and to check it.

    Raises:
        HftuneError: The text can't be found or read, or a split holds none.
    """
    assert section.validation_size is not None, "a recipe states it as a number"
    splits, notes = open_splits(section)
    surveys = {
        name: _survey(split, hashes=name == "train" and "validation" not in splits) for name, split in splits.items()
    }
    validation_is_train = False
    if "validation" not in splits:
        hashes = surveys["train"][1]
        assert hashes is not None, "asked for"
        chosen = _chosen(hashes, section.validation_size, section.split_seed, splits["train"])
        train = splits["train"]
        splits["validation"] = TextSplit(train.where, train.read, chosen)
        surveys["validation"] = _survey(splits["validation"])
        validation_is_train = not section.validation_size
        drawn = count(int(chosen.sum()), "document")
        if validation_is_train:
            notes.append(f"nothing is held out: validation is {drawn} of train, and tells what is remembered")
        else:
            splits["train"] = TextSplit(train.where, train.read, ~chosen)
            surveys["train"] = _survey(splits["train"])
            notes.append(f"validation was made from train: {drawn}, seed {section.split_seed}")
    ordered = [name for name in ("train", "validation", "test") if name in splits]
    return TextCorpus(
        source=section.dataset_name,
        splits={name: splits[name] for name in ordered},
        facts={name: surveys[name][0] for name in ordered},
        validation_is_train=validation_is_train,
        notes=tuple(notes),
    )


def open_splits(section: CorpusData) -> tuple[dict[str, TextSplit], list[str]]:
    """The splits that are there, none of them read yet, and what was decided in finding them."""
    if section.dataset_name in DATASETS:
        rows = load_texts(section)
        return {name: _in_memory(section.dataset_name, texts) for name, texts in rows.named.items()}, list(rows.notes)
    found = corpus_files(section)
    if found is None:
        refuse_cut_of_hub(section)
        from hftune.data.hub import hub_splits

        loaded, notes = hub_splits(section, [*DATASETS, *CORPORA])
        return {
            split: TextSplit(where, partial(hub_pieces, where, rows, section))
            for split, (where, rows) in loaded.items()
        }, notes

    def reader(split: str) -> Callable[[], Iterator[Piece]]:
        paths, documents = found.files[split], found.documents
        return lambda: (piece for path in paths for piece in file_pieces(path, section, documents))

    splits = {}
    for split, paths in found.files.items():
        where = paths[0].name if len(paths) == 1 else f"{paths[0].name} … {paths[-1].name}"
        splits[split] = TextSplit(where, reader(split))
    return splits, list(found.notes)


def _in_memory(name: str, texts: Sequence[str]) -> TextSplit:
    """The texts of an embedded dataset, which are few."""
    return TextSplit(name, lambda: (Piece(text, ends=True) for text in texts))


def _survey(split: TextSplit, *, hashes: bool = False) -> tuple[TextFacts, NDArray[np.uint64] | None]:
    """Sizes and fingerprint of a split, and where wanted a short hash of each document."""
    whole, single = hashlib.sha256(), hashlib.blake2b(digest_size=8)
    found: list[int] = []
    documents = total = words = 0
    inside = False  # a word that the cut between two pieces goes through counts once
    for text, ends in split:
        content = text.encode("utf-8", "surrogatepass")
        whole.update(content)
        total += len(content)
        words += len(text.split()) - (inside and bool(text) and not text[0].isspace())
        inside = not ends and (not text[-1].isspace() if text else inside)
        if hashes:
            single.update(content)
        if ends:
            whole.update(DOCUMENT_END)
            documents += 1
            if hashes:
                found.append(int.from_bytes(single.digest(), "little"))
                single = hashlib.blake2b(digest_size=8)
    if not words:
        raise HftuneError(f"{quote(split.where)} holds no text", hint="give a file that holds some")
    facts = TextFacts(documents, total, words, whole.hexdigest())
    return facts, np.array(found, dtype=np.uint64) if hashes else None


def _chosen(hashes: NDArray[np.uint64], share: float, seed: int, split: TextSplit) -> NDArray[np.bool_]:
    """Which documents become validation: drawn by their text and the seed, so that equal ones stay together."""
    key = np.frombuffer(hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=8).digest(), dtype=np.uint64)[0]
    mixed = (hashes ^ key) * np.uint64(0x9E3779B97F4A7C15)
    distinct = np.unique(mixed)
    wanted = max(1, round(share * len(distinct))) if share else min(DRAWN, len(distinct))
    if share and wanted >= len(distinct):
        raise HftuneError(
            f"{quote(split.where)} has too few different documents ({len(distinct)}) to hold some out as validation",
            hint="give a validation split, see what one document is with --set "
            "data.documents=lines|paragraphs|file, or draw "
            "validation from train with --set data.validation_size=0",
        )
    chosen: NDArray[np.bool_] = mixed <= distinct[wanted - 1]
    return chosen
