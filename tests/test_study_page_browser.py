"""The page of a study in a real browser: nothing runs, nothing is fetched, every figure shows, also on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, running_browser
from facts import mentions
from sample_study import SCRIPT, plant_run, plant_study

from hftune.recipe import load_recipe
from hftune.runs.group import seed_path
from hftune.studies.plan import Plan
from hftune.studies.report import PAGE, write_group_page, write_study

pytestmark = [pytest.mark.browser, pytest.mark.renders]

FIGURES = (
    "scores",
    "by-train-learning-rate",
    "by-train-num-train-epochs",
    "curves",
    "training-loss",
    "validation-loss",
    "against-seconds",
    "against-trainable",
)
TROUBLE = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve settings, one of them with a hostile name, one collapsed, one failed."""
    plan = Plan(
        grid={
            "train.learning_rate": [1e-4, 1e-3, 1e-2],
            "train.num_train_epochs": [2.0, 4.0],
            "who": {"us": {"train.weight_decay": 0.1}, SCRIPT: {"train.weight_decay": 0.2}},
        }
    )
    shares = {}
    for place, lr in enumerate(("0.0001", "0.001", "0.01")):
        for epochs in ("2", "4"):
            for who in ("us", SCRIPT):
                name = f"learning_rate={lr} num_train_epochs={epochs} {who}"
                shares[name] = 0.62 + 0.06 * (place == 1) + 0.02 * (epochs == "4") + 0.005 * (who == "us")
    left_out = "learning_rate=0.01 num_train_epochs=4 us"
    del shares[left_out]
    changes = {
        name: {
            "speed": {"train_seconds": 20.0 + 30 * place, "examples_per_second": 1.0},
            "parameters": {"trainable": 10 ** (3 + place % 4), "total": 10**6, "formula": None},
            "collapsed": place == 7,
        }
        for place, name in enumerate(shares)
    }
    study = plant_study(
        tmp_path_factory.mktemp("runs") / "reviews-lr",
        plan,
        shares,
        "learning_rate=0.001 num_train_epochs=4 us",
        **changes,
    )
    study.write_failures([{"setting": left_out, "seed": 1, "reason": f"the loss is nan {SCRIPT}", "hint": "lower it"}])
    write_study(study)
    return study.path / PAGE


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_shows_everything_and_requests_nothing(browser: Browser, page_file: Path, width: int, dark: bool) -> None:
    page = browser.open(page_file, width=width, dark=dark)
    assert page.of(*TROUBLE) == []
    urls = [event["request"]["url"] for event in page.of("Network.requestWillBeSent")]
    assert [url for url in urls if url not in (page_file.as_uri(), "data:,")] == []
    page.value("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    assert page.value("document.documentElement.scrollWidth") == width
    for name in FIGURES:
        size = f"(box => [box.width, box.height])(document.querySelector('#figure-{name} svg').getBoundingClientRect())"
        area = page.value(size)
        assert area[0] > 200 and area[1] > 150, f"{name}: {area}"


def test_a_wide_table_scrolls_on_a_phone_with_a_cue_and_its_caption_stays(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file, width=390)
    page.value("window.box = document.querySelector('#comparison .scroll'); box.scrollLeft = 80; 0")
    assert page.value("box.scrollWidth > box.clientWidth && box.scrollLeft") == 80
    assert "local" in page.value("getComputedStyle(box).backgroundAttachment"), "shadows at the edges"
    caption = page.value("(one => [one.left, one.right])(box.querySelector('caption').getBoundingClientRect())")
    assert caption[0] >= 0 and caption[1] <= 390


def test_hostile_names_are_text(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file)
    assert page.value("document.title") == "reviews-lr · hftune"
    assert page.value("document.scripts.length") == 0
    assert SCRIPT in page.value("document.querySelector('#comparison').innerText")
    page.value("document.querySelectorAll('details').forEach(box => { box.open = true; })")
    runs = page.value("document.querySelector('#runs').innerText")
    assert mentions(runs, "nan", str(SCRIPT))


def test_runs_are_linked_and_the_selected_setting_is_marked(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file)
    links = page.value("[...document.querySelectorAll('#runs a')].map(link => decodeURI(link.getAttribute('href')))")
    assert len(links) == 33
    assert all((page_file.parent / link).is_file() for link in links)
    marked = page.value("[...document.querySelectorAll('tr.model th')].map(cell => cell.innerText)")
    assert len(marked) == 1 and "learning_rate=0.001 num_train_epochs=4 us" in marked[0] and "selected" in marked[0]


def test_the_first_values_of_what_differs_are_on_the_screen_of_a_phone(browser: Browser, page_file: Path) -> None:
    page = browser.open(page_file, width=390)
    assert page.value("document.querySelector('#differences tbody td').getBoundingClientRect().right") <= 390
    heads = page.value("[...document.querySelectorAll('#differences thead th')].map(one => one.scrollWidth)")
    assert max(heads[1:3]) < 390, "names of settings wrap"


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_group_fits_and_links_its_runs(browser: Browser, tmp_path: Path, width: int) -> None:
    for seed in (1, 2):
        parameters = {"trainable": 626, "total": 9000, "formula": "2d+2"}
        plant_run(seed_path(tmp_path, seed), load_recipe(None, {"train.seed": seed}), 0.7, parameters=parameters)
    page = browser.open(write_group_page(tmp_path), width=width)
    assert page.of(*TROUBLE) == []
    assert page.value("document.documentElement.scrollWidth") == width
    for name in ("scores", "curves", "losses"):
        assert page.value(f"document.querySelector('#figure-{name} svg').getBoundingClientRect().width") > 200
    links = page.value("[...document.querySelectorAll('#runs a')].map(link => link.getAttribute('href'))")
    assert links == ["seed-1/report.html", "seed-2/report.html"]
    assert "= 2d+2" in page.value("document.querySelector('#comparison tbody').innerText")
