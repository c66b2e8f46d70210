"""The splits of a dataset: canonical columns, checked rows, a hash of the content; splits made from train, and subsets.

What is chosen depends on keys, labels and the seed alone. Draws are ``random.Random.random``, whose sequence Python
keeps the same on every version and machine; numpy does not promise that for its generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hftune.data.columns import UNLABELED, ColumnMapping, label_names, other_label, required
from hftune.data.tables import Problems, Table, and_more, check_characters
from hftune.errors import HftuneError, count, quote

if TYPE_CHECKING:
    from datasets import Dataset

NO_LABEL = -1
COLUMN_HINT = "name the right column with --text-column-name or --text-pair-column-name"


Rows = TypeVar("Rows")


@dataclass(frozen=True)
class NamedSplits(Generic[Rows]):
    """The splits of any dataset."""

    train: Rows
    validation: Rows
    test: Rows | None
    source: str
    """The dataset as the recipe names it."""
    notes: tuple[str, ...]
    """Decisions that a reader of the results should know about."""

    @property
    def named(self) -> dict[str, Rows]:
        """The existing splits by name."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in every.items() if rows is not None}

    @property
    def rows(self) -> dict[str, int]:
        """The number of examples of each split."""
        named: dict[str, Any] = self.named
        return {name: len(rows) for name, rows in named.items()}


@dataclass(frozen=True)
class Splits(NamedSplits["Dataset"]):
    """Labeled texts or pairs: columns ``text``, ``text_pair`` (only for pairs) and ``label``."""

    labels: tuple[str, ...]
    """Label names; the column ``label`` holds their indices, -1 if test has no labels."""
    fingerprints: dict[str, str]
    """A hash of each split's rows and label names, the same on every machine."""

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


def labeled_rows(
    table: Table, mapping: ColumnMapping, notes: list[str], problems: Problems, *, drop_missing: bool = False
) -> Table:
    """The rows of train or validation in canonical columns: every one has a text and a label."""
    names: list[str | None] | None = None
    with problems.collected():
        required(table.columns, mapping.label, "label_column_name", table.where)
        names = label_names(table, mapping.label)
    return _canonical(table, mapping, names, notes, problems, drop_missing=drop_missing)


def maybe_labeled_rows(
    table: Table, mapping: ColumnMapping, notes: list[str], problems: Problems, *, drop_missing: bool = False
) -> Table:
    """The rows of test, which may have no labels at all: no column, nothing in it, or -1 in every row."""
    names: list[str | None] | None = None
    with problems.collected():
        if mapping.label in table.columns:
            found = label_names(table, mapping.label)
            names = None if all(name in (None, UNLABELED) for name in found) else found
        elif (other := other_label(table)) not in (None, mapping.text, mapping.pair):
            raise HftuneError(
                f"the label column is {quote(mapping.label)} in train and seems to be {quote(other)} in "
                f"{quote(table.where)}",
                hint="give the column one name in all splits",
            )
    return _canonical(table, mapping, names, notes, problems, drop_missing=drop_missing)


def without_duplicates(rows: dict[str, Table], notes: list[str]) -> dict[str, Table]:
    """Labeled splits without rows that repeat the texts and the label of an earlier one.

    A training row whose texts are in validation or test is left out too: it would give the answer away.
    """

    def keys(table: Table) -> list[tuple[Any, ...]]:
        texts = (table.columns[name] for name in ("text", "text_pair") if name in table.columns)
        return list(zip(*texts, strict=True))

    scored = {key for split, table in rows.items() if split != "train" for key in keys(table)}
    kept = {}
    for split, table in rows.items():
        if "label" not in table.columns:
            kept[split] = table  # every row of a split without labels gets a prediction
            continue
        seen: set[tuple[Any, ...]] = set()
        chosen, repeated = [], 0
        for row, key in enumerate(keys(table)):
            whole = (key, table.columns["label"][row])
            repeated += whole in seen
            if whole not in seen and not (split == "train" and key in scored):
                chosen.append(row)
            seen.add(whole)
        leaked = len(table) - len(chosen) - repeated
        more = f" and {count(leaked, 'row')} whose text is in another split" if split == "train" and scored else ""
        notes.append(f"{split}: {count(repeated, 'repeated row')}{more} left out (data.deduplicate)")
        if not chosen:
            raise HftuneError(
                f"data.deduplicate leaves no row of {split}: all are repeated or in another split",
                hint="leave data.deduplicate out, or give other rows",
            )
        kept[split] = table.take(chosen)
    return kept


