"""Plain text for language models, as splits of documents.

``stream_corpus`` reads text of any size in chunks, again for each pass; ``load_texts`` keeps the documents in memory.

A fact that only one document has can't be learned if that document is held out. So nothing has to be held out
(``data.validation_size`` 0): validation is then drawn from the training documents, and its score measures memorization.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hftune.data.chunks import PLAIN, TABLES, Chunk, file_chunks, hub_chunks
from hftune.data.load import load
from hftune.data.locate import CORPORA, DATASETS, locate, refuse_unused_sizes
from hftune.data.settings import CorpusData, LabeledData
from hftune.data.splits import NamedSplits, framed, make_splits, subset
from hftune.errors import HftuneError, count, quote

DOCUMENT_END = b"\xff"
"""Hashed after each document; no UTF-8 text contains this byte."""
DRAWN_DOCUMENTS = 500
"""Number of training documents that serve as validation when nothing is held out."""
DOCUMENTS_HINT = "see what one document is with --set data.documents=lines|paragraphs|file"


@dataclass(frozen=True)
class TextFacts:
    """The size of a split."""

    documents: int
    bytes: int
    """Of the text as UTF-8, without what separates documents."""
    words: int
    """Separated by whitespace."""
    fingerprint: str

    def as_dict(self) -> dict[str, int]:
        """The sizes, for metrics.json."""
        return {"documents": self.documents, "bytes": self.bytes, "words": self.words}


@dataclass(frozen=True)
class TextSplit:
    """The documents of one split, or those of it that were chosen."""

    where: str
    """Its name in messages."""
    read: Callable[[], Iterator[Chunk]]
    chosen: NDArray[np.bool_] | None = None
    """For each document whether it is part of the split; None takes all."""

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks in their order, read again each time."""
        number = 0
        for chunk in self.read():
            if self.chosen is None or self.chosen[number]:
                yield chunk
            number += chunk.ends

    def texts(self) -> Iterator[str]:
        """The text of the chunks that have any, for training a tokenizer."""
        return (chunk.text for chunk in self if chunk.text)

    def documents(self) -> Iterator[tuple[str, str]]:
        """Whole documents with their places."""
        parts: list[str] = []
        for chunk in self:
            parts.append(chunk.text)
            if chunk.ends:
                yield "".join(parts), chunk.place
                parts = []

    def all_texts(self) -> list[str]:
        """Whole documents, in memory; raises an error if there are none."""
        texts = [text for text, _ in self.documents()]
        if not texts:
            raise _no_text(self.where)
        return texts


@dataclass(frozen=True)
class TextCorpus(NamedSplits[TextSplit]):
    """The splits of a corpus, which are read as they are used, and their sizes."""

    validation_is_train: bool
    """Whether the validation documents are among those of train."""
    facts: Mapping[str, TextFacts]

    @property
    def rows(self) -> dict[str, int]:
        """The number of documents of each split."""
        return {name: facts.documents for name, facts in self.facts.items()}

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each split's text."""
        return {name: facts.fingerprint for name, facts in self.facts.items()}


@dataclass(frozen=True)
class Corpus(NamedSplits[tuple[str, ...]]):
    """The documents of each split, in memory."""

    validation_is_train: bool
    """Whether the validation documents are among those of train."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each split's documents in their order, the same on every machine."""
        return {name: fingerprint_of(texts) for name, texts in self.named.items()}


def stream_corpus(section: CorpusData) -> TextCorpus:
    """Find the splits of a corpus and read each once, to count and to check it."""
    splits, notes = open_splits(section)
    refuse_unused_sizes(section, splits, draws="validation" not in splits)
    surveys = {name: _survey(split, hashes="validation" not in splits) for name, split in splits.items()}
    validation_is_train = False
    if "validation" not in splits:
        train = splits["train"]
        chosen, validation_is_train = _choose(section, surveys["train"][1], train.where, notes)
        made = {"validation": replace(train, chosen=chosen)}
        if not validation_is_train:
            made["train"] = replace(train, chosen=~chosen)
        splits |= made
        surveys |= {name: _survey(split) for name, split in made.items()}
    return TextCorpus(
        splits["train"],
        splits["validation"],
        splits.get("test"),
        source=section.dataset_name,
        facts={name: facts for name, (facts, _) in surveys.items()},
        validation_is_train=validation_is_train,
        notes=tuple(notes),
    )


