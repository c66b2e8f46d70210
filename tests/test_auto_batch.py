"""train.auto_find_batch_size: what fits is found before training, steps keep their examples, resume keeps what was
found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_case import TASKS, differences, in_rank, recipe, remains, train_session, write_data
from facts import hftune_error, mentions
from forks import joined, start_ranks
from tiny import QUICK, csv_folder
from training_case import Case

from hftune.errors import HftuneError
from hftune.pipeline.train import assemble
from hftune.progress import ProgressReporter
from hftune.runs.directory import RunDir
from hftune.tasks import classification  # noqa: F401  imports available_memory, before a test replaces it
from hftune.training import memory
from hftune.training.memory import MemoryProbe, divisions, first_that_fits, largest_within
from hftune.training.trainer import HftuneTrainer

pytestmark = pytest.mark.numeric

AUTO = {"train.auto_find_batch_size": True}
Tight = Callable[..., None]


class Heard(ProgressReporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def tighten(patch: Any, rows: int, evaluated: int = 99) -> None:
    """A machine with memory for this many examples of a micro-batch, at one byte each; micro-batches are really run."""
    train, evaluate, noted = MemoryProbe.train, MemoryProbe.evaluate, [0]

    def training(self: MemoryProbe, size: int, beside: int = 0) -> None:
        noted[0] = size
        train(self, size, beside)

    def evaluating(self: MemoryProbe, size: int) -> None:
        noted[0] = size * rows // evaluated
        evaluate(self, size)

    def measured(work: Callable[[], None]) -> int:
        work()
        return noted[0]

    patch.setattr(MemoryProbe, "train", training)
    patch.setattr(MemoryProbe, "evaluate", evaluating)
    patch.setattr(MemoryProbe, "reserve", 0)
    patch.setattr(memory, "measured", measured)
    patch.setattr(memory, "available_memory", lambda: math.ceil(rows / memory.USABLE))


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> Tight:
    return lambda rows, evaluated=99: tighten(monkeypatch, rows, evaluated)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("auto"))


@pytest.mark.parametrize(
    ("rows", "beside", "expected"),
    [
        (32, 0, [1, 2, 4, 8, 16, 32]),
        (12, 0, [1, 2, 4, 12]),
        (7, 0, [1, 7]),
        (1, 0, [1]),
        (8, 4, [1, 2, 4]),
        (8, 12, [1, 2, 4]),
        (8, 5, [1]),
    ],
)
def test_a_pass_is_divided_into_equal_ones(rows: int, beside: int, expected: list[int]) -> None:
    assert divisions(rows, beside) == expected


def test_a_device_is_tried_from_large_to_small() -> None:
    tried: list[int] = []

    def attempt(size: int) -> None:
        tried.append(size)
        if size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    assert first_that_fits([16, 8, 4, 2, 1], attempt) == 4
    assert tried == [16, 8, 4]
    assert first_that_fits([16, 8], attempt) == 0
    with pytest.raises(RuntimeError, match="shapes"):
        first_that_fits([16, 8], lambda size: (_ for _ in ()).throw(RuntimeError("shapes do not match")))


@pytest.mark.parametrize(
    ("room", "fits", "tried"),
    [
        (10_000, 32, [1, 2, 4, 8, 16, 32]),
        (900, 8, [1, 2, 4, 8]),  # 16 rows would take 1,640
        (840, 8, [1, 2, 4, 8]),
        (839, 4, [1, 2, 4]),
        (100, 0, [1]),
    ],
)
def test_memory_of_a_cpu_is_never_tried_blindly(room: int, fits: int, tried: list[int]) -> None:
    """100 bytes a row, and 40 whatever the rows: a line, so that what the next size takes is known beforehand."""
    sizes: list[int] = []

    def use(size: int) -> int:
        sizes.append(size)
        return 40 + 100 * size

    assert largest_within([32, 16, 8, 4, 2, 1], use, room) == fits
    assert sizes == tried
    assert max(40 + 100 * size for size in sizes) <= max(room, 140), "one row is the least that can be tried"


def updates(trainer: Any, epochs: int = 2) -> list[list[str]]:
    """The examples of each step, auxiliary ones among them; repeated ones, which do not count, are left out."""
    found, passes = [], trainer.batches.accumulation
    for epoch in range(epochs):
        trainer.batches.set_epoch(epoch)
        batches = list(trainer.batches)
        for start in range(0, len(batches), passes):
            keys = [key for batch in batches[start : start + passes] for key in batch]
            found.append(sorted(str(key) for key in keys if type(key).__name__ != "RepeatedKey"))
    return found


@pytest.mark.parametrize("task", TASKS)
def test_steps_keep_their_examples_and_their_loss(home: Path, tmp_path: Path, tight: Tight, task: str) -> None:
    """43 examples in steps of 8: the last has 3, fewer than its micro-batches when they have 2 examples each."""
    settings = {"model.dropout": 0.0, "train.num_train_epochs": 1, "train.logging_steps": 1}
    plain = recipe(home, task, **settings)
    before = assemble(plain, RunDir(tmp_path / "rows"), ProgressReporter())
    train_session(plain, tmp_path / "plain")

    tight(2)
    lowered, received = recipe(home, task, **settings, **AUTO), Heard()
    job = assemble(lowered, RunDir(tmp_path / "rows"), received)
    assert (job.trainer.batches.batch_size, job.trainer.batches.accumulation) == (2, 4)
    assert updates(job.trainer) == updates(before.trainer)
    assert mentions(
        received.notes,
        "auto_find_batch_size",
        "per_device_train_batch_size 8 → 2",
        "gradient_accumulation_steps 1 → 4",
        "effective batch size",
    )
    train_session(lowered, tmp_path / "lowered")
    left, right = remains(tmp_path / "plain"), remains(tmp_path / "lowered")
    for one, other in zip(left["history"], right["history"], strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() & {"loss", "grad_norm", "mlm_loss", "classification_loss"}:
            assert other[key] == pytest.approx(one[key], rel=2e-4), (key, one["step"])
    for name, value in left["weights"].items():
        torch.testing.assert_close(right["weights"][name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("task", ["classify", "joint"])
def test_a_trial_leaves_no_trace(home: Path, tmp_path: Path, task: str) -> None:
    """What fits at once trains as it would have without being asked: sums of losses, buffers and dropout included."""
    train_session(recipe(home, task), tmp_path / "plain")
    train_session(recipe(home, task, **AUTO), tmp_path / "auto")
    assert differences(remains(tmp_path / "auto"), remains(tmp_path / "plain")) == []


def test_a_resumed_run_keeps_what_was_found(home: Path, tmp_path: Path) -> None:
    wanted = recipe(home, "joint", **AUTO)
    with pytest.MonkeyPatch.context() as patch:
        tighten(patch, rows=4, evaluated=16)
        train_session(wanted, tmp_path / "whole")
        train_session(wanted, tmp_path / "parts", stop=4)
    received = Heard()
    trainer = assemble(wanted, RunDir(tmp_path / "parts"), received).trainer
    assert mentions(received.notes, "auto_find_batch_size", 4)
    assert (trainer.batches.batch_size, trainer.args.per_device_eval_batch_size) == (4, 16)
    train_session(wanted, tmp_path / "parts", resume=True)
    assert differences(remains(tmp_path / "parts"), remains(tmp_path / "whole")) == []


def test_evaluations_are_lowered_too(home: Path, tmp_path: Path, tight: Tight) -> None:
    tight(8, evaluated=5)
    received = Heard()
    job = assemble(recipe(home, "clm", **AUTO), RunDir(tmp_path), received)
    assert job.trainer.args.per_device_eval_batch_size == 4
    assert job.task.recipe.train.per_device_eval_batch_size == 4, "what is scored at the end goes by it"
    assert mentions(received.notes, "auto_find_batch_size", "per_device_eval_batch_size 64 → 4", "effective batch size")


def test_nothing_fits(home: Path, tmp_path: Path, tight: Tight, monkeypatch: pytest.MonkeyPatch) -> None:
    tight(0)
    with hftune_error("batch", 1, code=1) as failed:
        assemble(recipe(home, "classify", **AUTO), RunDir(tmp_path), ProgressReporter())
    assert "data.max_seq_length" in failed.value.hint
    odd = recipe(home, "joint", **AUTO, **{"task.mlm_batch_size": 5})
    with hftune_error(8, "5 auxiliary", code=1):
        assemble(odd, RunDir(tmp_path), ProgressReporter())
    monkeypatch.setattr(HftuneTrainer, "sharding", True)
    with pytest.raises(HftuneError, match="sharded"):
        Case(tmp_path, {"auto_find_batch_size": True}).trainer()


def test_a_device_without_enough_memory(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the longest batch is tried while what the optimizer will need is held; meta replaces one here."""
    train, sizes = MemoryProbe.train, []

    def full(self: MemoryProbe, size: int, beside: int = 0) -> None:
        sizes.append(size)
        if size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        train(self, size, beside)

    real = MemoryProbe.__init__

    def on_device(self: MemoryProbe, *args: Any) -> None:
        real(self, *args)
        self.device = torch.device("meta")

    monkeypatch.setattr(MemoryProbe, "__init__", on_device)
    monkeypatch.setattr(MemoryProbe, "train", full)
    trainer = assemble(recipe(home, "classify", **AUTO), RunDir(tmp_path), ProgressReporter()).trainer
    assert (trainer.batches.batch_size, trainer.batches.accumulation, sizes) == (4, 2, [8, 4])
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def found_in_rank(rank_rows: list[int], wanted: Any, folder: Path) -> None:
    import os

    rank = int(os.environ["RANK"])
    with pytest.MonkeyPatch.context() as patch:
        tighten(patch, rank_rows[rank])
        batches = assemble(wanted, RunDir(folder / "run"), ProgressReporter()).trainer.batches
    (folder / f"{rank}.json").write_text(json.dumps([batches.batch_size, batches.accumulation]))


