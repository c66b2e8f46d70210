"""The resume matrix: every task, under every tuning method that it takes, stopped at every kind of place.

Interrupted and resumed equals uninterrupted bit for bit: weights, optimizer, schedule, random state, history, and the
choice of the best. ``make test`` stops each pair of task and method at all places in one run; the whole product, each
cell with a run of its own, is slow: ``pytest -m slow tests/test_resume_matrix.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_case import METHODS, PAIRS, TASKS, differences, in_rank, recipe, remains, train_session, write_data
from facts import hftune_error
from forks import joined, start_ranks

from hftune.pipeline.train import train
from hftune.recipe import Recipe

pytestmark = pytest.mark.numeric

PLACES = {"mid-epoch": 3, "last of an epoch": 6, "first of the next": 7}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 2},
    "workers": {"train.dataloader_num_workers": 2},
    "processes": {"train.per_device_train_batch_size": 4, "train.use_cpu": True},
}
CELLS = [(task, method, where, how) for task, method in PAIRS for where in PLACES for how in SETTINGS]
DAILY = [
    (task, method, "plain" if number % 2 else "accumulation")
    for number, (task, method) in enumerate(PAIRS)
    if method != "muon" or task in ("classify", "clm")
] + [("mlm", "full", "workers"), ("joint", "full", "processes"), ("distill_encoder", "full", "processes")]
"""What ``make test`` looks at: each pair once, and each setting at least once."""
DAILY_CONTROLS = (("classify", "lora"), ("span", "full"))

Sit = Callable[..., None]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("crash"))


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """What uninterrupted runs leave; each is trained once."""
    made: dict[tuple[str, str, str], dict[str, Any]] = {}

    def left(task: str, method: str, how: str) -> dict[str, Any]:
        key = (task, method, how)
        if key not in made:
            folder = tmp_path_factory.mktemp("whole")
            sit(how)(recipe(home, task, method, **SETTINGS[how]), folder)
            made[key] = remains(folder)
        return made[key]

    return left


def sit(how: str) -> Sit:
    """One session in this process, or in two that train together."""
    return in_two_processes if how == "processes" else train_session


def in_two_processes(wanted: Recipe, folder: Path, **asked: Any) -> None:
    assert joined(start_ranks(2, in_rank, train_session, wanted, folder, **asked)) == [0, 0]


@pytest.mark.parametrize(("task", "method", "how"), DAILY, ids=lambda value: str(value))
def test_stopped_at_every_place_in_one_run(
    home: Path, whole: Any, tmp_path: Path, task: str, method: str, how: str
) -> None:
    wanted = recipe(home, task, method, **SETTINGS[how])
    for number, step in enumerate(PLACES.values()):
        sit(how)(wanted, tmp_path, stop=step, resume=number > 0)
    sit(how)(wanted, tmp_path, resume=True)
    assert differences(remains(tmp_path), whole(task, method, how)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method", "where", "how"), CELLS, ids=lambda value: str(value))
def test_interrupted_and_resumed_equals_uninterrupted(
    home: Path, whole: Any, tmp_path: Path, task: str, method: str, where: str, how: str
) -> None:
    wanted = recipe(home, task, method, **SETTINGS[how])
    sit(how)(wanted, tmp_path, stop=PLACES[where])
    sit(how)(wanted, tmp_path, resume=True)
    assert differences(remains(tmp_path), whole(task, method, how)) == []


@pytest.mark.parametrize("task", ["classify", "clm"])
def test_a_model_saved_after_a_resume_at_the_end_is_the_same(home: Path, tmp_path: Path, task: str) -> None:
    """The run was killed between its last step and its report: nothing is trained any more, but all is saved."""
    wanted, folder = recipe(home, task), tmp_path / "run"
    first = train(wanted, folder).run
    saved = {path.name: path.read_bytes() for path in first.model.iterdir() if path.name != "README.md"}  # has times
    assert "config.json" in saved
    first.metrics.unlink()
    shutil.rmtree(first.model)
    again = train(wanted, folder, resume=True).run
    assert {name: (again.model / name).read_bytes() for name in saved} == saved


@pytest.mark.parametrize("lost", ["rng", "optimizer"])
@pytest.mark.parametrize(
    ("task", "method"),
    [pytest.param(*pair, marks=[] if pair in DAILY_CONTROLS else pytest.mark.slow) for pair in PAIRS],
)
def test_negative_control_what_is_lost_shows(
    home: Path, whole: Any, tmp_path: Path, task: str, method: str, lost: str
) -> None:
    """A resume that forgets a part of the state ends elsewhere, so the comparison sees that part."""
    wanted = recipe(home, task, method)
    train_session(wanted, tmp_path, stop=PLACES["mid-epoch"])
    train_session(wanted, tmp_path, resume=True, lost=lost)
    found = differences(remains(tmp_path), whole(task, method, "plain"))
    assert [name for name in found if name.startswith("/weights/")]
    assert [name for name in found if name.startswith("/history/")]


DATA = {
    "classify": "labeled/train.csv",
    "joint": "lines.txt",
    "clm": "text/train.txt",
    "answer": "questions/train.tsv",
}


@pytest.mark.parametrize("task", TASKS)
def test_changed_data_is_refused(home: Path, tmp_path: Path, task: str) -> None:
    """One character in one row is enough; the message names the part of the data."""
    mine = Path(shutil.copytree(home, tmp_path / "home"))
    wanted = recipe(mine, task)
    train_session(wanted, tmp_path / "run", stop=2)
    file = mine / DATA.get(task, "lines.txt")
    file.write_text(file.read_text()[::-1].replace("t", "d", 1)[::-1])
    with hftune_error("data") as refused:
        train_session(wanted, tmp_path / "run", resume=True)
    assert f"data.{'unlabeled' if task == 'joint' else 'train'}: " in refused.value.message
    assert refused.value.exit_code == 2


def test_the_matrix_knows_every_task_and_method() -> None:
    assert set(TASKS) == set(Recipe.section_kinds("task"))
    assert {name.partition("-")[0] for name in METHODS} - {"muon"} == set(Recipe.section_kinds("method"))
    assert {how for _, _, how in DAILY} == set(SETTINGS)
    assert {task for task, _, _ in DAILY} == set(TASKS) and {method for _, method, _ in DAILY} == set(METHODS)
    assert len(CELLS) == len(PAIRS) * 3 * 4 >= 288
