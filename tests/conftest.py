"""For every test: no network but loopback, no user configuration, and the command line as a function."""

from __future__ import annotations

import gc
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

# Before any Hugging Face library is imported: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("HF_TOKEN", None)
os.environ["HFTUNE_CACHE"] = tempfile.mkdtemp(prefix="hftune-test-cache-")

import blank_figures
import pytest
from systems import needs_posix, skip_where_missing

LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


LONGEST = (
    "test_launch",
    "test_launch_sharded",
    "test_methods",
    "test_study_runs",
    "test_resume_matrix",
    "test_replicas",
)
"""Files that take longest: they run first, so that no worker is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_where_missing(items)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """Every training ends with a full garbage collection, which need not walk over the imported libraries each time."""
    blank_figures.install()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of the test, of which one may train and draw."""
    blank_figures.rendering = item.get_closest_marker("renders") is not None


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that reaches out fails, on a machine with a network as on one without."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        assert not host or str(host).startswith(LOOPBACK), f"a test tried to reach {host}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def fresh_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles are made once a process, with the width they find: each test gets its own."""
    from hftune.cli import terminal

    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.out.cache_clear()
    terminal.err.cache_clear()
    # A command that ran in this process has given its own handler to the log, which then reaches no caplog.
    library = logging.getLogger("hftune")
    library.handlers, library.propagate = [], True
    library.setLevel(logging.NOTSET)


@pytest.fixture
def cpu_bf16() -> None:
    """For tests that compute in bf16 for real: there are CPUs on which that ends the process."""
    from hftune.machine import cpu_trial

    trial = cpu_trial("bf16")
    if not trial.works:
        pytest.skip(str(trial))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.fixture(scope="session", autouse=True)
def verification_process() -> Iterator[None]:
    """One process whose forks verify saved models, as in a study: importing takes longer than loading a tiny model."""
    import forks

    with forks.verification_server() if forks.FORKS else nullcontext():
        yield


@pytest.fixture
def hftune() -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: exit code, standard output, standard error."""
    from typer.testing import CliRunner

    from hftune.cli import commands as cli

    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli.app, list(arguments), prog_name="hftune")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.fixture(scope="session")
def hub_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A loopback hub and a client of it that has imported everything; one for all tests that train or load."""
    needs_posix("forks a process that has imported everything")
    from hub_client import Client
    from loopback_hub import serve

    with serve() as hub, Client(hub, tmp_path_factory.mktemp("hub-home")) as client:
        yield client


@pytest.fixture
def client(hub_client: Any, tmp_path: Path) -> Iterator[Any]:
    """The client in a folder of the test's own; no fault of one test reaches another, and no token leaks from any."""
    hub_client.home = tmp_path
    yield hub_client
    left = hub_client.hub.pending_faults()
    hub_client.hub.clear_faults()
    assert (left, hub_client.hub.unrouted, hub_client.hub.leaks()) == (0, [], [])
