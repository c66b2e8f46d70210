"""What a launch would do, read from its command: by ``hftune doctor --launch``, and by a run that is alone."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from facts import hftune_error, mentions
from launch_case import CONFIG, ROOT

from hftune.cli.commands import first_to_fail, refuse_several
from hftune.config.shipped import shipped_recipes
from hftune.errors import HftuneError
from hftune.pipeline.doctor import ONE, TORCHRUN, examine_launch
from hftune.recipe import Recipe, load_recipe
from hftune.training import launch as launcher
from hftune.training.arguments import precision_for
from hftune.training.launch import (
    contact_is_lost,
    local_world_size,
    read_launch,
    refuse_fewer_than_requested,
    threads_are_chosen,
    world_size,
)

Run = Callable[..., tuple[int, str, str]]
SHIPPED = sorted((ROOT / "recipes/accelerate").glob("*.yaml"))
GPUS = ["a GPU"] * 8


@pytest.fixture(autouse=True)
def no_config_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands import launch

    monkeypatch.setattr(launch, "default_config_file", "nowhere")
    for name in ("OMP_NUM_THREADS", "WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)


def config(folder: Path, **settings: Any) -> list[str]:
    path = folder / "config.yaml"
    path.write_text(json.dumps({"compute_environment": "LOCAL_MACHINE", **settings}))  # JSON is YAML
    return ["--config_file", str(path)]


@pytest.mark.parametrize(
    ("arguments", "requested", "started", "how"),
    [
        ([], 1, 1, ONE),
        (["--cpu", "--num_processes", "2"], 2, 1, ONE),
        (["--num-processes=2"], 2, 1, ONE),
        (["--multi_gpu", "--num_processes", "2"], 2, 2, TORCHRUN),
        (["--use_fsdp", "--num_processes", "3", "-m", "hftune", "classify", "--num_processes", "9"], 3, 3, TORCHRUN),
        ([*CONFIG], 1, 1, ONE),
        ([*CONFIG, "--multi_gpu", "--num_processes", "4"], 4, 4, TORCHRUN),
    ],
)
def test_processes_that_a_command_starts(arguments: list[str], requested: int, started: int, how: str) -> None:
    plan, _ = examine_launch(arguments, gpus=())
    assert (plan.requested, plan.started, plan.how) == (requested, started, how)


def test_a_config_for_several_cpus_starts_one(tmp_path: Path) -> None:
    plan, _ = examine_launch(config(tmp_path, distributed_type="MULTI_CPU", num_processes=4, use_cpu=True), gpus=())
    assert (plan.requested, plan.started) == (4, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config_file", "nowhere.yaml"], ["`nowhere.yaml` does not exist"]),
        (["--nmu_processes", "2"], ["unrecognized arguments: --nmu_processes"]),
        (["--multi_gpu", "--cpu"], ["only use one of"]),
        (["--multi_gpu", "--num_processes", "1"], ["at least 2 processes"]),
        (["--num_processes", "two"], ["invalid int value"]),
    ],
)
def test_what_accelerate_refuses(arguments: list[str], words: list[str]) -> None:
    with hftune_error("accelerate launch", *words):
        read_launch(arguments)


def states(arguments: Sequence[str], gpus: Sequence[str] = (), recipe: Recipe | None = None) -> dict[str, Any]:
    _, findings = examine_launch(arguments, recipe, gpus)
    return findings


@pytest.mark.parametrize(
    ("arguments", "gpus", "what", "state", "words"),
    [
        (["--cpu", "--num_processes", "2"], 0, "processes", "bad", [2, "accelerate", 1]),
        (["--num_processes", "1"], 4, "processes", "note", ["1, on one of 4 GPUs"]),
        (["--multi_gpu", "--num_processes", "4"], 4, "processes", "ok", ["world size 4"]),
        (["--multi_gpu", "--num_processes", "4"], 4, "devices", "ok", ["a GPU, a GPU, a GPU, a GPU"]),
        (["--multi_gpu", "--num_processes", "4"], 2, "devices", "bad", ["4 processes for 2 GPUs"]),
        (["--multi_gpu", "--num_processes", "2", "--gpu_ids", "0,3"], 4, "devices", "ok", ["a GPU, a GPU"]),
        (["--multi_gpu", "--num_processes", "64"], 0, "devices", "note", ["64 processes"]),
        (["--multi_gpu", "--num_processes", "3", "--num_machines", "2"], 8, "processes", "bad", [3, "divided", 2]),
        (["--multi_gpu", "--num_processes", "4", "--num_machines", "2"], 8, "machines", "bad", ["main process"]),
        (["--use_fsdp", "--num_processes", "2"], 4, "sharding", "bad", ["FSDP1"]),
        (["--use_fsdp", "--fsdp_version", "2", "--num_processes", "2"], 4, "sharding", "ok", ["FSDP2"]),
        (["--use_fsdp", "--fsdp_version", "2", "--num_processes", "2"], 0, "sharding", "bad", ["nothing on a CPU"]),
        (["--use_megatron_lm", "--num_processes", "2"], 4, "sharding", "bad", ["Megatron-LM"]),
        (["--mixed_precision", "fp16", "--cpu"], 0, "precision", "bad", ["fp16 needs a GPU"]),
        (["--mixed_precision", "fp8"], 0, "precision", "bad", ["mixed_precision fp8"]),
        (["--dynamo_backend", "inductor"], 0, "compiling", "bad", ["train.torch_compile is off"]),
        ([], 0, "effective batch size", "note", ["recipe"]),
    ],
)
def test_what_is_wrong_with_a_launch(
    arguments: list[str], gpus: int, what: str, state: str, words: list[str | int]
) -> None:
    finding = states(arguments, GPUS[:gpus])[what]
    assert finding.state == state and mentions(finding.found, *words), finding
    assert finding.hint or state == "ok"


def test_the_effective_batch_size() -> None:
    recipe = load_recipe(None, {"train.per_device_train_batch_size": 8, "train.gradient_accumulation_steps": 2})
    arguments = ["--multi_gpu", "--num_processes", "2"]
    plan, _ = examine_launch(arguments, recipe, ())
    assert plan.effective_batch_size == plan.as_dict()["effective_batch_size"] == 32
    finding = states(arguments, (), recipe)["effective batch size"]
    assert finding.found == "32 = 8 per device × 2 accumulation steps × 2 processes"
    assert mentions(finding.hint, 16, "--batch-size 4")
    assert states([], (), recipe)["effective batch size"].state == "ok"
    muon = load_recipe(None, {"train.optim": "muon"})
    assert states(["--use_fsdp", "--fsdp_version", "2"], GPUS, muon)["sharding"].state == "bad"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_launch_configs(path: Path) -> None:
    assert len(SHIPPED) >= 5
    arguments = ["--config_file", str(path)]
    if "several" in path.stem:
        arguments += ["--machine_rank", "1", "--main_process_ip", "first"]
    found = states(arguments, GPUS, load_recipe(None))
    bad = {what for what, finding in found.items() if finding.state == "bad"}
    assert bad <= ({"sharding"} if "deepspeed" in path.stem else set())  # it may not be installed
    assert found["processes"].state == "ok" and found["precision"].state == "ok"
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert f"--config_file recipes/accelerate/{path.name}" in path.read_text(encoding="utf-8")


def test_launch_configs_are_no_recipes() -> None:
    assert not [entry.name for entry in shipped_recipes() if entry.name.startswith(("accelerate", "slurm"))]


def test_doctor_on_the_command_line(hftune: Run) -> None:
    words = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--recipe", "classify/reviews", "--json")
    code, out, _ = hftune("doctor", "--launch", *words)
    reported = json.loads(out)
    assert code == 0
    assert reported["launch"]["world_size"] == 2 and reported["launch"]["effective_batch_size"] == 64
    assert {check["what"] for check in reported["checks"]} >= {
        "processes",
        "devices",
        "precision",
        "sharding",
        "effective batch size",
    }
    code, out, _ = hftune("doctor", "--launch", "--cpu", "--num_processes", "2")
    assert code == 1 and mentions(out, "accelerate", 1)
    code, _, err = hftune("doctor", "--num_processes", "2")
    assert code == 2 and "--launch" in err


class Above:
    """A launcher as psutil shows it."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.command, self.variables = list(command), environment

    def cmdline(self) -> list[str]:
        return self.command

    def environ(self) -> dict[str, str]:
        return self.variables


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (("python", "/bin/accelerate", "launch", "--cpu", "--num_processes", "3", "-m", "hftune"), "3 processes"),
        (("python", "/bin/accelerate", "launch", "--cpu", "-m", "hftune"), None),
        (("bash", "run.sh"), "several processes"),
    ],
)
def test_one_process_in_place_of_several(
    command: tuple[str, ...], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_fewer_than_requested(1)  # no launcher
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    refuse_fewer_than_requested(1)  # one was asked for
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(psutil, "Process", lambda: type("Me", (), {"parent": lambda self: Above(*command)})())
    if refused is None:
        refuse_fewer_than_requested(1)
        return
    with pytest.raises(HftuneError, match=refused):
        refuse_fewer_than_requested(1)
    monkeypatch.setenv("RANK", "0")
    refuse_fewer_than_requested(1)  # started as number 0 of 1


def test_a_launcher_that_sets_one_thread_of_its_own_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not threads_are_chosen()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ("python", "accelerate", "launch", "-m", "hftune")
    for above, chosen in (
        (None, True),
        (Above(*command), False),
        (Above(*command, OMP_NUM_THREADS="1"), True),
        (Above(*command[:3], "--num_cpu_threads_per_process", "1", *command[3:]), True),
    ):
        monkeypatch.setattr(launcher, "launched_by", lambda above=above: above)
        assert threads_are_chosen() is chosen


def test_numbers_of_processes_come_from_any_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (world_size(), local_world_size()) == (1, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert (world_size(), local_world_size()) == (4, 2)
    assert contact_is_lost(RuntimeError("[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1"))
    assert not contact_is_lost(RuntimeError("shape mismatch"))


@pytest.mark.parametrize(
    ("precision", "reported", "chosen"),
    [
        (None, "no", "fp32"),
        ("fp32", "no", "fp32"),
        (None, "bf16", "bf16"),
        (None, "fp16", "fp16"),
        ("bf16", "bf16", "bf16"),
        ("fp32", "bf16", None),
        (None, "fp8", None),
        ("bf16", "fp16", None),
    ],
)
def test_the_launch_config_chooses_the_precision_only_where_the_recipe_leaves_it_open(
    precision: str | None, reported: str, chosen: str | None
) -> None:
    cpu = reported == "no"
    if chosen:
        assert precision_for(precision, cpu=cpu, launcher=reported) == chosen
        return
    stated = precision or "left to the machine"
    with hftune_error(f"mixed_precision {reported}", f"precision is {stated}"):
        precision_for(precision, cpu=cpu, launcher=reported)


def test_only_the_first_to_fail_prints_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert first_to_fail() and first_to_fail()
    received = []
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / rank / "error.json"))
        received.append(first_to_fail())
    assert received == [True, False]


