"""Processes that cost no import: forks of one that has imported everything and computed nothing.

A test that needs several processes, or one that it can kill, starts them here.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from systems import needs_posix

from hftune.pipeline import verify
from hftune.pipeline.verify import Server

# Forking after torch was imported is safe on Linux only; elsewhere each process imports everything itself.
FORKS = sys.platform == "linux"
CONTEXT = multiprocessing.get_context("forkserver" if FORKS else "spawn")
PATIENCE = 240
_STORES: WeakKeyDictionary[BaseProcess, Any] = WeakKeyDictionary()
"""What keeps a store open: its processes."""


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


@contextmanager
def verification_server(before: Callable[[], None] | None = None) -> Iterator[Server]:
    """What verifies saved models, as in a study: a process that has imported everything and computed nothing.

    Args:
        before: Called in it first.
    """
    asked, requests = CONTEXT.Pipe(duplex=False)
    answers, given = CONTEXT.Pipe(duplex=False)
    process = start(_serve_verifications, asked, given, before)
    asked.close()
    given.close()
    assert process.pid is not None
    # Closed by the server alone: a file and a connection would close the same descriptor twice.
    streams = (os.fdopen(os.dup(requests.fileno()), "w"), os.fdopen(os.dup(answers.fileno())))
    requests.close()
    answers.close()
    server = Server(process.pid, *streams)
    verify._SERVERS.append(server)
    try:
        yield server
    finally:
        verify._SERVERS.remove(server)
        server.end()
        process.join(PATIENCE)


def _serve_verifications(asked: Connection, given: Connection, before: Callable[[], None] | None) -> None:
    if before is not None:
        before()
    verify.serve(os.fdopen(os.dup(asked.fileno())), os.fdopen(os.dup(given.fileno()), "w"))


def start_ranks(world: int, function: Callable[..., None], *args: Any, **kwargs: Any) -> list[BaseProcess]:
    """Run a function in processes that train together; its first arguments are its rank, their number and a port.

    This process holds the store at which they meet, as torchrun does: a port that is only free now may be taken later.
    """
    needs_posix("several processes that train together are not tested on Windows")
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [start(function, rank, world, store.port, *args, **kwargs) for rank in range(world)]
    _STORES.update(dict.fromkeys(processes, store))
    return processes


def joined(processes: list[BaseProcess]) -> list[int | None]:
    """Exit codes, when all have ended; None for one that does not end, which is killed."""
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            return [None]
    return [process.exitcode for process in processes]
