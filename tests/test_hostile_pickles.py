"""Pickles that run code when they are unpickled: every command that could read one refuses it, and nothing runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error, mentions
from finished_run import finished_run
from hub_client import Client
from replicas import REPLICAS, to_bin
from safetensors.torch import load_file
from tiny import QUICK, csv_folder

from hftune import pickles
from hftune.files import sha256
from hftune.training.checkpoints import _seal, fault, refuse_unsafe

Hftune = Callable[..., tuple[int, str, str]]
TINYBERT = "huawei-noah/TinyBERT_General_4L_312D"
SAFELY = "can't be loaded safely"


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "code-ran"


def formats(mark: Path) -> dict[str, bytes]:
    """The bomb in each way that a file can hold it."""
    legacy = mark.with_name("legacy.bin")
    torch.save({"x": Bomb(mark)}, legacy, _use_new_zipfile_serialization=False)
    return {
        "zip": to_bin({"weight": torch.ones(2), "x": Bomb(mark)}),
        "legacy": legacy.read_bytes(),
        "bare": pickle.dumps(Bomb(mark)),
    }


def check_refusal(err: str, file: str, mark: Path) -> None:
    error = err.partition("Error:")[2]
    assert SAFELY in error and file in error, err
    assert "weights_only=False" not in err and "Traceback" not in err and "safe_globals" not in err
    assert not mark.exists()


def test_the_bomb_works(mark: Path) -> None:
    """Otherwise the other tests would prove nothing."""
    pickle.loads(formats(mark)["bare"])
    assert mark.exists()


@pytest.mark.parametrize("how", ["zip", "legacy", "bare"])
def test_weights(here: Path, hftune: Hftune, mark: Path, how: str) -> None:
    csv_folder(here / "rows")
    folder = REPLICAS[TINYBERT].write(here / "model")
    (folder / "pytorch_model.bin").write_bytes(formats(mark)[how])
    for command in (
        ("classify", "--data", "rows", "--model", "model", "--output", "run"),
        ("predict", "model", "a text"),
        ("evaluate", "model", "--data", "rows"),
    ):
        code, _, err = hftune(*command)
        assert code == 2, err
        check_refusal(err, "pytorch_model.bin", mark)
    assert not (here / "run").exists()


def test_a_shard(here: Path, hftune: Hftune, mark: Path) -> None:
    folder = REPLICAS["someone/sharded-bin"].write(here / "model")
    (folder / "pytorch_model-00002-of-00002.bin").write_bytes(formats(mark)["zip"])
    code, _, err = hftune("classify", "--data", str(csv_folder(here / "rows")), "--model", "model")
    assert code == 2
    check_refusal(err, "pytorch_model-00002-of-00002.bin", mark)


def test_the_masked_language_model_of_a_joint_run(here: Path, hftune: Hftune, mark: Path) -> None:
    folder = REPLICAS["someone/half-precision"].write(here / "model")
    inner = REPLICAS[TINYBERT].write(folder / "mlm")
    (inner / "pytorch_model.bin").write_bytes(formats(mark)["zip"])
    code, _, err = hftune("joint", "--data", str(csv_folder(here / "rows")), "--unlabeled", "train", "--model", "model")
    assert code == 2
    check_refusal(err, ".bin", mark)


def test_weights_on_the_hub(client: Client, mark: Path) -> None:
    csv_folder(client.home / "rows")
    files = REPLICAS[TINYBERT].files() | {"pytorch_model.bin": formats(mark)["zip"]}
    client.hub.add_model("evil/model", files)
    for command in (["classify", "--data", "rows", "--model", "evil/model"], ["predict", "evil/model", "a text"]):
        done = client.hftune(*command)
        assert done.returncode == 2
        check_refusal(done.stderr, "pytorch_model.bin", mark)


def test_safetensors_come_first(here: Path, hftune: Hftune, mark: Path) -> None:
    """A .bin file next to safetensors is not opened."""
    folder = REPLICAS["bert-base-uncased"].write(here / "model")
    (folder / "pytorch_model.bin").write_bytes(formats(mark)["zip"])
    code, _, err = hftune("classify", "--data", str(csv_folder(here / "rows")), "--model", "model", "--dry-run")
    assert code == 0 and not mark.exists(), err


def test_a_damaged_bin(here: Path, hftune: Hftune, mark: Path) -> None:
    """A pointer of git-lfs instead of the file, as after a clone without git-lfs."""
    folder = REPLICAS[TINYBERT].write(here / "model")
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    code, _, err = hftune("classify", "--data", str(csv_folder(here / "rows")), "--model", "model")
    assert code == 2
    check_refusal(err, "torch.save did not write it", mark)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint, stopped before its end: no model and no scores."""
    from typer.testing import CliRunner

    from hftune.cli import commands as cli

    home = tmp_path_factory.mktemp("trained")
    csv_folder(home / "rows")
    for name, more in (("whole", ()), ("adapter", ("--method", "lora"))):
        command = ["classify", "--data", str(home / "rows"), *QUICK, "--output", str(home / name), *more]
        result = CliRunner().invoke(cli.app, command, prog_name="hftune")
        assert result.exit_code == 0, result.stderr
    return home


