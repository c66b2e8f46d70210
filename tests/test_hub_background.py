"""The upload queue: one upload at a time, the newest of those that wait, failures only reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts import mentions

from hftune.errors import HftuneError
from hftune.hub.client import HubClient
from hftune.hub.publication import Staged, UploadQueue
from hftune.recipe import HubSection
from hftune.runs.directory import RunDir

Upload = Callable[[HubClient, int], None]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Upload], UploadQueue]]:
    """Makes a queue whose uploads are the given function of client and step; closes it after the test."""
    made: list[UploadQueue] = []

    def make(upload: Upload) -> UploadQueue:
        def pretend(self: HubClient, repo: str, files: Any, *, message: str, **_: Any) -> Any:
            upload(self, int(message.split("step ")[1].split(",")[0]))
            return SimpleNamespace(oid="c" * 40)

        monkeypatch.setattr(HubClient, "upload", pretend)
        monkeypatch.setattr("hftune.hub.publication.published_files", lambda folder: ({}, []))
        run = RunDir.create(tmp_path / f"run-{len(made)}")
        made.append(UploadQueue(run, HubSection(hub_model_id="me/it"), HubClient("hf_x")))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def staged(tmp_path: Path) -> Callable[[int], Staged]:
    def make(step: int) -> Staged:
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        return Staged(step, folder, f"the best of step {step}")

    return make


def until(found: Callable[[], Any]) -> None:
    end = time.monotonic() + 240
    while not found():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def collect(queue: UploadQueue, count: int) -> list[tuple[str, bool]]:
    """The next messages."""
    messages: list[tuple[str, bool]] = []
    until(lambda: messages.extend(queue.messages()) or len(messages) >= count)
    return messages


def test_one_at_a_time_and_the_newest_of_those_that_wait(
    queue: Callable[[Upload], UploadQueue], staged: Callable[[int], Staged]
) -> None:
    begun: list[int] = []
    release, running = threading.Event(), threading.Lock()

    def upload(client: HubClient, step: int) -> None:
        assert running.acquire(blocking=False), "two at once"
        begun.append(step)
        release.wait(240)
        running.release()

    uploads, waiting = queue(upload), staged(2)
    uploads.offer(staged(1))
    until(lambda: begun == [1])
    uploads.offer(waiting)
    uploads.offer(staged(3))
    assert not waiting.folder.exists()  # it will not be uploaded
    assert mentions(collect(uploads, 1)[0][0], "step 2")
    release.set()
    until(uploads.is_idle)
    assert begun == [1, 3]
    assert [text.split(":")[0] for text, _ in collect(uploads, 2)] == [
        "uploaded the best of step 1",
        "uploaded the best of step 3",
    ]


def test_an_upload_between_two_attempts_is_replaced_by_a_newer_one(
    queue: Callable[[Upload], UploadQueue], staged: Callable[[int], Staged]
) -> None:
    done: list[int] = []

    def upload(client: HubClient, step: int) -> None:
        if step == 1:
            client.report("503")
            client.sleep(600)
        done.append(step)

    uploads = queue(upload)
    uploads.offer(staged(1))
    assert collect(uploads, 1) == [("503", False)]
    uploads.offer(staged(2))
    until(lambda: done == [2])
    skipped, uploaded = collect(uploads, 2)
    assert mentions(skipped[0], "step 1") and mentions(uploaded[0], "step 2")


def test_failures_are_reported_and_the_next_is_tried(
    queue: Callable[[Upload], UploadQueue], staged: Callable[[int], Staged]
) -> None:
    errors = {1: HftuneError("403 forbidden", hint="log in"), 2: ZeroDivisionError("odd")}

    def upload(client: HubClient, step: int) -> None:
        if step in errors:
            raise errors[step]

    uploads, messages = queue(upload), []
    for step in (1, 2, 3):
        uploads.offer(staged(step))
        messages += collect(uploads, 1)
    assert [is_warning for _, is_warning in messages] == [True, True, False]
    assert "step 1" in messages[0][0] and "403 forbidden" in messages[0][0]
    assert "ZeroDivisionError: odd" in messages[1][0]
    assert uploads.run.read_published().step == 3


def test_closing_cancels_what_is_under_way(
    queue: Callable[[Upload], UploadQueue], staged: Callable[[int], Staged]
) -> None:
    begun, release = threading.Event(), threading.Event()

    def upload(client: HubClient, step: int) -> None:
        begun.set()
        release.wait(240)
        assert client.is_cancelled()

    uploads, one = queue(upload), staged(7)
    uploads.offer(one)
    assert begun.wait(240)
    assert uploads.close() == one
    release.set()
    until(lambda: uploads.close() is None)  # a second call is harmless
    assert uploads.messages() == [] and uploads.run.read_published() is None  # the record may be a later push's