def load_texts(section: CorpusData, *, min_length: int = 1, drop_short: bool = False) -> Corpus:
    """Read a corpus into memory, or the texts of labeled data without their labels.

    An embedded dataset gives its unlabeled texts, if it has some, to train on.

    Args:
        section: Where the text comes from.
        min_length: Minimum number of characters of a document; all embedded texts are longer.
        drop_short: Leave shorter ones out; they are refused otherwise.
    """
    if section.dataset_name in DATASETS or section.documents == "labeled":
        return _texts_of_labeled(section)
    splits, notes = open_splits(section)
    texts: dict[str, list[str]] = {}
    for name, split in splits.items():
        documents = list(split.documents())
        if not documents:
            raise _no_text(split.where)
        kept = [(text, place) for text, place in documents if len(text) >= min_length]
        if len(kept) < len(documents):
            notes.append(_short_documents(split.where, documents, min_length, drop=drop_short and bool(kept)))
        # Line breaks around a whole file are not part of its text.
        texts[name] = [text.strip("\r\n") if section.documents == "file" else text for text, _ in kept]
    refuse_unused_sizes(section, splits, draws=True)  # masks and corruption of validation are drawn with split_seed
    validation_is_train = False
    if "validation" not in texts:
        chosen, validation_is_train = _choose(section, _hashes(texts["train"]), splits["train"].where, notes)
        texts["validation"] = list(compress(texts["train"], chosen))
        if not validation_is_train:
            texts["train"] = list(compress(texts["train"], ~chosen))
    return _corpus(section, texts, notes, validation_is_train)


def open_splits(
    section: CorpusData, known: Sequence[str] = (*DATASETS, *CORPORA)
) -> tuple[dict[str, TextSplit], list[str]]:
    """The existing splits, none of them read yet, and notes on how they were found.

    Args:
        section: Where the text comes from: an embedded dataset, a path or the Hub.
        known: Other names to suggest for one that does not exist.
    """
    name = section.dataset_name
    if name in DATASETS:
        data = load_texts(section)
        splits = {split: TextSplit(name, partial(in_memory, texts)) for split, texts in data.named.items()}
        return splits, list(data.notes)
    if section.documents == "labeled":
        raise HftuneError(
            "data.documents 'labeled' is for masked language models only", hint="use lines, paragraphs or file"
        )
    source = locate(section, CORPORA, (*PLAIN, *TABLES), known)
    if not source.files:
        return _hub_splits(section, known)
    documents = section.documents or (source.embedded.documents if source.embedded is not None else "lines")
    splits = {}
    for split, paths in source.files.items():
        where = paths[0].name if len(paths) == 1 else f"{paths[0].name} … {paths[-1].name}"
        splits[split] = TextSplit(where, partial(_files_chunks, paths, section, documents))
    return splits, source.notes


def _hub_splits(section: CorpusData, known: Sequence[str]) -> tuple[dict[str, TextSplit], list[str]]:
    if section.documents is not None:
        raise HftuneError(
            f"data.documents is {section.documents!r}, but a dataset of the Hub has one document per row",
            hint="leave data.documents out",
        )
    from hftune.data.hub import hub_splits

    loaded, notes = hub_splits(section, known)
    return {
        split: TextSplit(where, partial(hub_chunks, where, rows, section)) for split, (where, rows) in loaded.items()
    }, notes


def _files_chunks(paths: Sequence[Path], section: CorpusData, documents: str) -> Iterator[Chunk]:
    for path in paths:
        chunks = file_chunks(path, section, documents)
        if len(paths) > 1:
            chunks = (chunk._replace(place=f"{chunk.place} of {path.name}") for chunk in chunks)
        yield from chunks


def in_memory(texts: Sequence[str]) -> Iterator[Chunk]:
    """Documents that are in memory."""
    return (Chunk(text, ends=True) for text in texts)


