"""Plain text in documents, split: what language models are pretrained on. Called by the tasks that do so.

Knowledge that only one document holds can be learned from that document alone. So a task may ask for nothing to be held
out (``data.validation_size`` 0): validation is then drawn from the training documents, and its score says what is
remembered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hftune.assets import embedded_data_dir
from hftune.config.data import CorpusData
from hftune.data.compressed import ending_of
from hftune.data.documents import PLAIN, TABLES, Documents, from_table, read_documents
from hftune.data.locate import (
    FILES_ONLY,
    HUB_ONLY,
    Files,
    as_path,
    files_of,
    folder_files,
    is_hub_id,
    refuse_missing,
    refuse_settings,
)
from hftune.data.subsets import held_out
from hftune.data.wording import count, quote
from hftune.errors import HftuneError

DRAWN = 500
"""Training documents that stand in for a validation split where nothing is held out."""


@dataclass(frozen=True)
class EmbeddedCorpus:
    """A text that ships with hftune."""

    name: str
    about: str
    """One line for ``hftune data ls``."""
    files: dict[str, str]
    """The file of each split."""
    documents: str = "lines"
    """What one document of it is."""

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return embedded_data_dir() / self.name

    def row_counts(self) -> dict[str, int]:
        """How many documents each split has."""
        section = CorpusData(dataset_name=self.name)
        return {
            split: len(read_documents(self.folder / file, section, self.documents))
            for split, file in self.files.items()
        }


CORPORA: dict[str, EmbeddedCorpus] = {
    corpus.name: corpus
    for corpus in (
        EmbeddedCorpus(
            "births", "invented people and where they were born: a text, and questions about it", {"train": "wiki.txt"}
        ),
        EmbeddedCorpus(
            "prose",
            "invented short stories in plain English",
            {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"},
            "paragraphs",
        ),
    )
}
"""The embedded texts by name."""


@dataclass(frozen=True)
class Corpus:
    """The documents of each split."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...] | None
    validation_is_train: bool
    """Whether the validation documents are among those of train."""
    source: str
    """The corpus as the recipe names it."""
    notes: tuple[str, ...]
    """What was decided on the way and a reader of the results should know."""

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The splits there are, by name."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: texts for name, texts in every.items() if texts is not None}

    @property
    def fingerprints(self) -> dict[str, str]:
        """A hash of each split's documents in their order, the same on every machine."""
        return {name: fingerprint_of(texts) for name, texts in self.named.items()}


def load_corpus(
    section: CorpusData, *, shortest: int = 1, drop_short: bool = False, known: Sequence[str] = ()
) -> Corpus:
    """Read, check and split a corpus.

    Args:
        section: Where the text comes from; ``validation_size`` is a number by then.
        shortest: Fewest characters of a document.
        drop_short: Leave shorter ones out; they are refused otherwise.
        known: What else the caller takes for a name, for the error about one that leads nowhere.

    Raises:
        HftuneError: The text can't be found, read or trained on.
    """
    assert section.validation_size is not None, "a recipe states it as a number"
    read, notes = _read(section, [*known, *CORPORA])
    splits: dict[str, Documents] = {}
    for split, documents in read.items():
        if not len(documents):
            raise HftuneError(f"{quote(documents.where)} holds no text", hint="give a file that holds some")
        splits[split], said = documents.without_short(shortest, drop=drop_short)
        notes += [said] if said else []
    train, validation_is_train = splits["train"].texts, False
    if "validation" in splits:
        validation = splits["validation"].texts
    elif section.validation_size:
        train, validation = _hold_out(splits["train"], section.validation_size, section.split_seed)
        notes.append(f"validation was made from train: {count(len(validation), 'document')}, seed {section.split_seed}")
    else:
        validation, validation_is_train = _drawn(train, section.split_seed), True
        notes.append(
            f"nothing is held out: validation is {count(len(validation), 'document')} of train, and tells what is "
            "remembered"
        )
    test = splits["test"].texts if "test" in splits else None
    return Corpus(train, validation, test, validation_is_train, section.dataset_name, tuple(notes))


