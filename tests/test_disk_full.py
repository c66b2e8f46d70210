"""A full disk: a small one in memory, at any stage of a run. What was saved stays, and the run can be resumed.

Each test runs in a process with a mount of its own, which needs a system that lets a user have one; it is skipped where
that is not so. The same errors, injected where they would come up, are in test_checkpoints.py and test_classify_errors.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from crash_case import differences, recipe, remains, train_session, write_data
from forks import joined, start
from soak import Log, live, outcome

from hftune.errors import RunFailed
from hftune.pipeline import verify
from hftune.pipeline.train import train
from hftune.training.checkpoints import fault, listed, step_of

NEW_USER, NEW_MOUNTS, REMOUNT, PRIVATE = 0x10000000, 0x00020000, 32, 1 << 18
NOT_ALLOWED = 77
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk in memory")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("full"))


def small_disk(place: Path, size: int) -> None:
    """Mount a disk of this many bytes that only this process sees; its content ends with the process."""
    system, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if system.unshare(NEW_MOUNTS | (0 if user == 0 else NEW_USER)):
        os._exit(NOT_ALLOWED)
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="utf-8")
    system.mount(None, b"/", None, PRIVATE | (1 << 14), None)  # no other process sees what follows
    place.mkdir(exist_ok=True)
    if system.mount(b"none", str(place).encode(), b"tmpfs", 0, f"size={size}".encode()):
        os._exit(NOT_ALLOWED)


def grow(place: Path, size: int) -> None:
    assert ctypes.CDLL(None).mount(b"none", str(place).encode(), b"tmpfs", REMOUNT, f"size={size}".encode()) == 0


def whole_checkpoints(folder: Path) -> list[int]:
    found = listed(folder / "checkpoints")
    assert all(fault(path) is None for path in found), "what is there is whole"
    return sorted(step_of(path) for path in found)


def train_on(place: Path, size: int, wanted: Any, expected: Path) -> None:
    """Train until the disk is full, look at what is left, make room, resume, compare with an uninterrupted run."""
    small_disk(place, size)
    with pytest.raises(RunFailed, match="disk is full") as failed:
        train_session(wanted, place / "run")
    assert "--resume" in failed.value.hint
    steps = whole_checkpoints(place / "run")
    assert steps[:2] == [3, 6] and f"checkpoint-{steps[-1]} is intact" in failed.value.message
    assert not list((place / "run" / "checkpoints").glob(".*")), "nothing half written is left in the way"
    grow(place, 100 * size)
    train_session(wanted, place / "run", resume=True)
    assert differences(remains(place / "run"), remains(expected)) == []


@pytest.mark.parametrize("share", [0.05, 0.4, 0.75, 0.97])
def test_a_full_disk_in_a_save(home: Path, tmp_path: Path, share: float) -> None:
    """Room for two checkpoints and a share of one more, so that another file of it is the one too many."""
    wanted = recipe(home, "span", **{"train.eval_steps": 3})
    expected = home / "span"
    if not expected.exists():
        train_session(wanted, expected)
    pages = [-(-path.stat().st_size // 4096) for path in (expected / "checkpoints" / "checkpoint-3").iterdir()]
    size = 4096 * int(sum(pages) * (2 + share) + 8)
    (code,) = joined([start(train_on, tmp_path / "disk", size, wanted, expected)])
    if code == NOT_ALLOWED:
        pytest.skip("this system lets a user mount nothing")
    assert code == 0


def whole_run_on(place: Path, size: int, wanted: Any, expected: Path) -> None:
    """The pipeline on a disk that may be full at any stage, then on one that is large enough."""
    small_disk(place, size)
    verify._SERVERS.append(verify._fork_server())
    try:
        train(wanted, place / "run", resume=True, progress=Log(Path(f"{place}.log")))
    except RunFailed as failed:
        assert "disk" in failed.message and "--resume" in failed.hint, failed
        before = whole_checkpoints(place / "run")
        grow(place, 100 * size)
        train(wanted, place / "run", resume=True, progress=Log(Path(f"{place}.log")))
        assert set(before) <= set(whole_checkpoints(place / "run"))
    assert differences(outcome(place / "run"), outcome(expected)) == []


@pytest.mark.slow
@pytest.mark.parametrize("twentieths", range(1, 21))
def test_a_full_disk_at_any_stage(home: Path, tmp_path: Path, twentieths: int) -> None:
    wanted, expected = recipe(home, "classify", "lora", **{"train.eval_steps": 4}), home / "whole"
    if not expected.exists():
        assert joined([start(live, wanted, expected, home / "whole.log")]) == [0]
    size = 4096 * sum(1 + path.stat().st_size // 4096 for path in expected.rglob("*")) * twentieths // 20
    (code,) = joined([start(whole_run_on, tmp_path / "disk", size, wanted, expected)])
    if code == NOT_ALLOWED:
        pytest.skip("this system lets a user mount nothing")
    assert code == 0
