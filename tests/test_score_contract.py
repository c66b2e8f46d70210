"""The contract of the table of scores: every task can be swept, compared by every score of its runs, and reported.

Each task is trained once, two settings and one seed, and all tests read these runs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import Any

import pytest
from crash_case import PATHS, TRAINING, write_data
from crash_case import TASKS as SETTINGS
from facts import hftune_error

from hftune.evaluation import metrics
from hftune.evaluation.scores import SCORES
from hftune.runs.report import report_page
from hftune.studies.compare import compare_study
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan
from hftune.studies.report import write_study
from hftune.studies.sweep import sweep
from hftune.studies.worker import run_job
from hftune.tasks import TASKS, task_class

FAST = ("clm",)
EVERY = [task if task in FAST else pytest.param(task, marks=pytest.mark.slow) for task in TASKS]
LR = "train.learning_rate"


class InThisProcess:
    """An executor without a worker process, which would import everything."""

    def run(self, job: dict[str, Any], callback: Any) -> dict[str, Any]:
        return run_job(job, lambda message: callback(job, message))

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def study_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StudyDir]:
    """The study of a task, trained when it is first asked for."""
    home = write_data(tmp_path_factory.mktemp("data"))
    made: dict[str, StudyDir] = {}

    def study(task: str) -> StudyDir:
        if task not in made:
            settings = {"task.kind": task, **SETTINGS[task], **TRAINING, "train.max_steps": 3}
            del settings["train.num_train_epochs"]
            for key in PATHS:
                if key in settings:
                    settings[key] = str(home / settings[key])
            if "data.corpus" in settings:
                settings["data.dataset_name"] = settings.pop("data.corpus")
            if task in ("classify", "joint"):
                settings["task.metrics"] = ["f1", "roc_auc", "quadratic_kappa", "mean_absolute_error"]
            plan = Plan(set=settings, grid={LR: [1e-3, 1e-1]}, seeds=(1,))
            folder = tmp_path_factory.mktemp("studies") / task
            sweep(plan, folder, create=lambda study, jobs: [InThisProcess()])
            write_study(StudyDir.open(folder))
            made[task] = StudyDir.open(folder)
        return made[task]

    return study


@pytest.mark.parametrize("task", EVERY)
def test_every_recorded_score_follows_from_the_items(study_of: Callable[[str], StudyDir], task: str) -> None:
    study = study_of(task)
    run = study.runs(study.settings()[0])[0]
    recorded = run.read_metrics()["splits"]["validation"]
    names = {name for name, value in recorded.items() if isinstance(value, float)}
    assert names <= set(SCORES[task]) and set(task_class(task).scores) <= names
    for name in names:
        compared = compare_study(study, "validation", name)
        assert compared.metric == name and compared.higher_is_better == SCORES[task][name].higher_is_better
        row = next(row for row in compared.rows if row.values[LR] == 1e-3)
        assert row.scores["validation"].mean == pytest.approx(recorded[name], rel=2e-3, abs=2e-3), name
        for one in compared.rows:
            found = one.scores["validation"]
            assert SCORES[task][name].low <= found.low <= found.mean <= found.high <= SCORES[task][name].high, name
        means = [one.scores["validation"].mean for one in compared.rows]
        assert means == sorted(means, reverse=compared.higher_is_better)
        (pair,) = compared.pairs
        widest = SCORES[task][name].high - SCORES[task][name].low
        assert isinf(widest) or -widest <= pair.comparison.low <= pair.comparison.high <= widest
        # A baseline is listed if it has this very score, and with it.
        for baseline, splits in run.read_metrics()["baselines"].items():
            expected = splits["validation"].get(name)
            assert compared.baselines.get(baseline, {}).get("validation") == expected, (baseline, name)


@pytest.mark.parametrize("task", EVERY)
def test_a_study_of_every_task_has_its_page(study_of: Callable[[str], StudyDir], task: str) -> None:
    study = study_of(task)
    compared = compare_study(study)
    run = study.runs(study.settings()[0])[0]
    assert compared.metric == run.read_metrics()["selection"]["metric"]
    assert compared.differences[LR] == {"learning_rate=0.001": 0.001, "learning_rate=0.1": 0.1}
    assert set(compared.differences) == {LR}
    assert (study.path / "report.html").is_file() and report_page(run).sections
    with hftune_error("f1_makro"):
        compare_study(study, metric="f1_makro")


def test_the_table_has_every_built_in_metric_and_every_task() -> None:
    assert set(SCORES) == set(TASKS)
    assert set(SCORES["classify"]) == set(metrics.METRICS)
