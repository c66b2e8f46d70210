"""``accelerate launch``: two processes train what one trains, whatever the task; one writes, one speaks.

Each launch imports everything once a process, which takes longer than any training here: one launch serves many
assertions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from facts import mentions
from launch_case import CONFIG, TWO, assert_same_course, history, launch, launch_jobs
from safetensors.torch import load_file
from tiny_teacher import write_teacher
from training_case import same

from hftune.files import read_json

pytestmark = pytest.mark.timeout(600)

# 41 examples: the last of 3 steps has 9 of 16, and its last micro-batch one example for two processes.
COURSE = (
    "--epochs",
    "2",
    "--set",
    "train.gradient_accumulation_steps=2",
    "--set",
    "train.logging_steps=1",
    "--lr",
    "3e-3",
)
BERT = ("--set", "model.vocab_size=300", "--max-length", "16", "--set", "model.dropout=0")
GPT = ("--model", "scratch:mingpt-tiny", "--set", "model.dropout=0")
TASKS = {
    "classify": ("classify", "--data", "data", *BERT),
    "head": ("classify", "--data", "data", "--method", "head", *BERT),
    "joint": ("joint", "--data", "data", "--unlabeled", "more.txt", *BERT),
    "mlm": ("pretrain", "--objective", "mlm", "--corpus", "more.txt", *BERT[:2], *BERT[4:]),
    "distill": ("distill", "--teacher", "teacher", "--corpus", "more.txt", *BERT[:2], *BERT[4:]),
    "span": ("pretrain", "--objective", "span", "--corpus", "more.txt", *GPT),
    "clm": ("pretrain", "--objective", "clm", "--corpus", "more.txt", *GPT, "--set", "task.block_size=16"),
    "finetune": ("finetune", "--from", "span-1", "--data", "people"),
}
MLM_ROWS = {1: ("--mlm-batch-size", "6"), 2: ("--mlm-batch-size", "3")}


def command(task: str, processes: int) -> list[str]:
    """The command of a task with 8 rows a pass, over all processes."""
    rows = ("--batch-size", str(8 // processes), *(MLM_ROWS[processes] if task == "joint" else ()))
    return [*TASKS[task], *COURSE, *rows, "--output", f"{task}-{processes}", "--json"]


def lay_out(folder: Path) -> None:
    tiny.csv_folder(folder / "data")
    tiny.write_csv(folder / "data/train.csv", list(tiny.rows(41, 0)), ("label", "text"))
    lines = [f"{text}, quite" for _, text in tiny.rows(60, 7)]
    (folder / "more.txt").write_text("\n".join(lines), encoding="utf-8")
    write_teacher(folder / "teacher")
    (folder / "people").mkdir()
    for split, count in (("train", 41), ("validation", 9)):
        asked = [f"Where was {noun} {number} born?\t{noun}\n" for number in range(count) for noun in tiny.NOUNS[:1]]
        (folder / "people" / f"{split}.tsv").write_text("".join(asked), encoding="utf-8")


@pytest.mark.parametrize(
    "tasks",
    [("classify", "joint", "span", "clm"), pytest.param(tuple(TASKS), marks=pytest.mark.slow)],
    ids=["some", "every"],
)
def test_two_processes_equal_one(
    here: Path, hftune: Callable[..., tuple[int, str, str]], tasks: tuple[str, ...]
) -> None:
    lay_out(here)
    for task in tasks:
        code, _, err = hftune(*command(task, 1))
        assert code == 0, (task, err)
    again = [*TASKS["classify"], *COURSE, "--batch-size", "4", "--set", "train.eval_steps=2"]
    again += ["--set", "model.dropout=0.1", "--set", "train.optim=muon"]
    jobs = [{"arguments": command(task, 2)} for task in tasks]
    jobs += [
        {"arguments": [*again, "--output", "whole"]},
        {"arguments": [*again, "--output", "parts"], "stops": 3},
        {"arguments": ["classify", "--output", "parts", "--resume"]},
        {"arguments": [*command("classify", 2)[:-3], "--seeds", "1,2", "--output", "seeds"]},
        {"arguments": ["predict", "whole", "good"]},
        {"arguments": ["classify", "--set", "train.nonsense=1", "--output", "refused"]},
        {"arguments": [*again, "--output", "failed"], "fails": 3},
    ]
    done, codes = launch_jobs(here, TWO, "launch_worker.py", jobs)
    assert codes[:-1] == [*[0] * len(tasks), 0, 138, 0, 0, 2, 2][: len(codes) - 1], (codes, done.stderr[-4000:])
    assert done.returncode == 1

    for task in tasks:
        one, two = here / f"{task}-1", here / f"{task}-2"
        assert_same_course(one, two, tolerance=5e-3)
        assert read_json(two / "environment.json")["launch"]["processes"] == 2
        alone, together = (read_json(run / "metrics.json") for run in (one, two))
        assert together["verified"] and together["data"] == alone["data"], task
        assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    # A signal to one process stops both after the same step, and resuming equals never having stopped.
    whole, parts = (
        load_file(here / run / "checkpoints/checkpoint-6/trainable.safetensors") for run in ("whole", "parts")
    )
    assert same(whole, parts)
    assert history(here / "whole") == history(here / "parts")
    assert read_json(here / "seeds/group.json")["seeds"] == [1, 2]
    # Results and notes come from one process, and so does the message of the end.
    assert done.stdout.count('"verified": true') == len(tasks)
    sessions = len(tasks) + 6  # whole, parts twice, two seeds, failed
    assert done.stderr.count("2 processes, effective batch size 16") == sessions
    assert done.stderr.count("stopped by SIGUSR1 after step 3 of 6") == 1
    assert done.stderr.count("--output parts --resume") == 1
    assert done.stderr.count("predict runs in one process, but a launcher has started 2") == 1
    assert done.stderr.count("train.nonsense") == 1 and not (here / "refused").exists()
    assert done.stderr.count("process 1 has had enough") == 1
    assert "Connection closed" not in done.stderr


def test_one_process_with_the_config_as_it_is(tmp_path: Path) -> None:
    tiny.csv_folder(tmp_path / "data")
    job = {"arguments": ["classify", "--data", "data", *tiny.QUICK, "--output", "run", "--json"]}
    done, codes = launch_jobs(tmp_path, CONFIG, "launch_worker.py", [job])
    assert (done.returncode, codes) == (0, [0]), done.stderr[-3000:]
    assert json.loads(done.stdout)["verified"] is True
    assert mentions(done.stderr, "CPU", "1 process", "batch size 8")
    assert read_json(tmp_path / "run/environment.json")["launch"] == {
        "processes": 1,
        "machines": 1,
        "device": "cpu",
        "sharding": None,
        "effective_batch_size": 8,
        "max_tokens_per_batch": None,
    }


def test_fewer_processes_than_requested_are_refused(tmp_path: Path) -> None:
    """accelerate starts one here, and calls it a success."""
    tiny.csv_folder(tmp_path / "data")
    words = ("--cpu", "--num_processes", "2", "-m", "hftune", "classify", "--data", "data", "--output", "run")
    done = launch(tmp_path, *words)
    assert done.returncode != 0
    assert mentions(done.stderr, "2 processes", "accelerate")
    assert "--multi_gpu --num_processes 2" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_process_that_a_signal_kills_is_reported(tmp_path: Path) -> None:
    """It leaves no message of its own: the launcher names the signal, and the other process reports what to do."""
    lay_out(tmp_path)
    job = {"arguments": [*command("classify", 2), "--set", "train.eval_steps=2"], "stops": 4, "by": "SIGILL"}
    done, codes = launch_jobs(tmp_path, TWO, "launch_worker.py", [job])
    assert done.returncode != 0 and codes in ([], [1], [143])
    assert "SIGILL" in done.stderr
    assert done.stderr.count("another process of this launch ended") == 1, done.stderr[-6000:]
    assert "hftune doctor" in done.stderr
    assert (tmp_path / "classify-2/checkpoints/checkpoint-2").is_dir()
