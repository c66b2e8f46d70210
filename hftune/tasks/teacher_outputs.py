"""What a teacher computes for the texts of a split: on demand, or once for all and stored on disk.

Stored outputs are memory-mapped arrays in shards. Each shard is an entry of the cache, under a hash of the teacher and
of the shard's texts: a computation that was stopped continues after the last whole shard, and several trainings with
one teacher and text share them. Vectors of words are in half precision and in shards of texts of similar length. Logits
of classifiers are few, so they stay in single precision: the cache then gives the very targets of the live teacher.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hftune.cache import (
    GIGABYTE,
    INDEX,
    CacheEntry,
    cache_folder,
    cache_key,
    cache_limit,
    cache_root,
    locked,
    new_entry,
    read_entry,
)
from hftune.data.words import word_spans
from hftune.errors import HftuneError
from hftune.files import disk_is_full
from hftune.models.alignment import Aligned
from hftune.models.teacher import Teacher, TextVectors
from hftune.models.teacher_classifier import ClassifierTeacher
from hftune.progress import ProgressReporter, progress_bar

KIND = "teacher"
SHARD_BYTES = 64 << 20
"""About what one shard takes: half a minute of computing is lost when the process is killed."""
SHARD_TEXTS = 4096
"""Most texts in a shard of logits."""
SPARE = 1.05
"""The estimate has to fit this many times: the same disk takes the checkpoints."""
TOUCHED_SECONDS = 600.0
"""Time after which entries in use are marked as such again: the cache deletes none that were used in the last hour."""


class TeacherOutputs(Protocol):
    """The teacher's outputs for the texts of one split."""

    def __getitem__(self, row: int) -> TextVectors: ...


class LiveOutputs:
    """Computed when they are asked for: for a dry run, and to compare."""

    def __init__(self, teacher: Teacher, texts: Sequence[str]) -> None:
        self.teacher, self.texts = teacher, texts

    def __getitem__(self, row: int) -> TextVectors:
        """Those of one text."""
        return next(self.teacher.vectors(self.teacher.align([self.texts[row]]), [0]))


class StoredOutputs:
    """Read from the shards of the cache."""

    def __init__(self, entries: Sequence[CacheEntry], shards: Sequence[NDArray[np.int64]], texts: int) -> None:
        """shards: the rows of each entry, in its order."""
        self._paths = [entry.path for entry in entries]
        self._arrays = [entry.arrays for entry in entries]
        self._ends = [np.array(arrays["ends"]) for arrays in self._arrays]
        self._place = np.zeros((texts, 2), dtype=np.int64)
        for number, rows in enumerate(shards):
            self._place[rows, 0], self._place[rows, 1] = number, np.arange(len(rows))
        self._touched = time.monotonic()

    def __getitem__(self, row: int) -> TextVectors:
        """Those of one text."""
        if time.monotonic() > self._touched + TOUCHED_SECONDS:
            self._touched = time.monotonic()
            mark_used(self._paths)
        shard, place = self._place[row]
        arrays, ends = self._arrays[shard], self._ends[shard]
        words = slice(int(ends[place - 1]) if place else 0, int(ends[place]))
        return TextVectors(arrays["words"][words], arrays["vectors"][words], arrays["sentences"][place])


def mark_used(paths: Sequence[Path]) -> None:
    """Keep entries of the cache from being deleted: a training lasts longer than the hour for which they are safe."""
    for path in paths:
        with suppress(OSError):  # deleted by hand, or read-only; mapped files stay readable
            os.utime(path / INDEX)


def stored_outputs(
    teacher: Teacher, splits: dict[str, Sequence[str]], progress: ProgressReporter
) -> dict[str, StoredOutputs]:
    """The teacher's outputs for some splits, from the cache or computed now.

    Of several processes one computes each shard, and the others find it.

    Raises:
        HftuneError: The disk or the cache has no room for them.
    """
    plans = {name: _shards(texts, teacher.width) for name, texts in splits.items()}
    _refuse_too_large(
        {
            _text_key(teacher, texts, rows): estimated_bytes(teacher, [texts[row] for row in rows])
            for name, texts in splits.items()
            for rows in plans[name]
        }
    )
    # The lock of each shard is enough. A barrier of all processes would wait forever at the end of a run, when the main
    # process scores the saved model alone.
    made = {}
    for name, texts in splits.items():
        entries = _entries(teacher, texts, plans[name], progress, f"tokens of {name} read by the teacher")
        made[name] = StoredOutputs(entries, plans[name], len(texts))
    return made


