"""What a CPU can do is found by trial: every way a trial can end, what follows from it, and that it is tried once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from training_case import tiny_bert

from hftune import machine
from hftune.machine import bf16_pays, cpu_trial, try_again
from hftune.training.fit import _muon
from hftune.training.muon import muon_for
from hftune.training.settings import TrainSection

pytestmark = pytest.mark.posix("processes there do not die by signals")

Hftune = Callable[..., tuple[int, str, str]]
DIE = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
ANSWER = "import json; print(json.dumps({{'outcome': 'works', 'speed': {speed}, 'detail': ''}}))"
FAKES = {
    "crash": DIE,
    "crash without a cap": f"import os\nif os.environ.get('ONEDNN_MAX_CPU_ISA') != 'AVX512_CORE_BF16':\n    {DIE}\n"
    + ANSWER.format(speed=0.7),
    "kill": DIE.replace("SIGILL", "SIGKILL"),
    "hang": "import time; time.sleep(60)",
    "slow": ANSWER.format(speed=0.2),
    "fast": ANSWER.format(speed=2.1),
    "a little faster": ANSWER.format(speed=1.05),
    "wrong": 'print(\'{"outcome": "wrong", "speed": 0.0, "detail": "a product is off by 0.9 of its norm"}\')',
    "broken": "raise SystemExit('no torch here')",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache in which nothing is known yet, in memory and on disk."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HFTUNE_CACHE", str(folder))
    for variable in machine.ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    cpu_trial.cache_clear()
    yield folder
    cpu_trial.cache_clear()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Replace what the child process runs; the file that is returned has a line per trial that was started."""
    count = tmp_path / "trials"

    def install(name: str) -> Path:
        script = f"open({str(count)!r}, 'a').write('tried\\n')\n{FAKES[name]}"
        monkeypatch.setattr(
            machine, "module_command", lambda module: ([sys.executable, "-c", script], dict(os.environ))
        )
        monkeypatch.setattr(machine, "TIME_LIMIT", 1.0 if name == "hang" else 60.0)
        return count

    return install


