"""The comparison of two commits: what is equal counts as equal, and nothing else does."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crash_case
import equivalence
import equivalence_driver
import psutil
import pytest
from equivalence import Intended, compare, exit_code

from hftune.pipeline.train import train

SCRIPT = Path(equivalence.__file__).resolve()

PIPELINE = '''
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SPLIT = "dev"


def train(recipe, run):
    """Writes what a training would; the weights depend on the seed alone."""
    draw = np.random.default_rng(recipe["seed"])
    (run / "model").mkdir(parents=True)
    (run / "predictions").mkdir()
    save_file({name: draw.random(3) for name in ("a", "b")}, run / "model" / "model.safetensors")
    score = float(draw.random())
    row = {"step": 1, "split": SPLIT, "loss": score, "seconds": float(np.random.default_rng().random())}
    (run / "history.jsonl").write_text(json.dumps(row) + "\\n")
    (run / "predictions" / f"{SPLIT}.jsonl").write_text(json.dumps({"id": 0, "label": "good"}) + "\\n")
    metrics = {"splits": {SPLIT: {"accuracy": score}}, "speed": {"train_seconds": row["seconds"]}, "rows": 3}
    (run / "metrics.json").write_text(json.dumps({**metrics, "data": {"notes": [f"{SPLIT} was made from train"]}}))
'''
CASES = """
import hftune.pipeline

PAIRS = [("tiny", "full"), ("tiny", "lora")]


def write_data(home):
    (home / "train.csv").write_text("data")


