"""What is in a dataset and what is wrong with it: labels, lengths, duplicates, leakage, contradictions.

A pure function of the splits; ``hftune data check`` shows what it returns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hftune.data.near import near_pairs
from hftune.data.splits import NO_LABEL, Splits
from hftune.data.wording import count

Lengths = Callable[[Sequence[str], Sequence[str] | None], Sequence[int]]
"""(texts, second texts) → tokens of each row, special tokens among them."""

EXAMPLES = 5
Key = tuple[str, str]


@dataclass(frozen=True)
class Bin:
    """So many rows have from ``low`` to ``high`` words or tokens."""

    low: int
    high: int
    rows: int


@dataclass(frozen=True)
class SplitCheck:
    """What one split holds."""

    rows: int
    labels: dict[str, int]
    """Rows of each label, also of those with none; empty where the split has no labels."""
    lengths: tuple[Bin, ...]
    median_length: float
    longest: int
    truncated: float
    """Share of rows that are longer than max_length."""
    duplicates: int
    """Rows whose text stands in an earlier row of the split."""
    near_duplicates: int
    """Further rows that are nearly the same as another row of the split."""


@dataclass(frozen=True)
class Leak:
    """Rows of one split whose text is also in another."""

    source: str
    target: str
    exact: int
    """Rows of the target whose text is in the source word for word."""
    near: int
    """Further rows of the target that are nearly the same as a row of the source."""


@dataclass(frozen=True)
class Conflict:
    """One text with several labels."""

    text: str
    text_pair: str | None
    labels: dict[str, int]


@dataclass(frozen=True)
class Check:
    """The whole finding."""

    source: str
    unit: str
    """What lengths count: words, or tokens where a tokenizer was given."""
    max_length: int
    splits: dict[str, SplitCheck]
    leaks: tuple[Leak, ...]
    conflicts: int
    """Texts that carry more than one label, over all splits."""
    conflict_examples: tuple[Conflict, ...]
    findings: tuple[str, ...]
    """What a reader should know, in words; nothing where all is well."""


def check(splits: Splits, max_length: int, lengths: Lengths | None = None) -> Check:
    """Look a dataset over.

    Args:
        splits: the dataset.
        max_length: where rows are cut.
        lengths: counts the tokens of rows; without it words are counted, which are fewer than tokens.
    """
    keys = {name: _keys(splits, name) for name in splits.named}
    neighbors = _neighbors(keys, splits.is_pair)
    parts = {name: _split_check(splits, name, keys[name], neighbors, max_length, lengths) for name in splits.named}
    order = list(splits.named)
    leaks = tuple(
        _leak(source, target, keys, neighbors) for place, source in enumerate(order) for target in order[place + 1 :]
    )
    conflicts = _conflicts(splits, keys)
    return Check(
        source=splits.source,
        unit="words" if lengths is None else "tokens",
        max_length=max_length,
        splits=parts,
        leaks=leaks,
        conflicts=len(conflicts),
        conflict_examples=tuple(conflicts[:EXAMPLES]),
        findings=tuple(_findings(parts, leaks, len(conflicts), max_length, lengths is None)),
    )


def _keys(splits: Splits, name: str) -> list[Key]:
    rows = splits.named[name]
    seconds = rows["text_pair"][:] if splits.is_pair else [""] * len(rows)
    return list(zip(rows["text"][:], seconds, strict=True))


def _neighbors(keys: dict[str, list[Key]], is_pair: bool) -> dict[Key, list[Key]]:
    """The texts that each text is near to, both ways; each text was looked at once, however often it stands."""
    different = list(dict.fromkeys(key for rows in keys.values() for key in rows))
    seconds = [key[1] for key in different] if is_pair else None
    found: dict[Key, list[Key]] = defaultdict(list)
    for one, two in near_pairs([key[0] for key in different], seconds):
        found[different[one]].append(different[two])
        found[different[two]].append(different[one])
    return found


def _split_check(
    splits: Splits,
    name: str,
    keys: list[Key],
    neighbors: dict[Key, list[Key]],
    max_length: int,
    lengths: Lengths | None,
) -> SplitCheck:
    counted = Counter(splits.named[name]["label"][:])
    texts = [key[0] for key in keys]
    seconds = [key[1] for key in keys] if splits.is_pair else None
    measured = np.array((lengths or _words)(texts, seconds))
    seen: set[Key] = set()
    duplicates = near = 0
    for key in keys:
        if key in seen:
            duplicates += 1
        elif any(other in seen for other in neighbors.get(key, ())):
            near += 1
        seen.add(key)
    return SplitCheck(
        rows=len(keys),
        labels={} if NO_LABEL in counted else {label: counted[place] for place, label in enumerate(splits.labels)},
        lengths=_histogram(measured),
        median_length=float(np.median(measured)),
        longest=int(measured.max()),
        truncated=float((measured > max_length).mean()),
        duplicates=duplicates,
        near_duplicates=near,
    )


def _words(texts: Sequence[str], seconds: Sequence[str] | None) -> list[int]:
    joined = texts if seconds is None else [f"{one} {two}" for one, two in zip(texts, seconds, strict=True)]
    return [len(text.split()) for text in joined]


def _histogram(measured: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Bin, ...]:
    """Bins whose upper ends double: 1–8, 9–16, 17–32 …, up to the longest row."""
    bins = []
    low, high = 0, 8
    while low <= measured.max():
        bins.append(Bin(low, high, int(((measured >= low) & (measured <= high)).sum())))
        low, high = high + 1, high * 2
    return tuple(bins)


def _leak(source: str, target: str, keys: dict[str, list[Key]], neighbors: dict[Key, list[Key]]) -> Leak:
    known = set(keys[source])
    exact = sum(key in known for key in keys[target])
    near = sum(key not in known and any(other in known for other in neighbors.get(key, ())) for key in keys[target])
    return Leak(source=source, target=target, exact=exact, near=near)


def _conflicts(splits: Splits, keys: dict[str, list[Key]]) -> list[Conflict]:
    """Texts with several labels, those with the most rows first."""
    labels: dict[Key, Counter[int]] = defaultdict(Counter)
    for name, rows in splits.named.items():
        for key, label in zip(keys[name], rows["label"][:], strict=True):
            if label != NO_LABEL:
                labels[key][label] += 1
    torn = sorted((item for item in labels.items() if len(item[1]) > 1), key=lambda item: -item[1].total())
    return [
        Conflict(
            text=key[0],
            text_pair=key[1] if splits.is_pair else None,
            labels={splits.labels[label]: times for label, times in sorted(counts.items())},
        )
        for key, counts in torn
    ]


def _findings(
    parts: dict[str, SplitCheck], leaks: Sequence[Leak], conflicts: int, max_length: int, words: bool
) -> list[str]:
    said = []
    for leak in leaks:
        rows = parts[leak.target].rows
        if leak.exact:
            said.append(f"{_rows(leak.exact, rows, leak.target)} word for word in {leak.source}")
        if leak.near:
            said.append(f"{_rows(leak.near, rows, leak.target)} nearly the same as a row of {leak.source}")
    if conflicts:
        said.append(f"{count(conflicts, 'text')} with more than one label: no classifier can get all of them right")
    for name, part in parts.items():
        if part.duplicates:
            said.append(f"{_rows(part.duplicates, part.rows, name)} the same as an earlier row")
        if part.near_duplicates:
            said.append(f"{_rows(part.near_duplicates, part.rows, name)} nearly the same as an earlier row")
        absent = [label for label, rows in part.labels.items() if not rows]
        if absent:
            said.append(f"{name} has no row of {count(len(absent), 'label')}: {', '.join(absent[:EXAMPLES])}")
        if part.truncated > 0:
            more = "at least " if words else ""
            said.append(f"{more}{part.truncated:.1%} of {name} are cut at {max_length} tokens")
    return said


def _rows(part: int, whole: int, split: str) -> str:
    return f"{count(part, 'row')} ({part / whole:.1%}) of {split} {'is' if part == 1 else 'are'}"
