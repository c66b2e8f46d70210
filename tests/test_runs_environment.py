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

from hftune.runs.environment import REDACTED, command_line, cpu_model, describe, git_state

TOKEN = "hf_" + "AbCdEfGh" * 4


def test_it_names_what_was_used() -> None:
    found = describe(["hftune", "classify"])
    assert found["libraries"]["torch"] == version("torch")
    assert found["libraries"]["transformers"] == version("transformers")
    assert found["python"] == platform.python_version()
    assert found["cores"]["usable"] >= 1 and found["memory_gb"] > 0 and len(cpu_model()) > 2
    assert found["command"] == "hftune classify"
    json.dumps(found, allow_nan=False)


def test_it_holds_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
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
        ["--set", f"train.extra.note={TOKEN}"],
        ["--set=train.extra.api_key=anything"],
        [TOKEN],
        ["--data", "https://me:anything@example.org/x.csv"],
        ["--set", "train.extra.run=" + "0123456789" * 4],
    ],
)
def test_secrets_are_taken_out_of_the_command(arguments: list[str]) -> None:
    command = command_line(["hftune", "push", *arguments, "runs/a"])
    assert "anything" not in command and TOKEN not in command and "0123456789" not in command
    assert REDACTED in command and shlex.split(command)[-1] == "runs/a"


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
        f"model.revision={commit}",
        "--x=/home/alice/y z",
    ]
    command = command_line(given)
    echoed = subprocess.run(["sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
    assert echoed.stdout.split("\0")[:-1] == ["hftune", *given[1:]]
    assert "alice" not in command
    assert command_line(["/site/hftune/__main__.py", "doctor"]) == "python -m hftune doctor"
    assert command_line(["-c"]) == "" and command_line([]) == ""


def test_git_state_is_that_of_the_checkout(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("1")
    for step in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *step], cwd=tmp_path, check=True)
    clean = git_state(tmp_path)
    assert clean is not None and len(clean["commit"]) == 40 and clean["changed"] is False
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == clean | {"changed": True}
