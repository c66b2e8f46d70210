"""Studies as plans and folders: grids, names, what is refused, and how a study may grow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error
from sample_study import Planter, plant_run

from hftune.config.shipped import shipped_studies
from hftune.errors import HftuneError
from hftune.files import LONGEST_NAME
from hftune.studies.folder import StudyDir, begun
from hftune.studies.plan import Plan, check, examples, grid, recipe_for
from hftune.studies.request import make_plan, parse_grid, plan_yaml, read_plan
from hftune.studies.sweep import sweep
from hftune.studies.systems import select

Hftune = Callable[..., tuple[int, str, str]]
LR = "train.learning_rate"


# ---- plans ----


def test_the_grid_is_every_combination_named_after_what_differs() -> None:
    plan = Plan(grid={LR: [1e-5, 3e-4], "method.kind": ["full"], "train.early_stopping_patience": [None, 2]})
    settings = grid(plan)
    assert [setting.name for setting in settings] == [
        f"learning_rate={lr} method=full early_stopping_patience={patience}"
        for lr in ("1e-05", "0.0003")
        for patience in ("null", "2")
    ]
    assert settings[0].overrides == {LR: 1e-5, "method.kind": "full", "train.early_stopping_patience": None}
    recipe = recipe_for(plan, settings[1], 7)
    assert (recipe.train.learning_rate, recipe.train.early_stopping_patience, recipe.train.seed) == (1e-5, 2, 7)


def test_null_is_a_value_and_not_the_lack_of_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("train: {early_stopping_patience: 3}\n")
    plan = Plan(recipe=str(tmp_path / "base.yaml"), grid={"train.early_stopping_patience": [None, 2]})
    assert [recipe_for(plan, setting, 1).train.early_stopping_patience for setting in grid(plan)] == [None, 2]


def test_named_settings_and_single_kinds_have_plain_names() -> None:
    several = Plan(
        grid={
            "size": {"small": {LR: 1e-3, "train.num_train_epochs": 2}, "big": {LR: 1e-4, "train.num_train_epochs": 9}}
        }
    )
    assert [(one.name, one.values) for one in grid(several)] == [("small", {"size": "small"}), ("big", {"size": "big"})]
    assert grid(several)[1].overrides == {LR: 1e-4, "train.num_train_epochs": 9}
    assert [one.name for one in grid(Plan(grid={"model.model_name_or_path": ["scratch:bert-tiny", "a/b"]}))] == [
        "scratch:bert-tiny",
        "a/b",
    ]
    assert (
        grid(Plan(grid={"model.model_name_or_path": ["a/b"], "data.dataset_name": ["c"]}))[0].name == "model=a/b data=c"
    )


def test_folders_are_safe_whatever_the_name() -> None:
    hostile = grid(
        Plan(grid={"model.model_name_or_path": ["../../etc/passwd", "x" * 300, "x" * 300 + "y", "a\x00b c"]})
    )
    folders = [setting.folder for setting in hostile]
    assert len(set(folders)) == 4
    for folder in folders:
        assert "/" not in folder and not folder.startswith(".") and "\x00" not in folder
        assert len(folder.encode()) <= LONGEST_NAME


def test_over_flags_are_read_as_recipes_are() -> None:
    assert parse_grid([f"{LR}=1e-5,3e-4", "method.kind=full,head", "model.model_name_or_path=scratch:bert-tiny"]) == {
        LR: [1e-5, 3e-4],
        "method.kind": ["full", "head"],
        "model.model_name_or_path": ["scratch:bert-tiny"],
    }
    assert parse_grid([f"{LR}=1e-5..1e-2", "train.num_train_epochs=2..8"]) == {
        LR: {"low": 1e-5, "high": 1e-2, "log": True, "whole": False},
        "train.num_train_epochs": {"low": 2.0, "high": 8.0, "log": False, "whole": True},
    }
    for wrong in (["x"], ["x="], ["=1"], ["a=1", "a=2"], ["a=1..2..3"], ["a=[1"]):
        with pytest.raises(HftuneError):
            parse_grid(wrong)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan(
        recipe="classify/reviews",
        set={"train.early_stopping_patience": None, "data.text_column_name": "no"},
        grid={LR: [1e-5, 3], "x": {"one": {"train.early_stopping_patience": None}}, "train.num_train_epochs": [2.5]},
        seeds=(4, 5),
        test="all",
    )
    (tmp_path / "p.yaml").write_text(plan_yaml(plan))
    assert read_plan(tmp_path / "p.yaml") == plan


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"gird": {LR: [1]}}, ["mean grid"]),
        ({"grid": {}}, ["dotted keys"]),
        ({"grid": {LR: 3}}, [f"{LR}: expected a list"]),
        ({"grid": {LR: []}}, [f"{LR}: expected a list"]),
        ({"grid": {LR: {"low": 2, "high": 1}}}, ["low < high"]),
        ({"grid": {LR: [1e-3]}, "seeds": [1, 1]}, ["each seed once"]),
        ({"grid": {LR: [1e-3]}, "seeds": []}, ["seeds"]),
        ({"grid": {LR: [1e-3]}, "test": "some"}, ["test"]),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(values: dict[str, Any], expected: list[str]) -> None:
    with hftune_error(*expected):
        make_plan(values, "p.yaml")


@pytest.mark.parametrize(
    ("plan", "reported"),
    [
        (Plan(grid={"train.lerning_rate": [1.0]}), "learning_rate"),
        (Plan(grid={LR: [1e-3, -1.0]}), "learning_rate"),
        (Plan(grid={"train.seed": [1, 2]}), "--seeds"),
        (Plan(set={"train.seed": 1}, grid={LR: [1e-3]}), "--seeds"),
        (Plan(grid={LR: [1e-3, 1e-3]}), "each value once"),
        (Plan(grid=parse_grid([f"{LR}=1e-5..1e-3"])), "--search"),
        (Plan(grid=parse_grid(["train.lerning_rate=1e-5..1e-3"]), search=3), "learning_rate"),
        (Plan(grid={LR: [1e-3]}, seeds=(1, -1)), "seed"),
        (Plan(set={"hub.hub_model_id": "me/it"}, grid={LR: [1e-3]}), "hftune push"),
    ],
)
def test_a_plan_is_checked_before_anything_runs(plan: Plan, reported: str, tmp_path: Path) -> None:
    with pytest.raises(HftuneError) as caught:
        sweep(plan, tmp_path / "study", create=lambda study, jobs: [])
    assert reported in str(caught.value)
    assert not (tmp_path / "study").exists()


def test_every_shipped_study_is_in_order() -> None:
    entries = shipped_studies()
    assert "reviews-lr" in [entry.name for entry in entries]
    for entry in entries:
        assert entry.expected and entry.cost
        assert entry.command.startswith(("hftune sweep ", "hftune boolq ", "hftune joint ")), entry.command
        plan = read_plan(entry.path)
        check(plan)
        assert len(plan.seeds) >= 3, f"{entry.name}: fewer seeds say nothing"
        assert examples(plan)


# ---- the course of a study ----

SHARES = {"0.001": 0.7, "0.01": 0.8, "0.1": 0.6}
NAMES = {f"learning_rate={lr}": share for lr, share in SHARES.items()}


def planted(path: Path, executor: Planter, **changes: Any) -> Any:
    plan = Plan(grid={LR: [0.001, 0.01, 0.1]}, seeds=(1, 2)).model_copy(update=changes)
    return sweep(plan, path, create=lambda study, jobs: [executor])


def test_validation_selects_and_test_is_scored_for_that_setting_alone(tmp_path: Path) -> None:
    executor = Planter(NAMES)
    outcome = planted(tmp_path / "s", executor)
    assert outcome.selection.setting.name == "learning_rate=0.01"
    assert executor.trained == [(name, seed) for name in NAMES for seed in (1, 2)]
    assert executor.scored == [("learning_rate=0.01", 1), ("learning_rate=0.01", 2)]
    again = Planter(NAMES)
    assert planted(tmp_path / "s", again).selection == outcome.selection
    assert again.trained == again.scored == []


def test_test_can_be_scored_for_all(tmp_path: Path) -> None:
    executor = Planter(NAMES)
    planted(tmp_path / "s", executor, test="all")
    assert executor.scored == []  # training scored it right away
    study = StudyDir(tmp_path / "s")
    assert all(
        set(run.read_metrics()["splits"]) == {"validation", "test"}
        for one in study.settings()
        for run in study.runs(one)
    )


def test_a_failure_is_recorded_tried_again_and_stops_nothing(tmp_path: Path) -> None:
    executor = Planter(NAMES, broken={"learning_rate=0.01": "the loss is nan"})
    outcome = planted(tmp_path / "s", executor)
    assert len(executor.trained) == 6
    assert outcome.selection.setting.name == "learning_rate=0.001"
    assert [(one["setting"], one["seed"], one["reason"]) for one in StudyDir(tmp_path / "s").failures()] == [
        ("learning_rate=0.01", seed, "the loss is nan") for seed in (1, 2)
    ]
    mended = Planter(NAMES)
    outcome = planted(tmp_path / "s", mended)
    assert mended.trained == [("learning_rate=0.01", 1), ("learning_rate=0.01", 2)]
    assert outcome.selection.setting.name == "learning_rate=0.01"
    assert outcome.failures == StudyDir(tmp_path / "s").failures() == []


def test_no_success_at_all_is_an_error(tmp_path: Path) -> None:
    with hftune_error("no memory", code=1):
        planted(tmp_path / "s", Planter(NAMES, broken=dict.fromkeys(NAMES, "no memory")))


def test_of_a_loss_the_lowest_is_selected(tmp_path: Path) -> None:
    outcome = planted(
        tmp_path / "s", Planter(NAMES), set={"train.metric_for_best_model": "loss", "train.greater_is_better": False}
    )
    assert outcome.selection.setting.name == "learning_rate=0.01"
    assert outcome.selection.mean == pytest.approx(0.2, abs=0.03)


def test_a_setting_that_lacks_seeds_does_not_win(tmp_path: Path) -> None:
    plan = Plan(grid={LR: [0.001, 0.01]}, seeds=(1, 2))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.yaml").write_text(plan_yaml(plan))
    study = StudyDir(tmp_path / "s")
    low, high = grid(plan)
    for setting, seed, share in ((low, 1, 0.6), (low, 2, 0.6), (high, 1, 0.9)):
        plant_run(study.run(setting, seed).path, recipe_for(plan, setting, seed), share)
    assert select(study).setting == low


def test_a_study_may_grow_but_not_change(tmp_path: Path) -> None:
    path = tmp_path / "s"
    planted(path, Planter(NAMES))
    executor = Planter({**NAMES, "learning_rate=1": 0.5})
    planted(path, executor, grid={LR: [0.001, 0.01, 0.1, 1.0]}, seeds=(1, 2, 3))
    assert len(executor.trained) == 3 + 3
    for changes in (
        {"seeds": (1,)},
        {"grid": {LR: [0.001]}},
        {"grid": {"train.num_train_epochs": [1.0]}},
        {"set": {"train.num_train_epochs": 1}},
        {"recipe": "classify/reviews"},
        {"search": 3},
    ):
        with hftune_error(next(iter(changes))):
            planted(path, Planter(NAMES), **changes)


def test_a_recipe_that_changed_since_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("train: {num_train_epochs: 2}\n")
    executor = Planter(NAMES)
    planted(tmp_path / "s", executor, recipe=str(base))
    base.write_text("train: {num_train_epochs: 3}\n")
    with hftune_error("recipe"):
        planted(tmp_path / "s", executor, recipe=str(base))


def test_a_folder_that_is_no_study_and_one_in_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine.txt").touch()
    with hftune_error(str(tmp_path / "s")):
        planted(tmp_path / "s", Planter(NAMES))
    plan = Plan(grid={LR: [0.001]})
    with begun(tmp_path / "t", plan), hftune_error(f"process {os.getpid()}"), begun(tmp_path / "t", plan):
        pass
