"""Labeled data: read, checked, split. ``load`` is what the tasks call."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from hftune import __version__
from hftune.cache import CacheEntry, NewEntry, cache_key, cached
from hftune.data.columns import (
    ColumnMapping,
    check_classes,
    check_seen,
    find_columns,
    label_order,
    renamed,
    unused_texts,
    with_columns_of,
    with_label_text,
)
from hftune.data.locate import (
    CORPORA,
    DATASETS,
    Files,
    as_path,
    locate,
    missing_split_error,
    own_columns,
    refuse_unused_sizes,
)
from hftune.data.readers import read_table
from hftune.data.settings import JointData, LabeledData
from hftune.data.splits import (
    Splits,
    as_dataset,
    fingerprint,
    labeled_rows,
    make_splits,
    maybe_labeled_rows,
    subset,
    without_duplicates,
)
from hftune.data.tables import Problems, Reading, Table, joined
from hftune.errors import HftuneError, quote
from hftune.files import sha256

if TYPE_CHECKING:
    from datasets import Dataset

MIN_BYTES = 1_000_000
"""Total size of the files above which the cache is faster than parsing. The key has a hash of all their bytes: a file
can be changed and keep its size and time."""
NOT_ABOUT_ROWS = {"kind", "max_seq_length", "truncation"}
"""Settings of tokenization, which do not change the rows."""


def load(section: LabeledData) -> Splits:
    """Read, check and split a dataset, or find it in the cache.

    Args:
        section: Where the rows come from and which of them are used.

    Returns:
        The splits in canonical columns. A missing validation or test split was made from train.
    """
    section, files, notes = _locate(section)
    splits = _from_cache(section, files)
    return replace(splits, notes=(*notes, *splits.notes))


def load_split(
    section: LabeledData, split: str | None, labels: Sequence[str], trained: LabeledData | None = None
) -> tuple[str, Dataset]:
    """One whole split, for scoring a model that knows these labels.

    Args:
        section: Where the rows come from.
        split: train, validation or test; all for a dataset with a single split; by default test, or all.
        labels: The model's label names, in its order.
        trained: The data that the model was trained on. Its columns are used where they exist and the section names
            no other.

    Returns:
        The name of the split, and its rows.
    """
    section, files, _ = _locate(section)
    problems = Problems()
    tables, _ = _tables(section, files, problems, needs_train=False)
    single = len(tables) == 1
    split = split or ("all" if single else "test")
    if split not in tables and not (single and split == "all"):
        raise missing_split_error(section.dataset_name, split, tables)
    name = next(iter(tables)) if split == "all" else split
    first = tables.get("train", tables[name])
    if trained is not None:
        section = with_columns_of(own_columns(trained), section, first.columns)
    mapping = _mapping(first, section, problems)
    tables, _ = with_label_text({split: renamed(table, mapping) for split, table in tables.items()}, mapping.label)
    rows = maybe_labeled_rows(tables[name], mapping, [], problems, drop_missing=section.drop_missing)
    problems.refuse()
    if section.deduplicate:
        rows = without_duplicates({split: rows}, [])[split]
    unknown = sorted(set(rows.columns.get("label", ())) - set(labels))
    if unknown:
        raise HftuneError(
            f"{quote(rows.where)} has the label {quote(unknown[0])}, which the model does not know "
            f"({', '.join(labels)})",
            hint="score it on data with the labels it was trained on, or name another --label-column",
        )
    size = _limits(section).get(split, section.max_eval_samples)
    if size is not None and size < len(rows):
        rows = _subset(rows, size, section.split_seed, split, [])
    return split, as_dataset(rows, labels, fingerprint(rows, labels))


def split_tables(
    section: LabeledData, tables: dict[str, Table], notes: Sequence[str] = (), problems: Problems | None = None
) -> Splits:
    """Check the rows of all tables, make the missing splits, and take the subsets that the section names."""
    problems, notes = problems or Problems(), [*notes]
    rows, classes = _checked_rows(section, tables, notes, problems)
    trained = rows["train"].columns["label"]
    labels = label_order(trained, classes)
    check_classes(trained, rows["train"].where)
    for split in ("validation", "test"):
        if split in rows:
            with problems.collected():
                check_seen(rows[split].columns.get("label", ()), set(trained), rows[split].where)
    problems.refuse()
    if "test" in rows and "label" not in rows["test"].columns:
        notes.append("test has no labels: it gets predictions and no scores")

    made = _make_missing(rows, section)
    limits = _limits(section)
    draws = bool(made) or any(limits.values()) or isinstance(section, JointData)
    refuse_unused_sizes(section, tables, draws=draws)
    notes += made
    if section.max_train_samples is not None:
        rows["train"] = _training_subset(rows["train"], section.max_train_samples, section.split_seed, notes)
    for split in ("validation", "test"):
        size = limits[split]
        if size is not None and split in rows and size < len(rows[split]):
            rows[split] = _subset(rows[split], size, section.split_seed, split, notes)
    hashes = {split: fingerprint(part, labels) for split, part in rows.items()}
    built = {split: as_dataset(part, labels, hashes[split]) for split, part in rows.items()}
    return Splits(
        **{"test": None, **built},
        labels=tuple(labels),
        source=section.dataset_name,
        fingerprints=hashes,
        notes=tuple(notes),
    )


# ---- the rows of each split ----


def _checked_rows(
    section: LabeledData, tables: dict[str, Table], notes: list[str], problems: Problems
) -> tuple[dict[str, Table], tuple[str, ...] | None]:
    """The rows of each split in canonical columns, and the label names of the source; all problems are reported."""
    mapping = _mapping(tables["train"], section, problems)
    tables = {split: renamed(table, mapping) for split, table in tables.items()}
    tables, named = with_label_text(tables, mapping.label)
    notes += [*unused_texts(tables["train"], mapping, section), *named]
    rows = {}
    for split, table in tables.items():
        read = maybe_labeled_rows if split == "test" else labeled_rows
        rows[split] = read(table, mapping, notes, problems, drop_missing=section.drop_missing)
    problems.refuse()
    if section.deduplicate:
        rows = without_duplicates(rows, notes)
    return rows, tables["train"].classes.get(mapping.label)


def _mapping(table: Table, section: LabeledData, problems: Problems) -> ColumnMapping:
    """The columns to use. Rows can't be checked without them, so if one is missing, all problems so far are raised."""
    with problems.collected():
        return find_columns(table, section)
    problems.refuse()
    raise AssertionError("the error was collected")


