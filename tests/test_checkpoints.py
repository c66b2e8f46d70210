"""Checkpoints are whole or absent: every way of hurting one is found out, and an older good one is taken."""

from __future__ import annotations

import errno
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error
from peft import LoraConfig, get_peft_model
from training_case import Case, KilledError, same, tiny_bert

from hftune.errors import RunFailed
from hftune.files import sha256
from hftune.training import checkpoints
from hftune.training import trainer as trainer_module
from hftune.training.checkpoints import Checkpoints, fault, newest_complete, read_manifest, refuse_changed
from hftune.training.fit import fit
from hftune.training.trainer import HftuneTrainer

FILES = (
    "manifest.json",
    "optimizer.pt",
    "progress.json",
    "rng_state.pth",
    "scheduler.pt",
    "trainable.safetensors",
    "trainer_state.json",
)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def remove(file: Path) -> None:
    file.unlink()


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


HURTS = (truncate, empty, remove, flip)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three epochs, three checkpoints; the score falls, so the first is the best."""
    case = Case(tmp_path_factory.mktemp("trained"), {}, inputs={"compute_metrics": falling_score()})
    fit(case.trainer())
    return case


def falling_score() -> Any:
    scores = iter(range(100, 0, -1))
    return lambda outcome: {"accuracy": next(scores) / 100}


@pytest.fixture
def store(trained: Case, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.checkpoints, tmp_path / "checkpoints"))


def test_a_checkpoint_has_exactly_these_files(trained: Case) -> None:
    assert sorted(path.name for path in trained.checkpoints.iterdir()) == [
        "checkpoint-16",
        "checkpoint-24",
        "checkpoint-8",
    ]
    for folder in trained.checkpoints.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
        assert set(read_manifest(folder)["files"]) == set(FILES) - {"manifest.json"}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("hurt", HURTS)
def test_every_hurt_file_is_found_out(store: Path, file: str, hurt: Any) -> None:
    assert newest_complete(store) == (store / "checkpoint-24", [])
    hurt(store / "checkpoint-24" / file)
    found, passed_over = newest_complete(store)
    assert found == store / "checkpoint-16"
    assert len(passed_over) == 1
    assert passed_over[0].startswith("checkpoint-24: ")
    assert file in passed_over[0]


def test_any_byte_anywhere_counts(store: Path) -> None:
    """A flipped bit at 100 random places, whichever file it falls into."""
    draw, newest = random.Random(0), store / "checkpoint-24"
    for _ in range(100):
        file = newest / draw.choice([name for name in FILES if name != "manifest.json"])
        content = bytearray(file.read_bytes())
        place = draw.randrange(len(content))
        content[place] ^= 1 << draw.randrange(8)
        before = file.read_bytes()
        file.write_bytes(content)
        assert fault(newest) == f"{file.name} is not as it was saved", (file.name, place)
        file.write_bytes(before)
    assert fault(newest) is None


def test_a_file_that_cannot_be_read_is_passed_over(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_disk(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(checkpoints, "sha256", broken_disk)
    assert fault(store / "checkpoint-24") == "optimizer.pt can't be read: Input/output error"


def test_every_byte_of_the_manifest_counts(store: Path) -> None:
    manifest = store / "checkpoint-24" / "manifest.json"
    content = manifest.read_bytes()
    for place in range(0, len(content) - 1, 7):
        changed = bytearray(content)
        changed[place] ^= 1
        manifest.write_bytes(changed)
        if json_or_none(bytes(changed)) != json.loads(content):  # a changed blank between words changes no value
            assert newest_complete(store)[0] == store / "checkpoint-16", place


def json_or_none(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_a_checkpoint_is_no_use_without_the_best_one(store: Path) -> None:
    """Resuming from 24 would end with the weights of 8, so when those are lost the run must go further back."""
    flip(store / "checkpoint-8" / "trainable.safetensors")
    found, passed_over = newest_complete(store)
    assert found is None
    assert [line.partition(":")[0] for line in passed_over] == ["checkpoint-24", "checkpoint-16", "checkpoint-8"]
    assert "best" in passed_over[0]


def test_nothing_there_is_nothing(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "absent") == (None, [])
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / ".staging" / "checkpoint-9").mkdir(parents=True)
    found, passed_over = newest_complete(tmp_path)
    assert found is None and len(passed_over) == 1
    assert passed_over[0].startswith("checkpoint-5: manifest.json is missing")


@pytest.mark.parametrize(("file", "hurt"), [(file, HURTS[place % 4]) for place, file in enumerate(FILES)])
def test_resume_takes_the_older_one_reports_it_and_ends_alike(
    trained: Case, tmp_path: Path, file: str, hurt: Any
) -> None:
    class Hearing:
        output: list[str]

        def __init__(self) -> None:
            self.output = []

        def stage(self, text: str) -> None: ...
        def begin(self, total: int, unit: str) -> None: ...
        def advance(self, done: int, facts: Any) -> None: ...
        def end(self) -> None: ...
        def note(self, text: str) -> None:
            self.output.append(text)

        def warn(self, text: str) -> None:
            self.output.append(text)

    case = Case(tmp_path, {}, inputs={"compute_metrics": lambda outcome: {"accuracy": 0.5}})
    shutil.copytree(trained.checkpoints, case.checkpoints)
    hurt(case.checkpoints / "checkpoint-24" / file)
    hearing = Hearing()
    fit(case.trainer(progress=hearing), resume=True)
    passed_over, going_on, *_ = hearing.output
    assert passed_over.startswith(f"skipped a damaged checkpoint, checkpoint-24: {file} ")
    assert going_on == "resuming from checkpoint-16"
    assert fault(case.checkpoints / "checkpoint-24") is None
    assert same(case.weights_at(24), trained.weights_at(24))


FULL = {
    "os": OSError(errno.ENOSPC, "No space left on device"),
    "wrapped": RuntimeError("I/O error: No space left on device (os error 28)"),  # as safetensors reports it
}
DAILY = (("weights", "wrapped"), ("optimizer", "os"), ("manifest", "os"))


@pytest.mark.parametrize(
    ("where", "how"),
    [
        pytest.param(where, how, marks=() if (where, how) in DAILY else pytest.mark.slow)
        for where in ("weights", "optimizer", "manifest")
        for how in FULL
    ],
)
def test_a_full_disk_leaves_earlier_checkpoints_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, how: str
) -> None:
    case = Case(tmp_path, {"eval_steps": 4, "num_train_epochs": 1})
    trainer = case.trainer()
    real: Any = {
        "weights": (trainer_module, "save_weights"),
        "optimizer": (HftuneTrainer, "_save_optimizer_and_scheduler"),
        "manifest": (Checkpoints, "commit"),
    }[where]
    original, calls = getattr(*real), []

    def full(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise FULL[how]
        return original(*args, **kwargs)

    monkeypatch.setattr(*real, full)
    with hftune_error("disk", "step 8", "checkpoint-4", code=1) as failed:
        fit(trainer)
    assert failed.value.exit_code == 1
    assert [path.name for path in case.checkpoints.iterdir()] == ["checkpoint-4"]
    assert fault(case.checkpoints / "checkpoint-4") is None
    monkeypatch.undo()
    assert fit(case.trainer(), resume=True).speed["steps"] == 8


def test_killed_while_saving_leaves_no_half_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, {"num_train_epochs": 2})
    trainer = case.trainer()

    def killed(self: Any, folder: str) -> None:
        if "checkpoint-16" in folder:
            raise KilledError

    monkeypatch.setattr(HftuneTrainer, "_save_rng_state", killed)
    monkeypatch.setattr(Checkpoints, "clear", lambda self: None)
    with pytest.raises(RunFailed):
        fit(trainer)
    assert newest_complete(case.checkpoints) == (case.checkpoints / "checkpoint-8", [])
    assert (case.checkpoints / ".staging" / "checkpoint-16").is_dir()
    monkeypatch.undo()
    case.trainer().checkpoints.clear()
    assert sorted(path.name for path in case.checkpoints.iterdir()) == ["checkpoint-8"]


def staged(store: Checkpoints, step: int, best: int | None) -> None:
    store.begin()
    folder = store.staging / f"checkpoint-{step}"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(bytes([step]))
    (folder / "inner" / "b.bin").write_bytes(b"shard")
    store.commit(step, best)


def steps(store: Checkpoints) -> list[int]:
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in store.directory.glob("checkpoint-*"))


@pytest.mark.parametrize(("keep", "left"), [(1, [10, 50]), (2, [10, 50]), (3, [10, 40, 50]), (9, [10, 20, 30, 40, 50])])
def test_rotation_keeps_the_best_and_the_newest(tmp_path: Path, keep: int, left: list[int]) -> None:
    store = Checkpoints(tmp_path, keep, {})
    for step in (10, 20, 30, 40, 50):
        staged(store, step, best=10)
        store.rotate(best=10)
    assert steps(store) == left
    assert all(fault(path) is None for path in tmp_path.glob("checkpoint-*"))


def test_broken_ones_are_not_counted(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, {})
    for step in (10, 20, 30):
        staged(store, step, best=None)
    remove(tmp_path / "checkpoint-30" / "manifest.json")
    flip(tmp_path / "checkpoint-20" / "a.bin")
    staged(store, 40, best=None)
    store.rotate(best=None, broken=["checkpoint-20", "checkpoint-30"])
    assert steps(store) == [10, 30, 40]


def test_those_of_before_a_resume_from_an_older_one_are_not_the_newest(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, {})
    for step in (10, 20, 30):
        staged(store, step, best=10)
    staged(store, 15, best=10)  # the run was resumed from 10
    store.rotate(best=10, newest=15)
    assert steps(store) == [10, 15]
    newest, passed_over = newest_complete(tmp_path)
    assert newest == store.at(15) and not passed_over


@pytest.mark.parametrize("manifest", [None, "", "{}", '{"name": "a web page", "icons": []}', "changed"])
def test_checkpoints_without_our_manifest_are_never_deleted(tmp_path: Path, manifest: str | None) -> None:
    store = Checkpoints(tmp_path, 1, {})
    staged(store, 10, best=None)
    folder, file = tmp_path / "checkpoint-10", tmp_path / "checkpoint-10" / "manifest.json"
    content = file.read_text()
    remove(file)
    if manifest is not None:
        file.write_text(manifest if manifest != "changed" else content.replace('"step": 10', '"step": 11'))
    foreign = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    store.rotate(best=None, broken=["checkpoint-10"])
    staged(store, 10, best=None)  # the name is needed
    staged(store, 20, best=None)
    store.rotate(best=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10-unknown", "checkpoint-20"]
    aside = tmp_path / "checkpoint-10-unknown"
    assert {path.name: path.read_bytes() for path in aside.iterdir() if path.is_file()} == foreign
    aside.rename(tmp_path / "checkpoint-30")
    (tmp_path / "checkpoint-30-unknown").write_text("taken")
    staged(store, 30, best=None)
    assert (tmp_path / "checkpoint-30-unknown-2" / "a.bin").is_file()
    assert (tmp_path / "checkpoint-30-unknown").read_text() == "taken"


def test_a_step_that_is_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, {})
    staged(store, 10, best=None)
    flip(tmp_path / "checkpoint-10" / "a.bin")
    staged(store, 10, best=None)
    assert fault(tmp_path / "checkpoint-10") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10"]


@pytest.mark.parametrize("killed_at", ["the old one is gone", "the new one is in place"])
def test_a_kill_while_a_step_is_saved_again_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """The old one is moved away before the new one, sealed already, takes its place: a kill between leaves the new."""
    store = Checkpoints(tmp_path, 2, {})
    staged(store, 10, best=None)

    def killed(*_: Any) -> None:
        raise KilledError

    if killed_at == "the old one is gone":
        monkeypatch.setattr(shutil, "rmtree", lambda path, **_: killed() if path.name.startswith(".removed") else None)
    else:
        monkeypatch.setattr(Path, "rmdir", killed)
    with pytest.raises(KilledError):
        staged(store, 10, best=None)
    monkeypatch.undo()
    assert (newest_complete(tmp_path)[0] is None) == (killed_at == "the old one is gone")
    store.recover()
    assert newest_complete(tmp_path) == (tmp_path / "checkpoint-10", [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10"]


def test_recovering_puts_nothing_half_written_into_place(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, {})
    staged(store, 10, best=None)
    shutil.copytree(tmp_path / "checkpoint-10", store.staging / "checkpoint-20")
    remove(store.staging / "checkpoint-20" / "a.bin")
    store.recover()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10"]


def test_files_in_subfolders_are_sealed_too(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, {})
    staged(store, 10, best=None)
    flip(tmp_path / "checkpoint-10" / "inner" / "b.bin")
    assert fault(tmp_path / "checkpoint-10") == "inner/b.bin is not as it was saved"


def test_settings_must_match(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 2, {"per_device_train_batch_size": 8, "seed": 1})
    staged(store, 10, best=None)
    refuse_changed(tmp_path / "checkpoint-10", {"per_device_train_batch_size": 8, "seed": 1})
    with hftune_error("per_device_train_batch_size", "8 → 16"):
        refuse_changed(tmp_path / "checkpoint-10", {"per_device_train_batch_size": 16, "seed": 1})
    other = saved_with(tmp_path, {"data": {"train": "a1", "validation": "c3"}})
    with hftune_error("data.train", "'a1' → 'b2'"):
        refuse_changed(other, {"data": {"train": "b2", "validation": "c3"}})
    with hftune_error("new", "None → 3"):
        refuse_changed(tmp_path / "checkpoint-10", {"per_device_train_batch_size": 8, "seed": 1, "new": 3})


def saved_with(folder: Path, settings: dict[str, Any]) -> Path:
    store = Checkpoints(folder / "other", 2, settings)
    staged(store, 10, best=None)
    return store.at(10)


def test_weights_come_back_bit_for_bit_and_only_those_that_move(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model(torch.randn(8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    checkpoints.save_weights(model, tmp_path)
    for value in model.state_dict().values():
        value.copy_(torch.zeros_like(value))
    checkpoints.load_weights(model, tmp_path)
    after = model.state_dict()
    assert all(torch.equal(after[n], before[n]) for n in before if not n.startswith("0."))
    assert (after["0.weight"] == 0).all()


def test_a_checkpoint_of_an_adapter_holds_only_what_moves(tmp_path: Path) -> None:
    case = Case(tmp_path, {"num_train_epochs": 1})
    model = get_peft_model(tiny_bert(), LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))
    fit(case.trainer(model))
    moved = {name for name, value in model.named_parameters() if value.requires_grad}
    assert set(case.weights_at(8)) == moved | {name for name, _ in model.named_buffers()}
    assert len(moved) < len(list(model.named_parameters()))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    checkpoints.save_weights(torch.nn.Linear(3, 4), tmp_path)
    with hftune_error("weight", tmp_path.name):
        checkpoints.load_weights(torch.nn.Linear(3, 5), tmp_path)
    with hftune_error("bias", tmp_path.name):
        checkpoints.load_weights(torch.nn.Linear(3, 4, bias=False), tmp_path)


def copied(trained: Case, folder: Path) -> Case:
    case = Case(folder, {}, inputs={"compute_metrics": falling_score()})
    shutil.copytree(trained.checkpoints, case.checkpoints)
    return case


def tampered(path: Path, name: str, **changes: Any) -> None:
    """Change what a file of a checkpoint states, and make its checksums right again, as a stranger can."""
    manifest = read_manifest(path)
    if name == "manifest.json":
        manifest |= changes
    else:
        state = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps(state | changes))
        manifest["files"][name] = {"bytes": (path / name).stat().st_size, "sha256": sha256(path / name)}
    (path / "manifest.json").write_text(json.dumps({**manifest, "seal": checkpoints._seal(manifest)}))
    assert fault(path) is None


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("trainer_state.json", {"global_step": 10**12}, ["trainer_state.json is at step 1,000,000,000,000"]),
        ("trainer_state.json", {"global_step": "24"}, ["trainer_state.json is at step '24'"]),
        ("trainer_state.json", {"best_global_step": 16}, ["8 in manifest.json", 16]),
        ("manifest.json", {"step": 10**12}, ["manifest.json is at step 1,000,000,000,000"]),
        ("manifest.json", {"step": None}, ["manifest.json", "None"]),
        ("progress.json", {"seconds": "long"}, ["progress.json", "seconds", "loss"]),
        ("progress.json", {"loss": []}, ["progress.json", "seconds", "loss"]),
        ("progress.json", {"finished": 1}, ["progress.json", "finished"]),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_refused(
    trained: Case, tmp_path: Path, name: str, changes: dict[str, Any], reason: list[str | int]
) -> None:
    case = copied(trained, tmp_path)
    newest = newest_complete(case.trainer().checkpoints.directory)[0]
    assert newest is not None
    tampered(newest, name, **changes)
    with hftune_error(newest.name, *reason) as caught:
        fit(case.trainer(), resume=True)
    assert f"delete {newest.name}" in caught.value.hint


@pytest.mark.parametrize(("step", "finished"), [(10**12, True), (16, True)])
def test_a_checkpoint_can_not_call_a_run_complete(trained: Case, tmp_path: Path, step: int, finished: bool) -> None:
    case = copied(trained, tmp_path)
    directory = case.trainer().checkpoints.directory
    if step > 24:
        (directory / "checkpoint-24").rename(directory / f"checkpoint-{step}")
    else:
        shutil.rmtree(directory / "checkpoint-24")
    path = directory / f"checkpoint-{step}"
    tampered(path, "trainer_state.json", global_step=step)
    tampered(path, "progress.json", finished=finished)
    tampered(path, "manifest.json", step=step)
    reason = ("24 steps", step) if step > 24 else ("finished", "step 16 of 24")
    with hftune_error(*reason):
        fit(case.trainer(), resume=True)
