"""Uploads beside training: one at a time, the newest of those that wait, failures told and nothing else hurt."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hftune.errors import HftuneError
from hftune.hub.attempt import CalledOff, Foreground
from hftune.hub.background import NewestFirst, Staged

Upload = Callable[[Staged, Foreground], str]


def staged(step: int) -> Staged:
    return Staged(step, Path(f"step-{step}"), f"the best of step {step}")


@pytest.fixture
def uploads() -> Iterator[Callable[[Upload], NewestFirst]]:
    """Makes them, and closes them after the test."""
    made: list[NewestFirst] = []

    def make(upload: Upload) -> NewestFirst:
        made.append(NewestFirst(upload))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_one_at_a_time_and_the_newest_of_those_that_wait(uploads: Callable[[Upload], NewestFirst]) -> None:
    begun: list[int] = []
    go_on, under_way = threading.Event(), threading.Lock()

    def upload(one: Staged, manner: Foreground) -> str:
        assert under_way.acquire(blocking=False), "two at once"
        begun.append(one.step)
        go_on.wait(60)
        under_way.release()
        return f"step {one.step} is there"

    queue = uploads(upload)
    assert queue.offer(staged(1)) is None
    until(lambda: begun == [1])
    assert queue.offer(staged(2)) is None
    assert queue.offer(staged(3)) == staged(2)  # nobody uploads it now
    go_on.set()
    until(lambda: begun == [1, 3])
    told: list[str] = []
    until(lambda: told.extend(word.text for word in queue.words()) or len(told) == 2)
    assert told == ["step 1 is there", "step 3 is there"]


def test_one_that_waits_for_its_next_attempt_gives_way(uploads: Callable[[Upload], NewestFirst]) -> None:
    done: list[int] = []

    def upload(one: Staged, manner: Foreground) -> str:
        if one.step == 1:
            manner.say("the Hub has failed")
            manner.wait(600)
        done.append(one.step)
        return "there"

    queue = uploads(upload)
    queue.offer(staged(1))
    told: list[str] = []
    until(lambda: told.extend(word.text for word in queue.words()) or bool(told))
    queue.offer(staged(2))
    until(lambda: done == [2])
    until(lambda: told.extend(word.text for word in queue.words()) or len(told) == 3)
    assert told[0] == "the Hub: the Hub has failed" and "step 1 was passed over" in told[1] and told[2] == "there"


def test_failures_are_told_and_the_next_is_tried(uploads: Callable[[Upload], NewestFirst]) -> None:
    errors = {1: HftuneError("your token may not write", hint="log in"), 2: ZeroDivisionError("odd")}

    def upload(one: Staged, manner: Foreground) -> str:
        if one.step in errors:
            raise errors[one.step]
        return "there"

    queue, words = uploads(upload), []
    for step in (1, 2, 3):
        queue.offer(staged(step))
        until(lambda: words.extend(queue.words()) or len(words) == step)  # noqa: B023
    assert [word.loud for word in words] == [True, True, False]
    assert "the best of step 1 is not on the Hub: your token may not write; training goes on" in words[0].text
    assert "ZeroDivisionError: odd" in words[1].text


def test_closing_ends_what_is_under_way(uploads: Callable[[Upload], NewestFirst]) -> None:
    ends: list[type[BaseException]] = []

    def upload(one: Staged, manner: Foreground) -> str:
        try:
            manner.run([sys.executable, "-c", "import time; time.sleep(600)"], "", {}, 600)
        except CalledOff as error:
            ends.append(type(error))
            raise
        return "there"

    queue = uploads(upload)
    queue.offer(staged(7))
    until(lambda: queue._process is not None)
    assert queue.close() == staged(7)
    assert ends == [CalledOff] and queue.words() == []
    assert queue.close() is None  # twice does no harm


def test_an_attempt_that_hangs_is_ended(uploads: Callable[[Upload], NewestFirst]) -> None:
    import subprocess

    def upload(one: Staged, manner: Foreground) -> str:
        with pytest.raises(subprocess.TimeoutExpired):
            manner.run([sys.executable, "-c", "import time; time.sleep(600)"], "", {}, 0.2)
        return "ended"

    queue, words = uploads(upload), []
    queue.offer(staged(1))
    until(lambda: words.extend(queue.words()) or bool(words))
    assert words[0].text == "ended"