def _shards(texts: Sequence[str], width: int) -> list[NDArray[np.int64]]:
    """The rows of each shard, from long to short texts."""
    words = np.array([len(word_spans(text)) for text in texts])
    order = np.lexsort((np.arange(len(texts)), -words))
    sizes = np.cumsum((words[order] + 1) * width * 2)
    numbers = sizes // SHARD_BYTES
    return np.split(order, np.flatnonzero(np.diff(numbers)) + 1)


def _key(fingerprint: str, texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\xff")  # no UTF-8 text contains this byte
    return cache_key(fingerprint, digest.hexdigest())


def _text_key(teacher: Teacher, texts: Sequence[str], rows: NDArray[np.int64]) -> str:
    return _key(teacher.fingerprint, (texts[row] for row in rows))


def estimated_bytes(teacher: Teacher, texts: Sequence[str]) -> int:
    """Size of the outputs on disk, if every word gets a vector."""
    words = sum(len(word_spans(text)) for text in texts)
    return (words + len(texts)) * teacher.width * 2 + words * 2 + len(texts) * 8


def _refuse_too_large(sizes: Mapping[str, int]) -> None:
    """Refuse outputs that have no room, from the key and the size of each shard."""
    whole = sum(sizes.values())
    missing = sum(size for key, size in sizes.items() if not (cache_folder(KIND) / key / INDEX).is_file())
    if not missing:
        return
    place, limit = cache_root(), cache_limit()
    if whole > limit:
        raise HftuneError(
            f"the teacher's outputs take about {whole / GIGABYTE:.1f} GB, and the cache is limited to "
            f"{limit / GIGABYTE:g} GB",
            hint=f"raise the limit (HFTUNE_CACHE_GB={whole / GIGABYTE * SPARE:.0f}), or give less text",
        )
    with suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    existing = next(one for one in (place, *place.parents) if one.exists())
    free = shutil.disk_usage(existing).free
    if missing * SPARE > free:
        raise HftuneError(
            f"the teacher's outputs take about {missing / GIGABYTE:.2f} GB more, and {existing} has "
            f"{free / GIGABYTE:.2f} GB free",
            hint="free some space, name another folder for the cache (HFTUNE_CACHE=FOLDER), or give less text",
        )


def _entries(
    teacher: Teacher, texts: Sequence[str], shards: list[NDArray[np.int64]], progress: ProgressReporter, unit: str
) -> list[CacheEntry]:
    entries: list[CacheEntry] = []
    keys = [_text_key(teacher, texts, rows) for rows in shards]
    known = [(cache_folder(KIND) / key / INDEX).is_file() for key in keys]
    if all(known) and (found := [read_entry(KIND, key) for key in keys]) and None not in found:
        progress.note(f"the teacher's outputs: found in {cache_folder(KIND)}")
        return [entry for entry in found if entry is not None]
    aligned = teacher.align(texts)
    sizes = np.diff(aligned.ends, prepend=0)
    total = int(sizes.sum())
    if any(known):
        progress.note(f"{sum(known)} of {len(known)} parts of the teacher's outputs are in the cache already")
    with progress_bar(progress, total, unit) as advance:
        for key, rows in zip(keys, shards, strict=True):
            with locked(KIND, key):
                entry = read_entry(KIND, key)
                if entry is None:
                    _store(teacher, aligned, rows, key, advance)
                    entry = read_entry(KIND, key)
                    assert entry is not None, "it was just written"
                else:
                    advance(int(sizes[rows].sum()))
            entries.append(entry)
            mark_used([one.path for one in entries])
    return entries


def _store(
    teacher: Teacher, aligned: Aligned, rows: NDArray[np.int64], key: str, advance: Callable[[int], None]
) -> None:
    sizes = np.diff(aligned.ends, prepend=0)[rows]
    order = np.argsort(-sizes, kind="stable")  # by tokens, so that batches need little padding
    outputs: list[TextVectors] = [_EMPTY] * len(rows)
    for place, output in zip(order, teacher.vectors(aligned, rows[order].tolist(), advance), strict=True):
        outputs[place] = output
    with _explained(), new_entry(KIND, key) as new:
        counts = [len(output.words) for output in outputs]
        new.array("ends", np.dtype(np.int64), [np.cumsum(counts)])
        new.array("words", np.dtype(np.uint16), (output.words for output in outputs))
        new.array("vectors", np.dtype(np.float16), (output.vectors for output in outputs))
        new.array("sentences", np.dtype(np.float16), _stacked(outputs))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if disk_is_full(error) else error.strerror or str(error)
        raise HftuneError(
            f"the teacher's outputs can't be written to {cache_folder(KIND)}: {reason}",
            hint="name a folder that has room for them: HFTUNE_CACHE=FOLDER; what was computed is kept",
        ) from error


def _stacked(outputs: Sequence[TextVectors]) -> Iterator[NDArray[np.float16]]:
    for output in outputs:
        yield output.sentence[None]


_EMPTY = TextVectors(np.zeros(0, np.uint16), np.zeros((0, 0), np.float16), np.zeros(0, np.float16))


# ---- logits of classifiers ----


class Texts(NamedTuple):
    """The texts of a split."""

    texts: Sequence[str]
    pairs: Sequence[str] | None
    """The second texts, if they are pairs."""

    def rows(self, rows: Sequence[int]) -> Texts:
        """Some of them."""
        return Texts([self.texts[row] for row in rows], self.pairs and [self.pairs[row] for row in rows])


class TeacherLogits(Protocol):
    """A teacher's logits for the texts of one split, its labels in the order of the data."""

    def __getitem__(self, rows: Sequence[int]) -> NDArray[np.float32]: ...


class LiveLogits:
    """Computed when they are asked for: for a dry run, and to compare."""

    def __init__(self, teacher: ClassifierTeacher, texts: Texts) -> None:
        self.teacher, self.texts = teacher, texts

    def __getitem__(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Those of some texts [rows, labels]."""
        return self.teacher.logits(*self.texts.rows(rows))


class StoredLogits:
    """Read from the shards of the cache."""

    def __init__(self, entries: Sequence[CacheEntry], rows: int) -> None:
        """rows: texts in each shard but the last."""
        self._paths, self._rows = [entry.path for entry in entries], rows
        self._arrays = [entry.array("logits") for entry in entries]
        self._touched = time.monotonic()

    def __getitem__(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Those of some texts [rows, labels]."""
        if time.monotonic() > self._touched + TOUCHED_SECONDS:
            self._touched = time.monotonic()
            mark_used(self._paths)
        return np.stack([self._arrays[row // self._rows][row % self._rows] for row in map(int, rows)])


def stored_logits(
    teacher: ClassifierTeacher, splits: Mapping[str, Texts], progress: ProgressReporter
) -> dict[str, StoredLogits]:
    """A teacher's logits for some splits, from the cache or computed now.

    Raises:
        HftuneError: The disk or the cache has no room for them.
    """
    size = 4 * len(teacher.labels)
    together = min(SHARD_TEXTS, max(1, SHARD_BYTES // size))
    shards: dict[str, dict[str, Texts]] = {}
    for name, texts in splits.items():
        parts = [
            range(start, min(start + together, len(texts.texts))) for start in range(0, len(texts.texts), together)
        ]
        cut = [texts.rows(part) for part in parts]
        shards[name] = {_key(teacher.fingerprint, (*part.texts, "", *(part.pairs or ()))): part for part in cut}
    _refuse_too_large({key: size * len(part.texts) for cut in shards.values() for key, part in cut.items()})
    return {name: StoredLogits(_logit_entries(teacher, cut, progress, name), together) for name, cut in shards.items()}


def _logit_entries(
    teacher: ClassifierTeacher, shards: Mapping[str, Texts], progress: ProgressReporter, split: str
) -> list[CacheEntry]:
    known = {key: (cache_folder(KIND) / key / INDEX).is_file() for key in shards}
    if all(known.values()) and (found := [read_entry(KIND, key) for key in shards]) and None not in found:
        progress.note(f"the teacher's outputs for {split}: found in {cache_folder(KIND)}")
        return [entry for entry in found if entry is not None]
    entries = []
    total = sum(len(part.texts) for part in shards.values())
    with progress_bar(progress, total, f"texts of {split} labeled by the teacher") as advance:
        for key, part in shards.items():
            with locked(KIND, key):
                entry = read_entry(KIND, key)
                if entry is None:
                    logits = teacher.logits(*part, advance)
                    with _explained(), new_entry(KIND, key) as new:
                        new.array("logits", np.dtype(np.float32), [logits])
                    entry = read_entry(KIND, key)
                    assert entry is not None, "it was just written"
                else:
                    advance(len(part.texts))
            entries.append(entry)
            mark_used([one.path for one in entries])
    return entries