def test_flags_of_a_copied_command_count(hftune: Run) -> None:
    command = "accelerate launch --multi_gpu --num_processes 2 -m hftune classify --recipe classify/reviews"
    for flags, rows in (((), 64), (("--batch-size", "16"), 32), (("--batch-size=8", "--auto-find-batch-size"), 16)):
        _, out, err = hftune("doctor", "--launch", "--json", *command.split(), *flags)
        assert json.loads(out)["launch"]["effective_batch_size"] == rows, err


def test_commands_for_one_process(monkeypatch: pytest.MonkeyPatch, hftune: Run) -> None:
    refuse_several("sweep")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuse_several("sweep")  # a machine that sets it for other programs
    monkeypatch.setenv("LOCAL_RANK", "0")
    for command in ("sweep", "recipes", "boolq --method all"):
        code, _, err = hftune(*command.split())
        assert code == 2 and mentions(err, "one process", 2)


SHIMS = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nSLURM_NODEID=0 setsid "$@" & echo $! > step\nwait $!',
    "scancel": 'echo "scancel $*" >> calls; kill -USR1 -- "-$(cat step)"',
    "scontrol": 'if [ "$1" = show ]; then echo first; else echo "scontrol $*" >> calls; fi',
    "accelerate": 'echo "accelerate $*" >> calls; exit 3',
}


