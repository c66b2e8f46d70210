"""Examine a dataset: labels, lengths, near duplicates, leakage, contradictory labels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hftune.data.splits import NO_LABEL, Splits
from hftune.errors import count, quote

Lengths = Callable[[Sequence[str], Sequence[str] | None], Sequence[int]]
"""(texts, second texts) → tokens of each row, special tokens included."""

EXAMPLES = 5
Key = tuple[str, str]


MIN_SHIFT = 0.1
"""Proportion of the rows whose label would have to change to give both splits the same shares; less is not reported."""
MAX_CHANCE = 1e-4
"""p-value below which a difference of label shares is reported."""
MIN_EXPECTED = 5
"""Minimum expected count of a label in each of the two splits, which the chi-squared test needs."""


@dataclass(frozen=True)
class LengthBin:
    """The number of rows that have from ``low`` to ``high`` words or tokens."""

    low: int
    high: int
    rows: int


@dataclass(frozen=True)
class SplitCheck:
    """The findings about one split."""

    rows: int
    labels: dict[str, int]
    """Rows of each label, also of labels without any; empty if the split has no labels."""
    lengths: tuple[LengthBin, ...]
    median_length: float
    longest: int
    truncated: float
    """Proportion of rows that are longer than max_length."""
    duplicates: int
    """Rows whose text occurs in an earlier row of the split."""
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
    """The findings about a dataset."""

    source: str
    unit: str
    """Unit of the lengths: words, or tokens if there is a tokenizer."""
    max_length: int
    splits: dict[str, SplitCheck]
    leaks: tuple[Leak, ...]
    conflicts: int
    """Texts with more than one label, over all splits."""
    conflict_examples: tuple[Conflict, ...]
    findings: tuple[str, ...]
    """Problems as sentences; empty if there are none."""


def check(splits: Splits, max_length: int, lengths: Lengths | None = None) -> Check:
    """Check a dataset.

    Args:
        splits: The dataset.
        max_length: The length at which rows are truncated.
        lengths: Counts the tokens of rows; without it words are counted, which are fewer than tokens.
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
        findings=(*label_shifts(splits), *_findings(parts, leaks, len(conflicts), max_length, lengths is None)),
    )


def label_shifts(splits: Splits) -> tuple[str, ...]:
    """Validation and test splits whose label shares differ strongly from those of train, as sentences."""
    counted = {name: Counter(rows["label"][:]) for name, rows in splits.named.items()}
    found = []
    for name in list(counted)[1:]:
        if NO_LABEL not in counted[name] and is_shifted(counted["train"], counted[name]):
            shares = {
                label: (
                    counted["train"][place] / counted["train"].total(),
                    counted[name][place] / counted[name].total(),
                )
                for place, label in enumerate(splits.labels)
            }
            most = sorted(shares.items(), key=lambda item: -abs(item[1][0] - item[1][1]))[:EXAMPLES]
            listed = ", ".join(f"{quote(label)} {one:.0%} and {two:.0%}" for label, (one, two) in most)
            found.append(
                f"label shares of train and {name} differ strongly: {listed}; a model that learns the shares of train "
                f"scores lower on {name} (task.class_weights=auto weighs all labels equally)"
            )
    return tuple(found)


def is_shifted(one: Mapping[int, int], two: Mapping[int, int]) -> bool:
    """Whether the shares of the labels differ by much, and by more than chance: a chi-squared test of homogeneity.

    Labels that are too rare for the test in the smaller split are left out, so a few rows show nothing.
    """
    # scipy.special, because scipy.stats takes a second to import and the text commands check data too
    from scipy.special import chdtrc

    counts = np.array([[split.get(label, 0) for label in {**one, **two}] for split in (one, two)], dtype=float)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    common = (expected >= MIN_EXPECTED).all(axis=0)
    if common.sum() < 2:
        return False
    counts = counts[:, common]
    shares = counts / counts.sum(axis=1, keepdims=True)
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    chance = chdtrc(common.sum() - 1, ((counts - expected) ** 2 / expected).sum())
    return bool(np.abs(shares[0] - shares[1]).sum() / 2 >= MIN_SHIFT and chance < MAX_CHANCE)


