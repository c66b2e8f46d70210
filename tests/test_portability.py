"""Guards for what Windows lacks, with the system simulated; that all text is UTF-8; the marks for Windows."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import systems

from hftune import portability
from hftune.training.callbacks import SIGNALS

PACKAGE = Path(portability.__file__).parent
OPENERS = {"open", "fdopen", "read_text", "write_text"}
STARTERS = {"run", "Popen", "check_output"}


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing there is missing here."""
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("sched_getaffinity", "nice", "fork", "killpg", "getloadavg"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setitem(sys.modules, "resource", None)


@pytest.mark.usefixtures("windows")
def test_without_posix_there_are_cores_memory_and_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert portability.usable_cores() == os.cpu_count()
    assert portability.memory_limits() == {}
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=123))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    assert portability.peak_resident_bytes() == 123


@pytest.mark.usefixtures("windows")
def test_without_posix_ctrl_break_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(signal, "CTRL_BREAK_EVENT", 1, raising=False)
    portability.interrupt(SimpleNamespace(send_signal=asked.append))  # type: ignore[arg-type]
    assert asked == [1]
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    assert portability.detached() == {"creationflags": 512}


@pytest.mark.usefixtures("windows")
def test_without_posix_files_are_synced_for_writing_and_folders_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[Path, int]] = []
    really = os.open

    def noted(path: Path, flags: int) -> int:
        opened.append((path, flags))
        return really(path, flags)

    monkeypatch.setattr(os, "O_BINARY", 0, raising=False)
    monkeypatch.setattr(os, "open", noted)
    (tmp_path / "file").write_bytes(b"1")
    portability.sync(tmp_path / "file")
    portability.sync(tmp_path)
    assert opened == [(tmp_path / "file", os.O_RDWR)]


@pytest.mark.posix("ulimit")
def test_limits_that_are_set_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    limits = {resource.RLIMIT_AS: 5 << 30, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], resource.RLIM_INFINITY))
    assert portability.memory_limits() == {"address_space": 5 << 30}


@pytest.mark.posix("sessions")
def test_a_detached_process_has_a_session_of_its_own_and_can_be_interrupted() -> None:
    program = "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler)\ntry:\n"
    program += "  print(1, flush=True)\n  time.sleep(240)\nexcept KeyboardInterrupt: raise SystemExit(7)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, encoding="utf-8", **portability.detached()
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "1\n"
        assert os.getsid(child.pid) == child.pid
        portability.interrupt(child)
        assert child.wait(240) == 7


def test_this_system_has_memory_time_and_signals() -> None:
    held = psutil.Process().memory_info().rss
    assert held * 0.9 < portability.peak_resident_bytes() < 1 << 40
    before = portability.cpu_seconds()
    sum(number * number for number in range(200_000))
    assert portability.cpu_seconds() > before
    assert 1 <= portability.usable_cores() <= (os.cpu_count() or 1)
    assert len(set(SIGNALS)) == len(SIGNALS) >= 3 and signal.SIGINT in SIGNALS and signal.SIGTERM in SIGNALS


def without_encoding(tree: ast.AST) -> list[str]:
    """Calls that read, write or pass on text in whatever encoding the system prefers."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        given = {keyword.arg for keyword in node.keywords}
        words = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        is_bytes = any("b" in word and len(word) <= 3 for word in words)
        is_ours = (
            (owner == "" and name in ("write_text", "read_text"))
            or owner in ("RunDir", "StudyDir")
            or (owner, name) == ("os", "open")
            or owner == "formatter"  # click's, of the help
        )
        if name in OPENERS and not (given & {"encoding", None} or is_bytes or is_ours):
            found.append(ast.unparse(node))
        if name in STARTERS and given & {"text", "universal_newlines"} and "encoding" not in given:
            found.append(ast.unparse(node))
    return found


def test_no_text_is_left_to_the_encoding_of_the_system() -> None:
    assert without_encoding(ast.parse("path.open('w')\nopen(p)\nsubprocess.run(c, text=True)\nx.open('rb')")) == [
        "path.open('w')",
        "open(p)",
        "subprocess.run(c, text=True)",
    ]
    paths = list(PACKAGE.rglob("*.py"))
    assert len(paths) > 60
    found = {path.name: without_encoding(ast.parse(path.read_text(encoding="utf-8"))) for path in paths}
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_marked_tests_are_skipped_on_windows_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Any] = []
    mark = pytest.mark.posix("forks").mark
    item = SimpleNamespace(iter_markers=lambda name: [mark] if name == "posix" else [], add_marker=added.append)
    systems.skip_where_missing([item])  # type: ignore[list-item]
    assert bool(added) == (sys.platform == "win32")
    added.clear()
    monkeypatch.setattr(sys, "platform", "win32")
    systems.skip_where_missing([item])  # type: ignore[list-item]
    assert [one.mark.kwargs for one in added] == [{"reason": "needs POSIX: forks"}]
    with pytest.raises(pytest.skip.Exception, match="needs POSIX: forks"):
        systems.needs_posix("forks")
