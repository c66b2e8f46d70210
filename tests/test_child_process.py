"""A child process that dies by a signal is reported as such: which process, which signal, what to try."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
import tiny
from facts import hftune_error, mentions

from hftune.child_process import Death, death, loader_worker_death, module_command
from hftune.errors import RunFailed
from hftune.pipeline import verify

posix = pytest.mark.posix("processes there do not die by signals")
KILLED = {"SIGILL": "instruction", "SIGKILL": "memory", "SIGSEGV": "native library", "SIGTERM": "outside"}


@posix
@pytest.mark.parametrize("name", KILLED)
def test_a_signal_is_named_and_has_a_hint(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import os, signal; os.kill(os.getpid(), signal.{name})"], check=False
    )
    found = death(done.returncode)
    assert found == Death(name) and str(found) == f"was killed by {name}" and KILLED[name] in found.hint


@pytest.mark.parametrize("code", [0, 1, 2, 3, 128, 130, 138, 141, 143, 255])
def test_exit_codes_of_our_own_are_no_deaths(code: int) -> None:
    """130, 138 and 143 are clean stops on request, 141 a closed pipe."""
    assert death(code) is None


def test_what_a_shell_and_what_windows_pass_on() -> None:
    assert death(128 + 9) == Death("SIGKILL")
    assert death(0xC000001D) == Death("SIGILL") == death(0xC000001D - 2**32)
    assert death(0xC0000005) == Death("SIGSEGV")
    assert death(-60) == Death("signal 60") and death(-60).hint  # type: ignore[union-attr]


def dying(monkeypatch: pytest.MonkeyPatch, module: Any, name: str = "SIGILL") -> None:
    script = f"import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.{name})"
    monkeypatch.setattr(module, "module_command", lambda _: ([sys.executable, "-c", script], dict(os.environ)))


@posix
def test_verification_that_dies_is_no_wrong_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, verify)
    monkeypatch.setattr(verify, "_SERVERS", [])
    with pytest.raises(RunFailed) as failed:
        verify.verify(tmp_path, "classify", [], [])
    assert "SIGILL" in failed.value.message and "verifies" in failed.value.message
    assert not mentions(failed.value.message, "not the model") and "ONEDNN_MAX_CPU_ISA" in failed.value.hint


def die_in_forks() -> None:
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.skipif(not forks.FORKS, reason="no verification server there")
def test_verification_that_dies_in_a_fork_is_reported_too(tmp_path: Path) -> None:
    with forks.verification_server(die_in_forks), hftune_error("SIGKILL", code=1) as failed:
        verify.verify(tmp_path, "classify", [], [])
    assert "memory" in failed.value.hint


LOADER = """
import os, signal
import torch
from torch.utils.data import DataLoader, Dataset
from hftune.child_process import loader_worker_death

class Killer(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)

errors = []
try:
    try:
        list(DataLoader(Killer(), batch_size=2, num_workers=1))
    except (RuntimeError, OSError, EOFError) as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # from here on the death of the worker raises nothing more
        errors.append(error)
except RuntimeError as error:  # raised by the signal while the first one was handled
    errors.append(error)
print(*next(found for error in errors if (found := loader_worker_death(error))), flush=True)
os._exit(0)
"""


@posix
def test_a_data_loader_worker_that_dies() -> None:
    """In a process of its own: torch raises from its SIGCHLD handler, wherever the main thread is by then."""
    done = subprocess.run([sys.executable, "-c", LOADER], capture_output=True, text=True, check=False)
    assert re.fullmatch(r"pid \d+ was killed by SIGKILL|pid unknown was killed by a signal", done.stdout.strip()), done


def test_a_connection_that_breaks_is_a_dead_worker_only_inside_the_data_loader() -> None:
    broken: dict[str, Any] = {"__name__": "torch.utils.data.dataloader"}
    exec("def fetch():\n    raise ConnectionResetError(104, 'Connection reset by peer')", broken)
    with pytest.raises(ConnectionResetError) as inside:
        broken["fetch"]()
    assert loader_worker_death(inside.value) == ("pid unknown", Death("a signal"))
    assert loader_worker_death(ConnectionResetError(104, "Connection reset by peer")) is None


def test_what_torch_reports_about_its_workers() -> None:
    assert loader_worker_death(RuntimeError("shapes do not match")) is None
    two = loader_worker_death(RuntimeError("DataLoader worker (pid(s) 12, 13) exited unexpectedly"))
    assert two is not None and two[0] == "pid 12, 13"


@posix
def test_a_run_reports_which_worker_died_and_how_to_continue(
    here: Path, hftune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.csv_folder(here / "data")

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed. ")

    monkeypatch.setattr("hftune.pipeline.train.fit", broken)
    code, _, err = hftune("classify", "--data", "data", "--output", "run", *tiny.QUICK)
    assert (
        code == 1
        and "pid 77" in err
        and "SIGKILL" in err
        and "train.dataloader_num_workers=0" in err
        and "--resume" in err
    )


def test_a_module_of_the_current_folder_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(77)")
    command, environment = module_command("hftune.machine")
    done = subprocess.run([*command, "x"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