def fingerprint(rows: Table, labels: Sequence[str]) -> str:
    """A hash of the rows in their order and of the label names."""
    digest = hashlib.sha256()
    for part in (f"{len(labels)} {'text_pair' in rows.columns} {'label' in rows.columns}", *labels):
        digest.update(framed(part))
    empty = [""] * len(rows)
    texts, pairs, names = (rows.columns.get(name, empty) for name in ("text", "text_pair", "label"))
    label_bytes = {name: framed(name) for name in set(names)}  # few labels, many rows
    for text, pair, name in zip(texts, pairs, names, strict=True):
        digest.update(framed(text) + framed(pair) + label_bytes[name])
    return digest.hexdigest()


def as_dataset(rows: Table, labels: Sequence[str], content_hash: str) -> Dataset:
    """Rows as a Dataset in memory.

    ``Dataset.map`` names its cache file after the dataset's fingerprint and the function. A fingerprint that follows
    the rows and labels alone lets the next run find what this one has tokenized.
    """
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    columns = {name: pa.array(values, pa.string()) for name, values in rows.columns.items() if name != "label"}
    index = {name: number for number, name in enumerate(labels)}
    names = rows.columns.get("label")
    numbers = [NO_LABEL] * len(rows) if names is None else [index[name] for name in names]
    columns["label"] = pa.array(numbers, pa.int64())
    return Dataset(InMemoryTable(pa.table(columns)), fingerprint=content_hash[:16])


def framed(text: str) -> bytes:
    """The length before the bytes: without it "ab", "c" and "a", "bc" would give one stream, and so one hash."""
    content = text.encode()
    return len(content).to_bytes(8, "little") + content


def _canonical(
    table: Table,
    mapping: ColumnMapping,
    names: list[str | None] | None,
    notes: list[str],
    problems: Problems,
    *,
    drop_missing: bool,
) -> Table:
    """The columns text, text_pair and label; rows that can't be used are left out with a note, or are problems.

    Users can correct their own files, so a missing value is a problem unless rows with one are to be dropped. In a
    dataset of the Hub a row with a missing value is skipped, but a pair with one empty text is kept: published pairs
    have some, and a benchmark needs a prediction for each.
    """
    columns: dict[str, list[Any]] = {"text": _texts(table, mapping.text, "text_column_name", problems)}
    if mapping.pair is not None:
        columns["text_pair"] = _texts(table, mapping.pair, "text_pair_column_name", problems)
    if names is not None:
        columns["label"] = names
    rows = list(zip(*columns.values(), strict=True))
    own = []

    def leave_out(found: set[int], what: str) -> set[int]:
        if found:
            own.append(f"{table.where}: {count(len(found), 'row')} {what} left out")
        return found

    dropped = leave_out({row for row, parts in enumerate(rows) if not any(parts)}, "with no text and no label")
    if names is not None and (mapping.label in table.classes or table.from_hub):
        marked = {row for row, name in enumerate(names) if name is None} - dropped
        dropped |= leave_out(marked, "that the source marks as unlabeled")
    if table.from_hub and mapping.pair is None:
        empty = {row for row, text in enumerate(columns["text"]) if not text} - dropped
        dropped |= leave_out(empty, f"with no text in {quote(mapping.text)}")
    elif table.from_hub and not drop_missing:
        half = sum(not all(parts[:2]) for row, parts in enumerate(rows) if row not in dropped)
        if half:
            own.append(f"{table.where}: {count(half, 'pair')} with one empty text kept")
    sources = {"text": mapping.text, "text_pair": mapping.pair, "label": mapping.label}
    incomplete: set[int] = set()
    for name, values in columns.items():
        holes = [row for row, value in enumerate(values) if not value and row not in dropped]
        what = f"no {'label' if name == 'label' else 'text'} in column {quote(sources[name])}"
        if drop_missing and holes:
            own.append(f"{table.where}: {count(len(holes), 'row')} with {what} left out (data.drop_missing)")
            incomplete.update(holes)
        elif holes and (name == "label" or not table.from_hub):
            with problems.collected():
                raise _missing(table, holes, what, is_label=name == "label")
    kept = [row for row in range(len(table)) if row not in dropped and row not in incomplete]
    if not kept:
        problems.refuse()  # why there are none
        raise HftuneError(
            f"no rows of {quote(table.where)} are left: {'; '.join(own) or 'it has none'}",
            hint="give rows that are not empty",
        )
    notes += own
    return Table(table.where, columns).take(kept) if len(kept) < len(table) else Table(table.where, columns)