def recipe(home, task, method, **changes):
    assert (home / "train.csv").is_file()
    return {"seed": 1 if method == "full" else 2, **changes}
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose trainings take no time, in a repository with the branch ``main``."""
    root = tmp_path_factory.mktemp("repository")
    (root / "hftune").mkdir()
    (root / "tests").mkdir()
    (root / "hftune" / "__init__.py").write_text("")
    (root / "hftune" / "pipeline.py").write_text(PIPELINE)
    (root / "tests" / "crash_case.py").write_text(CASES)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "Train")
    return root


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, encoding="utf-8").stdout


@pytest.fixture
def changed(repository: Path, request: pytest.FixtureRequest) -> Callable[..., str]:
    """A branch on which one piece of text in one file was replaced."""

    def branch(file: str, old: str, new: str) -> str:
        name = request.node.name
        git(repository, "checkout", "--quiet", "-B", name, "main")
        path = repository / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        git(repository, "commit", "--quiet", "-a", "-m", "Change")
        git(repository, "checkout", "--quiet", "main")
        return str(name)

    return branch


@pytest.fixture
def script(repository: Path) -> Callable[..., tuple[int, dict[str, str], str]]:
    """Run the script in the repository: exit code, lines of the table by case, all output."""

    def run(*arguments: str) -> tuple[int, dict[str, str], str]:
        command = [sys.executable, str(SCRIPT), *arguments]
        environment = {**os.environ, "PYTHONUTF8": "1"}
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, encoding="utf-8")
        lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
        rows = {f"{line[0][2:]}/{line[1]}": " | ".join(line[2:]) for line in lines[2:]}
        return done.returncode, rows, done.stdout + done.stderr

    return run


def test_a_commit_equals_itself_and_nothing_is_left(script: Any, repository: Path, tmp_path: Path) -> None:
    code, rows, output = script("main", "main", "--only", "tiny", "--output", str(tmp_path / "table.md"))
    assert code == 0, output
    assert list(rows) == ["data/files", "tiny/full", "tiny/lora"]
    assert all(row.startswith("equal | ") for row in rows.values())
    assert "[NEW " in output and "2/2 tiny/lora" in output
    assert (tmp_path / "table.md").read_text(encoding="utf-8") in output
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_probes_that_a_commit_does_not_have_are_reported(script: Any) -> None:
    code, rows, _ = script("main", "main")
    probes = {name: row for name, row in rows.items() if name.startswith("probe/")}
    assert code == 3
    assert len(probes) == len(equivalence_driver.PROBES) >= 6
    assert all(row.startswith("not comparable | ") for row in probes.values())
    assert "RankBatches" in probes["probe/batch order"]


def test_another_seed_in_one_case_is_reported(script: Any, changed: Any) -> None:
    branch = changed("tests/crash_case.py", "else 2", "else 3")
    code, rows, _ = script("main", branch, "--only", "tiny")
    assert code == 1
    assert rows["tiny/full"].startswith("equal")
    row = rows["tiny/lora"]
    assert row.startswith("DIFFERENT")
    assert "weights/model/model: 2 of 2" in row and "metrics: 1 of 3" in row and "predictions" not in row
    assert "first: history/0/loss: 0." in row and " → 0." in row


def test_the_rename_of_the_split_is_no_difference(script: Any, changed: Any) -> None:
    branch = changed("hftune/pipeline.py", '"dev"', '"validation"')
    assert script("main", branch, "--only", "tiny")[0] == 0


def test_a_key_that_was_renamed_on_purpose(script: Any, changed: Any) -> None:
    branch = changed("hftune/pipeline.py", '"rows": 3', '"examples": 3')
    code, rows, _ = script("main", branch, "--only", "tiny/full")
    assert code == 1 and "first: metrics/rows: 3 → (missing)" in rows["tiny/full"]
    assert script("main", branch, "--only", "tiny/full", "--rename", "rows=examples")[0] == 0
    assert script("main", branch, "--only", "tiny/full", "--ignore", "metrics/rows", "--ignore", "*/examples")[0] == 0


def test_another_exit_status_is_a_difference(script: Any, changed: Any) -> None:
    failing = 'if recipe["seed"] == 2:\n        raise SystemExit(5)\n    score = '
    branch = changed("hftune/pipeline.py", "score = ", failing)
    code, rows, _ = script("main", branch, "--only", "tiny")
    assert code == 1
    assert rows["tiny/lora"].startswith("DIFFERENT") and "exit status 0 → 5" in rows["tiny/lora"]
    code, rows, _ = script(branch, branch, "--only", "tiny")
    assert code == 3
    assert rows["tiny/lora"].startswith("not comparable") and "fails in both" in rows["tiny/lora"]


def test_a_case_that_is_gone_is_reported(script: Any, changed: Any) -> None:
    branch = changed("tests/crash_case.py", '("tiny", "lora")', '("tiny", "dora")')
    code, rows, _ = script("main", branch, "--only", "tiny")
    assert code == 3
    assert "missing in NEW" in rows["tiny/lora"] and "missing in OLD" in rows["tiny/dora"]
    assert "missing in" not in str(script("main", branch, "--only", "tiny", "--rename", "lora=dora")[1])


def test_other_data_is_reported_and_can_be_shared(script: Any, changed: Any) -> None:
    branch = changed("tests/crash_case.py", '"data"', '"other"')
    code, rows, _ = script("main", branch, "--only", "tiny")
    assert code == 1 and rows["data/files"].startswith("DIFFERENT") and "--same-data" in rows["data/files"]
    assert script("main", branch, "--only", "tiny", "--same-data")[0] == 0


def test_what_a_commit_lacks_is_named(script: Any, changed: Any, repository: Path) -> None:
    branch = changed("tests/crash_case.py", "PAIRS", "CELLS")
    code, _, output = script(branch, "main")
    assert code == 2 and "PAIRS" in output and "Traceback" not in output
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("arguments", [("main", "no-such-commit"), ("main", "main", "--only", "no-such-case")])
def test_a_bad_request_ends_with_2(script: Any, arguments: tuple[str, ...]) -> None:
    code, _, output = script(*arguments)
    assert code == 2 and "no-such" in output and "Traceback" not in output


@pytest.mark.posix("sends SIGTERM")
def test_when_it_is_ended_the_training_ends_and_nothing_is_left(changed: Any, repository: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    sleeping = (
        f"import os, time\n    Path({str(pid_file)!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n    score = "
    )
    branch = changed("hftune/pipeline.py", "score = ", sleeping)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, str(SCRIPT), branch, branch], cwd=repository, env=environment) as process:
        while process.poll() is None and not (pid_file.is_file() and pid_file.read_text()):
            time.sleep(0.05)
        process.terminate()
        assert process.wait(240) == 128 + signal.SIGTERM
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]
    deadline = time.monotonic() + 120
    while running(int(pid_file.read_text())):
        assert time.monotonic() < deadline, "the training is still running"
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---- The comparison on values ----

FOUND: dict[str, Any] = {
    "status": 0,
    "history": [{"step": 1, "loss": 0.5, "seconds": 3.0}],
    "weights": {"model/model.safetensors": {"a": "1" * 64}},
    "predictions": {"dev": [{"id": 0, "label": "good"}]},
    "metrics": {"splits": {"dev": {"accuracy": 1.0}}, "speed": {"steps": 1}, "peak_memory_gb": 1.5},
}


def edited(path: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(FOUND)
    *parents, last = path.split("/")
    place: Any = made
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    place[last] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("history/0/loss", 0.5000000000000001),
        ("history/0/loss", float("nan")),
        ("history/0/step", 1.0),
        ("history/0/step", True),
        ("weights/model/model.safetensors", {"a": "2" * 64}),
        ("weights/model/model.safetensors", {"b": "1" * 64}),
        ("weights/model/model.safetensors", {"a": "1" * 64, "b": "1" * 64}),
        ("predictions/dev", []),
        ("predictions/test", [{"id": 0}]),
        ("metrics/splits/validation", {"accuracy": 1.0}),  # as well as dev
        ("metrics/version", None),
    ],
)
def test_every_other_value_is_a_difference(path: str, value: Any) -> None:
    if path.startswith("weights/"):
        made = {**FOUND, "weights": {"model/model.safetensors": value}}
    else:
        made = edited(path, value)
    assert [row.verdict for row in compare({"a/b": FOUND}, {"a/b": made})] == ["DIFFERENT"]


@pytest.mark.parametrize("path", ["history/0/seconds", "metrics/speed/steps", "metrics/peak_memory_gb"])
def test_time_speed_and_memory_are_no_difference(path: str) -> None:
    assert exit_code(compare({"a/b": FOUND}, {"a/b": edited(path, 99)})) == 0


def test_nan_equals_nan() -> None:
    one, other = (edited("history/0/loss", float("nan")) for _ in range(2))
    assert exit_code(compare({"a/b": one}, {"a/b": other})) == 0


@pytest.mark.parametrize("group", equivalence.NEEDED)
def test_without_values_nothing_is_equal(group: str) -> None:
    empty = {**FOUND, group: {}}
    assert [row.verdict for row in compare({"a/b": empty}, {"a/b": empty})] == ["not comparable"]


def test_when_everything_is_ignored_nothing_is_equal() -> None:
    (row,) = compare({"a/b": FOUND}, {"a/b": FOUND}, Intended(ignored=["*"]))
    assert row.verdict == "not comparable"


def test_a_rename_must_not_hide_a_case() -> None:
    with pytest.raises(equivalence.Problem, match="name"):
        compare({"a/b": FOUND, "a/c": FOUND}, {"a/c": FOUND}, Intended(renames=[("b", "c")]))


def test_a_probe_that_no_longer_fits_is_not_comparable() -> None:
    def probe() -> dict[str, str]:
        return int("1", "2", "3")  # type: ignore[call-overload,no-any-return]

    found = {"probe/x": equivalence_driver.outcome(lambda: equivalence_driver.run_probe(probe))}
    assert [row.verdict for row in compare(found, found)] == ["not comparable"]


def test_a_rename_changes_whole_names_only() -> None:
    intended = Intended(renames=[("loss", "eval_loss"), ("splits/dev", "scores")])
    assert intended.renamed("history/0/mlm_loss") == "history/0/mlm_loss"
    assert intended.renamed("history/0/loss") == "history/0/eval_loss"
    assert intended.renamed("metrics/splits/dev/loss") == "metrics/scores/eval_loss"


# ---- The driver on this checkout ----


@pytest.mark.parametrize("name", equivalence_driver.PROBES)
def test_probes_find_what_they_need_in_this_checkout(name: str) -> None:
    """When this fails, code has moved: add its new name to the candidates of the probe."""
    found = equivalence_driver.PROBES[name]()
    assert len(found) >= 6 and len(set(found.values())) == len(found)
    assert equivalence_driver.PROBES[name]() == found


def test_moved_code_is_found_by_its_definition() -> None:
    found = equivalence_driver.locate("hftune.no_such_module:RankBatches")
    assert found is equivalence_driver.locate("hftune.training.inputs:RankBatches")
    with pytest.raises(equivalence_driver.NotComparable, match="NoSuchName"):
        equivalence_driver.locate("hftune.training.inputs:NoSuchName")


def test_renamed_parameters_are_found() -> None:
    def known(*, gradient_accumulation_steps: int) -> int:
        return gradient_accumulation_steps

    assert equivalence_driver.fitted(known, {"accumulation|gradient_accumulation_steps": 2, "?weight": 1.0}) == 2
    with pytest.raises(equivalence_driver.NotComparable, match="accumulation"):
        equivalence_driver.fitted(known, {"accumulation": 2})


@pytest.mark.slow
def test_a_real_training_equals_itself_and_not_one_with_another_seed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    home = crash_case.write_data(tmp_path / "home")

    def results(name: str, **changes: Any) -> dict[str, Any]:
        arguments = (crash_case, train, "span", "full", home, tmp_path / name)
        return {"span/full": equivalence_driver.outcome(lambda: equivalence_driver.train_case(*arguments, **changes))}

    first = results("first")
    (same,) = compare(first, results("same"))
    assert (same.verdict, same.detail) == ("equal", "")
    assert same.compared > 200 and same.weights.startswith("model ")
    (other,) = compare(first, results("other", **{"train.seed": 2}))
    assert other.verdict == "DIFFERENT"
    assert all(group in other.detail for group in ("batches: ", "history: ", "weights/model/model: ", "metrics: "))
