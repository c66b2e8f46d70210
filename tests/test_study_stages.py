"""Studies in stages: runs that others start from, comparison with one value of an axis, one axis against another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from facts import hftune_error
from sample_study import Planter, plant_run, plant_study

from hftune.errors import RunFailed
from hftune.pipeline import verify
from hftune.pipeline.verify import Server, fresh_outputs
from hftune.progress import ProgressReporter
from hftune.studies import plots
from hftune.studies.compare import compare_study
from hftune.studies.estimate import costs
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan, check, grid, recipe_for, stage_recipe
from hftune.studies.report import comparison_page
from hftune.studies.request import make_plan, plan_study, plan_yaml, read_plan
from hftune.studies.sweep import sweep
from hftune.studies.systems import of_study
from hftune.studies.tables import markdown_text, pivot_table

VALUES: dict[str, Any] = {
    "recipe": "classify/reviews",
    "set": {"model.tokenizer_name": "run:mlm", "train.max_steps": 5},
    "depends_on": {
        "mlm": {
            "recipe": "pretrain/reviews-mlm",
            "inherit": ["train.max_steps"],
            "set": {"train.per_device_train_batch_size": 4},
        }
    },
    "grid": {
        "data.max_train_samples": [50, 200],
        "method": {
            "plain": {"task.kind": "classify"},
            "staged": {"task.kind": "classify", "model.model_name_or_path": "run:mlm"},
            "joint": {"task.kind": "joint", "task.mlm_alpha": 0.3},
        },
    },
    "seeds": [1, 2, 3],
    "reference": {"method": "plain"},
    "test": "all",
}
SHARES = {
    "max_train_samples=50 plain": 0.6,
    "max_train_samples=50 staged": 0.7,
    "max_train_samples=50 joint": 0.6,
    "max_train_samples=200 plain": 0.7,
    "max_train_samples=200 staged": 0.75,
    "max_train_samples=200 joint": 0.85,
}


def plan(**changes: Any) -> Plan:
    return make_plan({**VALUES, **changes}, "the study")


def test_a_reference_is_the_run_of_the_same_seed(tmp_path: Path) -> None:
    made = plan()
    check(made)
    by_name = {setting.name: setting for setting in grid(made)}
    staged = recipe_for(made, by_name["max_train_samples=50 staged"], 2, tmp_path)
    assert staged.model.model_name_or_path == str(tmp_path / "depends_on/mlm/seed-2") == staged.model.tokenizer_name
    assert (staged.task.kind, staged.data.kind, staged.data.max_seq_length) == ("classify", "labeled", 64)
    joint = recipe_for(made, by_name["max_train_samples=50 joint"], 2, tmp_path)
    assert (joint.task.kind, joint.data.kind, joint.data.max_seq_length) == ("joint", "joint", 64), (
        "what both have is kept"
    )
    first = stage_recipe(made, "mlm", 2)
    assert (first.task.kind, first.train.max_steps, first.train.per_device_train_batch_size, first.train.seed) == (
        "mlm",
        5,
        4,
        2,
    )
    file = tmp_path / "study.yaml"
    file.write_text(plan_yaml(made), encoding="utf-8")
    assert read_plan(file) == made


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"set": {"model.tokenizer_name": "run:mml", "train.max_steps": 5}},
            ["run:mml"],
        ),
        ({"set": {"model.tokenizer_name": "run:mlm"}}, ["depends_on.mlm.inherit names train.max_steps"]),
        ({"depends_on": {"mlm": {"set": {"train.epoch": 1}}}}, ["train.epoch"]),
        ({"reference": {"method": "other"}}, ["reference", "method other"]),
        ({"reference": {"kind": "plain"}}, ["reference", "kind plain"]),
    ],
)
def test_what_is_wrong_is_reported_before_anything_runs(
    changes: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    with hftune_error(*expected):
        sweep(plan(**changes), tmp_path / "study", create=lambda study, jobs: [])
    assert not (tmp_path / "study").exists()


def test_settings_of_what_others_start_from_can_be_typed() -> None:
    made, _ = plan_study("low-label", settings={"depends_on.mlm.train.max_steps": 7, "train.max_steps": 3})
    assert stage_recipe(made, "mlm", 1).train.max_steps == 7 and recipe_for(made, grid(made)[0], 1).train.max_steps == 3
    with hftune_error("'mln'", "mlm"):
        plan_study("low-label", settings={"depends_on.mln.train.max_steps": 7})


def test_stages_come_first_and_once_a_seed(tmp_path: Path) -> None:
    executor = Planter({**SHARES, "depends_on: mlm": 0.5})
    outcome = sweep(plan(), tmp_path / "s", create=lambda study, jobs: [executor])
    assert executor.trained[:3] == [("depends_on: mlm", seed) for seed in (1, 2, 3)]
    assert len(executor.trained) == 3 + 6 * 3 and not outcome.failures
    again = Planter(SHARES)
    sweep(plan(), tmp_path / "s", create=lambda study, jobs: [again])
    assert again.trained == []
    with hftune_error("depends_on"):
        sweep(plan(depends_on={"mlm": {}}), tmp_path / "s", create=lambda study, jobs: [])


def test_what_a_study_would_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    few = {"data.max_train_samples": [50], "method": VALUES["grid"]["method"]}
    made, folder = plan(grid=few, seeds=[1, 2]), tmp_path / "s"
    found = {cost.setting: cost for cost in costs(made, folder, 2, ProgressReporter())}
    assert list(found) == [
        "depends_on: mlm",
        "max_train_samples=50 plain",
        "max_train_samples=50 staged",
        "max_train_samples=50 joint",
    ]
    assert not folder.exists(), "nothing is written"
    assert torch.get_num_threads() == threads and "OMP_NUM_THREADS" not in os.environ, "nor changed"
    for cost in found.values():
        assert cost.each is not None and (cost.runs, cost.complete, cost.each.steps) == (2, 0, 5)
        assert cost.minutes == 2 * cost.each.estimated_minutes and cost.each.seconds_per_step > 0
    assert (
        found["max_train_samples=50 staged"].each.total_parameters
        == found["max_train_samples=50 plain"].each.total_parameters
    )
    sweep(made, folder, create=lambda study, jobs: [Planter({**SHARES, "depends_on: mlm": 0.5})])
    more = plan(grid=few, seeds=[1, 2, 3])
    assert [(cost.runs, cost.complete) for cost in costs(more, folder, 1, ProgressReporter())] == [(1, 2)] * 4
    assert [(cost.minutes, cost.each) for cost in costs(made, folder, 1, ProgressReporter())] == [(0.0, None)] * 4
    with hftune_error("depends_on"):
        list(costs(plan(grid=few, depends_on={"mlm": {}}), folder, 1, ProgressReporter()))


def test_what_starts_from_a_failed_run_is_not_tried(tmp_path: Path) -> None:
    own = plan(set={"train.max_steps": 5})
    executor = Planter({**SHARES, "depends_on: mlm": 0.5}, broken={"depends_on: mlm": "no memory"})
    outcome = sweep(own, tmp_path / "s", create=lambda study, jobs: [executor])
    assert not any(setting.endswith("staged") for setting, _ in executor.trained)
    reasons = {one["setting"]: one["reason"] for one in outcome.failures}
    assert reasons["depends_on: mlm"] == "no memory"
    assert reasons["max_train_samples=50 staged"].startswith("the run it starts from is not complete: ")
    with pytest.raises(RunFailed, match="no memory"):
        everything = Planter({"depends_on: mlm": 0.5}, broken={"depends_on: mlm": "no memory"})
        sweep(plan(), tmp_path / "all", create=lambda study, jobs: [everything])


def bag_of_words(name: str) -> dict[str, Any]:
    """Baselines that were fitted on as many rows as the setting has."""
    score = 0.55 if "max_train_samples=50 " in name else 0.66
    both = {"majority": 0.5, "tfidf": score}
    return {
        "baselines": {key: {"validation": {"accuracy": one}, "test": {"accuracy": one}} for key, one in both.items()}
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyDir:
    by_name = {name: bag_of_words(name) for name in SHARES}
    made = plant_study(tmp_path_factory.mktemp("runs") / "planted", plan(), SHARES, **by_name)
    for seed in (1, 2):
        speed = {"train_seconds": 60.0 * seed, "examples_per_second": 1.0, "feature_seconds": 15.0}
        plant_run(made.stage_run("mlm", seed).path, stage_recipe(plan(), "mlm", seed), 0.5, speed=speed)
    return made


def test_each_is_compared_with_the_plain_one_at_the_same_number(study: StudyDir) -> None:
    compared = compare_study(study)
    pairs = {(pair.first, pair.second): pair for pair in compared.pairs}
    assert list(pairs) == [
        (f"max_train_samples={labels} {name}", f"max_train_samples={labels} plain")
        for labels in (50, 200)
        for name in ("staged", "joint")
    ]
    assert pairs["max_train_samples=200 joint", "max_train_samples=200 plain"].verdict.endswith(
        "max_train_samples=200 joint is better, with 3 seeds"
    )
    assert "no difference" in pairs["max_train_samples=50 joint", "max_train_samples=50 plain"].verdict


def test_a_study_that_asks_a_question_chooses_nothing(study: StudyDir) -> None:
    compared = compare_study(study)
    assert not any(row.selected for row in compared.rows) and "selected" not in " ".join(compared.notes)


def test_one_axis_against_the_other(study: StudyDir) -> None:
    compared = compare_study(study)
    cross = pivot_table(compared)
    assert cross is not None
    assert (cross.name, cross.columns) == ("max train samples", ("50", "200"))
    assert {name for name, _ in cross.rows} == {"plain", "staged", "joint"}
    means = {row.name: row.scores["test"].mean for row in compared.rows}
    for name, scores in cross.rows:
        found = [score.mean for score in scores if score is not None]
        assert found == [means[f"max_train_samples=50 {name}"], means[f"max_train_samples=200 {name}"]]
    assert cross.baselines == (("majority label", (0.5, 0.5)), ("bag of words", (0.55, 0.66)))
    assert compared.baselines == {"majority": {"validation": 0.5, "test": 0.5}}, "the other one depends on the rows"
    text = markdown_text(compared)
    assert "| max train samples | 50 | 200 |" in text and "| *bag of words* | 0.5500 | 0.6600 |" in text
    page = comparison_page("planted", compared, of_study(study), study)
    assert {"pivot", "values"} <= {part.id for part in page.sections}
    assert [picture.name for part in page.sections if part.id == "values" for picture in part.pictures] == [
        "by-data-max-train-samples"
    ]
    assert "Score by max train samples" in page.html() and "depends_on: mlm" in page.html()


def test_a_learning_curve_has_a_line_and_a_band_a_method_and_the_baseline_that_learns(study: StudyDir) -> None:
    compared = compare_study(study)
    (axes,) = plots.by_value(compared, "data.max_train_samples").axes
    lines = {line.get_label(): line for line in axes.lines}
    assert set(lines) == {"plain", "staged", "joint", "bag of words"}
    rows = {row.name: row for row in compared.rows}
    names = [f"max_train_samples={labels} joint" for labels in (50, 200)]
    assert list(lines["joint"].get_xdata()) == [50, 200]
    assert list(lines["joint"].get_ydata()) == pytest.approx([rows[name].scores["test"].mean for name in names])
    assert list(lines["bag of words"].get_ydata()) == [0.55, 0.66]
    assert len(axes.collections) == 3, "a band for each method"
    seeds = [score for name in names for score in rows[name].by_seed["test"]]
    heights = [band.get_paths()[0].vertices[:, 1] for band in axes.collections]
    assert any(high.min() == min(seeds) and high.max() == max(seeds) for high in heights)


def test_the_time_of_what_others_start_from_is_reported(study: StudyDir) -> None:
    reported = "times leave out the runs that others start from: mlm, 1 min 45 s per seed"
    assert reported in compare_study(study).notes


def test_the_table_is_on_the_terminal(study: StudyDir, hftune: Any) -> None:
    code, out, err = hftune("compare", str(study.path))
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert ["50", "200"] in lines and ["bag", "of", "words", "0.5500", "0.6600"] in lines


def test_a_study_without_two_axes_has_no_such_table(tmp_path: Path) -> None:
    one = Plan(grid={"train.learning_rate": [0.001, 0.01]})
    shares = {"learning_rate=0.001": 0.7, "learning_rate=0.01": 0.8}
    assert pivot_table(compare_study(plant_study(tmp_path / "s", one, shares))) is None


class StoppedWhileWaiting:
    def readline(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.skipif(not forks.FORKS, reason="no verification server there")
def test_a_verification_server_answers_as_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(words), **shape))
    model.save_pretrained(tmp_path / "model")
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    tokenizer.save_pretrained(tmp_path / "model")
    probe = [{"text": "good"}, {"text": "bad good"}]
    from hftune.tasks.classification import Classification

    expected = Classification.reload_outputs(tmp_path / "model", probe)
    with forks.verification_server() as server:
        first, second = (fresh_outputs([tmp_path / "model"], "classify", probe)[0] for _ in range(2))
        with hftune_error("no folder", code=1):
            fresh_outputs([tmp_path / "no/such/folder"], "classify", probe)
        assert fresh_outputs([tmp_path / "model"], "classify", probe)[0] == first == second, "it outlives an error"
        with monkeypatch.context() as patched:
            waiting = Server(server.pid, server.requests, StoppedWhileWaiting())  # type: ignore[arg-type]
            patched.setattr(verify, "_SERVERS", [waiting])
            with pytest.raises(KeyboardInterrupt):
                fresh_outputs([tmp_path / "model"], "classify", probe)
            assert server.answers.read() in ("", json.dumps({"outputs": [first]}) + "\n"), "it has ended"
            # And no old answer is taken for the next one's: from now on each verification starts a process.
            patched.setattr(verify, "_ask_new_process", lambda request: {"outputs": [json.loads(request)["folders"]]})
            assert fresh_outputs([tmp_path / "other"], "classify", probe) == [[str(tmp_path / "other")]]
    assert first == expected
