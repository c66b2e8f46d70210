"""The same steps on every device: what is tried, what is told, what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hftune.bench import device_report, devices
from hftune.bench.devices import Measured, Setting, Size, measure, settings
from hftune.cli.bench import run_devices
from hftune.machine import Trial

pytestmark = pytest.mark.numeric

TINY = Size(layers=1, heads=2, width=16, length=8, rows=2, vocabulary=32)
PLAIN = Setting("cpu", 1, "fp32", False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


def test_every_way_there_is(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "threads_for", lambda jobs: 6)
    monkeypatch.setattr(devices, "cpu_trial", lambda name: Trial(name, "works", speed=2.0))
    monkeypatch.setattr(devices, "has_compiler", lambda: True)
    found, notes = settings()
    assert len(found) == len(set(found)) == 16
    assert {one.threads for one in found} == {1, 2, 4, 6} and {one.compiled for one in found} == {False, True}
    assert notes == ["there is no GPU here (neither CUDA nor MPS): the processor alone is measured"]


def test_what_is_missing_is_told_and_left_out(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "threads_for", lambda jobs: 1)
    monkeypatch.setattr(devices, "cpu_trial", lambda name: Trial(name, "works", speed=0.25))
    monkeypatch.setattr(devices, "has_compiler", lambda: False)
    found, notes = settings()
    assert found == [PLAIN]
    assert any("no C++ compiler" in note for note in notes) and any("bf16 runs at 0.25×" in note for note in notes)


def test_a_gpu_is_measured_beside_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(devices, "threads_for", lambda jobs: 1)
    monkeypatch.setattr(devices, "cpu_trial", lambda name: Trial(name, "crashed"))
    found, notes = settings()
    assert {one.device for one in found} == {"cpu", "cuda"} and not any("GPU" in note for note in notes)
    assert {one.precision for one in found if one.device == "cuda"} == {"fp32", "bf16"}


def test_the_same_work_gives_the_same_loss_with_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    one, two = (measure(Setting("cpu", threads, "fp32", False), 3, TINY) for threads in (1, 2))
    assert not one.failed and one.loss == pytest.approx(two.loss, abs=1e-4)
    assert one.steps_per_second > 0 and one.tokens_per_second == pytest.approx(16 * one.steps_per_second, rel=0.01)
    assert 0 < one.share_of_peak < 1 and one.peak_memory_mb > 0 and one.cpu_seconds_per_step >= 0
    assert torch.get_num_threads() == before


def test_a_way_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel\nand more")

    monkeypatch.setattr(devices, "_stepper", broken)
    result = measure(PLAIN, 2, TINY)
    assert result.failed == "RuntimeError: no kernel"
    assert "RuntimeError: no kernel" in device_report.cells(result)


def test_table_plot_and_json(
    hftune: Callable[..., tuple[int, str, str]], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretended(setting: Setting, steps: int) -> Measured:
        if setting.compiled:
            return Measured(setting, failed="RuntimeError: no kernel")
        return Measured(setting, 2.0, 4096.0, 0.5, 0.25, 300.0, 1.0, 2.5)

    monkeypatch.setattr(devices, "measure", pretended)
    monkeypatch.setattr(devices, "has_compiler", lambda: True)
    code, out, err = hftune("bench", "devices", "--steps", "2")
    assert code == 0 and "4,096" in out and "0.25" in out and "no kernel" in out and "devices/devices.png" in out
    assert torch.accelerator.is_available() or "there is no GPU here" in err
    assert ": cpu, threads: 1, fp32\n" in err and "fp32, compiled\n" in err, "told as each begins"
    written = json.loads((here / "devices" / "devices.json").read_text())
    assert {row["precision"] for row in written["results"]} >= {"fp32"} and written["machine"]["cpu"]
    assert (here / "devices" / "devices.png").read_bytes().startswith(b"\x89PNG")
    (here / "file").write_text("")
    code, _, err = hftune("bench", "devices", "--output", "file")
    assert code == 2 and "is a file" in err


def test_who_stops_keeps_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = measure(PLAIN, 2, TINY)
    ways = iter([done])
    monkeypatch.setattr(devices, "settings", lambda: ([PLAIN, PLAIN], []))
    monkeypatch.setattr(devices, "measure", lambda setting, steps: next(ways))
    with pytest.raises(StopIteration):
        run_devices(2, tmp_path / "kept")
    assert len(json.loads((tmp_path / "kept" / "devices.json").read_text())["results"]) == 1