def _missing(table: Table, holes: list[int], what: str, *, is_label: bool) -> HftuneError:
    """The error for rows of a user's own file that lack a value."""
    hint = f"remove those rows, or {COLUMN_HINT}"
    if is_label:
        hint = "label or remove those rows; only a whole test split may be without labels"
    return HftuneError(
        f"{quote(table.where)} has {count(len(holes), 'row')} with {what} ({table.places(holes)})",
        hint=f"{hint}; --drop-missing leaves them out",
    )


def _texts(table: Table, column: str, option: str, problems: Problems) -> list[str]:
    """The strings of a column; a missing or blank one becomes the empty string."""
    with problems.collected():
        required(table.columns, column, option, table.where)
    values = table.columns.get(column, ["?"] * len(table))
    strange = [row for row, value in enumerate(values) if value is not None and type(value) is not str]
    with problems.collected():
        if strange:
            value = values[strange[0]]
            raise HftuneError(
                f"{table.at(strange[0])}: expected a text in column {quote(column)}, got "
                f"{type(value).__name__} {quote(value)}{and_more([table.place(row) for row in strange])}",
                hint=f"texts are strings; {COLUMN_HINT}",
            )
    if strange:
        values = [value if value is None else str(value) for value in values]
    texts = ["" if value is None or value.isspace() else value for value in values]
    try:
        "".join(texts).encode()  # much faster than each text on its own
    except UnicodeEncodeError:
        with problems.collected():
            for row, text in enumerate(texts):
                check_characters(text, table.at(row))
    return texts


# ---- seeded choices of rows and documents: splits made from train, and nested, stratified subsets ----

Ints = NDArray[np.int64]


def subset(labels: Sequence[Hashable], size: int, seed: int) -> list[int]:
    """The rows of a stratified subset, in their old order; a smaller subset is contained in each larger one.

    The first rows chosen are one of each label; after that, labels are chosen in proportion to their frequency. So a
    learning curve over 50 and 500 labeled rows is fair: the larger subset adds rows and replaces none.
    """
    groups, draws = _numbered(labels), _draws(len(labels), seed)
    sizes = np.bincount(groups)
    by_group = np.lexsort((draws, groups))
    place = np.empty(len(labels), dtype=np.int64)
    place[by_group] = np.arange(len(labels)) - (np.cumsum(sizes) - sizes)[groups[by_group]]
    # One row of each label comes first, the most frequent labels before the rare ones; then rows by the ratio of their
    # label that is chosen with them.
    ratio = np.where(place > 0, (place + 0.5) / sizes[groups], -sizes[groups])
    order = np.lexsort((draws, ratio, place > 0))
    return sorted(order[:size].tolist())