# hftune, as far as a job script knows it: saves on SIGUSR1 the first time, is done the second.
IN_PLACE_OF_HFTUNE = """
import signal, sys, time
from pathlib import Path

def save(*_):
    Path("saved").write_text("0")
    sys.exit(138)

with open("calls", "a") as calls:
    calls.write(f"python {' '.join(sys.argv[1:])}\\n")
if Path("saved").exists():
    sys.exit(int(Path("saved").read_text()))
signal.signal(signal.SIGUSR1, save)
Path("started").touch()
time.sleep(240)
"""


@pytest.fixture
def cluster(here: Path) -> Callable[..., subprocess.Popen[str]]:
    """Slurm's commands as scripts, and hftune's end as a job script sees it."""
    (here / "bin").mkdir()
    for name, body in {**SHIMS, "python": f"#!{sys.executable} -S\n{IN_PLACE_OF_HFTUNE}"}.items():
        path = here / "bin" / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
    path = os.pathsep.join([str(here / "bin"), os.environ["PATH"]])

    def submit(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        slurm = {"SLURM_JOB_ID": "77", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "first"}
        return subprocess.Popen(
            ["bash", str(ROOT / "recipes/slurm/train.sbatch"), *arguments],
            env={**os.environ, "PATH": path, **slurm, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )

    return submit


def wait_until_handled(pid: int) -> None:
    """Until a process has no signal pending and waits again."""
    time.sleep(0.2)
    status = Path(f"/proc/{pid}/status")
    while status.exists() and not re.search(r"State:\s+S.*ShdPnd:\s+0+\n", status.read_text(), re.DOTALL):
        time.sleep(0.02)


@pytest.mark.posix("a Slurm job is a shell script")
def test_a_slurm_job_saves_is_requeued_and_resumes(here: Path, cluster: Callable[..., subprocess.Popen[str]]) -> None:
    job = cluster("classify", "--output", "my runs/a")
    while job.poll() is None and not (here / "started").exists():
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)  # must not end the script before the step has saved
    wait_until_handled(job.pid)  # bash loses one of two that come together
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=240) == 0
    calls = ["python -m hftune classify --output my runs/a --resume", "scancel --signal=USR1 77", "scontrol requeue 77"]
    assert (here / "calls").read_text().splitlines() == calls
    again = cluster("classify", "--output", "my runs/a")
    assert again.wait(timeout=240) == 0
    assert (here / "calls").read_text().splitlines() == [*calls, calls[0]]


@pytest.mark.posix("a Slurm job is a shell script")
def test_a_slurm_job_that_fails_stays_out_of_the_queue(
    here: Path, cluster: Callable[..., subprocess.Popen[str]]
) -> None:
    (here / "saved").write_text("2")
    assert cluster("classify", "-o", "a").wait(timeout=240) == 2
    assert "requeue" not in (here / "calls").read_text()
    (here / "calls").unlink()
    several = cluster("classify", "--output", "a", SLURM_NNODES="2", SLURM_GPUS_ON_NODE="4", CONFIG="fsdp.yaml")
    assert several.wait(timeout=240) == 3
    assert (here / "calls").read_text().split(" -m ")[0].split() == [
        *("accelerate", "launch", "--config_file", "fsdp.yaml", "--num_machines", "2", "--num_processes", "8"),
        *("--same_network", "--machine_rank", "0", "--main_process_ip", "first", "--main_process_port", "20077"),
    ]
    nowhere = cluster("classify")
    assert nowhere.wait(timeout=240) == 2
    assert nowhere.stderr is not None and "add --output" in nowhere.stderr.read()