def test_a_real_trial_on_this_machine(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cpu_trial("bf16")
    assert found.outcome in ("works", "crashed", "hung")
    assert (found.speed > 0) == (found.works or found.works_with is not None)
    (stored,) = (own_cache / "machine").glob("*/entry.json")
    assert json.loads(stored.read_text())["info"]["torch"] == metadata.version("torch")
    cpu_trial.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it is known already"))
    assert cpu_trial("bf16") == found


@pytest.mark.parametrize(
    ("name", "outcome", "works", "pays", "words"),
    [
        ("crash", "crashed", False, False, "SIGILL"),
        ("crash without a cap", "crashed", False, False, "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 it works, at 0.7×"),
        ("kill", "failed", False, False, "SIGKILL"),
        ("hang", "hung", False, False, "did not finish"),
        ("slow", "works", True, False, "0.2× the speed of fp32"),
        ("a little faster", "works", True, False, "1.1× the speed"),
        ("fast", "works", True, True, "2.1× the speed of fp32"),
        ("wrong", "wrong", False, False, "off by 0.9"),
        ("broken", "failed", False, False, "no torch here"),
    ],
)
def test_every_end_of_a_trial_is_an_answer(
    name: str, outcome: str, works: bool, pays: bool, words: str, fake: Callable[[str], Path]
) -> None:
    fake(name)
    found = cpu_trial("bf16")
    assert (found.outcome, found.works, found.pays) == (outcome, works, pays)
    assert words in str(found)
    assert bf16_pays("cpu") is pays and bf16_pays("mps") is False


@pytest.mark.parametrize(("name", "trials"), [("fast", 1), ("crash", 3), ("hang", 1), ("broken", 2), ("kill", 2)])
def test_it_is_tried_once_and_reported_once(
    name: str, trials: int, fake: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Only a failure to try at all is tried again; a crash is tried under both caps."""
    count = fake(name)
    first = cpu_trial("bf16")
    cpu_trial.cache_clear()
    assert cpu_trial("bf16") == first
    assert len(count.read_text().splitlines()) == trials
    warned = [record for record in caplog.records if "fp32" in record.getMessage()]
    assert len(warned) == {"fast": 0, "broken": 2, "kill": 2}.get(name, 1)


def test_other_kernels_are_another_question(fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    fake("crash without a cap")
    assert not cpu_trial("bf16").works
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    cpu_trial.cache_clear()
    assert cpu_trial("bf16").works and cpu_trial("bf16").works_with is None


def test_a_damaged_answer_is_tried_again(own_cache: Path, fake: Callable[[str], Path]) -> None:
    count = fake("fast")
    cpu_trial("bf16")
    (stored,) = (own_cache / "machine").glob("*/entry.json")
    for content in ("", "[]", '{"outcome": "works"}', '{"name": 1'):
        stored.write_text(content)
        cpu_trial.cache_clear()
        assert cpu_trial("bf16").pays
    assert len(count.read_text().splitlines()) == 5


def test_a_cache_that_can_not_be_written_stops_nothing(
    tmp_path: Path, fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "file" / "cache"))
    fake("fast")
    assert cpu_trial("bf16").pays and try_again("bf16").pays


def test_trying_again_replaces_the_answer(fake: Callable[[str], Path]) -> None:
    fake("crash")
    assert not cpu_trial("bf16").works
    fake("fast")
    assert not cpu_trial("bf16").works
    assert try_again("bf16").pays and cpu_trial("bf16").pays


def test_the_child_refuses_what_it_does_not_know() -> None:
    command, environment = machine.module_command("hftune.machine")
    done = subprocess.run([*command, "fp3"], env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode != 0 and "fp3" in done.stderr


# ---- what follows from it ----


@pytest.mark.parametrize(("name", "bf16"), [("crash", False), ("hang", False), ("slow", False), ("fast", True)])
def test_muon_takes_the_fastest_precision_that_works(name: str, bf16: bool, fake: Callable[[str], Path]) -> None:
    fake(name)
    section = TrainSection(optim="muon", learning_rate=1e-3, num_train_epochs=1)
    _, settings = _muon(section, tiny_bert(), "cpu")
    assert settings["bf16"] is bf16


def test_muon_computes_in_the_precision_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []

    def watched(stacked: torch.Tensor) -> torch.Tensor:
        seen.append(stacked.dtype)
        return stacked

    monkeypatch.setattr("hftune.training.muon.orthogonalize", watched)
    for bf16 in (False, True):
        model = tiny_bert()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        muon_for(model, lr=0.1, weight_decay=0.0, bf16=bf16).step()
    assert set(seen[: len(seen) // 2]) == {torch.float32} and set(seen[len(seen) // 2 :]) == {torch.bfloat16}


@pytest.mark.parametrize(("name", "bf16"), [("crash", False), ("slow", True), ("fast", True)])
def test_a_resumed_run_keeps_the_precision_it_began_with_where_it_works(
    name: str, bf16: bool, fake: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    fake(name)
    saved = muon_for(tiny_bert(), lr=0.1, weight_decay=0.0, bf16=True).state_dict()
    resumed = muon_for(tiny_bert(), lr=0.1, weight_decay=0.0, bf16=False)
    resumed.load_state_dict(saved)
    assert {group["bf16"] for group in resumed.param_groups} == {bf16}
    assert any("continues in fp32" in record.getMessage() for record in caplog.records) is not bf16


def test_a_checkpoint_without_the_setting_was_made_in_fp32() -> None:
    saved = muon_for(tiny_bert(), lr=0.1, weight_decay=0.0, bf16=True).state_dict()
    for group in saved["param_groups"]:
        del group["bf16"]
    resumed = muon_for(tiny_bert(), lr=0.1, weight_decay=0.0, bf16=True)
    resumed.load_state_dict(saved)
    assert {group["bf16"] for group in resumed.param_groups} == {False}


def test_bf16_that_crashes_is_refused_before_training(here: Path, hftune: Hftune, fake: Callable[[str], Path]) -> None:
    fake("crash without a cap")
    tiny.csv_folder(here / "data")
    cpu = ("--set", "train.use_cpu=true", "--set", "train.bf16=true")
    code, _, err = hftune("classify", "--data", "data", "--output", "run", *tiny.QUICK, *cpu)
    assert code == 2 and "SIGILL" in err and "leave train.bf16 out" in err
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in err
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [("crash", "note", "SIGILL"), ("slow", "ok", "0.2×"), ("fast", "ok", "2.1×"), ("hang", "note", "did not finish")],
)
def test_doctor_shows_the_finding(
    name: str, state: str, words: str, fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hftune.pipeline import doctor

    fake(name)
    finding = doctor._bf16()
    assert finding.state == state and words in finding.found
    assert doctor._bf16 in doctor.CHECKS.values()


def test_a_crash_is_simulated_through_the_whole_command(
    tmp_path: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sitecustomize.py that kills the trial replaces a CPU that can't execute AMX."""
    lines = ("import os, signal, sys", "if 'hftune.machine' in sys.orig_argv:", f"    {DIE.partition('; ')[2]}")
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, out, err = hftune("doctor", "--json")
    checks: dict[str, Any] = {check["what"]: check for check in json.loads(out)["checks"]}
    assert checks["bf16 on the CPU"]["state"] == "note" and "SIGILL" in checks["bf16 on the CPU"]["found"]
    assert code == 0, err
