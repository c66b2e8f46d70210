"""Rows: where they come from, which of them are used, and whether they can be trained on.

``load`` is called by the tasks and by ``hftune data``; ``DATASETS`` holds the embedded datasets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hftune.config.data import LabeledData
from hftune.data.boolq import BOOLQ_MINI
from hftune.data.columns import find_roles, unused_texts
from hftune.data.corpus import CORPORA, Corpus, load_corpus
from hftune.data.embedded import Embedded
from hftune.data.label_text import with_label_text
from hftune.data.labels import check_classes, check_seen, label_order
from hftune.data.locate import (
    FILES_ONLY,
    HUB_ONLY,
    Files,
    as_path,
    files_of,
    is_hub_id,
    refuse_missing,
    refuse_settings,
)
from hftune.data.reviews import REVIEWS
from hftune.data.rows import Rows, labeled_rows, maybe_labeled_rows
from hftune.data.sources import read_file
from hftune.data.split_cache import kept
from hftune.data.splits import Splits, as_dataset, fingerprint
from hftune.data.subsets import held_out, subset
from hftune.data.table import Table, joined
from hftune.data.unlabeled import JointSplits, read_lines, with_unlabeled
from hftune.data.wording import count, quote
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset

    from hftune.config.data import CorpusData, JointData

__all__ = [
    "DATASETS",
    "Embedded",
    "JointSplits",
    "Splits",
    "load",
    "load_joint",
    "load_split",
    "load_texts",
    "split_tables",
]

DATASETS: dict[str, Embedded] = {
    REVIEWS.name: REVIEWS,
    BOOLQ_MINI.name: BOOLQ_MINI,
}
"""The embedded datasets by name."""


def load(section: LabeledData) -> Splits:
    """Read, check and split a dataset.

    Args:
        section: where the rows come from and which of them are used.

    Returns:
        The splits in canonical columns. A missing validation or test split was made from train.

    Raises:
        HftuneError: the rows can't be found, read or trained on.
    """
    if section.dataset_name in DATASETS:
        section = DATASETS[section.dataset_name].columns(section)
    files, notes = _files(section)
    made = kept(section, files, lambda: split_tables(section, *_tables(section, files)))
    return replace(made, notes=(*notes, *made.notes))


def split_tables(section: LabeledData, tables: dict[str, Table], notes: Sequence[str] = ()) -> Splits:
    """Check the rows of all tables, make the splits that are missing, take the subset that is asked for."""
    roles = find_roles(tables["train"], section)
    tables, named = with_label_text(tables, roles.label)
    notes = [*notes, *unused_texts(tables["train"], roles, section), *named]
    rows = {"train": labeled_rows(tables["train"], roles)}
    if "validation" in tables:
        rows["validation"] = labeled_rows(tables["validation"], roles)
    if "test" in tables:
        rows["test"] = maybe_labeled_rows(tables["test"], roles)
    notes += [note for part in rows.values() for note in part.notes]

    trained = rows["train"].labels or []
    labels = label_order(trained, tables["train"].classes.get(roles.label))
    check_classes(trained, rows["train"].where)
    for split in ("validation", "test"):
        if split in rows:
            check_seen(rows[split].labels or [], set(trained), rows[split].where)
    if "test" in rows and rows["test"].labels is None:
        notes.append("test has no labels: it gets predictions and no scores")

    notes += _make_missing(rows, section)
    if section.max_train_samples is not None:
        rows["train"] = _subset(rows["train"], section.max_train_samples, section.split_seed, len(set(trained)), notes)
    for split, size in (("validation", section.max_eval_samples), ("test", section.max_predict_samples)):
        if size is not None and split in rows:
            rows[split] = _first_of_many(rows[split], size, section.split_seed, split, notes)
    hashes = {split: fingerprint(part, labels) for split, part in rows.items()}
    built = {split: as_dataset(part, labels, hashes[split]) for split, part in rows.items()}
    return Splits(
        train=built["train"],
        validation=built["validation"],
        test=built.get("test"),
        labels=labels,
        source=section.dataset_name,
        fingerprints=hashes,
        notes=tuple(notes),
    )


def load_joint(section: JointData) -> JointSplits:
    """Read labeled splits, and the unlabeled texts beside them.

    Raises:
        HftuneError: either can't be found, read or trained on.
    """
    splits = load(section)
    whole = (
        splits if section.max_train_samples is None else load(section.model_copy(update={"max_train_samples": None}))
    )
    return with_unlabeled(splits, whole, section, DATASETS)


def load_texts(section: CorpusData, *, shortest: int = 1, drop_short: bool = False) -> Corpus:
    """Plain text in splits: a corpus, or the texts of labeled data, whose labels are not looked at.

    An embedded dataset gives its unlabeled texts, where it has some, to train on.

    Args:
        section: Where the text comes from.
        shortest: Fewest characters of a document of a corpus; embedded texts all have more.
        drop_short: Leave shorter ones out; they are refused otherwise.

    Raises:
        HftuneError: the text can't be found, read or trained on.
    """
    known = DATASETS.get(section.dataset_name)
    if known is None and section.documents != "labeled":
        return load_corpus(section, shortest=shortest, drop_short=drop_short, known=list(DATASETS))
    if section.documents not in (None, "labeled"):
        raise HftuneError(
            f"data.documents is {section.documents!r}, but {section.dataset_name} has one text a row",
            hint="leave data.documents out",
        )
    shared = {name: value for name, value in section.model_dump().items() if name in LabeledData.model_fields}
    splits = load(LabeledData(**{**shared, "kind": "labeled", "validation_size": section.validation_size or 0.1}))
    texts = {name: splits.texts(name) for name in splits.named}
    notes = list(splits.notes)
    if known is not None and known.unlabeled is not None and section.documents != "labeled":
        texts["train"] = read_lines(known.folder / known.unlabeled)
        notes.append(f"train is the {len(texts['train']):,} unlabeled texts of {section.dataset_name}")
    return Corpus(
        train=tuple(texts["train"]),
        validation=tuple(texts["validation"]),
        test=tuple(texts["test"]) if "test" in texts else None,
        validation_is_train=False,
        source=section.dataset_name,
        notes=tuple(notes),
    )


def load_split(section: LabeledData, split: str | None, labels: Sequence[str]) -> tuple[str, Dataset]:
    """One split as it lies there, for scoring a model that knows these labels. Nothing is cut or made.

    Args:
        section: where the rows come from.
        split: train, validation or test; all for a dataset of one part; test or else all where None.
        labels: the model's label names, in its order.

    Returns:
        The name of the split, and its rows.

    Raises:
        HftuneError: the rows can't be found or read, or have a label that the model does not know.
    """
    if section.dataset_name in DATASETS:
        section = DATASETS[section.dataset_name].columns(section)
    files, _ = _files(section)
    tables, _ = _tables(section, files, needs_train=False)
    single = len(tables) == 1
    split = split or ("all" if single else "test")
    if split not in tables and not (single and split == "all"):
        choices = "all" if single else ", ".join(tables)
        raise HftuneError(
            f"{quote(section.dataset_name)} has no {split} split", hint=f"choose one with --split: {choices}"
        )
    split_name = next(iter(tables)) if split == "all" else split
    roles = find_roles(tables.get("train", tables[split_name]), section)
    tables, _ = with_label_text(tables, roles.label)
    rows = maybe_labeled_rows(tables[split_name], roles)
    strange = sorted(set(rows.labels or []) - set(labels))
    if strange:
        raise HftuneError(
            f"{quote(rows.where)} has the label {quote(strange[0])}, which the model does not know "
            f"({', '.join(labels)})",
            hint="score it on data with the labels it was trained on, or name another --label-column",
        )
    return split, as_dataset(rows, labels, fingerprint(rows, labels))


def _files(section: LabeledData) -> tuple[Files, list[str]]:
    """The files of each split, of an embedded folder or a path; none where the rows come from the Hub."""
    path = as_path(section.dataset_name)
    notes: list[str] = []
    embedded = DATASETS.get(section.dataset_name)
    if embedded is not None:
        if path is not None:
            notes.append(
                f"{section.dataset_name} is the embedded dataset; the one in this folder would be "
                f"./{section.dataset_name}"
            )
        files = embedded.split_files(section)
    elif path is not None:
        files = files_of(path, section)
    elif section.dataset_name in CORPORA:
        raise HftuneError(
            f"{section.dataset_name} is an embedded text without labels",
            hint=f"train on it with `hftune pretrain --corpus {section.dataset_name}`; labeled are "
            f"{', '.join(DATASETS)}",
        )
    elif is_hub_id(section.dataset_name):
        refuse_settings(section, FILES_ONLY, "comes from the Hub")
        return {}, notes
    else:
        raise refuse_missing(section.dataset_name, list(DATASETS))
    refuse_settings(section, HUB_ONLY, "does not come from the Hub")
    return files, notes


def _tables(section: LabeledData, files: Files, *, needs_train: bool = True) -> tuple[dict[str, Table], list[str]]:
    """What each split holds, from its files or the Hub, and what was decided in choosing them."""
    if not files:
        from hftune.data.hub import hub_tables

        return hub_tables(section, list(DATASETS), needs_train=needs_train)
    named = [
        name
        for name in (section.text_column_name, section.text_pair_column_name, section.label_column_name)
        if name is not None
    ]
    return {split: joined([read_file(file, named) for file in paths]) for split, paths in files.items()}, []


def _make_missing(rows: dict[str, Rows], section: LabeledData) -> list[str]:
    """Cut the splits that are not there from train; rows of one text stay together."""
    shares = {}
    if "test" not in rows and section.test_size > 0:
        shares["test"] = section.test_size
    if "validation" not in rows:
        shares["validation"] = section.validation_size
    if not shares:
        return []
    if sum(shares.values()) >= 1:
        raise HftuneError(
            f"data.validation_size and data.test_size together take all of train: {sum(shares.values()):g}",
            hint="make their sum less than 1",
        )
    train = rows["train"]
    pairs = train.pairs if train.pairs is not None else [""] * len(train)
    keys = list(zip(train.texts, pairs, strict=True))
    made = held_out(keys, train.labels or [], list(shares.values()), section.split_seed)
    for split, indices in zip(shares, made, strict=True):
        if not indices:
            raise HftuneError(
                f"{quote(train.where)} has too few different texts ({len(set(keys))}) to make {split} from",
                hint=f"give a {split} split, or more rows: one text of every label stays in train",
            )
        rows[split] = train.take(indices)
    taken = {index for indices in made for index in indices}
    rows["train"] = train.take([index for index in range(len(train)) if index not in taken])
    return [
        f"{split} was made from train: {count(len(rows[split]), 'row')}, stratified, seed {section.split_seed}"
        for split in shares
    ]


def _subset(train: Rows, size: int, seed: int, classes: int, notes: list[str]) -> Rows:
    """The labeled rows a low-label run trains on."""
    if size > len(train):
        raise HftuneError(
            f"data.max_train_samples asks for {size:,} labeled rows, train has {len(train):,}",
            hint=f"ask for at most {len(train)}, or leave --max-train-samples out to train on all",
        )
    labels = train.labels or []
    chosen = train.take(subset(labels, size, seed))
    check_classes(chosen.labels or [], f"the {size} rows of data.max_train_samples")
    notes.append(f"train is {size:,} of {len(train):,} rows, stratified, seed {seed}")
    if size < classes:
        notes.append(f"{size} training rows can't show all {classes} labels")
    return chosen


def _first_of_many(rows: Rows, size: int, seed: int, split: str, notes: list[str]) -> Rows:
    """The rows that are scored of a split: stratified where it has labels; all where it has no more."""
    if size >= len(rows):
        return rows
    notes.append(f"{split} is {size:,} of {len(rows):,} rows, stratified, seed {seed}")
    return rows.take(subset(rows.labels or [""] * len(rows), size, seed))
