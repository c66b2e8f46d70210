"""Workers of a study, their protocol, and what the terminal shows of a sweep."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts import mentions
from sample_study import Planter
from tiny import csv_folder

from hftune.errors import Interrupted, RunFailed
from hftune.studies import executors
from hftune.studies.executors import STOPPED, Executor, HistoryReader, Job, run_tasks
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan
from hftune.studies.request import read_plan
from hftune.studies.sweep import sweep
from hftune.studies.systems import select

Hftune = Callable[..., tuple[int, str, str]]
LR = "train.learning_rate"
SHARES = {"0.001": 0.7, "0.01": 0.8, "0.1": 0.6}
NAMES = {f"learning_rate={lr}": share for lr, share in SHARES.items()}


def planted(path: Path, executor: Planter, **changes: Any) -> Any:
    plan = Plan(grid={LR: [0.001, 0.01, 0.1]}, seeds=(1, 2)).model_copy(update=changes)
    return sweep(plan, path, create=lambda study, jobs: [executor])


# ---- workers ----


def pieces(count: int, work: Callable[[int, Executor], None]) -> Any:
    return ((lambda executor, number=number: work(number, executor)) for number in range(count))


def test_work_is_shared_out_and_errors_come_back() -> None:
    seen: list[tuple[int, int]] = []
    workers = [Planter({}), Planter({})]
    both = threading.Barrier(2, timeout=120)

    def work(number: int, executor: Executor) -> None:
        if number < 2:
            both.wait()  # passes only when two workers work at once
        seen.append((number, workers.index(executor)))

    run_tasks(pieces(6, work), workers)
    assert sorted(number for number, _ in seen) == list(range(6))

    def fail(number: int, executor: Executor) -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError):
        run_tasks(pieces(3, fail), workers)


@pytest.mark.posix("sends a signal to a thread")
def test_a_signal_stops_the_workers_and_the_study() -> None:
    class Slow(Planter):
        def __init__(self) -> None:
            super().__init__({})
            self.asked = threading.Event()

        def stop(self) -> None:
            self.asked.set()

    executor = Slow()
    done: list[int] = []

    def work(number: int, _: Executor) -> None:
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            assert executor.asked.wait(120)
        done.append(number)

    with pytest.raises(Interrupted) as caught:
        run_tasks(pieces(5, work), [executor])
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert done == [0, 1]


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    job = json.loads(line)
    def say(message): print(json.dumps(message), flush=True)
    if job["do"] == "die": os.kill(os.getpid(), 9)
    if job["do"] == "leave": sys.exit(3)
    say({"done": 1, "total": 2, "facts": {}})
    if job["do"] == "watch":
        say({"evaluation": {"number": 1, "score": 0.5}})
        say({"outcome": {"state": "done" if json.loads(sys.stdin.readline())["continue"] else "pruned"}})
    else:
        say({"outcome": {"state": "done", "threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}})
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> executors.LocalExecutor:
    """A worker whose process speaks the protocol but trains nothing."""
    import os

    command = [sys.executable, "-c", WORKER]
    monkeypatch.setattr(executors, "module_command", lambda module: (command, dict(os.environ)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (executor,) = executors.local_executors(StudyDir(tmp_path), 1)
    assert isinstance(executor, executors.LocalExecutor)
    return executor


def test_the_hint_of_the_first_failure_reaches_the_user(tmp_path: Path) -> None:
    study = SimpleNamespace(
        path=tmp_path,
        plan=lambda: SimpleNamespace(seeds=(1,)),
        settings=tuple,
        failures=lambda: [{"reason": "its worker process was killed by SIGILL", "hint": "set ONEDNN_MAX_CPU_ISA=AVX2"}],
    )
    with pytest.raises(RunFailed, match="SIGILL") as failed:
        select(study)  # type: ignore[arg-type]
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in failed.value.hint and mentions(failed.value.hint, "start the study")


@pytest.mark.posix("a process there does not end by a signal")
def test_a_worker_process_takes_several_jobs_and_is_replaced_when_it_dies(
    worker: executors.LocalExecutor, tmp_path: Path
) -> None:
    reported: list[Mapping[str, Any]] = []

    def callback(job: Job, message: Mapping[str, Any]) -> bool:
        reported.append(message)
        return job.get("answer", True)

    first, second = (worker.run({"do": "work"}, callback) for _ in range(2))
    assert first == second and first["state"] == "done"
    assert reported == [{"done": 1, "total": 2, "facts": {}}] * 2
    outcome = worker.run({"do": "die"}, callback)
    assert (
        outcome["state"] == "failed" and "killed by SIGKILL" in outcome["reason"] and "worker-1.log" in outcome["hint"]
    )
    assert "code 3" in worker.run({"do": "leave"}, callback)["reason"]
    assert worker.run({"do": "work"}, callback)["pid"] != first["pid"]
    assert worker.run({"do": "watch", "answer": True}, callback)["state"] == "done"
    assert worker.run({"do": "watch", "answer": False}, callback)["state"] == "pruned"
    worker.stop()
    assert worker.run({"do": "work"}, callback) == STOPPED
    worker.close()


def test_threads_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hftune.training.launch.threads_for", lambda jobs: 8 // jobs)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")

    def environments(count: int) -> list[Mapping[str, str]]:
        made = executors.local_executors(StudyDir(tmp_path), count)
        return [one.environment for one in made if isinstance(one, executors.LocalExecutor)]

    assert [one["OMP_NUM_THREADS"] for one in environments(3)] == ["2", "2", "2"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments(3)] == ["2", "5", "2"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # the user's word
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert environments(2) == [{}, {}]


# ---- the terminal ----


def test_the_live_table_shows_every_run_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from hftune.cli.live_table import LiveTable

    board = LiveTable(jobs=2)
    orders = [{"action": "train", "path": f"p{seed}", "setting": "lr=1 \x1b[31m", "seed": seed} for seed in range(30)]
    for job in orders:
        board.on_job(job)
    board.on_event(orders[4], {"done": 50, "total": 1200, "facts": {"validation accuracy": 0.61234, "loss": 1.0}})
    board.on_event(orders[5], {"stage": "verifying"})
    board.on_end(
        orders[0],
        {
            "state": "done",
            "seconds": 60.0,
            "metric": "loss",
            "splits": {"validation": {"accuracy": 0.7, "loss": 4.5}},
        },
    )
    board.on_end(orders[1], {"state": "failed", "reason": "nan", "hint": ""})
    console = Console(width=120, height=24, record=True, file=io.StringIO())
    console.print(board._drawn())
    text = console.export_text()
    assert "50 of 1,200" in text and "0.6123" in text and "verifying" in text
    assert "loss 4.5000" in text and "0.7000" not in text and "failed" in text and "waiting" in text
    assert "2 of 30 runs, 1 failed, about 14 min left" in text
    assert "\x1b[31m" not in text and "\\x1b" in text
    assert len(text.splitlines()) <= 30  # not all fit


def test_what_a_sweep_would_cost_on_the_command_line(
    here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = csv_folder(here / "data")
    over = ("--grid", f"{LR}=0.001,0.01", "--seeds", "1-3", "--set", "train.num_train_epochs=2")
    command = ("sweep", "--data", str(folder), "--model", "scratch:bert-tiny", *over, "--jobs", "2", "--dry-run")
    code, out, err = hftune(*command)
    assert code == 0 and "trying learning_rate=0.001" in err, err
    assert mentions(out, "6 runs", "2 at once") and "nothing was trained" in out
    code, out, _ = hftune(*command, "--json")
    reported = json.loads(out)
    assert [(one["setting"], one["runs"]) for one in reported["settings"]] == [
        ("learning_rate=0.001", 3),
        ("learning_rate=0.01", 3),
    ]
    assert not (here / "runs").exists()
    code, _, err = hftune(*command, "--launcher", "slurm")
    assert code == 2 and "--launcher" in err


def test_sweep_on_the_command_line(here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Planter(NAMES)
    monkeypatch.setattr("hftune.studies.executors.local_executors", lambda study, count: [executor])
    command = ("sweep", "--grid", f"{LR}=0.001,0.01", "--seeds", "1-3", "--set", "train.num_train_epochs=2")
    code, out, err = hftune(*command)
    assert code == 0, err
    folder = Path("runs/study-defaults-learning_rate")
    assert "learning_rate=0.01 (selected)" in out and mentions(out, "better", "3 seeds")
    assert mentions(out, "test", "learning_rate=0.01")
    assert out.splitlines()[-1] == f"report  {folder / 'report.html'}"
    assert "[6/6] learning_rate=0.01 seed 3: done (1 s)" in err
    assert read_plan(folder / "study.yaml").set == {"train.num_train_epochs": 2}
    assert hftune("sweep", str(folder / "study.yaml"))[1] == out  # nothing is left to do, and its output is the same
    assert len(executor.trained) == 6

    executor.broken = {"learning_rate=0.1": "the loss is nan"}
    code, out, err = hftune("sweep", "--grid", f"{LR}=0.001,0.01,0.1", "--seeds", "1-3", *command[-2:], "--json")
    assert code == 1
    assert mentions(err, "learning_rate=0.1 seed 1", "nan")
    result = json.loads(out)
    assert result["selected"]["setting"] == "learning_rate=0.01" and len(result["failures"]) == 3
    assert "3 runs failed" in " ".join(result["notes"])


def test_without_a_terminal_the_live_table_writes_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from hftune.cli import terminal
    from hftune.cli.live_table import LiveTable

    terminal.err.cache_clear()
    with LiveTable(jobs=1) as board:
        for seed, outcome in ((1, {"state": "done", "seconds": 3.2}), (2, {"state": "ready"})):
            board.on_end({"action": "train", "path": str(seed), "setting": "a", "seed": seed}, outcome)
    terminal.err.cache_clear()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["[1/1] a seed 1: done (3 s)", "[2/2] a seed 2: already complete (0 s)"]


def test_history_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = HistoryReader(path)
    assert rows.read() == []
    lines = [
        {"step": 1, "loss": 1.0},
        {"step": 2, "split": "validation", "accuracy": 0.5},
        {"step": 4, "split": "validation"},
    ]
    written = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(written[:-5])
    first = rows.read()
    assert first == lines[:2]
    assert rows.evaluations(first, "accuracy") == [{"number": 1, "score": 0.5}]
    with path.open("a") as file:
        file.write(written[-5:] + json.dumps({"step": 6, "split": "validation", "accuracy": 0.7}) + "\n")
    second = rows.read()
    assert [row["step"] for row in second] == [4, 6]
    assert rows.evaluations(second, "accuracy") == [{"number": 2, "score": 0.7}]
