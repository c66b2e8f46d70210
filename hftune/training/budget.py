"""Batches under a token budget: few long rows or many short ones, so that every batch fills the device about as much.

Rows are ranked by length, those of one length in an order of their own each epoch, and cut where the budget or the
batch size is reached. The cuts depend on the lengths alone: each epoch has as many batches, and no draw is kept that a
resumed run would lack. Used by ``hftune.training.assembly`` where ``train.max_tokens_per_batch`` is set.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hftune.errors import HftuneError
from hftune.training.sampler import RankBatches, longest_first


class BudgetBatches(RankBatches):
    """The batches of one process, none with more tokens, padding among them, than the budget."""

    def __init__(self, *, tokens: int, **settings: Any) -> None:
        """tokens: the budget of one forward pass on one device; settings: those of ``RankBatches``.

        Raises:
            HftuneError: A row alone is longer.
        """
        super().__init__(**settings)
        self.tokens = tokens
        lengths = self.fixed_lengths
        longest = int(lengths.max())
        if longest > tokens:
            raise HftuneError(
                f"train.max_tokens_per_batch is {tokens}, but a training row has {longest} tokens",
                hint=f"set it to {longest} or more, or lower data.max_seq_length",
            )
        self._starts = _cuts(np.sort(lengths)[::-1], tokens, self.batch_size, self.world_size)
        self._arranged: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def updates(self) -> int:
        """Updates in one epoch."""
        return -(-len(self) // self.accumulation)

    @property
    def limit(self) -> tuple[str, int]:
        """The setting that bounds a batch, and its value."""
        return "max_tokens_per_batch", self.tokens

    def seen(self, updates: int) -> int:
        """Rows that so many updates have taken."""
        epochs, rest = divmod(updates, self.updates)
        return epochs * self.rows + int(self._sizes(epochs)[: rest * self.accumulation].sum())

    def weight(self, index: int) -> float:
        """Factor that turns this process's mean loss into its due share of the mean over the update's rows."""
        first = index // self.accumulation * self.accumulation
        update = self._sizes(self._epoch)[first : first + self.accumulation]
        mine = len(range(self.rank, self._passing(index), self.world_size))
        return float(mine * len(update) * self.world_size / update.sum())

    def _passing(self, index: int) -> int:
        return int(self._sizes(self._epoch)[index])

    def _sizes(self, epoch: int) -> np.ndarray:
        """Rows of each forward pass of an epoch, all processes together."""
        sizes: np.ndarray = np.diff(self._starts)[self._arrangement(epoch)[1]]
        return sizes

    def _together(self, epoch: int, index: int) -> np.ndarray:
        ranked, arranged = self._arrangement(epoch)
        place = arranged[index]
        return ranked[self._starts[place] : self._starts[place + 1]]

    def _arrangement(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows from long to short, and which batch comes when."""
        if self._arranged is None or self._arranged[0] != epoch:
            generator = np.random.default_rng([self.seed, epoch])
            shuffled = generator.permutation(self.rows)
            ranked = shuffled[longest_first(self.fixed_lengths[shuffled].tolist())]
            self._arranged = (epoch, ranked, generator.permutation(len(self)))
        return self._arranged[1:]


def _cuts(ranked: np.ndarray, tokens: int, rows: int, processes: int) -> np.ndarray:
    """Where batches begin and the last one ends, in rows from long to short; the first of a batch is its longest."""
    starts = [0]
    while starts[-1] < len(ranked):
        each = min(rows, tokens // int(ranked[starts[-1]]))
        starts.append(min(starts[-1] + each * processes, len(ranked)))
    return np.array(starts)
