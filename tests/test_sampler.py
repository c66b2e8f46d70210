"""The batch order is a pure function: a permutation, bucketed, shuffled each epoch, one order for all processes."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from facts import facts, hftune_error
from torch.utils.data import DataLoader

from hftune.training.inputs import RankBatches, TokenBatches, epoch_order, longest_first
from hftune.training.settings import TrainSection

pytestmark = pytest.mark.numeric

LENGTHS = np.random.default_rng(0).integers(3, 200, 1003)


def batches(**changes: Any) -> RankBatches:
    plain: dict[str, Any] = {
        "rows": 1003,
        "batch_size": 8,
        "accumulation": 1,
        "world_size": 1,
        "rank": 0,
        "seed": 1,
        "lengths": LENGTHS.tolist(),
    }
    return RankBatches(**{**plain, **changes})


def padding(groups: list[list[int]]) -> float:
    """Share of a padded batch that is padding."""
    padded = sum(len(group) * LENGTHS[group].max() for group in groups)
    return float(1 - LENGTHS[list(chain(*groups))].sum() / padded)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["shuffled", "buckets"])
@pytest.mark.parametrize("rows", [1, 7, 8, 16, 1003])
def test_every_row_once_an_epoch(lengths: np.ndarray | None, rows: int) -> None:
    order = epoch_order(3, 2, rows, 8, None if lengths is None else lengths[:rows])
    assert sorted(order.tolist()) == list(range(rows))


def test_pure_in_seed_and_epoch() -> None:
    first = epoch_order(1, 0, 1003, 8, LENGTHS)
    assert np.array_equal(first, epoch_order(1, 0, 1003, 8, LENGTHS))
    assert not np.array_equal(first, epoch_order(1, 1, 1003, 8, LENGTHS))
    assert not np.array_equal(first, epoch_order(2, 0, 1003, 8, LENGTHS))
    assert not np.array_equal(epoch_order(1, 1, 1003, 8), epoch_order(2, 0, 1003, 8))


def test_batches_are_of_like_length_and_in_no_order_of_length() -> None:
    bucketed, shuffled = list(batches()), list(batches(lengths=None))
    assert padding(shuffled) > 0.35
    assert padding(bucketed) < 0.04
    longest = [int(LENGTHS[group].max()) for group in bucketed]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.3


def test_rows_meet_other_rows_in_the_next_epoch() -> None:
    sampler = batches()
    together = [
        {frozenset(group) for group in ([sampler.batch(epoch, i) for i in range(len(sampler))])} for epoch in (0, 1)
    ]
    assert len(together[0] & together[1]) <= 1


def test_the_short_step_is_drawn_at_random() -> None:
    """Rows left over are not always the shortest ones: over many epochs they are as long as all rows."""
    left = [LENGTHS[epoch_order(1, epoch, 1003, 8, LENGTHS)[-3:]].mean() for epoch in range(300)]
    assert np.mean(left) == pytest.approx(LENGTHS.mean(), rel=0.1)


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_one_order(world_size: int) -> None:
    """Each pass of all processes together holds the rows of the one process with the same rows a pass."""
    ranks = [batches(batch_size=4, world_size=world_size, rank=rank) for rank in range(world_size)]
    alone = batches(batch_size=4 * world_size)
    assert {len(rank) for rank in ranks} == {len(alone)}
    for index, expected in enumerate(alone):
        shares = [rank.batch(0, index) for rank in ranks]
        own = [share for rank, share in zip(ranks, shares, strict=True) if rank.weight(index)]
        assert sorted(chain(*own)) == sorted(expected)
        assert all(shares), "every process has something to do"


def test_accumulation_makes_the_same_steps() -> None:
    """Four passes of 4 rows hold what one pass of 16 holds."""
    parts, whole = batches(batch_size=4, accumulation=4), batches(batch_size=16)
    assert parts.steps == whole.steps == len(whole)
    for update, expected in enumerate(whole):
        passes = [parts.batch(0, i) for i in range(update * 4, min(update * 4 + 4, len(parts)))]
        assert sorted(chain(*passes)) == sorted(expected)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_weights_make_the_mean_over_rows(world_size: int, accumulation: int) -> None:
    """Weighted means, averaged over micro-batches and processes as by Trainer and DDP, are the plain mean of a step."""
    ranks = [
        batches(rows=103, lengths=LENGTHS[:103].tolist(), world_size=world_size, rank=rank, accumulation=accumulation)
        for rank in range(world_size)
    ]
    for update in range(ranks[0].steps):
        passes = range(update * accumulation, min((update + 1) * accumulation, len(ranks[0])))
        averaged = np.mean([[rank.weight(i) * LENGTHS[rank.batch(0, i)].mean() for i in passes] for rank in ranks])
        rows = {row for rank in ranks for i in passes if rank.weight(i) for row in rank.batch(0, i)}
        assert averaged == pytest.approx(LENGTHS[sorted(rows)].mean())
    assert ranks[0].weight(0) == 1.0


def test_a_process_without_rows_repeats_one_and_does_not_count() -> None:
    ranks = [batches(rows=9, lengths=LENGTHS[:9].tolist(), batch_size=4, world_size=2, rank=rank) for rank in (0, 1)]
    assert ranks[0].batch(0, 1) == ranks[1].batch(0, 1)
    assert ranks[0].weight(1) == 2.0 and ranks[1].weight(1) == 0.0


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("skipped", [0, 1, 60])
def test_skipping_through_accelerate(epoch: int, skipped: int) -> None:
    """What Trainer does on resume: skip batches, then set the epoch, then iterate."""
    loader: Any = DataLoader(range(1003), batch_sampler=batches(), collate_fn=list)
    loader = prepare_data_loader(loader, num_processes=1, process_index=0)
    loader = skip_first_batches(loader, skipped) if skipped else loader
    loader.set_epoch(epoch)
    inner = getattr(loader.batch_sampler, "batch_sampler", None)
    if inner is not None:
        inner.set_epoch(epoch)
    sampler = batches()
    assert list(loader) == [sampler.batch(epoch, index) for index in range(skipped, len(sampler))]


def test_longest_first_is_stable() -> None:
    assert longest_first([3, 5, 3, 9, 5]).tolist() == [3, 1, 4, 0, 2]


def test_rows_that_change_are_requested_with_their_epoch_and_bucketed_by_its_lengths() -> None:
    def lengths_in(epoch: int) -> np.ndarray:
        return np.roll(LENGTHS, 100 * epoch)

    changing = batches(lengths=lengths_in, changing=True)
    for epoch in (0, 3):
        changing.set_epoch(epoch)
        drawn = list(changing)
        assert {key[0] for group in drawn for key in group} == {epoch}
        assert [[row for _, row in group] for group in drawn] == list(
            chain([changing.batch(epoch, index) for index in range(len(changing))])
        )
        widest = sum(len(group) * max(lengths_in(epoch)[row] for _, row in group) for group in drawn)
        assert 1 - LENGTHS.sum() / widest < 0.04, "padding, by the lengths of this epoch"


def budget(**changes: Any) -> TokenBatches:
    plain: dict[str, Any] = {
        "tokens": 600,
        "rows": 1003,
        "batch_size": 64,
        "accumulation": 1,
        "world_size": 1,
        "rank": 0,
        "seed": 1,
        "lengths": LENGTHS.tolist(),
    }
    return TokenBatches(**{**plain, **changes})


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_budget_bounds_every_batch_and_leaves_no_row_out(epoch: int) -> None:
    sampler = budget()
    sampler.set_epoch(epoch)
    groups = list(sampler)
    assert sorted(chain(*groups)) == list(range(1003))
    padded = [len(group) * int(LENGTHS[group].max()) for group in groups]
    assert max(padded) <= 600 and max(map(len, groups)) <= 64
    assert np.mean(padded) > 450, "batches are filled"
    assert padding(groups) < 0.05


def test_a_budget_gives_as_many_batches_each_epoch_in_another_order() -> None:
    sampler = budget()
    first, second = ([sampler.batch(epoch, index) for index in range(len(sampler))] for epoch in (0, 1))
    assert len(first) == len(second) and first != second
    assert {frozenset(group) for group in first} != {frozenset(group) for group in second}
    again = budget()
    assert [again.batch(1, index) for index in range(len(again))] == second, "a pure function of seed and epoch"


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_weights_of_a_budget_give_the_mean_over_the_examples_of_a_step(world_size: int, accumulation: int) -> None:
    values = np.random.default_rng(4).normal(size=1003)
    ranks = [budget(world_size=world_size, rank=rank, accumulation=accumulation) for rank in range(world_size)]
    for rank in ranks:
        rank.set_epoch(2)
    for update in range(ranks[0].steps):
        passes = range(update * accumulation, min((update + 1) * accumulation, len(ranks[0])))
        own = [[rank.batch(2, index) for index in passes] for rank in ranks]
        expected = values[list(chain(*chain(*own)))].mean()
        got = np.mean(
            [
                values[rows].mean() * rank.weight(index)
                for rank, batches_of in zip(ranks, own, strict=True)
                for index, rows in zip(passes, batches_of, strict=True)
            ]
        )
        assert got == pytest.approx(expected)
    assert ranks[0].examples_seen(ranks[0].steps * 2) == 2006


def test_examples_seen_under_a_budget_are_those_of_the_steps_made() -> None:
    sampler = budget(accumulation=2)
    rows = sum(len(sampler.batch(1, index)) for index in range(6))
    assert sampler.examples_seen(sampler.steps + 3) == 1003 + rows


def test_a_row_longer_than_the_budget_is_refused() -> None:
    with hftune_error("max_tokens_per_batch", 100, 199) as caught:
        budget(tokens=100)
    assert "max_seq_length" in caught.value.hint


def test_a_budget_does_not_go_with_a_batch_that_is_found() -> None:
    with pytest.raises(ValueError, match=facts("set one of")):
        TrainSection(max_tokens_per_batch=600, auto_find_batch_size=True)
