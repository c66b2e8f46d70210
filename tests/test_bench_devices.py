"""`hftune bench devices`: which setups are measured, what is reported, what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hftune.machine import Trial
from hftune.models.mingpt import MinGPTConfig
from hftune.pipeline import bench
from hftune.pipeline.bench import DeviceSetup, DeviceSpeed, Workload, device_setups, measure, random_tokens

pytestmark = pytest.mark.numeric

TINY = MinGPTConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16, block_size=8, vocab_size=32)
WORK = random_tokens(TINY, 2)
PLAIN = DeviceSetup("cpu", 1, "fp32", False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


def test_every_setup(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "threads_for", lambda jobs: 6)
    monkeypatch.setattr(bench, "cpu_trial", lambda name: Trial(name, "works", speed=2.0))
    monkeypatch.setattr(bench, "find_compiler", lambda: True)
    found, notes = device_setups()
    assert len(found) == len(set(found)) == 16
    assert {one.threads for one in found} == {1, 2, 4, 6} and {one.compiled for one in found} == {False, True}
    (note,) = notes
    assert "CUDA" in note and "MPS" in note


def test_what_is_missing_is_reported_and_left_out(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "threads_for", lambda jobs: 1)
    monkeypatch.setattr(bench, "cpu_trial", lambda name: Trial(name, "works", speed=0.25))
    monkeypatch.setattr(bench, "find_compiler", lambda: False)
    found, notes = device_setups()
    assert found == [PLAIN]
    assert any("no C++ compiler" in note for note in notes) and any("bf16 runs at 0.25×" in note for note in notes)


def test_a_gpu_is_measured_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(bench, "threads_for", lambda jobs: 1)
    monkeypatch.setattr(bench, "cpu_trial", lambda name: Trial(name, "crashed"))
    found, notes = device_setups()
    assert {one.device for one in found} == {"cpu", "cuda"} and not any("GPU" in note for note in notes)
    assert {one.precision for one in found if one.device == "cuda"} == {"fp32", "bf16"}


def test_the_same_work_gives_the_same_loss_with_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    one, two = (measure(DeviceSetup("cpu", threads, "fp32", False), 3, WORK) for threads in (1, 2))
    assert not one.failed and one.loss == pytest.approx(two.loss, abs=1e-4)
    assert one.steps_per_second > 0 and one.tokens_per_second == pytest.approx(16 * one.steps_per_second, rel=0.01)
    assert 0 < one.share_of_peak < 1 and one.peak_memory_mb > 0 and one.cpu_seconds_per_step >= 0
    assert torch.get_num_threads() == before


def test_a_setup_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel\nand more")

    monkeypatch.setattr(bench, "_stepper", broken)
    result = measure(PLAIN, 2, WORK)
    assert result.failed == "RuntimeError: no kernel"
    assert "RuntimeError: no kernel" in result.cells()


@pytest.mark.renders
def test_table_plot_and_json(
    hftune: Callable[..., tuple[int, str, str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretended(setup: DeviceSetup, steps: int, workload: Workload) -> DeviceSpeed:
        if setup.compiled:
            return DeviceSpeed(setup, failed="RuntimeError: no kernel")
        return DeviceSpeed(setup, 2.0, 4096.0, 0.5, 0.25, 300.0, 1.0, 2.5)

    monkeypatch.setattr(bench, "measure", pretended)
    monkeypatch.setattr(bench, "find_compiler", lambda: True)
    code, out, err = hftune("bench", "devices", "--steps", "2")
    assert code == 0 and "4,096" in out and "0.25" in out and "no kernel" in out and "devices/devices.png" in out
    assert torch.accelerator.is_available() or "no GPU" in err
    assert ": cpu, 1 thread, fp32\n" in err and "fp32, compiled\n" in err, "reported as each begins"
    written = json.loads((here / "devices" / "devices.json").read_text())
    assert {row["precision"] for row in written["results"]} >= {"fp32"} and written["machine"]["cpu"]
    assert (here / "devices" / "devices.png").read_bytes().startswith(b"\x89PNG")
    (here / "file").write_text("")
    code, _, err = hftune("bench", "devices", "--output", "file")
    assert code == 2 and "--output file" in err


def test_an_interrupted_run_keeps_what_it_measured(
    hftune: Callable[..., tuple[int, str, str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = measure(PLAIN, 2, WORK)
    ways = iter([done])

    def next_way(*_: object) -> DeviceSpeed:
        try:
            return next(ways)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(bench, "device_setups", lambda devices: ([PLAIN, PLAIN], []))
    monkeypatch.setattr(bench, "measure", next_way)
    assert hftune("bench", "devices", "--output", "kept")[0] != 0
    assert len(json.loads((here / "kept" / "devices.json").read_text())["results"]) == 1


def test_a_chosen_model_device_and_part_of_the_data(
    hftune: Callable[..., tuple[int, str, str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "threads_for", lambda jobs: 1)
    monkeypatch.setattr(bench, "find_compiler", lambda: False)
    monkeypatch.setattr(bench, "cpu_trial", lambda name: Trial(name, "crashed"))
    chosen = ("--model", "scratch:bert-tiny", "--data", "reviews", "--max-train-samples", "20", "--max-length", "64")
    code, out, err = hftune(
        "bench", "devices", *chosen, "--batch-size", "8", "--steps", "3", "--devices", "cpu", "--json"
    )
    assert code == 0, err
    report = json.loads(out)
    assert report["workload"] == "scratch:bert-tiny, 20 examples of reviews, batch size 8"
    (found,) = report["results"]
    assert found["device"] == "cpu" and not found["failed"]
    assert 1 < found["loss"] < 2.5, "five labels: about ln 5"
    tokens = found["tokens_per_second"] / found["steps_per_second"]
    assert 8 * 8 < tokens < 8 * 62, "padding is not counted"
    assert 0 < found["share_of_peak"] < 1
    assert json.loads((here / "devices" / "devices.json").read_text()) == report


def test_a_device_that_is_not_there_is_refused(hftune: Callable[..., tuple[int, str, str]], no_gpu: None) -> None:
    code, _, err = hftune("bench", "devices", "--devices", "cpu,cuda")
    assert code == 2 and "'cuda'" in err and "cpu" in err
    assert hftune("bench", "devices", "--epochs", "3")[0] == 2, "what has no effect is refused"