def _read(section: CorpusData, known: list[str]) -> tuple[dict[str, Documents], list[str]]:
    """The documents of each split that is there, from an embedded folder, a path or the Hub."""
    found = corpus_files(section)
    if found is None:
        refuse_cut_of_hub(section)
        from hftune.data.hub import hub_tables

        tables, notes = hub_tables(section, known)
        return {split: from_table(table, section) for split, table in tables.items()}, notes
    return {
        split: _joined([read_documents(file, section, found.documents) for file in paths])
        for split, paths in found.files.items()
    }, list(found.notes)


@dataclass(frozen=True)
class CorpusFiles:
    """A corpus that lies in files, before any of them is read."""

    files: Files
    documents: str
    """What one document of a text file is."""
    notes: tuple[str, ...]


def corpus_files(section: CorpusData) -> CorpusFiles | None:
    """The files of an embedded corpus or of a path; None for a name that can only be one of the Hub."""
    if section.documents == "labeled":
        raise HftuneError("documents are 'labeled' texts for masked words only", hint="use lines, paragraphs or file")
    embedded, path = CORPORA.get(section.dataset_name), as_path(section.dataset_name)
    if embedded is None and path is None:
        if not is_hub_id(section.dataset_name) or ending_of(Path(section.dataset_name)) in PLAIN[:-1]:
            raise refuse_missing(section.dataset_name, list(CORPORA))
        refuse_settings(section, FILES_ONLY, "comes from the Hub")
        return None
    refuse_settings(section, HUB_ONLY, "does not come from the Hub")
    notes: tuple[str, ...] = ()
    if embedded is not None and path is not None:
        notes = (
            f"{section.dataset_name} is the embedded text; the one in this folder would be ./{section.dataset_name}",
        )
    files = _embedded_files(embedded, section) if embedded is not None else _own_files(path, section)
    documents = section.documents or (embedded.documents if embedded is not None else "lines")
    return CorpusFiles(files, documents, notes)


def _own_files(path: Path | None, section: CorpusData) -> Files:
    assert path is not None, "an embedded name or a path"
    return files_of(path, section, (*PLAIN, *TABLES))


def _embedded_files(embedded: EmbeddedCorpus, section: CorpusData) -> Files:
    if not embedded.folder.is_dir():
        raise HftuneError(
            f"the files of the embedded text {quote(embedded.name)} are not where hftune was installed",
            hint=f"install hftune again, or make them with `hftune data make {embedded.name}`",
        )
    asked = section.split_files
    named = embedded.files | {split: name for split, name in asked.items() if name}
    return folder_files(embedded.folder, named, PLAIN)


def refuse_cut_of_hub(section: CorpusData) -> None:
    """A dataset of the Hub has its documents cut already."""
    if section.documents is not None:
        raise HftuneError(
            f"data.documents is {section.documents!r}, but a dataset of the Hub has one document a row",
            hint="leave data.documents out",
        )


def _joined(parts: Sequence[Documents]) -> Documents:
    """The shards of one split as one."""
    if len(parts) == 1:
        return parts[0]
    return Documents(
        f"{parts[0].where} … {parts[-1].where}",
        tuple(text for part in parts for text in part.texts),
        tuple(f"{place} of {part.where}" for part in parts for place in part.places),
    )


def _hold_out(documents: Documents, share: float, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Train without validation, and validation; documents that say the same stay together."""
    texts = documents.texts
    (chosen,) = held_out(texts, [""] * len(texts), [share], seed)
    if not chosen:
        raise HftuneError(
            f"{quote(documents.where)} has too few different documents ({len(set(texts))}) to hold some out as "
            "validation",
            hint="give a validation split, or draw validation from train with --set data.validation_size=0",
        )
    taken = set(chosen)
    return tuple(text for row, text in enumerate(texts) if row not in taken), tuple(texts[row] for row in chosen)


def _drawn(texts: Sequence[str], seed: int) -> tuple[str, ...]:
    """Some of the documents, in their order."""
    random = Random(seed)
    drawn = sorted(range(len(texts)), key=lambda row: random.random())[:DRAWN]
    return tuple(texts[row] for row in sorted(drawn))


def fingerprint_of(texts: Sequence[str]) -> str:
    """A hash of texts in their order, the same on every machine."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        # The length goes before the bytes, so that no two different corpora give one stream.
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
