"""Everything that differs between Linux, macOS and Windows: signals, processes, cores, limits, links, syncing files.

Branches test ``sys.platform`` because mypy understands it: ``make check-platforms`` checks each of them.
"""

from __future__ import annotations

import os
import platform
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    # Ctrl-Break is the only signal that one process can send another there; there is no SIGUSR1.
    WARNING_SIGNAL: signal.Signals = signal.SIGBREAK
else:
    WARNING_SIGNAL = signal.SIGUSR1
"""The signal that makes a run save a checkpoint and stop; Slurm sends SIGUSR1 before the end of a job (--signal)."""

HANGUP: tuple[signal.Signals, ...] = () if sys.platform == "win32" else (signal.SIGHUP,)
"""The signal for a closed terminal or connection; if it is ignored (nohup) it stays ignored."""

JUNCTION = 0xA0000003
"""The reparse tag of a junction, Windows' other kind of link to a folder; Path.is_junction needs Python 3.12."""


def user_id() -> int | None:
    """The number of the user that runs this process; None on Windows, which has none."""
    return None if sys.platform == "win32" else os.getuid()


def usable_cores() -> int:
    """Logical cores that this process may use; a container or a batch system can allow fewer than there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def cpu_seconds() -> float:
    """CPU time of this process in all its threads, and of its children that have ended (not counted on Windows)."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def peak_resident_bytes() -> int:
    """Peak memory of this process since it started."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    # macOS counts bytes, Linux kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_limits() -> dict[str, int]:
    """The limits of ``ulimit`` in bytes: ``address_space`` (-v) and ``data`` (-d); one that is not set is left out."""
    if sys.platform == "win32":
        return {}
    import resource

    limits = {"address_space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA}
    soft = {name: resource.getrlimit(limit)[0] for name, limit in limits.items()}
    return {name: size for name, size in soft.items() if size != resource.RLIM_INFINITY}


def detached() -> dict[str, Any]:
    """Arguments of ``subprocess.Popen`` for a process that does not get Ctrl-C from our terminal."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ask a process that was started with ``detached()`` to save and stop, as Ctrl-C does."""
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        process.send_signal(signal.SIGINT)


def is_link(path: Path) -> bool:
    """Whether a path is a symbolic link or a junction, with or without a target; False if nothing is there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISLNK(found.st_mode) or getattr(found, "st_reparse_tag", 0) == JUNCTION


def has_other_names(path: Path) -> bool:
    """Whether a path is a file that has further names (hard links): writing to it changes all of them."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk (fsync)."""
    if sys.platform == "win32":
        if path.is_dir():
            return  # NTFS keeps a journal of names, and a folder can't be opened
        flags = os.O_RDWR | os.O_BINARY  # a file that is open for reading only can't be synced there
    else:
        flags = os.O_RDONLY
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
