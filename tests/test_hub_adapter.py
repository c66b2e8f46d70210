"""An adapter on a hub at 127.0.0.1: published by a run, then used from there by somebody who has nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from finished_run import tokenizer
from loopback_hub import LoopbackHub, serve
from tiny import BRIEF, csv_folder
from transformers import BertConfig, BertModel

ROOT = str(Path(__file__).parent.parent)
BASE = "someone/encoder"
ADAPTER = "tester/adapter"

PLAIN_PEFT = f"""
import json
from peft import PeftConfig, PeftModel
from transformers import AutoModelForSequenceClassification
config = PeftConfig.from_pretrained("{ADAPTER}")
base = AutoModelForSequenceClassification.from_pretrained(config.base_model_name_or_path, num_labels=2)
model = PeftModel.from_pretrained(base, "{ADAPTER}")
print(json.dumps([config.base_model_name_or_path, config.peft_type, model.num_parameters()]))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    """A hub that holds a small encoder, and after the first test an adapter of it."""
    folder = tmp_path_factory.mktemp("encoder")
    words = tokenizer(folder.parent / "words", max_length=64)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder)
    words.save_pretrained(folder)
    with serve() as running:
        running.add_model(BASE, folder)
        yield running


@pytest.fixture(scope="module")
def published(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home in which the adapter was trained and from which it was published."""
    home = tmp_path_factory.mktemp("trained")
    csv_folder(home / "rows")
    settings = ["--model", BASE, "--data", "rows", "--method", "lora", *BRIEF, "--output", "run"]
    done = hftune(hub, home, "classify", *settings, "--push-to-hub", ADAPTER, token=hub.token)
    assert done.returncode == 0, done.stderr
    return home


def hftune(hub: LoopbackHub, home: Path, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hftune", *arguments]
    return hub.run(command, home, token=token, PYTHONPATH=ROOT, OMP_NUM_THREADS="1")


def test_the_adapter_alone_is_published_and_names_its_base(hub: LoopbackHub, published: Path) -> None:
    files = hub.files(ADAPTER)
    assert "adapter_model.safetensors" in files and "hftune.json" in files
    assert not any(name.startswith("base/") or name == "model.safetensors" for name in files)
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == BASE


def test_somebody_else_predicts_and_scores_with_it(hub: LoopbackHub, published: Path, tmp_path: Path) -> None:
    csv_folder(tmp_path / "rows")
    trained = [json.loads(line) for line in (published / "run" / "predictions" / "test.jsonl").read_text().splitlines()]
    there = hftune(hub, tmp_path, "predict", ADAPTER, *(row["text"] for row in trained))
    assert there.returncode == 0, there.stderr
    for line, row in zip(there.stdout.splitlines(), trained, strict=True):
        assert json.loads(line)["probabilities"] == pytest.approx(row["probabilities"], abs=1e-6)
    scored = hftune(hub, tmp_path, "evaluate", ADAPTER, "--data", "rows", "--split", "test", "--json")
    own = json.loads((published / "run" / "metrics.json").read_text())["splits"]["test"]
    assert json.loads(scored.stdout)["splits"]["test"]["loss"] == pytest.approx(own["loss"], abs=1e-6)


def test_plain_peft_loads_it(hub: LoopbackHub, published: Path, tmp_path: Path) -> None:
    done = hub.run([sys.executable, "-c", PLAIN_PEFT], tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    name, kind, parameters = json.loads(done.stdout.splitlines()[-1])
    own = json.loads((published / "run" / "metrics.json").read_text())["parameters"]["total"]
    copy_of_the_head = 16 * 2 + 2  # peft keeps the untrained one, too
    assert (name, kind, parameters) == (BASE, "LORA", own + copy_of_the_head)