def test_processes_agree_on_what_fits_all(home: Path, tmp_path: Path) -> None:
    wanted = recipe(home, "classify", **AUTO, **{"train.use_cpu": True})
    # Both live on one machine: each may have half of what is free there.
    assert joined(start_ranks(2, in_rank, found_in_rank, [16, 4], wanted, tmp_path)) == [0, 0]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [[2, 4], [2, 4]]


def test_from_the_command_line(here: Path, tight: Tight, hftune: Callable[..., tuple[int, str, str]]) -> None:
    tight(4)
    command = (
        "classify",
        "--data",
        str(csv_folder(here / "data")),
        "--output",
        "run",
        *QUICK,
        "--auto-find-batch-size",
    )
    code, _, err = hftune(*command)
    assert code == 0, err
    assert "per_device_train_batch_size 8 → 4" in err
    speed = json.loads((here / "run" / "metrics.json").read_text())["speed"]
    assert (speed["batch_size"], speed["accumulation"]) == (4, 2)
    code, _, err = hftune(*command[:-1], "--auto-find-batch-size", "False", "--resume")
    assert (code, "train.auto_find_batch_size: True → False" in err) == (2, True)


GIGABYTE = 2**30


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """A group allows 4 GB and the one above it 3 GB; 2 GB are used, of which half are files that can go."""
    root = tmp_path / "memory" if version == 1 else tmp_path
    limit, use, cached = memory.CGROUP_FILES["memory" if version == 1 else ""]
    for folder, most in ((root / "jobs" / "mine", 4), (root / "jobs", 3)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{most * GIGABYTE}\n")
        (folder / use).write_text(f"{2 * GIGABYTE}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{cached} {GIGABYTE}\n")
    (root / limit).write_text("max\n")
    (tmp_path / "cgroup").write_text("5:cpu:/\n4:memory:/jobs/mine\n" if version == 1 else "0::/jobs/mine\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "PROCESS", tmp_path)
    assert list(memory._within_groups()) == [3 * GIGABYTE, 2 * GIGABYTE]
    assert 0 < memory.available_memory() <= 2 * GIGABYTE


def test_limits_of_the_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    held = memory.psutil.Process().memory_info()
    monkeypatch.setattr(memory, "memory_limits", lambda: {"address_space": held.vms + 50 * GIGABYTE})
    assert list(memory._within_limits()) == [pytest.approx(50 * GIGABYTE, abs=GIGABYTE)]
