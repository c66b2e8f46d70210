"""The order of training rows: batches of like length, as a pure function of seed, epoch and lengths.

``hftune.training.trainer`` draws its training batches from ``RankBatches`` and its evaluation rows in ``longest_first``
order. Nothing here reads or moves a random generator, so an interrupted run that comes back sees the same batches, and
several processes see disjoint rows of one order: the order of a single process with the same rows an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

POOL_UPDATES = 50
"""Rows are sorted by length within pools of this many updates: like lengths in a batch, other neighbors each epoch."""


def epoch_order(
    seed: int, epoch: int, rows: int, update_rows: int, lengths: np.ndarray | None = None, *, shuffle: bool = True
) -> np.ndarray:
    """Row numbers in the order in which one epoch visits them.

    Args:
        seed: The run's seed.
        epoch: Counted from 0.
        rows: Number of training rows.
        update_rows: Rows that go into one update, over all processes and accumulated passes.
        lengths: Tokens of each row; None shuffles without regard to length.
        shuffle: Whether there is chance in it; False visits the rows as they come.

    Returns:
        A permutation. Each run of ``update_rows`` is one update, its rows sorted from long to short; the updates come
        in random order, and a shorter one, of rows drawn at random, comes last.
    """
    if not shuffle:
        return np.arange(rows)
    generator = np.random.default_rng([seed, epoch])
    shuffled = generator.permutation(rows)
    if lengths is None:
        return shuffled
    whole = rows - rows % update_rows
    pool = POOL_UPDATES * update_rows
    updates = [
        _longest_first(shuffled[start : min(start + pool, whole)], lengths).reshape(-1, update_rows)
        for start in range(0, whole, pool)
    ]
    rest = _longest_first(shuffled[whole:], lengths)
    if not updates:
        return rest
    stacked = np.concatenate(updates)
    return np.concatenate([stacked[generator.permutation(len(stacked))].ravel(), rest])


def longest_first(lengths: Sequence[int]) -> np.ndarray:
    """Row numbers from the longest row to the shortest: too little memory shows in the first batch."""
    values = np.asarray(lengths)
    return _longest_first(np.arange(len(values)), values)


def _longest_first(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return rows[np.argsort(-lengths[rows], kind="stable")]


class FixedOrder(Sampler[int]):
    """Visits rows in a given order."""

    def __init__(self, order: np.ndarray) -> None:
        """order: row numbers."""
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.tolist())

    def __len__(self) -> int:
        return len(self.order)


class RankBatches(Sampler[list[Any]]):
    """The batches of one process.

    A forward pass of all processes together takes ``batch_size × world_size`` rows; process r gets every
    world_size-th of them, so all work on like lengths. ``batch_size`` and ``drop_last`` are read by accelerate.
    Rows that change from epoch to epoch are asked for as (epoch, row).
    """

    drop_last = False

    def __init__(
        self,
        *,
        rows: int,
        batch_size: int,
        accumulation: int,
        world_size: int,
        rank: int,
        seed: int,
        lengths: Sequence[int] | Callable[[int], Sequence[int]] | None,
        changing: bool = False,
        shuffle: bool = True,
    ) -> None:
        """lengths: tokens of each row, or of each row in an epoch; None shuffles without regard to length."""
        assert lengths is None or callable(lengths) or len(lengths) == rows, "a length for every row"
        self.rows = rows
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.world_size = world_size
        self.rank = rank
        self.seed = seed
        self.pass_rows = batch_size * world_size
        self.update_rows = self.pass_rows * accumulation
        self._lengths = lengths if lengths is None or callable(lengths) else np.asarray(lengths)
        self._changing = changing
        self._shuffle = shuffle
        self._epoch = 0
        self._ordered: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return -(-self.rows // self.pass_rows)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self._epoch
        for index in range(len(self)):
            rows = self.batch(epoch, index)
            yield [(epoch, row) for row in rows] if self._changing else rows

    @property
    def updates(self) -> int:
        """Updates in one epoch."""
        return -(-self.rows // self.update_rows)

    @property
    def limit(self) -> tuple[str, int]:
        """The setting that bounds a batch, and its value."""
        return "per_device_train_batch_size", self.batch_size

    @property
    def fixed_lengths(self) -> np.ndarray:
        """Tokens of each row, where they are the same in every epoch."""
        assert isinstance(self._lengths, np.ndarray), "lengths are given, and for good"
        return self._lengths

    def seen(self, updates: int) -> int:
        """Rows that so many updates have taken."""
        epochs, rest = divmod(updates, self.updates)
        return epochs * self.rows + rest * self.update_rows

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before it iterates."""
        self._epoch = epoch

    def batch(self, epoch: int, index: int) -> list[int]:
        """Rows of this process in one forward pass; a process that has none left repeats one (see ``weight``)."""
        together = self._together(epoch, index)
        mine = together[self.rank :: self.world_size]
        return (mine if len(mine) else together[:1]).tolist()  # type: ignore[no-any-return]

    def has_repeats(self, index: int) -> bool:
        """Whether there are too few rows in this forward pass for every process to have one of its own."""
        return self._passing(index) < self.world_size

    def weight(self, index: int) -> float:
        """Factor that turns this process's mean loss into its due share of the mean over the update's rows.

        It is 1 wherever all passes of an update are full, and 0 where this process only repeats another's row.
        """
        update = index // self.accumulation
        rows = min(self.update_rows, self.rows - update * self.update_rows)
        passes = -(-rows // self.pass_rows)
        mine = len(range(self.rank, self._passing(index), self.world_size))
        return mine * passes * self.world_size / rows

    def _passing(self, index: int) -> int:
        return min(self.pass_rows, self.rows - index * self.pass_rows)

    def _together(self, epoch: int, index: int) -> np.ndarray:
        if self._ordered is None or self._ordered[0] != epoch:
            lengths = np.asarray(self._lengths(epoch)) if callable(self._lengths) else self._lengths
            order = epoch_order(self.seed, epoch, self.rows, self.update_rows, lengths, shuffle=self._shuffle)
            self._ordered = (epoch, order)
        start = index * self.pass_rows
        return self._ordered[1][start : start + self.pass_rows]