def _texts_of_labeled(section: CorpusData) -> Corpus:
    if section.documents not in (None, "labeled"):
        raise HftuneError(
            f"data.documents is {section.documents!r}, but {section.dataset_name} has one text per row",
            hint="leave data.documents out",
        )
    shared = {name: value for name, value in section if name in LabeledData.model_fields and name != "kind"}
    shared["validation_size"] = section.validation_size or 0.1
    splits = load(LabeledData.model_construct(section.model_fields_set & shared.keys(), **shared))
    texts = {name: splits.texts(name) for name in splits.named}
    notes = list(splits.notes)
    embedded = DATASETS.get(section.dataset_name)
    if embedded is not None and embedded.unlabeled is not None and section.documents is None:
        texts["train"] = unescaped(lines_of(embedded.folder / embedded.unlabeled))
        notes.append(f"train is the {len(texts['train']):,} unlabeled texts of {section.dataset_name}")
    return _corpus(section, texts, notes, validation_is_train=False)


def _corpus(
    section: CorpusData, texts: Mapping[str, Sequence[str]], notes: Sequence[str], validation_is_train: bool
) -> Corpus:
    parts = {name: tuple(part) for name, part in texts.items()}
    return Corpus(
        parts["train"],
        parts["validation"],
        parts.get("test"),
        source=section.dataset_name,
        notes=tuple(notes),
        validation_is_train=validation_is_train,
    )


def lines_of(path: Path) -> TextSplit:
    """The lines of a file that are not blank."""
    return TextSplit(path.name, partial(file_chunks, path, CorpusData(dataset_name=str(path)), "lines"))


def unescaped(split: TextSplit) -> list[str]:
    """The documents of a split whose line breaks are written as backslash and n."""
    return [text.replace("\\n", "\n").strip() for text in split.all_texts()]


def _choose(
    section: CorpusData, hashes: NDArray[np.uint64], where: str, notes: list[str]
) -> tuple[NDArray[np.bool_], bool]:
    """The documents of train that become validation, and whether they stay in train as well."""
    assert section.validation_size is not None, "a recipe states it as a number"
    labels = [""] * len(hashes)
    if section.validation_size:
        made, new_notes = make_splits(
            {"validation": section.validation_size},
            hashes,
            labels,
            section.split_seed,
            where=where,
            nouns=("document", "document"),
            hint=f"{DOCUMENTS_HINT}, or draw validation from train with --set data.validation_size=0",
        )
        rows = made["validation"]
    else:
        rows = subset(labels, DRAWN_DOCUMENTS, section.split_seed)
        new_notes = [
            f"nothing is held out: validation is {count(len(rows), 'document')} of train, and measures memorization"
        ]
    notes += new_notes
    chosen = np.zeros(len(hashes), dtype=bool)
    chosen[rows] = True
    return chosen, not section.validation_size


def _short_documents(where: str, documents: Sequence[tuple[str, str]], min_length: int, *, drop: bool) -> str:
    """A note about short documents that are dropped; raises an error if they must not be."""
    short = [(text, place) for text, place in documents if len(text) < min_length]
    text, place = short[0]
    what = (
        f"{count(len(short), 'document')} of {quote(where)} with fewer than {min_length} characters, "
        f"the first at {place}: {quote(text)}"
    )
    if not drop:
        raise HftuneError(
            f"found {what}",
            hint=f"fix the file, {DOCUMENTS_HINT}, or leave such documents out with --set task.short_documents=drop",
        )
    return f"left out {what}"


def _no_text(where: str) -> HftuneError:
    return HftuneError(f"{quote(where)} has no text", hint="give a file with text")


def _survey(split: TextSplit, *, hashes: bool = False) -> tuple[TextFacts, NDArray[np.uint64]]:
    """Sizes and fingerprint of a split, and optionally a short hash of each document."""
    whole, single = hashlib.sha256(), hashlib.blake2b(digest_size=8)
    found: list[int] = []
    documents = total = words = 0
    inside = False  # a word at the boundary of two chunks counts once
    for text, ends, _ in split:
        content = text.encode()
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
        raise _no_text(split.where)
    return TextFacts(documents, total, words, whole.hexdigest()), np.array(found, dtype=np.uint64)


def _hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    # 64 bits: among a million different documents two share a hash once in 37 million corpora (n² / 2⁶⁵), and then they
    # only stay in one split. Python's own hash() differs between processes.
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8")


def fingerprint_of(texts: Sequence[str]) -> str:
    """A hash of texts in their order, the same on every machine."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(framed(text))
    return digest.hexdigest()
