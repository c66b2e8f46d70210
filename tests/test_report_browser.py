"""The report in a real browser: nothing runs, nothing is fetched, nothing is wider than a phone, every figure shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, running_browser
from sample_answers import plant_answers
from sample_run import HOSTILE, SCRIPT, plant_run

from hftune.runs.report import write_report

pytestmark = [pytest.mark.browser, pytest.mark.renders]

FIGURES = ("loss", "score", "confusion", "reliability", "length")
TROUBLE = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = plant_run(tmp_path_factory.mktemp("runs") / "planted")
    metrics = run.read_metrics()
    # More columns than a phone is wide: the table must scroll, not the page.
    metrics["splits"]["test"] |= {"balanced_accuracy": 0.6, "quadratic_kappa": 0.7, "mean_absolute_error": 0.4}
    run.write_metrics(metrics)
    return write_report(run)


def requested(page: Page) -> list[str]:
    return [event["request"]["url"] for event in page.of("Network.requestWillBeSent")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_shows_everything_and_requests_nothing(browser: Browser, report: Path, width: int, dark: bool) -> None:
    page = browser.open(report, width=width, dark=dark)
    assert page.of(*TROUBLE) == []
    assert [url for url in requested(page) if url not in (report.as_uri(), "data:,")] == []
    page.value("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    assert page.value("document.documentElement.scrollWidth") == width
    for name in FIGURES:
        area = page.value(
            f"(() => {{ const box = document.querySelector('#figure-{name} svg, #figure-{name} table')"
            ".getBoundingClientRect(); return [box.width, box.height]; })()"
        )
        assert area[0] > 200 and area[1] > 150, f"{name}: {area}"


@pytest.mark.parametrize("width", [1280, 390])
def test_what_a_model_knows_fits_the_page(browser: Browser, tmp_path: Path, width: int) -> None:
    page = browser.open(write_report(plant_answers(tmp_path / "answers")), width=width)
    assert page.of(*TROUBLE) == []
    assert page.value("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('#knowledge .tables .scroll')]"
    assert page.value(f"{boxes}.map(box => box.scrollWidth - box.clientWidth)") == [0, 0, 0], "no column is cut off"
    reported = page.value("[...document.querySelectorAll('#knowledge summary')].map(one => one.textContent)")
    assert [text.split(",")[0] for text in reported][1:] == ["Every answer on validation", "Every answer on test"]
    heads = page.value(f"{boxes}.map(box => [...box.querySelectorAll('thead th')].map(cell => cell.textContent))")
    assert heads[:2] == [
        ["pretraining", "fine-tuning", "asked", "right", "confidence"],
        ["pretraining", "fine-tuning", "asked", "confidence"],
    ]
    assert page.value("document.title") == "answers · hftune", "planted scripts are text"


def test_the_planted_script_is_text(browser: Browser, report: Path) -> None:
    page = browser.open(report)
    assert page.value("document.title") == "planted · hftune"
    assert page.value("document.scripts.length") == 0
    assert page.value("document.querySelectorAll('img, iframe, object, embed, link[rel=stylesheet]').length") == 0
    shown = page.value("document.querySelector('#mistakes').innerText")
    assert SCRIPT in shown and HOSTILE[3] in shown


def test_a_script_would_not_run_even_if_one_slipped_in(browser: Browser, report: Path, tmp_path: Path) -> None:
    """The page's own policy is the second wall, and this shows that the checks above would notice."""
    broken = tmp_path / "broken.html"
    planted = f"{SCRIPT}<img src='http://127.0.0.1:9/x.png'></main>"
    broken.write_text(report.read_text(encoding="utf-8").replace("</main>", planted), encoding="utf-8")
    page = browser.open(broken)
    assert page.value("document.title") == "planted · hftune"
    refused = " ".join(event["entry"]["text"] for event in page.of("Log.entryAdded"))
    assert "Content Security Policy" in refused and "script" in refused and "img-src" in refused


def test_colours_follow_the_scheme_and_stay_legible(browser: Browser, report: Path) -> None:
    colors = (
        "(() => { const of = (selector, key) => getComputedStyle(document.querySelector(selector))[key];"
        " return [of('body', 'backgroundColor'), of('body', 'color'), of('.lead', 'color'),"
        " of('figcaption', 'color'), of('#figure-loss svg text', 'fill')]; })()"
    )
    light, dark = (browser.open(report, dark=is_dark).value(colors) for is_dark in (False, True))
    assert all(one != other for one, other in zip(light, dark, strict=True))
    for paper, *inks in (light, dark):
        assert all(contrast(paper, ink) >= 4.5 for ink in inks), (paper, inks)


def test_the_keyboard_reaches_what_scrolls(browser: Browser, report: Path) -> None:
    page = browser.open(report, width=390)
    unreachable = page.value("[...document.querySelectorAll('.scroll, pre')].filter(box => box.tabIndex !== 0).length")
    assert unreachable == 0 and page.value("document.querySelectorAll('.scroll').length") >= 8
    assert page.value("document.querySelector('a').textContent") == "Skip to the content"


def test_it_prints_with_every_detail_open(browser: Browser, report: Path) -> None:
    page = browser.open(report)
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    shown = "[...document.querySelectorAll('details > :not(summary)')].map(part => part.checkVisibility())"
    assert set(page.value(shown)) == {True}


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG between two rgb(…) colors."""

    def luminance(color: str) -> float:
        channels = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)
