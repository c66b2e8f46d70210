"""Joint training: which rows a step gets, resuming in the middle of an epoch, and two processes in place of one."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from joint_case import UNLABELED, examples, joint_bert, joint_case
from training_case import CrashAt, KilledError, same

from hftune.training.fit import fit
from hftune.training.inputs import AuxiliaryData, AuxiliaryKey, PairedBatches, RankBatches, RepeatedKey

pytestmark = pytest.mark.numeric

AUXILIARY = AuxiliaryData(examples().sizes.tolist(), 5, lambda done: 1.0, "labels", "items", "weight")


def batches(world: int = 1, rank: int = 0, auxiliary: AuxiliaryData = AUXILIARY, **changes: Any) -> PairedBatches:
    settings = {
        "rows": 41,
        "batch_size": 8,
        "accumulation": 2,
        "seed": 1,
        "lengths": None,
        **changes,
    }
    return PairedBatches(auxiliary=auxiliary, bucketed=True, world_size=world, rank=rank, **settings)


def test_unlabeled_rows_cycle_at_their_own_pace_and_are_shuffled_anew() -> None:
    sampler = batches()
    drawn: list[AuxiliaryKey] = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for batch in sampler:
            drawn += [key for key in batch if isinstance(key, AuxiliaryKey)]
    assert len(drawn) == 4 * len(sampler) * 5
    rounds = [drawn[start : start + UNLABELED] for start in range(0, len(drawn), UNLABELED)]
    for number, keys in enumerate(rounds[:-1]):
        assert {key.epoch for key in keys} == {number}
        assert sorted(key.row for key in keys) == list(range(UNLABELED)), "each row once a round"
    for one, other in pairwise(rounds[:-1]):
        assert [key.row for key in one] != [key.row for key in other]


def test_labeled_rows_come_as_without_auxiliary_ones() -> None:
    paired = batches()
    plain = RankBatches(rows=41, batch_size=8, accumulation=2, world_size=1, rank=0, seed=1, lengths=None)
    for epoch in (0, 2):
        paired.set_epoch(epoch)
        plain.set_epoch(epoch)
        assert [[key for key in batch if not isinstance(key, AuxiliaryKey)] for batch in paired] == list(plain)


def test_two_processes_share_both_halves_out() -> None:
    half = AuxiliaryData(AUXILIARY.lengths, 2, AUXILIARY.weight, "labels", "items", "weight")
    whole = AuxiliaryData(AUXILIARY.lengths, 4, AUXILIARY.weight, "labels", "items", "weight")
    one = batches(auxiliary=whole, rows=33)
    ranks = [batches(2, rank, auxiliary=half, rows=33, batch_size=4) for rank in (0, 1)]
    for alone, *together in zip(one, *ranks, strict=True):
        every = list(chain.from_iterable(together))
        for kind in (AuxiliaryKey, int):
            shared = sorted(key for key in every if isinstance(key, kind) and not isinstance(key, RepeatedKey))
            assert shared == sorted(key for key in alone if isinstance(key, kind))
        assert all(sum(isinstance(key, AuxiliaryKey) for key in part) == 2 for part in together)
    # 33 rows: the last pass has one row for two processes; the second has it too, and it does not count.
    assert [type(key).__name__ for key in list(ranks[1])[-1]] == ["RepeatedKey", "AuxiliaryKey", "AuxiliaryKey"]


def linear(done: float) -> float:
    return 1.0 - done


SETTINGS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 3,
    "logging_steps": 2,
    "eval_steps": 4,
    "learning_rate": 1e-2,
}


def test_resume_in_the_middle_of_an_epoch_is_bit_identical(tmp_path: Path) -> None:
    """The checkpoint is in the middle of an epoch, of a round of the unlabeled rows and of a log interval."""

    def case(name: str) -> Any:
        settings = {**SETTINGS, "logging_steps": 3}
        return joint_case(tmp_path / name, settings, rows=60, mlm_batch_size=5, weight=linear)

    whole = case("whole")
    fit(whole.trainer(joint_bert(0.1)))
    killed = case("parts").trainer(joint_bert(0.1))
    killed.add_callback(CrashAt(7))
    with pytest.raises(KilledError):
        fit(killed)
    parts = case("parts")
    trainer = parts.trainer(joint_bert(0.1))
    fit(trainer, resume=True)
    assert same(whole.weights_at(12), parts.weights_at(12))
    assert whole.history == parts.history
    trained = [row for row in whole.history if "split" not in row]
    assert [row["step"] for row in trained] == [3, 6, 9, 12]
    for row in trained:
        assert row["mlm_loss"] > row["classification_loss"] > 0
    # The weight falls to 0 in a line, so the sum does too.
    assert trained[0]["loss"] > trained[0]["classification_loss"] + 0.7 * trained[0]["mlm_loss"]
    assert trained[-1]["loss"] < trained[-1]["classification_loss"] + 0.2 * trained[-1]["mlm_loss"]


def test_history_has_the_components_of_the_loss(tmp_path: Path) -> None:
    settings = {**SETTINGS, "num_train_epochs": 1, "logging_steps": 1, "eval_steps": 1}
    case = joint_case(tmp_path, settings, rows=41, mlm_batch_size=5, weight=lambda done: 0.25)
    fit(case.trainer(joint_bert(0.0)))
    trained = [row for row in case.history if "split" not in row]
    assert len(trained) == 3
    for row in trained:
        assert row["loss"] == pytest.approx(row["classification_loss"] + 0.25 * row["mlm_loss"], rel=1e-5)
    validation = [row for row in case.history if "split" in row][-1]
    assert "mlm_loss" not in validation and validation["loss"] < 3
