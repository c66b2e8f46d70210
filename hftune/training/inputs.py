"""What a task hands to training, and which of its examples each batch holds.

The order of the examples is a pure function of seed, epoch, lengths and place. It uses no generator state, so a
resumed run sees the batches that it would have seen, and several processes share one order: that of a single process
with the same effective batch size.

- ``RankBatches``: batches of similar length.
- ``TokenBatches``: batches with a maximum number of tokens (``train.max_tokens_per_batch``).
- ``PairedBatches``: labeled examples plus auxiliary ones with a loss of their own (joint training).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers import EvalPrediction

from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.training.callbacks import LossComponents

POOL_STEPS = 50
"""Examples are sorted by length within pools of this many steps, so that batches of similar length differ by epoch."""
IGNORED = -100
AUXILIARY_STREAM = 1 << 32
"""Added to the seed, which is smaller: the order of auxiliary examples is independent of that of labeled ones."""


# ---- what a task hands to training ----


class AuxiliaryKey(NamedTuple):
    """Index of an auxiliary example, as it is in the given epoch of its own."""

    epoch: int
    row: int


class RepeatedKey(NamedTuple):
    """Index of a labeled example that another process has as well: it must not count."""

    row: int


@dataclass(frozen=True)
class AuxiliaryData:
    """Examples with a loss of their own that are trained on together with the labeled ones."""

    lengths: Sequence[int]
    """Tokens per example."""
    batch_size: int
    """Examples per micro-batch and device."""
    weight: Callable[[float], float]
    """Fraction of the training that is done → weight of their loss."""
    labels: str
    """Model input with their labels; -100 is ignored."""
    items: str
    """Model input that receives the number of labels of the whole step, over all micro-batches and processes."""
    weight_as: str
    """Model input that receives the weight."""
    split: int = 1
    """Micro-batches into which each micro-batch of the recipe was divided, so that it fits into memory."""

    def divided(self, split: int) -> AuxiliaryData:
        """For micro-batches of which ``split`` take the place of one."""
        return replace(self, batch_size=self.batch_size // split, split=split)

    def complete(self, samples: list[Any], gather: Callable[[Tensor], Tensor], done: float) -> None:
        """Add to each micro-batch of a step what only the whole step knows."""
        if not samples:
            return
        counts = sum((sample[self.labels] != IGNORED).sum() for sample in samples)
        assert isinstance(counts, Tensor), "there is a micro-batch"
        # The loss of each micro-batch is a sum divided by the labels of the whole step, over all processes: the mean of
        # means would give the labels of a short micro-batch more weight. At least 1, since a step may have none.
        items, weight = gather(counts.reshape(1)).sum().clamp(min=1), self.weight(done)
        for sample in samples:
            sample[self.items] = items
            sample[self.weight_as] = weight


@dataclass(frozen=True)
class TrainingInputs:
    """Tokenized examples, how they become batches, how a batch becomes a loss, and the metrics."""

    train: Dataset[Any]
    validation: Dataset[Any]
    collator: Callable[[list[dict[str, Any]]], Mapping[str, Tensor]]
    train_lengths: list[int]
    """Tokens per training example, for batches of similar length."""
    validation_lengths: list[int]
    """Tokens per validation example."""
    compute_metrics: Callable[[EvalPrediction], dict[str, float]]
    loss: Callable[..., Tensor] | None
    """Trainer's compute_loss_func: (outputs, labels, num_items_in_batch) → loss; None takes the model's own."""
    tokens: str = ""
    """A hash of the tokenized training examples: a run can't be resumed with another tokenizer."""
    preprocess_logits: Callable[[Any, Any], Any] | None = None
    """Trainer's preprocess_logits_for_metrics: (outputs, labels) → what compute_metrics needs of them."""
    keep_columns: bool = False
    """Whether the collator reads columns that the model's forward does not take; they are dropped before it if not."""
    epoch_lengths: Callable[[int], Sequence[int]] | None = None
    """Tokens per training example in an epoch, where examples change from epoch to epoch. ``train`` is then indexed by
    (epoch, number) and must depend on these two alone, so that a resumed run sees the same examples."""
    decay_embeddings: bool = True
    """Whether weight decay applies to embeddings; Muon's never does."""
    samples: Callable[[Any], list[dict[str, Any]]] | None = None
    """Function from the model to generated texts, which are added to the history at each evaluation; must not use
    torch's random state."""
    auxiliary: AuxiliaryData | None = None
    """Examples to train on together with the labeled ones: ``train`` is then indexed by ``AuxiliaryKey`` and
    ``RepeatedKey`` too."""
    totals: Mapping[str, str] = field(default_factory=dict)
    """Batch entry → model input that receives its number of rows in the whole step, over all micro-batches and
    processes: the divisor of a loss that is a sum over them."""
    notes: tuple[str, ...] = ()
    """What the user should know about the prepared examples."""
    loss_components: LossComponents | None = None
    """Receives the components of ``loss``; they are logged next to it."""


