"""The report as text: what it contains, what it leaves out, that data stays data, and that it is the same each time."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from facts import mentions
from sample_run import HOSTILE, LABELS, SCRIPT, history, plant_run, predictions
from typer.testing import CliRunner

from hftune.cli.commands import app
from hftune.errors import HftuneError
from hftune.files import write_jsonl
from hftune.recipe import Recipe
from hftune.runs.directory import RunDir
from hftune.runs.figures import Line, Reference, line_chart
from hftune.runs.formatting import duration, number, percent, size
from hftune.runs.group import seed_path
from hftune.runs.report import SECTIONS, verdict, write_report
from hftune.runs.report_results import by_length, wilson

pytestmark = pytest.mark.renders


class Reader(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def section_ids(self) -> list[str | None]:
        return [attributes["id"] for attributes in self.attributes("section")]


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    planted = plant_run(tmp_path_factory.mktemp("runs") / "planted")
    write_report(planted)
    return planted


def test_every_part_is_there(run: RunDir) -> None:
    page = read(run.report)
    assert page.section_ids() == [
        "scores", "training", "confusion", "labels", "calibration", "lengths", "mistakes", "cost", "data", "reproduce",
        "environment",
    ]  # fmt: skip
    accuracy = run.read_metrics()["splits"]["test"]["accuracy"]
    low, high = wilson(accuracy, 500)
    for shown in (
        f"95 % interval {low:.3f} – {high:.3f}",
        "bag of words",
        "majority label",
        "0.182 as trained, 0.021 after dividing the logits by 1.840",
        "over-confident",
        "4,386,309 of 4,386,309 (100.0 %)",
        "1 min 41 s",
        "6f3a9d2c41b07e58",
        "label noise of 6 % is part of the data",
        "hftune classify --output runs/a --set train.weight_decay=0.05",
        "hftune train runs/planted/recipe.yaml",
        "learning_rate: 0.0005",
        "transformers",
        "17.4 MB",
    ):
        assert shown in page.text, shown


def test_it_is_a_pure_function_of_the_directory(run: RunDir, tmp_path: Path) -> None:
    page, pictures = run.report.read_bytes(), {path.name: path.read_bytes() for path in run.plots.iterdir()}
    stray = run.plots / "of-an-earlier-state.png"
    stray.write_bytes(b"old")
    assert write_report(run).read_bytes() == page
    assert {path.name: path.read_bytes() for path in run.plots.iterdir()} == pictures
    assert sorted(pictures) == ["confusion.png", "length.png", "loss.png", "reliability.png", "score.png"]
    assert all(content.startswith(b"\x89PNG") for content in pictures.values())
    elsewhere = write_report(run, tmp_path / "page.html")
    assert elsewhere == tmp_path / "page.html" and elsewhere.read_bytes() == page


def test_text_from_the_data_stays_text(run: RunDir) -> None:
    page = read(run.report)
    assert not page.attributes("script") and not page.attributes("img")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert SCRIPT in page.text and HOSTILE[3] in page.text
    assert "{{ 7 * 7 }} {% raw %}" in page.text
    assert r"\x1b[31mred" in page.text and r"\u202ereversed" in page.text
    raw = run.report.read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", raw)


def test_nothing_points_outside(run: RunDir) -> None:
    page = read(run.report)
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "srcset", "href", "xlink:href", "action", "data", "poster"):
                assert value is not None and value.startswith(("#", "data:,")), f"<{tag} {name}={value!r}>"
    raw = run.report.read_text(encoding="utf-8")
    assert "@import" not in raw and not re.search(r"url\((?!#)", raw)
    (policy,) = [
        meta["content"] for meta in page.attributes("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None and policy.startswith("default-src 'none'") and "script-src" not in policy


def test_every_link_has_its_target_and_every_picture_its_words(run: RunDir) -> None:
    page = read(run.report)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [href for attributes in page.attributes("a") if (href := attributes["href"])]
    assert len(links) > 10 and {href.removeprefix("#") for href in links} <= set(ids)
    drawn = [attributes for tag, attributes in page.tags if attributes.get("role") == "img"]
    assert len(drawn) == len(page.attributes("svg")) == 4
    assert all(len(attributes["aria-label"] or "") > 60 for attributes in drawn)
    assert len(page.attributes("caption")) == len(page.attributes("table")) >= 8


def test_long_texts_are_cut_twice(run: RunDir) -> None:
    page = read(run.report)
    assert f"all {len(HOSTILE[2]):,} characters" in page.text
    assert f"{len(HOSTILE[2]) - 6000:,} characters more" in page.text
    assert "The end of a long text." not in page.text


def test_mistakes_are_those_of_validation_surest_first(run: RunDir) -> None:
    page = read(run.report)
    wrong = [row for row in predictions(1) if row["gold"] != row["label"]]
    wrong.sort(key=lambda row: -row["probabilities"][row["label"]])
    assert re.findall(r"row (\d+)\n", page.text) == [str(row["id"]) for row in wrong[:12]]
    assert mentions(page.text, f"{len(wrong)} of 500", "validation")
    assert mentions(page.text, "test mistakes")


def test_the_matrix_counts_the_predictions(run: RunDir) -> None:
    raw = run.report.read_text(encoding="utf-8")
    cells = [int(count) for count in re.findall(r'<td class="(?:right|wrong)[^>]*>(\d+)', raw)]
    rows = predictions(2)
    expected = [
        sum(row["gold"] == gold and row["label"] == label for row in rows) for gold in LABELS for label in LABELS
    ]
    assert cells == expected


def test_alarms_are_loud(tmp_path: Path) -> None:
    run = plant_run(tmp_path / "bad", collapsed=True, verified=False, collapse_reason="all 500 predictions are <5>")
    metrics = run.read_metrics()
    metrics["baselines"]["tfidf"]["test"]["accuracy"] = 0.9
    run.write_metrics(metrics)
    path = write_report(run, tmp_path / "page.html")
    page = read(path)
    alerts = [attributes for _, attributes in page.tags if attributes.get("role") == "alert"]
    assert len(alerts) == 2
    for shown in (
        "Not verified.",
        "Collapsed.",
        "all 500 predictions are <5>",
        "A baseline does as well or better.",
        "0.900",
    ):
        assert shown in page.text
    assert "doubt" in path.read_text(encoding="utf-8").split('<div class="headline', 1)[1][:10]


@pytest.mark.parametrize(
    ("metric", "model", "baseline", "beaten"),
    [("accuracy", 0.5, 0.4, False), ("accuracy", 0.5, 0.5, True), ("loss", 0.5, 0.4, True), ("loss", 0.5, 0.6, False)],
)
def test_the_verdict_follows_the_direction_of_the_metric(
    metric: str, model: float, baseline: float, beaten: bool
) -> None:
    metrics = {"splits": {"test": {metric: model}}, "baselines": {"majority": {"test": {metric: baseline}}}}
    found = verdict({**metrics, "selection": {"metric": metric}})
    assert found is not None and found.beaten is beaten
    assert f"{baseline:.3f}" in found.scores
    assert verdict({**metrics, "baselines": {}}) is None


def test_a_good_run_raises_no_alarm(run: RunDir) -> None:
    page = read(run.report)
    assert not [attributes for _, attributes in page.tags if attributes.get("role") in ("alert", "note")]


def test_a_run_under_way_shows_its_course(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "begun")
    run.write_recipe(Recipe())
    write_jsonl(run.history, history()[:20])
    page = read(write_report(run))
    assert page.section_ids() == ["training", "reproduce"]
    assert mentions(page.text, "not finished")


def test_a_language_model_has_curves_and_samples(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "gpt")
    run.write_recipe(Recipe())
    write_jsonl(
        run.history, [{key: row[key] for key in row if key not in ("accuracy", "f1_macro")} for row in history()]
    )
    run.write_metrics(
        {
            "task": "clm",
            "splits": {"validation": {"loss": 1.204, "perplexity": 3.333}},
            "baselines": {"unigram": {"validation": {"loss": 2.9}}},
            "selection": {"metric": "loss", "step": 630, "score": 1.204},
            "samples": [{"prompt": "Once <b>", "text": " upon a time"}],
            "verified": True,
            "collapsed": False,
            "seed": 1,
        }
    )
    page = read(write_report(run))
    assert page.section_ids() == ["scores", "training", "samples", "reproduce"]
    assert "Once <b> upon a time" in page.text and "perplexity" in page.text
    assert "hftune train runs/gpt/recipe.yaml" in page.text
    assert [path.name for path in run.plots.iterdir()] == ["loss.png"]


@pytest.mark.parametrize("steps", [[2], [2, 3], [1, 2, 3, 4, 5, 6, 7], [100, 900]])
def test_no_two_ticks_of_an_axis_read_alike(steps: list[int]) -> None:
    line = Line("validation", steps, [1 / step for step in steps], marker="o")
    figure = line_chart([line], x_label="steps", y_label="loss")
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    texts = [axes.xaxis.get_major_formatter()(place) for place in axes.get_xticks() if low <= place <= high]
    assert texts and len(set(texts)) == len(texts), texts


def test_labels_of_baselines_that_coincide_share_a_line() -> None:
    lines = [Line("score", [1, 2, 3], [0.2, 0.6, 0.9])]
    baselines = [Reference("bag of words", 0.512), Reference("majority label", 0.5), Reference("uniform guess", 0.2)]
    axes = line_chart(lines, x_label="step", y_label="score", references=baselines).axes[0]
    assert [text.get_text() for text in axes.texts] == ["uniform guess", "majority label, bag of words"]


def test_answers_without_probabilities_show_in_their_order(tmp_path: Path) -> None:
    run = plant_run(tmp_path / "qa", task="question_answer", labels=[], calibration=None)
    rows = [
        {
            "id": number,
            "text": f"Where was {number} born?",
            "gold": "London",
            "label": "Paris" if number % 2 else "London",
        }
        for number in range(6)
    ]
    for split in ("validation", "test"):
        run.write_predictions(split, rows)
    metrics = run.read_metrics()
    metrics["splits"] = {split: {"exact_match": 0.5} for split in ("validation", "test")}
    metrics["selection"] = {"metric": "exact_match"}
    run.write_metrics(metrics)
    page = read(write_report(run, tmp_path / "page.html"))
    assert page.section_ids() == ["scores", "training", "mistakes", "cost", "data", "reproduce", "environment"]
    assert re.findall(r"row (\d+)\n", page.text) == ["1", "3", "5"]


def test_many_labels_become_a_picture_and_a_list(tmp_path: Path) -> None:
    labels = [f"intent {number} </svg> $x$" for number in range(40)]
    rows = [
        {"id": index, "text": f"text {index}", "gold": labels[index % 40], "label": labels[index % 39]}
        for index in range(400)
    ]
    run = plant_run(tmp_path / "many", labels=labels, calibration=None)
    run.write_predictions("test", rows)
    metrics = run.read_metrics()
    metrics["splits"]["test"].pop("per_class")
    run.write_metrics(metrics)
    page = read(write_report(run, tmp_path / "page.html"))
    assert "labels" not in page.section_ids() and "calibration" not in page.section_ids()
    assert mentions(page.text, "confusion", "test")
    assert any("40 labels" in (attributes.get("aria-label") or "") for _, attributes in page.tags)


def test_every_builder_is_used_once() -> None:
    assert len(SECTIONS) == len({build.__name__ for build in SECTIONS}) >= 12


@pytest.mark.parametrize(
    ("share", "rows", "low", "high"), [(0.5, 100, 0.4038, 0.5962), (0.0, 10, 0.0, 0.2775), (1.0, 80, 0.9542, 1.0)]
)
def test_wilson_gives_the_published_values(share: float, rows: int, low: float, high: float) -> None:
    assert wilson(share, rows)[0] <= share <= wilson(share, rows)[1]
    assert wilson(share, rows) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_length_bands_hold_every_row_once() -> None:
    rows = [
        {"text": "w " * size, "label": "a", "gold": "a" if size < 5 else "b"} for size in [1] * 50 + list(range(2, 52))
    ]
    bands = by_length(rows, lambda text: len(text.split()))
    assert sum(band["rows"] for band in bands) == 100
    assert bands[0]["range"].startswith("1") and bands[-1]["range"].endswith("51")
    assert bands[0]["range"] == "1–10" and bands[0]["accuracy"] == pytest.approx(53 / 59)
    assert bands[-1]["accuracy"] == 0.0
    assert by_length([{"text": "w", "label": "a", "gold": "a"}] * 9, lambda text: len(text))[0]["rows"] == 9


def test_numbers_read_well() -> None:
    assert [number(value) for value in (0.6125, -0.25, 4000, 1234.56, None, float("nan"), True)] == [
        "0.613", "−0.250", "4,000", "1,234.6", "–", "–", "yes",
    ]  # fmt: skip
    assert [duration(value) for value in (9.87, 101.3, 9000)] == ["9.9 s", "1 min 41 s", "2 h 30 min"]
    assert [size(value) for value in (12, 17_400_000, 2_000_000_000)] == ["12 bytes", "17.4 MB", "2.0 GB"]
    assert [percent(value) for value in (1.0, 0.0034, 0.00001)] == ["100.0 %", "0.34 %", "0.0010 %"]


def test_the_command_makes_each_page(tmp_path: Path, run: RunDir) -> None:
    for seed in (1, 2):
        begun = RunDir.create(seed_path(tmp_path / "group", seed))
        begun.write_recipe(Recipe())
    result = CliRunner().invoke(app, ["report", str(run.path), str(tmp_path / "group")])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        str(run.report),
        *(str(seed_path(tmp_path / "group", seed) / "report.html") for seed in (1, 2)),
    ]
    assert (tmp_path / "group" / "seed-2" / "report.html").is_file()
    page = tmp_path / "out" / "page.html"
    result = CliRunner().invoke(app, ["report", str(run.path), "--output", str(page), "--json"])
    assert result.exit_code == 0 and page.read_bytes() == run.report.read_bytes()
    assert str(page) in result.stdout


@pytest.mark.parametrize("case", ["unknown", "two for one file", "folder"])
def test_the_command_refuses_before_it_writes(tmp_path: Path, case: str) -> None:
    first, second = (RunDir.create(tmp_path / name) for name in ("first", "second"))
    for begun in (first, second):
        begun.write_recipe(Recipe())
    arguments = {
        "unknown": [str(first.path), str(tmp_path / "secnd")],
        "two for one file": [str(first.path), str(second.path), "--output", str(tmp_path / "page.html")],
        "folder": [str(first.path), "--output", str(tmp_path)],
    }[case]
    result = CliRunner().invoke(app, ["report", *arguments])
    assert result.exit_code == HftuneError.exit_code, result.output
    assert not first.report.exists() and not (tmp_path / "page.html").exists()
