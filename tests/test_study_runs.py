"""Studies with real training of tiny models: killed and taken up again, pruned, on a cluster, with tensorboard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error, mentions
from tiny import csv_folder

from hftune.errors import HftuneError
from hftune.pipeline.train import rescore, train
from hftune.recipe import load_recipe, recipe_yaml
from hftune.runs.directory import RunDir
from hftune.studies.executors import LocalExecutor, slurm_executors
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan, grid
from hftune.studies.report import write_study
from hftune.studies.sweep import sweep
from hftune.studies.worker import run_job

ROOT = Path(__file__).parent.parent
QUICK: dict[str, Any] = {
    "model.vocab_size": 300,
    "data.max_seq_length": 16,
    "train.per_device_train_batch_size": 8,
    "train.logging_steps": 1,
    "train.eval_steps": 2,
    "train.max_steps": 6,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(csv_folder(tmp_path_factory.mktemp("rows") / "data"))


def start(folder: Path, plan: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hftune", "sweep", str(plan), "--output", str(folder), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def freed(run: Path, within: float) -> bool:
    """Whether no process holds a run directory any more."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            with RunDir(run).locked():
                return True
        except HftuneError:
            time.sleep(0.1)
    return False


def without_seconds(value: Any) -> Any:
    """What does not depend on how the machine was at the time."""
    if isinstance(value, dict):
        return {key: without_seconds(part) for key, part in value.items() if key not in ("seconds", "memory")}
    return [without_seconds(part) for part in value] if isinstance(value, list) else value


class InThisProcess:
    """An executor without a worker process, which would import everything."""

    def run(self, job: dict[str, Any], callback: Any) -> dict[str, Any]:
        return run_job(job, lambda message: callback(job, message))

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.timeout(900)  # a sweep with processes of its own: minutes on a machine that is busy otherwise
def test_killed_and_resumed_a_study_gives_the_same_table(
    tmp_path: Path, data: str, hftune: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 of the sweep in the middle of its second run."""
    plan = tmp_path / "plan.yaml"
    stated = {"set": {**QUICK, "data.dataset_name": data}, "grid": {"train.learning_rate": [1e-3, 1e-2]}, "seeds": [1]}
    plan.write_text(json.dumps(stated))

    killed = start(tmp_path / "killed", plan)
    second = tmp_path / "killed" / "runs" / "learning_rate=0.01" / "seed-1"
    until = time.monotonic() + 400
    while not (second / "checkpoints" / "checkpoint-2").is_dir() and time.monotonic() < until:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    first = StudyDir(tmp_path / "killed").run(grid(Plan(**stated))[0], 1)
    assert first.complete and not RunDir(second).complete
    before = first.metrics.stat().st_mtime_ns
    # The worker must notice that its study is gone, or it would hold the run against the next attempt.
    assert freed(second, within=240) and not RunDir(second).complete

    # The second sweep is the command too, without processes of its own: they would import everything again.
    monkeypatch.setattr(LocalExecutor, "run", InThisProcess.run)
    code, _, messages = hftune("sweep", str(plan), "--output", str(tmp_path / "killed"), "--json")
    assert code == 0, messages
    whole = sweep(Plan(**stated), tmp_path / "whole", create=lambda study, jobs: [InThisProcess()])
    write_study(whole.study)
    tables = [json.loads((tmp_path / name / "comparison.json").read_text()) for name in ("killed", "whole")]
    assert without_seconds(tables[0]) == without_seconds(tables[1])
    histories = [
        [
            without_seconds(row)
            for row in RunDir(tmp_path / name / second.relative_to(tmp_path / "killed")).read_history()
        ]
        for name in ("killed", "whole")
    ]
    assert histories[0] == histories[1]
    if whole.selection.setting.name != "learning_rate=0.001":
        assert first.metrics.stat().st_mtime_ns == before  # not trained again, and not scored either
    assert (tmp_path / "killed" / "report.html").is_file()
    assert "learning_rate=0.001" in messages, "the first run is reported as complete"


def job_for(path: Path, data: str, **changes: Any) -> dict[str, Any]:
    recipe = load_recipe(None, {**QUICK, "data.dataset_name": data, "train.learning_rate": 1e-3, **changes})
    return {"action": "train", "path": str(path), "score": ["validation"], "recipe": recipe_yaml(recipe), "watch": None}


def test_a_run_can_be_pruned_then_finished_then_scored_on_test(tmp_path: Path, data: str) -> None:
    job = job_for(tmp_path / "run", data) | {"watch": "accuracy"}
    reported: list[Mapping[str, Any]] = []

    def stop_at_the_second(news: Mapping[str, Any]) -> bool:
        reported.append(news)
        return "evaluation" not in news or news["evaluation"]["number"] < 2

    assert run_job(job, stop_at_the_second)["state"] == "pruned"
    run = RunDir(tmp_path / "run")
    evaluations = [news["evaluation"] for news in reported if "evaluation" in news]
    scores = [row["accuracy"] for row in run.read_history() if row.get("split") == "validation"]
    assert evaluations == [{"number": 1, "score": scores[0]}, {"number": 2, "score": scores[1]}]
    assert not run.complete and len(scores) == 2

    received: list[Mapping[str, Any]] = []
    outcome = run_job(job, lambda news: received.append(news) is None)
    assert outcome["state"] == "done" and set(outcome["splits"]) == {"validation"}
    numbers = [news["evaluation"]["number"] for news in received if "evaluation" in news]
    assert numbers == [1, 2, 3]  # what it had done before is reported again, with the same numbers
    assert any(news.get("total") == 6 for news in received) and any("stage" in news for news in received)

    validation = run.read_metrics()["splits"]["validation"]
    outcome = run_job({"action": "score", "path": str(run.path), "score": ["validation", "test"]})
    assert outcome["state"] == "done"
    metrics = run.read_metrics()
    assert metrics["splits"]["validation"] == validation and "accuracy" in metrics["splits"]["test"]
    assert set(metrics["baselines"]["majority"]) == {"validation", "test"}
    predictions = run.read_predictions("test")
    right = sum(row["gold"] == row["label"] for row in predictions) / len(predictions)
    assert metrics["splits"]["test"]["accuracy"] == pytest.approx(right)
    changed = run.metrics.stat().st_mtime_ns
    rescore(run, ["validation", "test"])
    assert run.metrics.stat().st_mtime_ns == changed  # nothing was missing
    assert (Path(data) / "test.csv").is_file()


def test_the_outcome_of_a_failed_run_has_the_reason(tmp_path: Path, data: str) -> None:
    outcome = run_job(job_for(tmp_path / "run", str(tmp_path / "nowhere")))
    assert outcome["state"] == "failed" and mentions(outcome["reason"], "no file or folder") and outcome["hint"]
    assert not (tmp_path / "run").exists()

    def fall_over(news: Mapping[str, Any]) -> bool:
        raise ZeroDivisionError("oh")

    outcome = run_job(job_for(tmp_path / "run", data), fall_over)
    assert (outcome["state"], outcome["reason"]) == ("failed", "ZeroDivisionError: oh")


def test_a_study_as_cluster_jobs(tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """submitit's local executor does what Slurm does: a script, a pickled job, a process, a pickled outcome."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = Plan(
        set={**QUICK, "data.dataset_name": data}, grid={"data.max_train_samples": [16, 10**6]}, seeds=(1,), test="all"
    )
    create = slurm_executors(["time=20"], cluster="local", poll_seconds=0.2)
    outcome = sweep(plan, tmp_path / "s", jobs=2, create=create)
    # One setting requests more examples than there are: its job fails with the reason.
    assert outcome.selection.setting.name == "max_train_samples=16"
    (failure,) = outcome.failures
    assert failure["setting"] == "max_train_samples=1000000" and "1,000,000" in failure["reason"].replace(
        "1000000", "1,000,000"
    )
    run = outcome.study.run(outcome.selection.setting, 1)
    assert run.complete and set(run.read_metrics()["splits"]) == {"validation", "test"}
    assert len(list((tmp_path / "s" / "logs" / "jobs").glob("*_result.pkl"))) == 2


