"""Start modules of hftune in child processes, and explain which signal ended a child process.

A process that is killed by a signal leaves no message: this module names the signal, its likely cause and what to try.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

ISA_VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""Limits the CPU instructions that oneDNN, torch's library for matrix products, may use."""

_ILLEGAL = (
    f"the CPU, or the virtual machine around it, does not execute an instruction that torch chose: set {ISA_VARIABLE}="
    "AVX2 and try again; `hftune doctor` shows which dtypes work here"
)
_NATIVE = (
    f"a native library crashed: try again with OMP_NUM_THREADS=1 or {ISA_VARIABLE}=AVX2, and set PYTHONFAULTHANDLER=1 "
    "to see where"
)
_OUTSIDE = "something outside ended it, such as a batch system, a container limit or a shutdown; start it again"
# By name, because Windows does not have all of them.
_HINTS = {
    "SIGILL": _ILLEGAL,
    "SIGKILL": "the system most likely ran out of memory: lower --batch-size, or run fewer jobs at once",
    "SIGXCPU": "its limit of CPU time is used up: raise it (ulimit -t)",
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGSYS", "SIGTRAP"), _NATIVE),
    **dict.fromkeys(("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"), _OUTSIDE),
}
# Windows has no signals: the exit code is the status of the exception that ended the process.
_WINDOWS_STATUS = {0xC000001D: "SIGILL", 0xC0000005: "SIGSEGV", 0xC0000409: "SIGABRT", 0xC00000FD: "SIGSEGV"}
# "DataLoader worker (pid 12) is killed by signal: Killed." or "(pid(s) 12, 13) exited unexpectedly"
_LOADER_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is killed by signal: ([^.]*)|exited)")


@dataclass(frozen=True)
class Death:
    """How a child process was killed."""

    signal: str
    """SIGILL, SIGKILL, … or "a signal" where only that is known."""

    def __str__(self) -> str:
        """For a message that names the process: "the process that … " + this."""
        return f"was killed by {self.signal}"

    @property
    def hint(self) -> str:
        """What to try."""
        return _HINTS.get(self.signal, _NATIVE)


def death(returncode: int) -> Death | None:
    """The signal behind the exit code of a child process; None for one that exited.

    Args:
        returncode: As ``subprocess`` gives it: the negative number of a signal, or on Windows an exception status.
            128 plus a signal is how a shell between us and the process passes it on.
    """
    status = _WINDOWS_STATUS.get(returncode & 0xFFFFFFFF)
    if status is not None:
        return Death(status)
    number = -returncode if returncode < 0 else returncode - 128
    if number <= 0 or (returncode > 0 and number not in _fatal_signals()):
        return None
    try:
        return Death(signal.Signals(number).name)
    except ValueError:
        return Death(f"signal {number}")


def _fatal_signals() -> set[int]:
    """Signals that a shell passes on as 128 + n. The others are exit codes of our own: 130 and 143 are clean stops."""
    names = ("SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGSEGV", "SIGSYS", "SIGTRAP")
    return {signal.Signals[name].value for name in names if name in signal.Signals.__members__}


def loader_worker_death(error: BaseException | None) -> tuple[str, Death] | None:
    """Which data loader workers died, such as "pid 12", and how, from the error that torch raises about them."""
    # torch raises one error that workers exited, from another one that has the signal: the chain is searched for both.
    # A worker can also die while it sends a tensor; the connection then breaks before torch notices the death.
    found: tuple[str, Death] | None = None
    while error is not None:
        match = _LOADER_WORKER.search(str(error))
        if match is not None:
            named = [one.name for one in signal.Signals if match[2] and signal.strsignal(one) == match[2]]
            if named:
                return f"pid {match[1]}", Death(named[0])
            found = found or (f"pid {match[1]}", Death("a signal"))
        elif isinstance(error, (ConnectionError, EOFError)) and _raised_in(error, "torch.utils.data"):
            found = found or ("pid unknown", Death("a signal"))
        error = error.__cause__ or error.__context__
    return found


def _raised_in(error: BaseException, package: str) -> bool:
    """Whether an error passed through a package."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith(package) for frame, _ in frames)


def module_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment that run one of our modules in a new process."""
    # -P leaves the current folder out of sys.path, where a json.py would be imported instead of Python's. PYTHONPATH
    # has the folder of this package, so that the same hftune runs there, installed or not.
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(entry for entry in (root, os.environ.get("PYTHONPATH", "")) if entry)
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": path}