# ---- the order of the examples ----


def epoch_order(
    seed: int,
    epoch: int,
    rows: int,
    effective_batch_size: int,
    lengths: np.ndarray | None = None,
    *,
    shuffle: bool = True,
) -> np.ndarray:
    """A permutation of the example numbers: the order in which one epoch visits them.

    Each ``effective_batch_size`` of them are one step, sorted from long to short; the steps come in random order, and a
    shorter one, of examples drawn at random, comes last. Without ``lengths``, the order is random throughout.
    """
    if not shuffle:
        return np.arange(rows)
    # Trainer's own group_by_length draws from torch's global generator, which dropout advances too: from the second
    # epoch on, a resumed run would see different batches. A new generator for each epoch has no state to restore.
    generator = np.random.default_rng([seed, epoch])
    shuffled = generator.permutation(rows)
    if lengths is None:
        return shuffled
    # The examples that fill no whole step were drawn before sorting: cut off afterwards, they would always be the
    # shortest, and each epoch would end with a small step of short examples.
    whole = rows - rows % effective_batch_size
    pool = POOL_STEPS * effective_batch_size
    steps = [
        _by_length(shuffled[start : min(start + pool, whole)], lengths).reshape(-1, effective_batch_size)
        for start in range(0, whole, pool)
    ]
    rest = _by_length(shuffled[whole:], lengths)
    if not steps:
        return rest
    stacked = np.concatenate(steps)
    return np.concatenate([stacked[generator.permutation(len(stacked))].ravel(), rest])


def longest_first(lengths: Sequence[int]) -> np.ndarray:
    """Example numbers from long to short: too little memory shows in the first batch."""
    values = np.asarray(lengths)
    return _by_length(np.arange(len(values)), values)


