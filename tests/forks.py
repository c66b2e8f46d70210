"""Processes that cost no import: forks of one that has imported everything and computed nothing.

A test that needs several processes, or one that it can kill, starts them here.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from systems import needs_posix

# Forking after torch was imported is safe on Linux only; elsewhere each process imports everything itself.
FORKS = sys.platform == "linux"
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
PATIENCE = 240


@cache
def ensure_server() -> None:
    """Start the process that is forked, which imports ``forks_preload``."""
    if not FORKS:
        return
    from multiprocessing import forkserver

    CONTEXT.set_forkserver_preload(["forks_preload"])
    # Python 3.11 gives it no sys.path, and it ignores a module that it can't import.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        forkserver.ensure_running()


def start(function: Callable[..., None], *args: Any, **kwargs: Any) -> BaseProcess:
    """Run a function of a module in a process of its own."""
    ensure_server()
    process = CONTEXT.Process(target=_run, args=(function, args, kwargs))
    process.start()
    return process


def _run(function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert not FORKS or "forks_preload" in sys.modules, "this process has to import everything itself"
    function(*args, **kwargs)


def start_ranks(world: int, function: Callable[..., None], *args: Any, **kwargs: Any) -> list[BaseProcess]:
    """Run a function in processes that train together; it is told its rank, their number and a port first."""
    needs_posix("several processes that train together are not tested on Windows")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [start(function, rank, world, port, *args, **kwargs) for rank in range(world)]


def joined(processes: list[BaseProcess]) -> list[int | None]:
    """Exit codes, when all have ended; None for one that does not end, which is killed."""
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            return [None]
    return [process.exitcode for process in processes]
