"""Studies as plans and folders: grids, names, what is refused, how a study may grow, workers and their protocol."""

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
from planted_study import plant_run
from tiny import csv_folder

from hftune.config import RecipeError
from hftune.config.shipped import shipped_studies
from hftune.errors import HftuneError, Interrupted, RunFailed
from hftune.files import LONGEST_NAME
from hftune.runs.directory import RunDir
from hftune.studies import pool
from hftune.studies.folder import StudyDir, begun
from hftune.studies.news import NewRows
from hftune.studies.plan import Plan, check, examples, grid, make_plan, parse_grid, plan_yaml, read_plan, recipe_for
from hftune.studies.pool import STOPPED, Hand, Order, Tell, share_out
from hftune.studies.select import select
from hftune.studies.sweep import sweep

Hftune = Callable[..., tuple[int, str, str]]
LR = "train.learning_rate"


class Planter:
    """A hand that plants complete runs in place of training them: the score comes from a table, by setting."""

    def __init__(self, shares: Mapping[str, float], broken: Mapping[str, str] | None = None) -> None:
        self.shares = shares
        self.broken = broken or {}
        self.trained: list[tuple[str, int]] = []
        self.scored: list[tuple[str, int]] = []

    def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
        path = Path(order["path"])
        if order["action"] == "score":
            self.scored.append((order["setting"], order["seed"]))
            run = RunDir(path)
            recipe = run.read_recipe()
            for file in (
                run.metrics,
                run.recipe,
                run.history,
                run.report,
                run.environment,
                run.predictions("validation"),
            ):
                file.unlink()
            run.predictions("validation").parent.rmdir()
            plant_run(path, recipe, self.shares[order["setting"]], splits=("validation", "test"))
            return {"state": "done", "seconds": 1.0}
        self.trained.append((order["setting"], order["seed"]))
        if order["setting"] in self.broken:
            return {"state": "failed", "reason": self.broken[order["setting"]], "hint": "none", "seconds": 1.0}
        recipe_file = path.parent / "r.yaml"
        recipe_file.parent.mkdir(parents=True, exist_ok=True)
        recipe_file.write_text(order["recipe"])
        from hftune.config import load_recipe

        plant_run(path, load_recipe(recipe_file), self.shares[order["setting"]], splits=tuple(order["score"]))
        recipe_file.unlink()
        return {"state": "done", "seconds": 1.0}

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


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
    ("values", "told"),
    [
        ({"gird": {LR: [1]}}, "Did you mean grid"),
        ({"grid": {}}, "dotted keys"),
        ({"grid": {LR: 3}}, f"{LR}: expected a list"),
        ({"grid": {LR: []}}, f"{LR}: expected a list"),
        ({"grid": {LR: {"low": 2, "high": 1}}}, "low < high"),
        ({"grid": {LR: [1e-3]}, "seeds": [1, 1]}, "each seed once"),
        ({"grid": {LR: [1e-3]}, "seeds": []}, "seeds"),
        ({"grid": {LR: [1e-3]}, "test": "some"}, "test"),
    ],
)
def test_what_is_wrong_with_a_plan_is_named(values: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        make_plan(values, "p.yaml")


@pytest.mark.parametrize(
    ("plan", "told"),
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
def test_a_plan_is_checked_before_anything_runs(plan: Plan, told: str, tmp_path: Path) -> None:
    with pytest.raises(HftuneError) as caught:
        sweep(plan, tmp_path / "study", hire=lambda study, jobs: [])
    assert told in str(caught.value)
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


def planted(path: Path, hand: Planter, **changes: Any) -> Any:
    plan = Plan(grid={LR: [0.001, 0.01, 0.1]}, seeds=(1, 2)).model_copy(update=changes)
    return sweep(plan, path, hire=lambda study, jobs: [hand])


def test_dev_selects_and_test_is_scored_for_that_setting_alone(tmp_path: Path) -> None:
    hand = Planter(NAMES)
    outcome = planted(tmp_path / "s", hand)
    assert outcome.selection.setting.name == "learning_rate=0.01"
    assert hand.trained == [(name, seed) for name in NAMES for seed in (1, 2)]
    assert hand.scored == [("learning_rate=0.01", 1), ("learning_rate=0.01", 2)]
    again = Planter(NAMES)
    assert planted(tmp_path / "s", again).selection == outcome.selection
    assert again.trained == again.scored == []


def test_test_can_be_scored_for_all(tmp_path: Path) -> None:
    hand = Planter(NAMES)
    planted(tmp_path / "s", hand, test="all")
    assert hand.scored == []  # training scored it right away
    study = StudyDir(tmp_path / "s")
    assert all(
        set(run.read_metrics()["splits"]) == {"validation", "test"}
        for one in study.settings()
        for run in study.runs(one)
    )


def test_a_failure_is_recorded_tried_again_and_stops_nothing(tmp_path: Path) -> None:
    hand = Planter(NAMES, broken={"learning_rate=0.01": "the loss is nan"})
    outcome = planted(tmp_path / "s", hand)
    assert len(hand.trained) == 6
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
    with pytest.raises(RunFailed, match="no complete run; the first one failed: no memory"):
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
    hand = Planter({**NAMES, "learning_rate=1": 0.5})
    planted(path, hand, grid={LR: [0.001, 0.01, 0.1, 1.0]}, seeds=(1, 2, 3))
    assert len(hand.trained) == 3 + 3
    for changes in (
        {"seeds": (1,)},
        {"grid": {LR: [0.001]}},
        {"grid": {"train.num_train_epochs": [1.0]}},
        {"set": {"train.num_train_epochs": 1}},
        {"recipe": "classify/reviews"},
        {"search": 3},
    ):
        with pytest.raises(HftuneError, match="another plan"):
            planted(path, Planter(NAMES), **changes)


def test_a_recipe_that_changed_since_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("train: {num_train_epochs: 2}\n")
    hand = Planter(NAMES)
    planted(tmp_path / "s", hand, recipe=str(base))
    base.write_text("train: {num_train_epochs: 3}\n")
    with pytest.raises(HftuneError, match="another recipe"):
        planted(tmp_path / "s", hand, recipe=str(base))


def test_a_folder_that_is_no_study_and_one_in_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine.txt").touch()
    with pytest.raises(HftuneError, match="not a study"):
        planted(tmp_path / "s", Planter(NAMES))
    plan = Plan(grid={LR: [0.001]})
    with begun(tmp_path / "t", plan), pytest.raises(HftuneError, match="being used"), begun(tmp_path / "t", plan):
        pass


# ---- hands ----


def pieces(count: int, work: Callable[[int, Hand], None]) -> Any:
    return ((lambda hand, number=number: work(number, hand)) for number in range(count))


def test_work_is_shared_out_and_errors_come_back() -> None:
    seen: list[tuple[int, int]] = []
    hands = [Planter({}), Planter({})]
    both = threading.Barrier(2, timeout=10)

    def work(number: int, hand: Hand) -> None:
        if number < 2:
            both.wait()  # passes only when two hands work at once
        seen.append((number, hands.index(hand)))

    share_out(pieces(6, work), hands)
    assert sorted(number for number, _ in seen) == list(range(6))

    def fail(number: int, hand: Hand) -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError):
        share_out(pieces(3, fail), hands)


@pytest.mark.posix("sends a signal to a thread")
def test_a_signal_stops_the_hands_and_the_study() -> None:
    class Slow(Planter):
        def __init__(self) -> None:
            super().__init__({})
            self.asked = threading.Event()

        def stop(self) -> None:
            self.asked.set()

    hand = Slow()
    done: list[int] = []

    def work(number: int, _: Hand) -> None:
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            assert hand.asked.wait(10)
        done.append(number)

    with pytest.raises(Interrupted) as caught:
        share_out(pieces(5, work), [hand])
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert done == [0, 1]


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    order = json.loads(line)
    def say(message): print(json.dumps(message), flush=True)
    if order["do"] == "die": os.kill(os.getpid(), 9)
    if order["do"] == "leave": sys.exit(3)
    say({"done": 1, "total": 2, "facts": {}})
    if order["do"] == "watch":
        say({"evaluation": {"number": 1, "score": 0.5}})
        say({"outcome": {"state": "done" if json.loads(sys.stdin.readline())["go_on"] else "pruned"}})
    else:
        say({"outcome": {"state": "done", "threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}})
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pool.Worker:
    """A worker whose process speaks the protocol but trains nothing."""
    import os

    command = [sys.executable, "-c", WORKER]
    monkeypatch.setattr(pool, "fresh_process", lambda module: (command, dict(os.environ)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (hand,) = pool.local_crew(tmp_path / "logs", 1)
    assert isinstance(hand, pool.Worker)
    return hand


def test_the_hint_of_the_first_failure_reaches_the_user(tmp_path: Path) -> None:
    study = SimpleNamespace(
        path=tmp_path,
        plan=lambda: SimpleNamespace(seeds=(1,)),
        settings=tuple,
        failures=lambda: [{"reason": "its worker process was killed by SIGILL", "hint": "set ONEDNN_MAX_CPU_ISA=AVX2"}],
    )
    with pytest.raises(RunFailed, match="SIGILL") as failed:
        select(study)  # type: ignore[arg-type]
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in failed.value.hint and "start the study again" in failed.value.hint


@pytest.mark.posix("a process there does not end by a signal")
def test_a_worker_outlives_its_orders_and_its_own_death(worker: pool.Worker, tmp_path: Path) -> None:
    told: list[Mapping[str, Any]] = []

    def tell(order: Order, message: Mapping[str, Any]) -> bool:
        told.append(message)
        return order.get("answer", True)

    first, second = (worker.carry_out({"do": "work"}, tell) for _ in range(2))
    assert first == second and first["state"] == "done"
    assert told == [{"done": 1, "total": 2, "facts": {}}] * 2
    outcome = worker.carry_out({"do": "die"}, tell)
    assert (
        outcome["state"] == "failed" and "killed by SIGKILL" in outcome["reason"] and "worker-1.log" in outcome["hint"]
    )
    assert "code 3" in worker.carry_out({"do": "leave"}, tell)["reason"]
    assert worker.carry_out({"do": "work"}, tell)["pid"] != first["pid"]
    assert worker.carry_out({"do": "watch", "answer": True}, tell)["state"] == "done"
    assert worker.carry_out({"do": "watch", "answer": False}, tell)["state"] == "pruned"
    worker.stop()
    assert worker.carry_out({"do": "work"}, tell) == STOPPED
    worker.close()


def test_threads_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hftune.training.launch.threads_for", lambda jobs: 8 // jobs)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    environments = [hand._environment for hand in pool.local_crew(tmp_path, 3) if isinstance(hand, pool.Worker)]
    assert [one["OMP_NUM_THREADS"] for one in environments] == ["2", "2", "2"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["2", "5", "2"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # the user's word
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [hand._environment for hand in pool.local_crew(tmp_path, 2) if isinstance(hand, pool.Worker)] == [{}, {}]


# ---- the terminal ----


def test_the_board_shows_every_run_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from hftune.cli.board import Board

    board = Board(jobs=2)
    orders = [{"action": "train", "path": f"p{seed}", "setting": "lr=1 \x1b[31m", "seed": seed} for seed in range(30)]
    for order in orders:
        board.expect(order)
    board.news(orders[4], {"done": 50, "total": 1200, "facts": {"validation accuracy": 0.61234, "loss": 1.0}})
    board.news(orders[5], {"stage": "verifying"})
    board.done(orders[0], {"state": "done", "seconds": 60.0, "splits": {"validation": {"accuracy": 0.7}}})
    board.done(orders[1], {"state": "failed", "reason": "nan", "hint": ""})
    console = Console(width=120, height=24, record=True, file=io.StringIO())
    console.print(board._drawn())
    text = console.export_text()
    assert "50 of 1,200" in text and "0.6123" in text and "verifying" in text
    assert "0.7000" in text and "failed" in text and "waiting" in text
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
    assert "6 runs, 2 at once: about 0 minutes" in out and "nothing was trained" in out
    code, out, _ = hftune(*command, "--json")
    told = json.loads(out)
    assert [(one["setting"], one["runs"]) for one in told["settings"]] == [
        ("learning_rate=0.001", 3),
        ("learning_rate=0.01", 3),
    ]
    assert not (here / "runs").exists()
    code, _, err = hftune(*command, "--launcher", "slurm")
    assert code == 2 and "on this machine" in err


def test_sweep_on_the_command_line(here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Planter(NAMES)
    monkeypatch.setattr("hftune.studies.sweep._workers", lambda study, jobs: [hand])
    command = ("sweep", "--grid", f"{LR}=0.001,0.01", "--seeds", "1-3", "--set", "train.num_train_epochs=2")
    code, out, err = hftune(*command)
    assert code == 0, err
    folder = Path("runs/study-defaults-learning_rate")
    assert "learning_rate=0.01 (selected)" in out and "is better, with 3 seeds" in out
    assert "note: test was scored for learning_rate=0.01 only" in out
    assert out.splitlines()[-1] == f"report  {folder / 'report.html'}"
    assert "[6/6] learning_rate=0.01 seed 3: done (1 s)" in err
    assert read_plan(folder / "study.yaml").set == {"train.num_train_epochs": 2}
    assert hftune("sweep", str(folder / "study.yaml"))[1] == out  # nothing is left to do, and it says the same
    assert len(hand.trained) == 6

    hand.broken = {"learning_rate=0.1": "the loss is nan"}
    code, out, err = hftune("sweep", "--grid", f"{LR}=0.001,0.01,0.1", "--seeds", "1-3", *command[-2:], "--json")
    assert code == 1
    assert "failed: learning_rate=0.1 seed 1: the loss is nan" in err
    result = json.loads(out)
    assert result["selected"]["setting"] == "learning_rate=0.01" and len(result["failures"]) == 3
    assert "3 runs failed" in " ".join(result["notes"])


def test_where_nobody_looks_the_board_writes_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from hftune.cli import terminal
    from hftune.cli.board import Board

    terminal.err.cache_clear()
    with Board(jobs=1) as board:
        for seed, outcome in ((1, {"state": "done", "seconds": 3.2}), (2, {"state": "ready"})):
            board.done({"action": "train", "path": str(seed), "setting": "a", "seed": seed}, outcome)
    terminal.err.cache_clear()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["[1/1] a seed 1: done (3 s)", "[2/2] a seed 2: complete from before (0 s)"]


def test_history_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = NewRows(path)
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
