"""Processes that cost no import: forks of one that has imported everything and computed nothing.

A test that needs several processes, or one that it can kill, starts them here.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from systems import needs_posix

# Forking after torch was imported is safe on Linux only; elsewhere each process imports everything itself.
CONTEXT = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    CONTEXT.set_forkserver_preload(
        ["crash_case", "hftune.cli.train", "hftune.cli.watch", "hftune.dryrun", "hftune.verify"]
    )
PATIENCE = 240


def start(function: Callable[..., None], *args: Any, **kwargs: Any) -> BaseProcess:
    """Run a function of a module in a process of its own."""
    process = CONTEXT.Process(target=function, args=args, kwargs=kwargs)
    process.start()
    return process


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