def held_out(
    keys: Sequence[Hashable] | NDArray[Any], labels: Sequence[Hashable], shares: Sequence[float], seed: int
) -> list[list[int]]:
    """Rows that leave train to become other splits, stratified, in their old order.

    Rows with the same key (the same text) stay together, so that the new split shares no text with train; a text with
    two labels stays in train, and so does at least one text of every label.
    """
    key_of_row, label_of_row = _numbered(keys), _numbered(labels)
    total_keys = int(key_of_row.max(initial=-1)) + 1
    # The rows of a key have one label if the smallest and the largest number of their labels are the same.
    lowest, highest = np.full(total_keys, len(labels)), np.full(total_keys, -1)
    np.minimum.at(lowest, key_of_row, label_of_row)
    np.maximum.at(highest, key_of_row, label_of_row)
    pure = np.flatnonzero(lowest == highest)  # keys with one label
    groups = _numbered(lowest[pure])
    sizes = np.bincount(groups)
    drawn = pure[np.lexsort((_draws(len(pure), seed), groups))]  # keys, those of each label in drawn order
    begin, capacity = np.cumsum(sizes) - sizes, [max(0, size - 1) for size in sizes.tolist()]
    # Each split takes the next keys of every label, so that the first one does not depend on the size of the second.
    made = []
    for share in shares:
        takes = _allot([share * size for size in sizes.tolist()], max(1, round(share * total_keys)), capacity)
        chosen = np.zeros(total_keys, dtype=bool)
        for first, take in zip(begin.tolist(), takes, strict=True):
            chosen[drawn[first : first + take]] = True
        begin = begin + np.array(takes, dtype=np.int64)
        capacity = [room - take for room, take in zip(capacity, takes, strict=True)]
        made.append(np.flatnonzero(chosen[key_of_row]).tolist())
    return made


def make_splits(
    sizes: Mapping[str, float],
    keys: Sequence[Hashable] | NDArray[Any],
    labels: Sequence[Hashable],
    seed: int,
    *,
    where: str,
    nouns: tuple[str, str],
    hint: str,
) -> tuple[dict[str, list[int]], list[str]]:
    """Make the missing splits from train: the rows of each and of what stays in train, and a note on each.

    ``sizes`` are proportions of the distinct keys. ``nouns`` are the words for a row and for a key in the note, and in
    the error if there are too few keys.
    """
    made = dict(zip(sizes, held_out(keys, labels, list(sizes.values()), seed), strict=True))
    row, key = nouns
    for split, rows in made.items():
        if not rows:
            raise HftuneError(
                f"{quote(where)} has too few different {key}s ({len(np.unique(_numbered(keys)))}) to make {split} from",
                hint=f"give a {split} split, {hint}",
            )
    stays = np.ones(len(labels), dtype=bool)
    for rows in made.values():
        stays[rows] = False
    stratified = "stratified, " if len(set(labels)) > 1 else ""
    notes = [
        f"{split} was made from train: {count(len(rows), row)}, {stratified}seed {seed}" for split, rows in made.items()
    ]
    return made | {"train": np.flatnonzero(stays).tolist()}, notes


def _draws(number: int, seed: int) -> NDArray[np.float64]:
    # One draw for each row, in its order: a draw belongs to its row whatever the labels and sizes are.
    random = Random(seed)
    return np.array([random.random() for _ in range(number)])


def _numbered(values: Sequence[Hashable] | NDArray[Any]) -> Ints:
    """Equal values as equal numbers, in the order of their first occurrence."""
    if isinstance(values, np.ndarray):  # a corpus can have millions of documents: no dict of them
        _, first, group = np.unique(values, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[group])
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _allot(wanted: list[float], total: int, capacity: list[int]) -> list[int]:
    """Whole numbers near the wanted ones, none above its capacity, summing to the total if the capacity allows it.

    The method of largest remainders: each is rounded down, and what is left goes to the largest fractions.
    """
    takes = [min(int(want), room) for want, room in zip(wanted, capacity, strict=True)]
    by_remainder = sorted(range(len(wanted)), key=lambda index: (takes[index] - wanted[index], index))
    left = total - sum(takes)
    while left > 0 and any(takes[index] < capacity[index] for index in by_remainder):
        for index in by_remainder:
            if left > 0 and takes[index] < capacity[index]:
                takes[index] += 1
                left -= 1
    return takes
