"""Users and locales of bare containers: no home folder, and a locale without UTF-8."""

from __future__ import annotations

import os
import pwd
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from facts import hftune_error, mentions

from hftune import cache
from hftune.runs.directory import RunDir

ROOT = Path(__file__).parent.parent


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user without HOME and without an entry in the system's list of users, as in many containers."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "HFTUNE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache.temporary_home.cache_clear()
    yield tmp_path / f"hftune-{os.getuid()}"
    cache.temporary_home.cache_clear()


def test_without_a_home_folder_a_private_one_is_used(homeless: Path) -> None:
    with pytest.raises(RuntimeError):
        Path.home()
    assert cache.cache_folder("rows") == homeless / ".cache" / "hftune" / "rows"
    assert stat.S_IMODE(homeless.stat().st_mode) == 0o700
    cache.temporary_home.cache_clear()
    assert cache.cache_root() == homeless / ".cache" / "hftune", "the same one in the next process"


@pytest.mark.parametrize("what", ["a link", "open to others", "a file"])
def test_a_folder_that_others_can_write_to_is_not_used(homeless: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "theirs").mkdir()
    if what == "a link":
        homeless.symlink_to(tmp_path / "theirs")
    elif what == "a file":
        homeless.touch()
    else:
        homeless.mkdir()
        homeless.chmod(0o777)
    found = cache.temporary_home()
    assert found != homeless and found.is_dir() and stat.S_IMODE(found.stat().st_mode) == 0o700
    assert list((tmp_path / "theirs").iterdir()) == []


def test_every_command_runs_without_a_home(
    homeless: Path, here: Path, hftune: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hftune.hub.card import without_home
    from hftune.runs.environment import command_line

    assert without_home("/x/y") == "/x/y" and command_line(["hftune", "a b"]) == "hftune 'a b'"
    monkeypatch.setenv("HOME", "")  # restored afterwards
    monkeypatch.delenv("HOME")
    code, out, err = hftune("data", "peek", "reviews")
    assert code == 0 and out, err
    assert mentions(err, "no home folder") and str(homeless) in err
    assert os.environ["HOME"] == str(homeless) and not (here / "~").exists()


# ---- a locale without UTF-8; test_wheel.py trains in one ----


def test_python_callers_are_reported_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with hftune_error("this locale") as caught:
        RunDir.create(tmp_path / "läuf")
    assert "PYTHONUTF8=1" in caught.value.hint and not (tmp_path / "läuf").exists()
    RunDir.create(tmp_path / "run")
