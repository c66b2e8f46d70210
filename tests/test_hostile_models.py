"""Model folders and repositories that somebody else made: no code unless asked, and nothing outside them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error
from finished_run import finished_run

from hftune.errors import HftuneError
from hftune.models.adapter import WEIGHTS, open_adapter
from hftune.models.checkpoint import open_checkpoint
from hftune.models.classifier import Classifier
from hftune.models.hub_files import ADAPTER as CONFIG
from hftune.models.hub_files import ModelFiles
from hftune.models.load import load_config, load_tokenizer
from hftune.models.settings import ModelSection
from hftune.models.trust import refuse_outside_paths, trusted

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("made") / "run").model


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A classifier in a folder of the test's own."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def refused(folder: Path, *expected: str, **settings: Any) -> None:
    with hftune_error(*expected):
        Classifier.load(str(folder), section=ModelSection(model_name_or_path=str(folder), **settings))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def test_no_pickle_runs_code(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": Bomb(tmp_path / "ran")}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "weights_only=True")
    (folder / "other.safetensors").write_bytes(b"")
    refused(folder, "pytorch_model.bin", "weights_only=True")
    assert not (tmp_path / "ran").exists()


def adapter(folder: Path, **values: Any) -> Path:
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(b"")
    config = {"base_model_name_or_path": "someone/encoder", "peft_type": "LORA", "revision": None}
    (folder / CONFIG).write_text(json.dumps({**config, **values}))
    return folder


@pytest.mark.parametrize("base", ["../secret", "/etc", "~/x", "./base/../..", "a/b/c", "", None, 5, ["x"], "x\x1b[31m"])
def test_an_adapter_names_a_base_on_the_hub_or_next_to_it(tmp_path: Path, base: Any) -> None:
    made = adapter(tmp_path / "adapter", base_model_name_or_path=base)
    with hftune_error("model on the Hub"):
        open_adapter(open_checkpoint(ModelSection(model_name_or_path=str(made))))


def test_an_adapter_can_not_have_pickles_or_imports(tmp_path: Path) -> None:
    made = adapter(tmp_path / "adapter")
    assert open_adapter(open_checkpoint(ModelSection(model_name_or_path=str(made)))).base.name == "someone/encoder"
    evil = adapter(tmp_path / "imports", megatron_config={}, megatron_core="evil")
    with pytest.raises(HftuneError, match="Megatron"):
        open_adapter(open_checkpoint(ModelSection(model_name_or_path=str(evil))))
    (made / WEIGHTS).unlink()
    torch.save({"x": Bomb(tmp_path / "ran")}, made / "adapter_model.bin")
    (made / "other.safetensors").write_bytes(b"")
    with hftune_error("adapter_model.bin", "safely"):
        open_adapter(open_checkpoint(ModelSection(model_name_or_path=str(made))))
    (made / "adapter_model.bin").unlink()
    with hftune_error("adapter_model.safetensors", "adapter_model.bin"):
        open_adapter(open_checkpoint(ModelSection(model_name_or_path=str(made))))
    assert not (tmp_path / "ran").exists()


@pytest.mark.posix("makes symbolic links")
def test_nothing_outside_a_model_folder_is_read_through_it(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("[PAD]\n[UNK]\nmy password\n")
    (folder / "vocab.txt").symlink_to(secret)
    refused(folder, "vocab.txt", str(secret))
    with hftune_error("vocab.txt", str(secret)):
        load_tokenizer(ModelSection(model_name_or_path="scratch:bert-tiny", tokenizer_name=str(folder)), [])
    with hftune_error("vocab.txt", str(secret)):
        load_config(ModelSection(model_name_or_path=str(folder)), None)  # type: ignore[arg-type]
    (folder / "vocab.txt").unlink()
    (folder / "base").symlink_to(tmp_path)
    refused(folder, "base", str(tmp_path))
    (folder / "base").unlink()
    shutil.copy(folder / "model.safetensors", tmp_path / "model.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "../model.safetensors")


@pytest.mark.posix("makes symbolic links")
def test_links_in_a_snapshot_of_the_cache_do_not_lead_outside(tmp_path: Path) -> None:
    """Its files are links to those of the same repository."""
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "1").write_text("{}")
    (cache / "snapshots" / "x").mkdir(parents=True)
    (cache / "snapshots" / "x" / "config.json").symlink_to("../../blobs/1")
    refuse_outside_paths(ModelFiles(str(cache / "snapshots" / "x")))
    (cache / "snapshots" / "x" / "vocab.txt").symlink_to(tmp_path / "secret")
    with hftune_error("vocab.txt", str(tmp_path / "secret")):
        refuse_outside_paths(ModelFiles(str(cache / "snapshots" / "x")))


CODE = "from pathlib import Path\nPath({!r}).touch()\nclass Mine: pass\n"


def test_code_next_to_a_model_is_not_run_without_consent(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.py").write_text(CODE.format(str(tmp_path / "ran")))
    change(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    refused(folder, str(folder), "Python")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:10], COMMIT.upper()])
def test_code_of_the_hub_runs_only_at_a_commit(revision: str | None) -> None:
    section = ModelSection(model_name_or_path="someone/model", model_revision=revision, trust_remote_code=True)
    with hftune_error("trust_remote_code", "someone/model") as caught:
        trusted(ModelFiles("someone/model"), section)
    assert "model.model_revision=COMMIT" in caught.value.hint
    with hftune_error("trust_remote_code", "someone/model"):  # wherever it would be loaded
        Classifier.load("someone/model", section=section)


def test_code_in_another_repository_is_refused(folder: Path) -> None:
    section = ModelSection(model_name_or_path=str(folder), trust_remote_code=True)
    assert trusted(ModelFiles(str(folder)), section) is True
    assert (
        trusted(
            ModelFiles("someone/model"),
            ModelSection(model_name_or_path="someone/model", model_revision=COMMIT, trust_remote_code=True),
        )
        is True
    )
    assert trusted(ModelFiles("someone/model"), ModelSection(model_name_or_path="someone/model")) is False
    change(folder / "config.json", auto_map={"AutoModel": "evil/code--modeling.Model"})
    with hftune_error("evil/code"):
        trusted(ModelFiles(str(folder)), section)


def test_a_model_without_its_head_is_refused(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if not name.startswith("classifier")},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    refused(folder, "it has no weights for classifier")


def test_onnx_next_to_other_weights_is_ignored(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody can lay a model.onnx into a folder; what was trained and published is in the weights."""
    expected = Classifier.load(str(folder), device="cpu").logits(["great food"])
    (folder / "model.onnx").write_bytes(b"no graph at all")
    caplog.set_level("INFO", "hftune")
    assert (Classifier.load(str(folder), device="cpu").logits(["great food"]) == expected).all()
    assert sum("Ignoring model.onnx" in line and "model.safetensors" in line for line in caplog.messages) == 1
    (folder / "model.safetensors").unlink()
    refused(folder, "ONNX")