def _keys(splits: Splits, name: str) -> list[Key]:
    rows = splits.named[name]
    seconds = rows["text_pair"][:] if splits.is_pair else [""] * len(rows)
    return list(zip(rows["text"][:], seconds, strict=True))


def _neighbors(keys: dict[str, list[Key]], is_pair: bool) -> dict[Key, list[Key]]:
    """The near duplicates of each text. Each different text is compared once, however often it occurs."""
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
    # One pass: a row is compared with earlier rows only, so the first of several copies is not a duplicate.
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


def _histogram(measured: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[LengthBin, ...]:
    """Bins whose upper ends double: 1–8, 9–16, 17–32 …, up to the longest row."""
    bins = []
    low, high = 0, 8
    while low <= measured.max():
        bins.append(LengthBin(low, high, int(((measured >= low) & (measured <= high)).sum())))
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
    several = sorted((item for item in labels.items() if len(item[1]) > 1), key=lambda item: -item[1].total())
    return [
        Conflict(
            text=key[0],
            text_pair=key[1] if splits.is_pair else None,
            labels={splits.labels[label]: times for label, times in sorted(counts.items())},
        )
        for key, counts in several
    ]


def _findings(
    parts: dict[str, SplitCheck], leaks: Sequence[Leak], conflicts: int, max_length: int, words: bool
) -> list[str]:
    found = []
    for leak in leaks:
        rows = parts[leak.target].rows
        if leak.exact:
            found.append(f"{_rows(leak.exact, rows, leak.target)} word for word in {leak.source}")
        if leak.near:
            found.append(f"{_rows(leak.near, rows, leak.target)} nearly the same as a row of {leak.source}")
    if conflicts:
        found.append(f"{count(conflicts, 'text')} with more than one label: no classifier can get all of them right")
    for name, part in parts.items():
        if part.duplicates:
            found.append(f"{_rows(part.duplicates, part.rows, name)} the same as an earlier row")
        if part.near_duplicates:
            found.append(f"{_rows(part.near_duplicates, part.rows, name)} nearly the same as an earlier row")
        absent = [label for label, rows in part.labels.items() if not rows]
        if absent:
            found.append(f"{name} has no row of {count(len(absent), 'label')}: {', '.join(absent[:EXAMPLES])}")
        if part.truncated > 0:
            more = "at least " if words else ""
            found.append(f"{more}{part.truncated:.1%} of {name} are truncated at {max_length} tokens")
    return found


def _rows(part: int, whole: int, split: str) -> str:
    return f"{count(part, 'row')} ({part / whole:.1%}) of {split} {'is' if part == 1 else 'are'}"


# ---- near duplicates: MinHash (Broder 1997) over word trigrams, with banded signatures, and candidates checked ----
#
# Two texts are near duplicates if the Jaccard similarity of their trigrams is at least ``THRESHOLD``. Candidates come
# from banded signatures (a pair at the threshold is missed less than once in a hundred times), so that the work grows
# with the number of texts and not with its square.

THRESHOLD = 0.8
NGRAM = 3
"""Words in an n-gram; a shorter text is one n-gram."""
# A pair with similarity s agrees in all 4 columns of at least one of 10 bands with probability 1 - (1 - s⁴)¹⁰:
# 0.995 for s = 0.8, 0.48 for 0.5, 0.08 for 0.3 (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, 3.4).
BANDS, BAND = 10, 4
EARLIER = 6
"""Number of earlier texts with the same band that a text is compared with: bounds the work on boilerplate."""
CHUNK = 2_000
"""Texts that are processed at once: few enough for the processor's cache."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""A word; one character of the scripts that do not separate words by spaces."""

Hashes = NDArray[np.uint64]


def near_pairs(texts: Sequence[str], seconds: Sequence[str] | None = None) -> list[tuple[int, int]]:
    """Indices of texts that are near duplicates of each other, the earlier one first; of pairs, both texts must be.

    The texts must all be different, or a text is found as its own neighbor.
    """
    words: dict[str, int] = {}
    parts = [_ngrams(texts, words)] if seconds is None else [_ngrams(texts, words), _ngrams(seconds, words)]
    # The minimum over both texts is that of all their n-grams: a pair is a candidate as a whole.
    signatures = np.minimum.reduce([_signatures(part) for part in parts])
    found = []
    for one, two in _candidates(signatures):
        # The share of equal minima estimates the overlap; far below the threshold the n-grams need not be compared.
        if (signatures[one] == signatures[two]).mean() < THRESHOLD - 0.3:
            continue
        if all(part.overlap(one, two) >= THRESHOLD for part in parts):
            found.append((one, two))
    return found


@dataclass(frozen=True)
class _NGrams:
    """The hashes of every text's word n-grams, one text after the other."""

    hashes: Hashes
    starts: NDArray[np.int64]
    """Where each text begins, and the end of the last."""

    def overlap(self, one: int, two: int) -> float:
        """Jaccard similarity: n-grams in both texts over n-grams in either."""
        first, second = (np.unique(self.hashes[self.starts[row] : self.starts[row + 1]]) for row in (one, two))
        shared = len(np.intersect1d(first, second, assume_unique=True))
        return float(shared / (len(first) + len(second) - shared))


def _ngrams(texts: Sequence[str], words: dict[str, int]) -> _NGrams:
    """Hash the n-grams; a text of fewer words than an n-gram is padded, so that each text has at least one."""
    hashes, counts = [], []
    for begin in range(0, len(texts), CHUNK):
        numbers: list[int] = []
        lengths: list[int] = []
        for text in texts[begin : begin + CHUNK]:
            found = WORD.findall(text.lower())
            numbers += [words.setdefault(word, len(words) + 1) for word in found] + [0] * (NGRAM - len(found))
            lengths.append(max(NGRAM, len(found)))
        flat = np.array(numbers, np.uint64)
        mixed = np.zeros(len(flat) - NGRAM + 1, np.uint64)
        for place in range(NGRAM):
            mixed = _mix(mixed * np.uint64(31) + flat[place : place + len(mixed)])
        row = np.repeat(np.arange(len(lengths)), lengths)
        hashes.append(mixed[row[: len(mixed)] == row[NGRAM - 1 :]])  # no n-gram crosses the end of its text
        counts += [length - NGRAM + 1 for length in lengths]
    return _NGrams(np.concatenate(hashes), np.concatenate([[0], np.cumsum(counts)]))


def _mix(values: Hashes) -> Hashes:
    """Spread 64-bit numbers evenly (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _signatures(ngrams: _NGrams) -> Hashes:
    """The smallest hash of each text under each of BANDS × BAND hash functions."""
    count = len(ngrams.starts) - 1
    # The hash functions are a·x + b modulo 2⁶⁴ with an odd a. Their low bits are poor, but the minimum of a text, which
    # is all that is used, depends on the high ones.
    factors = _mix(np.arange(1, 2 * BANDS * BAND + 1, dtype=np.uint64)) | np.uint64(1)
    signatures = np.zeros((count, BANDS * BAND), np.uint64)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        hashes = ngrams.hashes[ngrams.starts[begin] : ngrams.starts[end]]
        starts = ngrams.starts[begin:end] - ngrams.starts[begin]
        for column in range(BANDS * BAND):
            salted = hashes * factors[2 * column] + factors[2 * column + 1]
            signatures[begin:end, column] = np.minimum.reduceat(salted, starts)
    return signatures


def _candidates(signatures: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Pairs that agree in all columns of some band, each once."""
    pairs = []
    for band in range(BANDS):
        columns = signatures[:, band * BAND : (band + 1) * BAND]
        key = np.zeros(len(columns), np.uint64)
        for column in columns.T:
            key = _mix(key * np.uint64(31) + column)
        order = np.argsort(key, kind="stable")
        for back in range(1, EARLIER + 1):
            same = key[order[back:]] == key[order[:-back]]
            pairs.append(np.stack([order[:-back][same], order[back:][same]], axis=1))
    yield from map(tuple, np.unique(np.concatenate(pairs), axis=0).tolist())
