"""environment.json: complete enough to explain a number, with nothing in it that is private."""

from __future__ import annotations

import getpass
import json
import platform
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from hftune.portability import cpu_model
from hftune.runs.environment import REDACTED, command_line, describe, git_state

TOKEN = "hf_" + "AbCdEfGh" * 4


def test_it_names_what_was_used() -> None:
    found = describe(["hftune", "classify"])
    assert found["libraries"]["torch"] == version("torch")
    assert found["libraries"]["transformers"] == version("transformers")
    assert found["python"] == platform.python_version()
    assert found["cores"]["usable"] >= 1 and found["memory_gb"] > 0 and len(cpu_model()) > 2
    assert found["command"] == "hftune classify"
    json.dumps(found, allow_nan=False)


def test_the_environment_has_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SOMETHING_PRIVATE", "do-not-tell-anyone")
    monkeypatch.setenv("HOME", "/home/alice-liddell")
    text = json.dumps(describe(["/home/alice-liddell/bin/hftune", "--output", "/home/alice-liddell/runs/a"]))
    for secret in (TOKEN, "do-not-tell-anyone", "alice-liddell", platform.node()):
        assert secret not in text
    assert len(getpass.getuser()) < 5 or getpass.getuser() not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--hub-token", "anything"],
        ["--hub-token=anything"],
        ["--set", "hub.token=anything"],
        ["--set", f"train.note={TOKEN}"],
        ["--set=train.api_key=anything"],
        [TOKEN],
        ["--data", "https://me:anything@example.org/x.csv"],
        ["--set", "train.run=" + "0123456789" * 4],
    ],
)
def test_secrets_are_removed_from_the_command(arguments: list[str]) -> None:
    command = command_line(["hftune", "push", *arguments, "runs/a"])
    assert "anything" not in command and TOKEN not in command and "0123456789" not in command
    assert REDACTED in command and shlex.split(command)[-1] == "runs/a"


@pytest.mark.posix("quotes words for a POSIX shell")
def test_a_revision_is_kept_and_words_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789" * 4
    monkeypatch.setenv("HOME", "/home/alice")
    given = [
        "/usr/bin/hftune",
        "predict",
        "runs/a",
        "it's good",
        "",
        "--set",
        f"model.model_revision={commit}",
        "--x=/home/alice/y z",
    ]
    command = command_line(given)
    echoed = subprocess.run(["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
    assert echoed.stdout.split("\0")[:-1] == ["hftune", *given[1:]]
    assert "alice" not in command
    assert command_line(["/site/hftune/__main__.py", "doctor"]) == "python -m hftune doctor"
    assert command_line(["-c"]) == "" and command_line([]) == ""


IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with files at several depths, in an order in which git sorts files and folders differently."""
    folder = tmp_path / "checkout"
    (folder / "a" / "deep").mkdir(parents=True)
    for name in ("file", "a/one", "a/deep/two", "a.txt", "a-b"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to("file")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_git_state_is_that_of_the_checkout(tmp_path: Path, checkout: Path) -> None:
    assert git_state(tmp_path) is None
    clean = git_state(checkout)
    assert clean == {"commit": git(checkout, "rev-parse", "HEAD"), "changed": False}
    assert git_state(checkout / "a" / "deep") == clean
    (checkout / "untracked").write_text("1")
    (checkout / "file").touch()
    assert git_state(checkout) == clean, "new files and new time stamps are no changes"
    (checkout / "file").write_text("elif")
    assert git_state(checkout) == clean | {"changed": True}
    git(checkout, "add", "file")
    assert git_state(checkout) == clean | {"changed": True}, "staged"
    git(checkout, "reset", "-q", "--hard")
    assert git_state(checkout) == clean
    (checkout / "a" / "one").unlink()
    assert git_state(checkout) == clean | {"changed": True}


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_git_state_reads_every_form_in_which_git_stores_a_commit(checkout: Path, version: str) -> None:
    git(checkout, "update-index", "--index-version", version)
    expected = {"commit": git(checkout, "rev-parse", "HEAD"), "changed": False}
    git(checkout, "gc", "-q")  # packs the objects and the references
    assert not (checkout / ".git" / "refs" / "heads" / "main").exists()
    assert git_state(checkout) == expected
    git(checkout, "worktree", "add", "-q", "../other", "-b", "other")
    assert git_state(checkout.parent / "other") == expected
    git(checkout, "checkout", "-q", "--detach")
    assert git_state(checkout) == expected
    (checkout / ".git" / "index").write_bytes(b"DIRC damaged")
    assert git_state(checkout) == expected | {"changed": None}