def test_slurm_settings_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(grid={"train.num_train_epochs": [1.0]}, seeds=(1,))
    with pytest.raises(HftuneError, match="KEY=VALUE"):
        slurm_executors(["partition"])
    with pytest.raises(HftuneError, match="timeout_min"):
        sweep(plan, tmp_path / "s", create=slurm_executors(["time=long"], cluster="local"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun there
    with hftune_error("Slurm"):
        sweep(plan, tmp_path / "s", create=slurm_executors(["partition=gpu", "gpus=1", "mem=16", "nice=100"]))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(HftuneError) as caught:
        slurm_executors([])
    assert caught.value.hint == "pip install 'hftune[slurm]'"


def test_tensorboard_writes_below_the_run(tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(None, {**QUICK, "data.dataset_name": data, "train.report_to": ["tensorboard"]})
    result = train(recipe, tmp_path / "run")
    events = list((tmp_path / "run").rglob("events.out.tfevents*"))
    assert events and not list(tmp_path.glob("runs"))
    read = EventAccumulator(str(events[0].parent))
    read.Reload()
    logged = {event.step: event.value for event in read.Scalars("eval/accuracy")}
    evaluations = {
        row["step"]: row["accuracy"] for row in result.run.read_history() if row.get("split") == "validation"
    }
    assert logged == pytest.approx(evaluations)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tensorbord", ["mean 'tensorboard'"]), ("wandb", ["not installed"]), ("trackio", ["not installed"])],
)
def test_a_tracker_that_is_not_there_is_refused_before_training(
    name: str, expected: list[str], tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hftune.training.arguments.get_available_reporting_integrations", lambda: ["tensorboard"])
    recipe = load_recipe(None, {**QUICK, "data.dataset_name": data, "train.report_to": [name]})
    with hftune_error(*expected):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