def _by_length(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return rows[np.argsort(-lengths[rows], kind="stable")]


class RankBatches(Sampler[list[Any]]):
    """The batches of one process.

    A micro-batch of all processes together has ``batch_size × world_size`` examples; process r gets every world_size-th
    of them, so all work on similar lengths. accelerate reads ``batch_size`` and ``drop_last``.

    The order depends on ``effective_batch_size`` alone, however it is divided into processes and accumulation steps.
    So two processes, or a smaller batch size with accumulation, take the same steps as one process.
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
        """Everything but ``rank``, the number of this process, is the same in all processes.

        ``lengths`` are tokens per example, or a function of the epoch that returns them; None shuffles without regard
        to length. If examples are ``changing`` from epoch to epoch, the dataset is indexed by (epoch, number).
        """
        assert lengths is None or callable(lengths) or len(lengths) == rows, "a length for every row"
        self.rows, self.batch_size, self.accumulation = rows, batch_size, accumulation
        self.world_size, self.rank, self.seed = world_size, rank, seed
        self.micro_batch_size = batch_size * world_size
        self.effective_batch_size = self.micro_batch_size * accumulation
        self._lengths = lengths if lengths is None or callable(lengths) else np.asarray(lengths)
        self._changing, self._shuffle = changing, shuffle
        self._epoch = 0
        self._ordered: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return -(-self.rows // self.micro_batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self._epoch
        for index in range(len(self)):
            rows = self.batch(epoch, index)
            yield [(epoch, row) for row in rows] if self._changing else rows

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return -(-len(self) // self.accumulation)

    @property
    def limit(self) -> tuple[str, int]:
        """The setting that bounds a batch, and its value."""
        return "per_device_train_batch_size", self.batch_size

    def examples_seen(self, steps: int) -> int:
        """Examples in the first ``steps`` steps of a run."""
        epochs, rest = divmod(steps, self.steps)
        return epochs * self.rows + rest * self.effective_batch_size

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before it iterates."""
        self._epoch = epoch

    def batch(self, epoch: int, index: int) -> list[int]:
        """Examples of this process in one micro-batch; a process with none left repeats one (see ``weight``)."""
        together = self._together(epoch, index)
        mine = together[self.rank :: self.world_size]
        return (mine if len(mine) else together[:1]).tolist()  # type: ignore[no-any-return]

    def weight(self, index: int) -> float:
        """Factor that turns this process's mean loss into its share of the mean over the step's examples.

        Trainer averages the losses of micro-batches and DDP those of processes, as if all had equally many examples.
        The factor is 1 where they do, and 0 where this process only repeats an example of another: it must still run
        forward and backward, because DDP waits for the gradients of every process.
        """
        step = index // self.accumulation
        rows = min(self.effective_batch_size, self.rows - step * self.effective_batch_size)
        return self._share(index, micro_batches=-(-rows // self.micro_batch_size), rows=rows)

    def _share(self, index: int, micro_batches: int, rows: int) -> float:
        # Trainer sums mean loss × factor / (micro_batches × world_size) over micro-batches and processes. To make that
        # the mean over all examples of the step, a mean over `mine` of them needs the factor below. With 2 processes
        # and 9 examples in a step of one micro-batch, their means over 5 and 4 examples count 10/9 and 8/9.
        mine = len(range(self.rank, self._size(index), self.world_size))
        return float(mine * micro_batches * self.world_size / rows)

    def _size(self, index: int) -> int:
        """Examples in one micro-batch, all processes together."""
        return min(self.micro_batch_size, self.rows - index * self.micro_batch_size)

    def _together(self, epoch: int, index: int) -> np.ndarray:
        if self._ordered is None or self._ordered[0] != epoch:
            lengths = np.asarray(self._lengths(epoch)) if callable(self._lengths) else self._lengths
            order = epoch_order(self.seed, epoch, self.rows, self.effective_batch_size, lengths, shuffle=self._shuffle)
            self._ordered = (epoch, order)
        start = index * self.micro_batch_size
        return self._ordered[1][start : start + self.micro_batch_size]


class TokenBatches(RankBatches):
    """Batches with at most ``tokens`` tokens, padding included: few long examples or many short ones.

    Examples are ranked by length and cut where the maximum is reached. The cuts depend on the lengths alone, so every
    epoch has the same number of batches; examples of one length change places from epoch to epoch.
    """

    def __init__(self, *, tokens: int, **settings: Any) -> None:
        """tokens: maximum per device; settings: those of ``RankBatches``."""
        super().__init__(**settings)
        assert isinstance(self._lengths, np.ndarray), "lengths that stay the same"
        self.tokens = tokens
        longest = int(self._lengths.max())
        if longest > tokens:
            raise HftuneError(
                f"train.max_tokens_per_batch is {tokens}, but a training example has {longest} tokens",
                hint=f"set it to {longest} or more, or lower data.max_seq_length",
            )
        self._starts = _cuts(np.sort(self._lengths)[::-1], tokens, self.batch_size, self.world_size)
        self._arranged: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def limit(self) -> tuple[str, int]:
        """The setting that bounds a batch, and its value."""
        return "max_tokens_per_batch", self.tokens

    def examples_seen(self, steps: int) -> int:
        """Examples in the first ``steps`` steps of a run."""
        epochs, rest = divmod(steps, self.steps)
        return epochs * self.rows + int(self._sizes(epochs)[: rest * self.accumulation].sum())

    def weight(self, index: int) -> float:
        """As in ``RankBatches``, for micro-batches of different sizes."""
        first = index // self.accumulation * self.accumulation
        sizes = self._sizes(self._epoch)[first : first + self.accumulation]
        return self._share(index, micro_batches=len(sizes), rows=int(sizes.sum()))

    def _size(self, index: int) -> int:
        return int(self._sizes(self._epoch)[index])

    def _sizes(self, epoch: int) -> np.ndarray:
        sizes: np.ndarray = np.diff(self._starts)[self._arrangement(epoch)[1]]
        return sizes

    def _together(self, epoch: int, index: int) -> np.ndarray:
        ranked, arranged = self._arrangement(epoch)
        place = arranged[index]
        return ranked[self._starts[place] : self._starts[place + 1]]

    def _arrangement(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples from long to short, and the order of the batches."""
        # Shuffled before the stable sort by length, so that examples of one length are combined differently in each
        # epoch; the boundaries of the batches depend on the lengths alone.
        if self._arranged is None or self._arranged[0] != epoch:
            generator = np.random.default_rng([self.seed, epoch])
            shuffled, lengths = generator.permutation(self.rows), np.asarray(self._lengths)
            self._arranged = (epoch, _by_length(shuffled, lengths), generator.permutation(len(self)))
        return self._arranged[1:]


def _cuts(ranked: np.ndarray, tokens: int, rows: int, processes: int) -> np.ndarray:
    """Boundaries of the batches among examples ranked from long to short; the first of a batch is its longest."""
    starts = [0]
    while starts[-1] < len(ranked):
        # Padding makes every example as long as the first, so that one decides how many fit on a device.
        each = min(rows, tokens // int(ranked[starts[-1]]))
        starts.append(min(starts[-1] + each * processes, len(ranked)))
    return np.array(starts)


class PairedBatches(RankBatches):
    """Labeled examples, then as many ``AuxiliaryKey`` as there are auxiliary examples in a micro-batch.

    Auxiliary examples cycle at their own pace and are shuffled anew in each epoch of their own.
    """

    def __init__(self, *, auxiliary: AuxiliaryData, bucketed: bool, **settings: Any) -> None:
        """bucketed: batch auxiliary examples by length; settings: those of ``RankBatches``."""
        super().__init__(**settings)
        self._split = auxiliary.split
        self._auxiliary_rows = len(auxiliary.lengths)
        self._auxiliary_micro_batch = auxiliary.batch_size * self.world_size
        self._auxiliary_lengths = np.asarray(auxiliary.lengths) if bucketed else None
        self._auxiliary_orders: dict[int, np.ndarray] = {}

    def __iter__(self) -> Iterator[list[Any]]:
        epoch = self._epoch
        for index in range(len(self)):
            own: list[Any] = self.batch(epoch, index)
            if super().weight(index) == 0:
                own = [RepeatedKey(row) for row in own]
            yield own + self._auxiliary(epoch, index)

    def __len__(self) -> int:
        """Whole micro-batches of the recipe, however they are divided: auxiliary examples come with each."""
        return -(-self.rows // (self.micro_batch_size * self._split)) * self._split

    def weight(self, index: int) -> float:
        """Never 0: a process without a labeled example of its own still has auxiliary ones (see ``RepeatedKey``)."""
        return super().weight(index) or 1.0

    def _auxiliary(self, epoch: int, index: int) -> list[AuxiliaryKey]:
        # Positions are numbered through the whole run: each is an epoch of the auxiliary
        # examples and an index in its order. So a resumed run needs no state to continue with the right one.
        first = (epoch * len(self) + index) * self._auxiliary_micro_batch
        places = range(first + self.rank, first + self._auxiliary_micro_batch, self.world_size)
        return [self._auxiliary_at(*divmod(place, self._auxiliary_rows)) for place in places]

    def _together(self, epoch: int, index: int) -> np.ndarray:
        # Where the labeled examples run out within the last micro-batch, one is repeated and does not count.
        size = self._size(index)
        return super()._together(epoch, index if size > 0 else 0)[: max(1, size)]

    def _auxiliary_at(self, epoch: int, place: int) -> AuxiliaryKey:
        if epoch not in self._auxiliary_orders:
            order = epoch_order(
                self.seed + AUXILIARY_STREAM,
                epoch,
                self._auxiliary_rows,
                self._auxiliary_micro_batch * self.accumulation,
                self._auxiliary_lengths,
            )
            # A micro-batch may reach over the end of an auxiliary epoch.
            recent = {known: rows for known, rows in self._auxiliary_orders.items() if known >= epoch - 1}
            self._auxiliary_orders = {**recent, epoch: order}
        return AuxiliaryKey(epoch, int(self._auxiliary_orders[epoch][place]))