def _locate(section: LabeledData) -> tuple[LabeledData, Files, list[str]]:
    """The section with its columns named, the files of each split (none if the rows are on the Hub), and notes."""
    name = section.dataset_name
    if name in CORPORA and as_path(name) is None:
        raise HftuneError(
            f"{name} is an embedded text without labels",
            hint=f"train on it with `hftune pretrain --corpus {name}`; labeled are {', '.join(DATASETS)}",
        )
    source = locate(section, DATASETS)
    if source.embedded is not None:
        section = source.embedded.with_columns(section)
    return section, source.files, source.notes


def _tables(
    section: LabeledData, files: Files, problems: Problems, *, needs_train: bool = True
) -> tuple[dict[str, Table], list[str]]:
    """The rows of each split, from its files or the Hub, and notes on how they were chosen."""
    if not files:
        from hftune.data.hub import hub_tables

        return hub_tables(section, list(DATASETS), needs_train=needs_train)
    named = [section.text_column_name, section.text_pair_column_name, section.label_column_name]
    reading = Reading(named, section.delimiter, section.sheet_name)
    tables = {}
    for split, paths in files.items():
        read = []
        for file in paths:
            with problems.collected():
                read.append(read_table(file, reading, problems))
        if read:
            tables[split] = joined(read)
    if len(tables) < len(files) or not all(map(len, tables.values())):
        problems.refuse()  # there is nothing else to check
    return tables, []


# ---- missing splits and subsets ----


