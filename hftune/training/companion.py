"""A second set of rows beside the labeled ones in every forward pass, with a loss of its own: joint training.

``PairedBatches`` deals out both; the companion rows cycle at their own pace and are shuffled anew each time round.
Which rows a pass gets is a function of seed, epoch and place alone, so a resumed run goes on as it would have. A task
asks for it through ``TrainingInputs.companion``; ``hftune.training.assembly`` and ``trainer`` carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from hftune.training.sampler import RankBatches, epoch_order

IGNORED = -100
OTHER_STREAM = 1 << 32
"""Added to the seed, which is smaller: the companion's order has nothing to do with that of the labeled rows."""


class Beside(NamedTuple):
    """Asks the training rows for a companion row, as it is the n-th time round."""

    epoch: int
    row: int


class Repeated(NamedTuple):
    """Asks for a labeled row that another process has as well: it must not count."""

    row: int


@dataclass(frozen=True)
class Companion:
    """Rows that are trained on beside the labeled ones."""

    lengths: Sequence[int]
    """Tokens of each."""
    batch_size: int
    """Rows in one forward pass on one device."""
    weight: Callable[[float], float]
    """Share of the training that is done → weight of their loss."""
    labels: str
    """The model input that holds their labels; -100 where nothing is to be predicted."""
    items: str
    """The model input that is told how many labels the whole update has, over all passes and processes."""
    weight_as: str
    """The model input that is told the weight."""
    split: int = 1
    """Passes into which each pass of the recipe was divided, so that it fits into memory."""

    def complete(self, samples: list[Any], gather: Callable[[Tensor], Tensor], done: float) -> None:
        """Tell each pass of an update what only the whole update knows."""
        if not samples:
            return
        counts = sum((sample[self.labels] != IGNORED).sum() for sample in samples)
        assert isinstance(counts, Tensor), "there is a pass"
        items, weight = gather(counts.reshape(1)).sum().clamp(min=1), self.weight(done)
        for sample in samples:
            sample[self.items] = items
            sample[self.weight_as] = weight


class PairedBatches(RankBatches):
    """The batches of one process: labeled row numbers, then as many ``Beside`` as there are companion rows."""

    def __init__(self, *, companion: Companion, bucketed: bool, **settings: Any) -> None:
        """bucketed: whether companion rows of like length come together; settings: those of ``RankBatches``."""
        super().__init__(**settings)
        self._split = companion.split
        self._beside_rows = len(companion.lengths)
        self._beside_pass = companion.batch_size * self.world_size
        self._beside_lengths = np.asarray(companion.lengths) if bucketed else None
        self._beside_orders: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self._epoch
        for index in range(len(self)):
            own: list[Any] = self.batch(epoch, index)
            if super().weight(index) == 0:
                own = [Repeated(row) for row in own]
            yield own + self.beside(epoch, index)

    def __len__(self) -> int:
        """Whole passes of the recipe, however they are divided: companion rows come with each, up to the last."""
        return -(-self.rows // (self.pass_rows * self._split)) * self._split

    def weight(self, index: int) -> float:
        """Never 0: a process that has no labeled row of its own still has companion rows."""
        return super().weight(index) or 1.0

    def has_repeats(self, index: int) -> bool:
        """They are marked as such, and so not counted in the first place."""
        return False

    def beside(self, epoch: int, index: int) -> list[Beside]:
        """Companion rows of this process in one forward pass."""
        first = (epoch * len(self) + index) * self._beside_pass
        places = range(first + self.rank, first + self._beside_pass, self.world_size)
        return [self._at(*divmod(place, self._beside_rows)) for place in places]

    def _together(self, epoch: int, index: int) -> np.ndarray:
        """Where the labeled rows have run out within the last pass, one is repeated and does not count."""
        return super()._together(epoch, index if self._passing(index) > 0 else 0)[: max(1, self._passing(index))]

    def _at(self, epoch: int, place: int) -> Beside:
        if epoch not in self._beside_orders:
            order = epoch_order(
                self.seed + OTHER_STREAM,
                epoch,
                self._beside_rows,
                self._beside_pass * self.accumulation,
                self._beside_lengths,
            )
            # A pass may lie across the end of a round.
            self._beside_orders = {known: rows for known, rows in self._beside_orders.items() if known >= epoch - 1}
            self._beside_orders[epoch] = order
        return Beside(epoch, int(self._beside_orders[epoch][place]))