@pytest.mark.parametrize("method", ["evaluate", "predict", "classify"])
def test_an_adapter(trained: Path, here: Path, hftune: Hftune, mark: Path, method: str) -> None:
    shutil.copytree(trained / "rows", here / "rows")
    folder = Path(shutil.copytree(trained / "adapter" / "model", here / "adapter"))
    state = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    command = {
        "evaluate": ("evaluate", "adapter", "--data", "rows"),
        "predict": ("predict", "adapter", "a text"),
        "classify": ("classify", "--data", "rows", "--model", "adapter", "--dry-run"),
    }[method]
    (folder / "adapter_model.bin").write_bytes(to_bin(state))
    code, _, err = hftune(*command)
    assert code == 0 and mentions(err, "adapter_model.bin", "torch.load(weights_only=True)"), err
    (folder / "adapter_model.bin").write_bytes(formats(mark)["zip"])
    code, _, err = hftune(*command)
    assert code == 2
    check_refusal(err, "adapter_model.bin", mark)


def sealed_anew(checkpoint: Path) -> None:
    """Write the checksums again, as the one who changed a file could: the manifest is no signature."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("seal")
    for name in manifest["files"]:
        file = checkpoint / name
        manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    path.write_text(json.dumps({**manifest, "seal": _seal(manifest)}))
    assert fault(checkpoint) is None


def unfinished(trained: Path, run: Path) -> Path:
    """The run before it was scored; its newest checkpoint."""
    shutil.copytree(trained / "whole", run)
    shutil.rmtree(run / "model")
    for name in ("metrics.json", "report.html"):
        (run / name).unlink()
    return max((run / "checkpoints").glob("checkpoint-*"))


def resume(trained: Path, run: Path, hftune: Hftune) -> tuple[int, str, str]:
    return hftune("classify", "--data", str(trained / "rows"), *QUICK, "--output", str(run), "--resume")


def test_a_checkpoint_resumes(trained: Path, here: Path, hftune: Hftune) -> None:
    """And training_args.bin, which plain Trainer writes, is not read, whatever is in it."""
    checkpoint = unfinished(trained, here / "run")
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth"} <= {path.name for path in checkpoint.iterdir()}
    (checkpoint / "training_args.bin").write_bytes(formats(here / "code-ran")["zip"])
    sealed_anew(checkpoint)
    code, _, err = resume(trained, here / "run", hftune)
    assert code == 0 and not (here / "code-ran").exists(), err


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt"])
def test_a_checkpoint(trained: Path, here: Path, hftune: Hftune, mark: Path, name: str) -> None:
    checkpoint = unfinished(trained, here / "run")
    (checkpoint / name).write_bytes(formats(mark)["zip"])
    sealed_anew(checkpoint)
    code, _, err = resume(trained, here / "run", hftune)
    assert code == 2
    check_refusal(err, name, mark)
    assert "don't resume" in err


def test_a_sharded_checkpoint(tmp_path: Path, mark: Path) -> None:
    """torch unpickles the index of a sharded optimizer state (FSDP) freely: it is read with a short list of classes."""
    import torch.distributed.checkpoint as distributed

    distributed.save(
        {"state": {"w": torch.ones(4), "step": 3}}, checkpoint_id=tmp_path / "checkpoint-1" / "optimizer_0"
    )
    refuse_unsafe(tmp_path / "checkpoint-1")
    metadata = tmp_path / "checkpoint-1" / "optimizer_0" / ".metadata"
    for name in (".metadata", "__0.metadata"):  # torch reads the second, of one process, if there is no first
        metadata.unlink(missing_ok=True)
        metadata.with_name(name).write_bytes(formats(mark)["bare"])
        with hftune_error(str(name), "safely"):
            refuse_unsafe(tmp_path / "checkpoint-1")
    assert not mark.exists()


def test_no_load_during_training_is_unsafe(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed passes weights_only=False, and the environment can force it."""
    (tmp_path / "state.pt").write_bytes(formats(mark)["zip"])
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pickles.weights_only():
        assert pickles.fault(tmp_path / "good.pt") is None and pickles.fault(tmp_path / "state.pt")
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1" and pickles.FORCE not in os.environ
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    with pickles.weights_only(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "state.pt", weights_only=False)
    assert not mark.exists()
    torch.load(tmp_path / "state.pt", weights_only=False)
    assert mark.exists()


def test_push(here: Path, hftune: Hftune, mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_run(here / "run")
    (run.model / "pytorch_model.bin").write_bytes(formats(mark)["zip"])
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    code, _, err = hftune("push", "run", "tester/x")
    assert code == 2 and "pytorch_model.bin" in err and not mark.exists(), err
