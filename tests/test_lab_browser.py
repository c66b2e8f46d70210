"""The lab's page in a real browser, with all its experiments: everything shows, nothing is fetched, it fits a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, running_browser
from lab_results import quick

from hftune.lab.run import EXPERIMENTS, write

pytestmark = [pytest.mark.browser, pytest.mark.renders]

TROUBLE = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A time depends on the machine; the page is to show what holds and one thing that does not.
    results = [replace(quick(name), violated=()) for name in EXPERIMENTS]
    results[3] = replace(results[3], violated=("two heads <script>document.title='x'</script> are near",))
    return write(results, tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_shows_everything_and_requests_nothing(browser: Browser, page_file: Path, width: int, dark: bool) -> None:
    page = browser.open(page_file, width=width, dark=dark)
    assert page.of(*TROUBLE) == []
    urls = [event["request"]["url"] for event in page.of("Network.requestWillBeSent")]
    assert [url for url in urls if url not in (page_file.as_uri(), "data:,")] == []
    page.value("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    assert page.value("document.documentElement.scrollWidth") == width
    for name in EXPERIMENTS:
        size = f"(box => [box.width, box.height])(document.querySelector('#figure-{name} svg').getBoundingClientRect())"
        area = page.value(size)
        assert area[0] > 200 and area[1] > 150, f"{name}: {area}"


def test_claims_numbers_and_questions_are_read(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file)
    assert page.value("document.title") == "The attention lab · hftune"
    assert page.value("document.scripts.length") == 0
    for name, experiment in EXPERIMENTS.items():
        section = page.value(f"document.querySelector('#{name}').innerText")
        assert experiment.claim in section
        assert all(question in section for question in experiment.questions)
        assert all(value in section for _, value in experiment.rows(quick(name).numbers))
    links = page.value("[...document.querySelectorAll('#claims a')].map(link => link.getAttribute('href'))")
    assert links == [f"#{name}" for name in EXPERIMENTS]


def test_a_claim_that_fails_is_an_alarm(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file)
    alarms = page.value("[...document.querySelectorAll('.banner.alarm')].map(box => box.innerText)")
    assert len(alarms) == 2
    assert "multi-head" in alarms[0]
    assert "two heads <script>document.title='x'</script> are near" in alarms[1]
    assert "12 of 13 claims hold" in page.value("document.querySelector('#claims').innerText")
