"""Comparing settings: verdicts on planted predictions, what is refused, the files that are left, `hftune compare`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error, mentions
from sample_study import SCRIPT, plant_run, plant_study

from hftune.recipe import load_recipe
from hftune.studies import plots
from hftune.studies.compare import _other_items, compare_study, compare_systems
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan
from hftune.studies.plots import TradeOff
from hftune.studies.report import write_results, write_study
from hftune.studies.systems import collect, differences
from hftune.studies.tables import baseline_rows, csv_text, markdown_text, numeric_axes

Hftune = Callable[..., tuple[int, str, str]]
LR = "train.learning_rate"
GOOD, SAME, BAD = "learning_rate=0.001", "learning_rate=0.01", "learning_rate=0.1"
COUNTS = {"trainable": 2, "total": 9, "formula": None}
SHARES = {GOOD: 0.8, SAME: 0.795, BAD: 0.7}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDir:
    plan = Plan(grid={LR: [0.001, 0.01, 0.1]})
    return plant_study(tmp_path_factory.mktemp("runs") / "planted", plan, SHARES, GOOD)


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> StudyDir:
    """The same with test scored for all."""
    plan = Plan(grid={LR: [0.001, 0.01, 0.1]}, test="all")
    return plant_study(tmp_path_factory.mktemp("runs") / "tested", plan, SHARES)


def test_a_planted_gap_is_found_and_a_planted_tie_is_not(study: StudyDir) -> None:
    compared = compare_study(study)
    assert (compared.split, compared.metric) == ("validation", "accuracy")
    assert [row.name for row in compared.rows] == [GOOD, SAME, BAD]
    assert [row.selected for row in compared.rows] == [True, False, False]
    first = compared.rows[0]
    runs = study.runs(study.settings()[0])
    assert first.by_seed["validation"] == pytest.approx(
        [run.read_metrics()["splits"]["validation"]["accuracy"] for run in runs]
    )
    assert first.scores["validation"].mean == pytest.approx(sum(first.by_seed["validation"]) / 3)
    assert first.scores["validation"].low < first.scores["validation"].mean < first.scores["validation"].high
    assert first.seconds == pytest.approx(12.0) and first.trainable == 1000
    words = {(pair.first, pair.second): pair.verdict for pair in compared.pairs}
    assert words[BAD, GOOD].endswith(f"{GOOD} is better, with 3 seeds")
    assert mentions(words[SAME, GOOD], "not distinguishable", "3 seeds")
    assert len(words) == 3
    assert compared.baselines == {
        "majority": {"validation": 0.5, "test": 0.5},
        "tfidf": {"validation": 0.66, "test": 0.66},
    }


def test_what_a_frozen_encoder_took_ahead_of_training_counts(tmp_path: Path) -> None:
    speed = {"train_seconds": 4.0, "feature_seconds": 26.0, "examples_per_second": 80.0}
    plant_run(tmp_path / "head", load_recipe(None, {LR: 1.0}), 0.7, speed=speed)
    plant_run(tmp_path / "full", load_recipe(None, {LR: 2.0}), 0.8)
    compared = compare_systems(collect([tmp_path / "head", tmp_path / "full"]))
    assert sorted(row.seconds for row in compared.rows) == [11.0, 30.0]


def test_what_validation_selected_and_where_test_was_scored_is_reported(study: StudyDir, tested: StudyDir) -> None:
    compared = compare_study(study)
    assert [sorted(row.scores) for row in compared.rows] == [["test", "validation"], ["validation"], ["validation"]]
    notes = " | ".join(compared.notes)
    assert mentions(notes, str(GOOD), "validation accuracy")
    assert mentions(notes, "test", str(GOOD))
    assert "compared on validation" in notes
    everything = compare_study(tested)
    assert everything.split == "test"
    assert mentions(" | ".join(everything.notes), "test", "all settings")
    assert not any("compared on validation" in note for note in everything.notes)


def test_settings_that_are_level_on_validation_are_named(tmp_path: Path) -> None:
    shares = dict.fromkeys((GOOD, SAME, BAD), 0.5)
    study = plant_study(tmp_path / "s", Plan(grid={LR: [0.001, 0.01, 0.1]}), shares)
    assert f"tied with {SAME}, {BAD}" in compare_study(study).notes[0]


def test_a_baseline_that_does_as_well_is_reported(tmp_path: Path) -> None:
    def notes(share: float, folder: str, metric: str = "accuracy") -> list[str]:
        study = plant_study(tmp_path / folder, Plan(grid={LR: [0.001, 0.1]}), {GOOD: share, BAD: 0.5}, GOOD)
        return [note for note in compare_study(study, metric=metric).notes if "a baseline does as well" in note]

    assert notes(0.9, "good") == []
    (found,) = notes(0.6, "poor")
    assert mentions(found, "validation", "bag of words 0.6600") and "majority" not in found


def test_by_loss_lower_is_better(study: StudyDir) -> None:
    compared = compare_study(study, metric="loss")
    assert [row.name for row in compared.rows] == [GOOD, SAME, BAD]
    means = [row.scores["validation"].mean for row in compared.rows]
    assert means == sorted(means)
    worst = compared.pairs[1]
    assert (worst.first, worst.second) == (BAD, GOOD)
    assert worst.comparison.difference > 0 and "nats" in worst.verdict and f"{GOOD} is better" in worst.verdict


def test_what_differs_and_own_baselines_are_listed(tmp_path: Path) -> None:
    for lr, rows, words in ((0.001, 50, 0.55), (0.01, 200, 0.66)):
        baselines = {"majority": {"validation": {"accuracy": 0.5}}, "tfidf": {"validation": {"accuracy": words}}}
        data = {
            "source": "planted",
            "rows": {"train": rows, "validation": 600, "test": 600},
            "fingerprints": {"train": f"print-{rows}", "validation": "bb", "test": "cc"},
        }
        plant_run(tmp_path / str(lr), load_recipe(None, {LR: lr}), 0.7, baselines=baselines, data=data)
    compared = compare_systems(collect([tmp_path / "0.001", tmp_path / "0.01"]))
    assert set(compared.differences) == {LR, "rows of train", "fingerprint of train"}
    assert compared.differences["rows of train"] == {GOOD: 50, SAME: 200}
    assert set(compared.baselines) == {"majority"}
    rows_of_baselines = dict(baseline_rows(compared))
    assert rows_of_baselines["majority label"] == {"validation": 0.5}
    assert rows_of_baselines[f"bag of words ({GOOD})"] == {"validation": 0.55}
    assert rows_of_baselines[f"bag of words ({SAME})"] == {"validation": 0.66}
    text = markdown_text(compared)
    assert mentions(text, "rows of train", "bag of words", 50, 200)


def test_many_settings_are_each_compared_with_the_best(tmp_path: Path) -> None:
    values = [0.001 * (place + 1) for place in range(6)]
    shares = {f"learning_rate={value:g}": 0.6 + 0.01 * place for place, value in enumerate(values)}
    study = plant_study(tmp_path / "s", Plan(grid={LR: values}), shares)
    compared = compare_study(study)
    assert {pair.second for pair in compared.pairs} == {compared.rows[0].name}
    assert len(compared.pairs) == 5
    assert all(pair.adjusted_p >= pair.comparison.p_value for pair in compared.pairs)


def test_runs_that_differ_in_nothing_but_the_seed_are_one_system(tmp_path: Path) -> None:
    for lr, share in ((0.001, 0.8), (0.01, 0.7)):
        for seed in (1, 2, 3):
            recipe = load_recipe(None, {LR: lr, "train.seed": seed})
            plant_run(tmp_path / f"lr{lr}" / f"seed-{seed}", recipe, share)
    systems = collect([tmp_path / "lr0.001", *sorted((tmp_path / "lr0.01").iterdir(), reverse=True)])
    assert [(system.name, system.seeds) for system in systems] == [(GOOD, (1, 2, 3)), (SAME, (1, 2, 3))]
    (pair,) = compare_systems(systems).pairs
    assert mentions(pair.verdict, "better", "3 seeds")
    two = compare_systems(collect([tmp_path / "lr0.001" / "seed-1", tmp_path / "lr0.01" / "seed-2"]))
    assert mentions(two.pairs[0].verdict, "1 seed", "rows")
    assert any("too few" in note for note in two.notes)
    twice = collect([tmp_path / "lr0.001", tmp_path / "lr0.001" / "seed-1"])
    assert twice[0].seeds == (1, 2, 3)


def test_systems_with_like_folder_names_stay_apart(tmp_path: Path) -> None:
    changes = {LR: 1.0, "train.num_train_epochs": 5, "train.per_device_train_batch_size": 7, "train.weight_decay": 0.5}
    for folder, overrides in (("a", {}), ("b", changes)):
        plant_run(tmp_path / folder / "run", load_recipe(None, overrides), 0.8 if overrides else 0.6)
    systems = collect([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert [Path(system.name).parts[-2:] for system in systems] == [("a", "run"), ("b", "run")]
    assert len(compare_systems(systems).rows) == 2


def test_what_can_not_be_compared_is_refused(study: StudyDir, tmp_path: Path) -> None:
    with hftune_error("scored on test") as caught:
        compare_study(study, "test")
    assert "--test all" in caught.value.hint
    with hftune_error("f1_makro") as caught:
        compare_study(study, metric="f1_makro")
    assert "f1_macro" in caught.value.hint
    one = plant_run(tmp_path / "one", load_recipe(None, {LR: 1.0}), 0.7)
    metrics = one.read_metrics()
    data = {**metrics["data"], "fingerprints": {"train": "aa", "validation": "bb", "test": "other"}}
    plant_run(tmp_path / "two", load_recipe(None, {LR: 2.0}), 0.7, data=data)
    with hftune_error("test rows", "one and", "two"):
        compare_systems(collect([tmp_path / "one", tmp_path / "two"]))
    assert compare_systems(collect([tmp_path / "one", tmp_path / "two"]), "validation").pairs
    plant_run(tmp_path / "twin", load_recipe(None, {LR: 1.0}), 0.7)
    with hftune_error("same recipe", "same seed"):
        collect([tmp_path / "one", tmp_path / "twin"])
    plant_run(tmp_path / "open", load_recipe(None, {LR: 3.0}), 0.7, verified=False)
    with hftune_error(str(tmp_path / "open")):
        collect([tmp_path / "one", tmp_path / "open"])
    with hftune_error("expected a run directory"):
        collect([tmp_path / "nowhere"])


def test_hostile_names_stay_text_in_csv_and_markdown(tmp_path: Path) -> None:
    names = ["=HYPERLINK(1)", "+1", "@x", "-2", "a|b\nc", SCRIPT]
    plan = Plan(
        grid={"who": {name: {"train.weight_decay": 0.1 * place} for place, name in enumerate(names)}}, seeds=(1,)
    )
    study = plant_study(tmp_path / "s", plan, dict.fromkeys(names, 0.7))
    compared = compare_study(study)
    rows = list(csv.DictReader(io.StringIO(csv_text(compared))))
    assert {row["setting"] for row in rows} == {"'=HYPERLINK(1)", "'+1", "'@x", "'-2", "a|b\nc", SCRIPT}
    assert {row["who"] for row in rows} == {row["setting"] for row in rows}
    assert float(rows[0]["validation_mean"]) == compared.rows[0].scores["validation"].mean
    text = markdown_text(compared)
    table = text.partition("\n\n")[0].splitlines()
    assert len({line.count("|") for line in table}) == 1 and len(table) == 2 + 6 + 2
    assert "<script>" not in text


@pytest.mark.renders
def test_the_files_are_a_function_of_the_folder(study: StudyDir) -> None:
    compared = write_study(study)
    made = {path.name for path in study.path.iterdir()} - {".lock"}
    assert made == {
        *("study.yaml", "runs", "failures.jsonl", "report.html", "plots"),
        *("comparison.json", "comparison.csv", "comparison.md"),
    }
    assert json.loads((study.path / "comparison.json").read_text()) == json.loads(json.dumps(compared.as_dict()))
    figures = {
        f"{name}.png" for name in ("scores", "by-train-learning-rate", "curves", "training-loss", "validation-loss")
    }
    assert {path.name for path in (study.path / "plots").iterdir()} == figures  # all cost the same: no trade-off
    before = {path: path.read_bytes() for path in study.path.rglob("*") if path.is_file()}
    (study.path / "plots" / "old.png").touch()
    write_study(study)
    assert {path: path.read_bytes() for path in study.path.rglob("*") if path.is_file()} == before
    page = (study.path / "report.html").read_text()
    assert mentions(page, "better", "3 seeds") and f"hftune sweep {study.path}/study.yaml" in page


def test_a_page_left_behind_by_a_killed_study_is_made_again(tmp_path: Path) -> None:
    study = plant_study(tmp_path / "s", Plan(grid={LR: [0.001]}, seeds=(1,)), {"learning_rate=0.001": 0.7})
    (run,) = study.runs(study.settings()[0])
    run.report.unlink()
    write_study(study)
    assert "Run report" in run.report.read_text()


# ---- figures ----


def test_what_collapsed_is_not_the_best_for_its_cost(tmp_path: Path) -> None:
    plant_run(tmp_path / "lost", load_recipe(None, {LR: 1.0}), 0.6, collapsed=True, parameters=COUNTS)
    plant_run(tmp_path / "full", load_recipe(None, {LR: 2.0}), 0.8)
    compared = compare_systems(collect([tmp_path / "lost", tmp_path / "full"]))
    points = plots.points_of(compared, "trainable")
    assert min(points, key=lambda one: one.x).collapsed
    assert [point.rank for point in plots.pareto(points)] == [1]
    assert compared.notes[-1] == f"collapsed to one class: {compared.rows[1].name} (1 of 1 run)"
    assert plots.trade_off(compared, "trainable") is not None


def test_the_front_is_what_nothing_beats() -> None:
    points = [
        TradeOff(rank, "", x, y, y, y) for rank, (x, y) in enumerate([(1, 0.5), (2, 0.4), (3, 0.9), (3, 0.8), (9, 0.9)])
    ]
    assert [(one.x, one.y) for one in plots.pareto(points)] == [(1, 0.5), (3, 0.9)]
    assert [(one.x, one.y) for one in plots.pareto(points, lower_is_better=True)] == [(1, 0.5), (2, 0.4)]


def test_points_on_each_other_share_a_label(tmp_path: Path) -> None:
    for place, lr in enumerate((0.001, 0.01, 0.1)):
        parameters = {"trainable": 10 ** (3 + place // 2), "total": 10**6, "formula": None}
        share = 0.7 if place < 2 else 0.9
        plant_run(tmp_path / str(lr), load_recipe(None, {LR: lr}), share, parameters=parameters)
    figure = plots.trade_off(compare_systems(collect(sorted(tmp_path.iterdir()))), "trainable")
    assert figure is not None
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["1", "2, 3"]
    assert figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize(
    ("values", "by_magnitude"),
    [
        ([1e-5, 1e-4, 1e-3], True),
        ([1e-5, 1e-3], True),
        ([3e-4, 1e-3], False),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], False),
        ([8, 16, 32, 64], True),
        ([0, 0.1, 10], False),
        ([-1, 1, 100], False),
        ([5], False),
    ],
)
def test_a_logarithmic_axis_where_values_spread_like_that(values: list[float], by_magnitude: bool) -> None:
    assert plots.spreads_by_magnitude(values) is by_magnitude


def test_the_swept_values_are_the_ticks(tested: StudyDir) -> None:
    compared = compare_study(tested)
    assert numeric_axes(compared) == [LR]
    (axes,) = plots.by_value(compared, LR).axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    (line,) = axes.lines
    assert list(line.get_ydata()) == pytest.approx([row.scores["test"].mean for row in compared.rows])
    assert len(axes.collections) == 1  # the band over seeds
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "test accuracy")


def test_learning_curves_have_a_band_over_seeds(tested: StudyDir) -> None:
    figure = plots.curves(collect([tested.path]), "accuracy")
    assert figure is not None
    (axes,) = figure.axes
    assert len(axes.lines) == 3 == len(axes.collections)
    assert list(axes.lines[0].get_xdata()) == [100, 200, 300, 400]


# ---- the command ----


def test_compare_on_the_command_line(study: StudyDir, tmp_path: Path, hftune: Hftune) -> None:
    code, out, err = hftune("compare", str(study.path))
    assert code == 0, err
    assert f"{GOOD} (selected)" in out and mentions(out, "better", "3 seeds")
    assert mentions(out, "test", str(GOOD))
    for name, start in (("json", "{"), ("csv", "setting,"), ("markdown", "| setting")):
        code, out, _ = hftune("compare", str(study.path), "--format", name)
        assert code == 0 and out.startswith(start)
    assert json.loads(hftune("compare", str(study.path), "--json")[1])["rows"][0]["name"] == GOOD
    folder = tmp_path / "out"
    assert hftune("compare", str(study.path), "--output", str(folder))[0] == 0
    assert {path.name for path in folder.iterdir()} == {
        *("comparison.json", "comparison.csv", "comparison.md", "plots", "report.html")
    }
    for wrong in (
        ["--split", "test"],
        ["--metric", "acuracy"],
        ["--output", str(tmp_path)],
        ["--output", str(study.path)],
    ):
        code, _, err = hftune("compare", str(study.path), *wrong)
        assert code == 2 and "Error" in err, wrong


def test_report_makes_the_page_of_a_study(tested: StudyDir, tmp_path: Path, hftune: Hftune) -> None:
    code, out, err = hftune("report", str(tested.path))
    assert code == 0, err
    assert out.strip() == str(tested.path / "report.html")
    elsewhere = tmp_path / "page.html"
    assert hftune("report", str(tested.path), "--output", str(elsewhere))[0] == 0
    assert elsewhere.read_text() == (tested.path / "report.html").read_text()


def test_studies_are_listed_shown_and_checked_like_recipes(tmp_path: Path, hftune: Hftune) -> None:
    assert "studies/reviews-lr" in hftune("recipes", "ls")[1]
    assert "train.learning_rate: [3e-4, 1e-3]" in hftune("recipes", "show", "studies/reviews-lr")[1]
    code, out, _ = hftune("recipes", "cp", "studies/reviews-lr", str(tmp_path))
    assert code == 0 and "hftune sweep" in out
    copied = tmp_path / "reviews-lr.yaml"
    assert hftune("recipes", "validate", str(copied), "studies/reviews-lr")[0] == 0
    copied.write_text("recipe: classify/reviews\ngrid: {train.lerning_rate: [1]}\n")
    code, out, _ = hftune("recipes", "validate", str(copied))
    assert code == 2 and "learning_rate" in out
    code, _, err = hftune("sweep", "reviews-rl")
    assert code == 2 and "reviews-lr" in err
    assert hftune("sweep")[0] == 2
    assert hftune("sweep", "reviews-lr", "--slurm", "partition=gpu")[0] == 2


def test_a_comparison_of_loose_runs_has_a_page_too(tmp_path: Path) -> None:
    for lr in (0.001, 0.01):
        plant_run(tmp_path / str(lr), load_recipe(None, {LR: lr}), 0.7 + lr)
    systems = collect([tmp_path / "0.001", tmp_path / "0.01"])
    page = write_results(tmp_path / "out", compare_systems(systems), systems)
    assert "Comparison" in page.read_text() and "Make it again" not in page.read_text()


@pytest.mark.parametrize(
    ("task", "key", "values", "flagged"),
    [
        ("span", "task.corruption_rate", (0.15, 0.4), True),
        ("span", "task.num_spans", (1, 3), True),
        ("span", LR, (0.1, 0.2), False),
        ("mlm", "task.mlm_probability", (0.15, 0.4), True),
        ("clm", "task.stride", (8, 16), True),
        ("clm", "task.max_new_tokens", (0, 8), False),
    ],
)
def test_runs_that_score_other_tokens_are_flagged(
    task: str, key: str, values: tuple[Any, Any], flagged: bool, tmp_path: Path
) -> None:
    for place, value in enumerate(values):
        plant_run(tmp_path / str(place), load_recipe(None, {key: value}, task=task), 0.7)
    systems = collect([tmp_path / "0", tmp_path / "1"])
    notes = _other_items(systems, differences(systems))
    assert [mentions(note, "not the same items", key) for note in notes] == [True] * flagged