def _make_missing(rows: dict[str, Table], section: LabeledData) -> list[str]:
    """Split the missing splits from train; rows with the same text stay together."""
    # Test comes first, so that another validation_size leaves the same test split.
    sizes = {}
    if "test" not in rows and section.test_size > 0:
        sizes["test"] = section.test_size
    if "validation" not in rows:
        sizes["validation"] = section.validation_size
    if not sizes:
        return []
    if sum(sizes.values()) >= 1:
        raise HftuneError(
            f"data.validation_size and data.test_size together take all of train: {sum(sizes.values()):g}",
            hint="make their sum less than 1",
        )
    train = rows["train"]
    keys = list(zip(*(values for name, values in train.columns.items() if name != "label"), strict=True))
    made, notes = make_splits(
        sizes,
        keys,
        train.columns["label"],
        section.split_seed,
        where=train.where,
        nouns=("row", "text"),
        hint="or more rows: one text of every label stays in train",
    )
    rows |= {split: train.take(chosen) for split, chosen in made.items()}
    return notes


def _limits(section: LabeledData) -> dict[str, int | None]:
    """The number of examples to use of each split; None for all."""
    return {
        "train": section.max_train_samples,
        "validation": section.max_eval_samples,
        "test": section.max_predict_samples,
    }


def _training_subset(train: Table, size: int, seed: int, notes: list[str]) -> Table:
    if size > len(train):
        raise HftuneError(
            f"data.max_train_samples is {size:,}, but train has {len(train):,} labeled rows",
            hint=f"set it to at most {len(train)}, or leave --max-train-samples out to train on all",
        )
    chosen = _subset(train, size, seed, "train", notes)
    check_classes(chosen.columns["label"], f"the {size} rows of data.max_train_samples")
    classes = len(set(train.columns["label"]))
    if size < classes:
        notes.append(f"{size} training rows can't show all {classes} labels")
    return chosen


def _subset(rows: Table, size: int, seed: int, split: str, notes: list[str]) -> Table:
    """Some of the rows, stratified if they have labels."""
    notes.append(f"{split} is {size:,} of {len(rows):,} rows, stratified, seed {seed}")
    return rows.take(subset(rows.columns.get("label", [""] * len(rows)), size, seed))


# ---- the cache ----


def _from_cache(section: LabeledData, files: Files) -> Splits:
    """The splits of some files from the cache, or made now and stored."""

    def make() -> Splits:
        problems = Problems()
        tables, notes = _tables(section, files, problems)
        return split_tables(section, tables, notes, problems)

    def save(splits: Splits, new: NewEntry) -> None:
        import pyarrow as pa

        if _key(section, files) != key:  # the rows may be a mix of old and new content
            raise OSError("a file was changed while it was read")
        new.info |= {field: getattr(splits, field) for field in ("source", "labels", "notes", "fingerprints")}
        for split, rows in splits.named.items():
            with new.file(f"{split}.arrow") as file, pa.ipc.new_stream(file, rows.data.schema) as stream:
                stream.write_table(rows.data.table)

    def load_entry(entry: CacheEntry) -> Splits:
        from datasets import Dataset
        from datasets.table import MemoryMappedTable

        info, hashes = entry.info, dict(entry.info["fingerprints"])
        built = {
            split: Dataset(MemoryMappedTable.from_file(str(entry.file(f"{split}.arrow"))), fingerprint=digest[:16])
            for split, digest in hashes.items()
        }
        return Splits(
            **{"test": None, **built},
            labels=tuple(info["labels"]),
            source=info["source"],
            fingerprints=hashes,
            notes=tuple(info["notes"]),
        )

    key = _key(section, files)
    return make() if key is None else cached("rows", key, make, save=save, load=load_entry)


def _key(section: LabeledData, files: Files) -> str | None:
    """A hash of everything that the rows depend on: settings, the files' bytes, and the code that reads them.

    None if the files are small, or can't be read.
    """
    paths = [path for group in files.values() for path in group]
    try:
        # A file that is not regular, such as a pipe, may never end.
        if not all(path.is_file() for path in paths) or sum(path.stat().st_size for path in paths) < MIN_BYTES:
            return None
        named = {split: [(path.name, sha256(path)) for path in group] for split, group in files.items()}
    except OSError:
        return None  # the reader reports what is wrong with it
    return cache_key(section.model_dump(include=set(LabeledData.model_fields) - NOT_ABOUT_ROWS), named, _code())


@cache
def _code() -> list[str]:
    """Versions of the libraries and hashes of this package's code, as they were when the process first read data."""
    code = [sha256(path) for path in sorted(Path(__file__).parent.glob("[!.]*.py"))]
    return [__version__, platform.python_version(), version("pyarrow"), version("datasets"), *code]