def test_onnx_runs_no_code(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.onnx").write_bytes(b"")
    (folder / "mine.py").write_text(CODE.format(str(tmp_path / "ran")))
    change(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.Mine"})
    refused(folder, str(folder), "Python")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"id2label": {"0": 1, "1": 2, "2": 3}}),
        ("config.json", {"id2label": {"0": "a", "1": "a", "2": "a"}}),
        ("config.json", {"hidden_size": -1}),
        ("config.json", {"vocab_size": "many"}),
        ("config.json", {"model_type": "\x1b[31m<script>"}),
        ("hftune.json", {"labels": "bad"}),
        ("hftune.json", {"max_length": -5}),
        ("hftune.json", {"truncation": "../x"}),
        ("tokenizer_config.json", {"tokenizer_class": "os.system"}),
    ],
)
def test_a_wrong_configuration_is_reported(folder: Path, file: str, values: dict[str, Any]) -> None:
    change(folder / file, **values)
    try:
        Classifier.load(str(folder))
    except HftuneError as error:
        assert error.hint
    else:
        assert file == "tokenizer_config.json"  # an unknown name means the tokenizer's own kind


NEIGHBORS = ("accuracy.py", "accuracy/accuracy.py", "json.py", "torch.py", "datasets.py", "evaluate.py", "sklearn.py")


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    """As `accelerate launch -m hftune` starts it, in a folder of traps."""
    for name in NEIGHBORS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CODE.format(str(tmp_path / "ran")))
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"row {n},{'ab'[n % 2]}\n" for n in range(30)))
    root = str(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "hftune", "baseline", "--data", "rows.csv", "--json"]
    environment = {"PYTHONPATH": root, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in json.loads(done.stdout)["baselines"]["majority"]["validation"]
    assert not (tmp_path / "ran").exists()
