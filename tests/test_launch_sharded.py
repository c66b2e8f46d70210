"""FSDP and DeepSpeed: weights in shards train what whole ones train, stop and resume, and end as an ordinary model.

FSDP runs here on two CPU processes over gloo (see ``sharded_on_cpu.py``): the sharding is real, the GPUs are missing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import tiny
from facts import mentions
from launch_case import ROOT, assert_same_course, history, launch_jobs
from safetensors.torch import load_file
from test_launch import BERT, COURSE, GPT, lay_out
from training_case import same

from hftune.files import read_json
from hftune.runs.directory import in_use
from hftune.training.checkpoints import fault

pytestmark = pytest.mark.timeout(600)

TASKS = {
    "full": ("classify", "--data", "data", *BERT),
    "lora": ("classify", "--data", "data", "--method", "lora", *BERT),
    "head": ("classify", "--data", "data", "--method", "head", *BERT),
    "clm": ("pretrain", "--objective", "clm", "--corpus", "more.txt", *GPT, "--set", "task.block_size=16"),
}
SMALL = ("--num_processes", "2", "--main_process_port", "0")


def command(task: str, processes: int) -> list[str]:
    return [*TASKS[task], *COURSE, "--batch-size", str(8 // processes), "--output", f"{task}-{processes}"]


def jobs_for(tasks: list[str]) -> list[dict[str, Any]]:
    """The tasks; then one of them whole and in two sessions, and what is refused."""
    again = [
        *TASKS[tasks[0]],
        *COURSE,
        "--batch-size",
        "4",
        "--set",
        "train.eval_steps=2",
        "--set",
        "model.dropout=0.1",
    ]
    return [
        *({"arguments": command(task, 2)} for task in tasks),
        {"arguments": [*again, "--output", "whole"]},
        {"arguments": [*again, "--output", "parts"], "stops": 3},
        {"arguments": ["classify", "--output", "parts", "--resume"]},
        {"arguments": [*again, "--set", "train.optim=muon", "--output", "refused"]},
    ]


def check(folder: Path, tasks: list[str], codes: list[int], output: str, sharding: str) -> None:
    assert codes == [*[0] * len(tasks), 0, 138, 0, 2], (codes, output[-4000:])
    for task in tasks:
        one, two = folder / f"{task}-1", folder / f"{task}-2"
        assert_same_course(one, two, tolerance=5e-3)
        assert read_json(two / "environment.json")["launch"]["sharding"] == sharding
        assert read_json(two / "metrics.json")["verified"] is True
        weights = (load_file(next((run / "model").glob("*.safetensors"))) for run in (one, two))
        left, right = ({name: value.shape for name, value in found.items()} for found in weights)
        assert left == right, "what is saved is whole"
    whole, parts = folder / "whole/checkpoints", folder / "parts/checkpoints"
    assert fault(parts / "checkpoint-6") is None
    assert same(*(load_file(place / "checkpoint-6/trainable.safetensors") for place in (whole, parts)))
    assert history(folder / "whole") == history(folder / "parts")
    assert mentions(output, "whole matrices") or mentions(output, "lora")


@pytest.mark.parametrize(
    ("tasks", "flags"),
    [
        (["full"], ()),
        pytest.param(["full", "clm"], (), marks=pytest.mark.slow),
        pytest.param(
            ["lora", "head"],
            ("--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--fsdp_cpu_ram_efficient_loading", "true"),
            marks=pytest.mark.slow,
        ),
        pytest.param(["full", "clm"], ("--fsdp_activation_checkpointing", "true"), marks=pytest.mark.slow),
    ],
    ids=["full-state", "language-model", "sharded-state", "activation-checkpointing"],
)
def test_fsdp_trains_what_one_process_trains(
    here: Path, hftune: Callable[..., tuple[int, str, str]], tasks: list[str], flags: tuple[str, ...]
) -> None:
    lay_out(here)
    for task in tasks:
        code, _, err = hftune(*command(task, 1))
        assert code == 0, (task, err)
    config = ("--config_file", str(ROOT / "recipes/accelerate/fsdp.yaml"))
    done, codes = launch_jobs(here, (*config, *SMALL, *flags), "sharded_on_cpu.py", jobs_for(tasks))
    check(here, tasks, codes, done.stderr, "FSDP2")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_trains_what_one_process_trains(
    here: Path, hftune: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    lay_out(here)
    for task in ("full", "clm"):
        code, _, err = hftune(*command(task, 1))
        assert code == 0, (task, err)
    config = ("--config_file", str(ROOT / f"recipes/accelerate/deepspeed-zero{stage}.yaml"))
    done, codes = launch_jobs(here, (*config, *SMALL), "launch_worker.py", jobs_for(["full", "clm"]))
    check(here, ["full", "clm"], codes, done.stderr, f"DeepSpeed ZeRO-{stage}")


@pytest.mark.slow
def test_fsdp_without_gpus_is_refused(here: Path) -> None:
    tiny.csv_folder(here / "data")
    config = ("--config_file", str(ROOT / "recipes/accelerate/fsdp.yaml"))
    arguments = ["classify", "--data", "data", *tiny.QUICK, "--output", "run"]
    done, codes = launch_jobs(here, (*config, *SMALL), "launch_worker.py", [{"arguments": arguments}])
    assert codes == [2]
    assert done.stderr.count("FSDP") == 1, "one process reports it"
    assert not in_use(here / "run")  # torchrun may end the main process before it has removed its empty folder
