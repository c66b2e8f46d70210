"""The page of a group of seeds, and the loss curves and parameter formulas of every comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import pytest
from sample_study import SCRIPT, history, plant_run

from hftune.files import write_jsonl
from hftune.recipe import load_recipe
from hftune.runs.directory import RunDir
from hftune.runs.group import seed_path
from hftune.studies import plots
from hftune.studies.compare import compare_systems
from hftune.studies.report import write_group_page
from hftune.studies.systems import System, collect
from hftune.studies.tables import csv_text, markdown_text

Hftune = Callable[..., tuple[int, str, str]]
FORMULA = {"trainable": 626, "total": 9000, "formula": "2d+2"}
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / f"group {SCRIPT.replace('/', '')}"
    for seed in SEEDS:
        plant_run(seed_path(folder, seed), load_recipe(None, {"train.seed": seed}), 0.7, parameters=FORMULA)
    return folder


@pytest.mark.renders
def test_a_group_has_a_page_with_its_scores_curves_and_runs(group: Path) -> None:
    page = write_group_page(group)
    text = page.read_text(encoding="utf-8")
    accuracies = [RunDir(seed_path(group, seed)).read_metrics()["splits"]["test"]["accuracy"] for seed in SEEDS]
    assert f"{fmean(accuracies):.3f} ± {stdev(accuracies):.3f}" in text
    assert "seeds 1, 2, 3" in text and "= 2d+2" in text and "bag of words" in text
    assert all(f'href="seed-{seed}/report.html"' in text for seed in SEEDS)
    assert "--seeds 1,2,3" in text and "<script>" not in text
    assert {path.name for path in (group / "plots").iterdir()} == {"scores.png", "curves.png", "losses.png"}
    assert write_group_page(group).read_text(encoding="utf-8") == text


@pytest.mark.renders
def test_the_command_writes_the_pages_of_a_group_and_of_its_runs(group: Path, tmp_path: Path, hftune: Hftune) -> None:
    code, out, err = hftune("report", str(group), "--json")
    assert code == 0, err
    pages = [group / f"seed-{seed}" / "report.html" for seed in SEEDS] + [group / "report.html"]
    assert json.loads(out)["reports"] == [str(page) for page in pages] and all(page.is_file() for page in pages)
    elsewhere = tmp_path / "page.html"
    assert hftune("report", str(group), "--output", str(elsewhere))[0] == 0
    assert elsewhere.read_text(encoding="utf-8") == (group / "report.html").read_text(encoding="utf-8")


def test_the_losses_of_one_setting_are_in_one_chart(group: Path) -> None:
    found = plots.losses([System("group", tuple(RunDir(seed_path(group, seed)) for seed in SEEDS), {})])
    (axes,) = found.pop("losses").axes
    assert not found
    lines = {str(line.get_label()): line for line in axes.lines}
    assert set(lines) == {"training loss", "validation loss"} and len(axes.collections) == 2
    assert list(lines["training loss"].get_xdata()) == [100, 200, 300, 400]
    assert list(lines["validation loss"].get_ydata()) == pytest.approx([0.6] * 4)


def test_the_losses_of_several_settings_are_means_over_the_steps_that_all_seeds_have(tmp_path: Path) -> None:
    for lr, loss in ((0.001, 0.5), (0.01, 0.9)):
        for seed in (1, 2):
            run = plant_run(
                tmp_path / f"{lr}" / f"seed-{seed}",
                load_recipe(None, {"train.learning_rate": lr, "train.seed": seed}),
                0.7,
            )
            rows = history(0.7, seed)[: 8 if seed == 1 else 6]
            rows[0] |= {"classification_loss": loss * seed}
            write_jsonl(run.history, rows)
    found = plots.losses(collect([tmp_path / "0.001", tmp_path / "0.01"]))
    assert set(found) == {"training-loss", "validation-loss"}
    training, validation = (found[name].axes[0].lines for name in ("training-loss", "validation-loss"))
    assert [list(line.get_ydata()) for line in training] == [pytest.approx([0.75]), pytest.approx([1.35])]
    assert [list(line.get_xdata()) for line in validation] == [[100, 200, 300]] * 2


def test_formulas_are_next_to_the_number_of_trained_parameters(group: Path) -> None:
    compared = compare_systems(collect([group]))
    assert compared.rows[0].formula == "2d+2"
    assert "| 626 = 2d+2 |" in markdown_text(compared)
    header, row = (line.split(",") for line in csv_text(compared).splitlines())
    assert row[header.index("formula")] == "2d+2" and row[header.index("total")] == "9000"


def test_runs_without_validation_scores_are_compared_on_test(tmp_path: Path) -> None:
    for lr, share in ((0.001, 0.7), (0.01, 0.8)):
        plant_run(tmp_path / str(lr), load_recipe(None, {"train.learning_rate": lr}), share)
        run = RunDir(tmp_path / str(lr))
        metrics = run.read_metrics()
        del metrics["splits"]["validation"]
        run.write_metrics(metrics)
        run.predictions("validation").unlink()
    compared = compare_systems(collect([tmp_path / "0.001", tmp_path / "0.01"]))
    assert (compared.split, compared.splits) == ("test", ("test",))
    assert [row.values or row.name for row in compared.rows] == ["learning_rate=0.01", "learning_rate=0.001"]


@pytest.mark.parametrize("seconds", [(0.31, 0.54), (12.5, 15.4), (1000.0, 5000.0)])
def test_ticks_of_the_training_time_are_all_different(tmp_path: Path, seconds: tuple[float, float]) -> None:
    for place, value in enumerate(seconds):
        recipe = load_recipe(None, {"train.learning_rate": 0.001 * (place + 1)})
        plant_run(tmp_path / str(place), recipe, 0.7, speed={"train_seconds": value, "examples_per_second": 1.0})
    figure = plots.trade_off(compare_systems(collect([tmp_path / "0", tmp_path / "1"])), "seconds")
    assert figure is not None
    figure.canvas.draw()
    shown = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert len(shown) > 2 and len(set(shown)) == len(shown), shown
