"""An adapter on a hub at 127.0.0.1: published by a run, then used from there by somebody who has nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from finished_run import tokenizer
from hub_client import Client
from tiny import BRIEF, csv_folder
from transformers import BertConfig, BertModel

BASE = "someone/small-encoder"
ADAPTER = "tester/lora"

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
def published(hub_client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home in which the adapter was trained and from which it was published; its base is on the Hub."""
    home = tmp_path_factory.mktemp("trained")
    words = tokenizer(home / "words", max_length=64)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(home / "encoder")
    words.save_pretrained(home / "encoder")
    hub_client.hub.add_model(BASE, home / "encoder")
    csv_folder(home / "rows")
    settings = ["--model", BASE, "--data", "rows", "--method", "lora", *BRIEF, "--output", "run"]
    done = hub_client.hftune("classify", *settings, "--hub-model-id", ADAPTER, token=hub_client.hub.token, cwd=home)
    assert done.returncode == 0, done.stderr
    return home


def test_the_adapter_alone_is_published_and_names_its_base(client: Client, published: Path) -> None:
    files = client.hub.files(ADAPTER)
    assert "adapter_model.safetensors" in files and "hftune.json" in files
    assert not any(name.startswith("base/") or name == "model.safetensors" for name in files)
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == BASE


def test_somebody_else_predicts_and_scores_with_it(client: Client, published: Path, tmp_path: Path) -> None:
    csv_folder(tmp_path / "rows")
    trained = [json.loads(line) for line in (published / "run" / "predictions" / "test.jsonl").read_text().splitlines()]
    there = client.hftune("predict", ADAPTER, *(row["text"] for row in trained))
    assert there.returncode == 0, there.stderr
    for line, row in zip(there.stdout.splitlines(), trained, strict=True):
        assert json.loads(line)["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
    scored = client.hftune("evaluate", ADAPTER, "--data", "rows", "--split", "test", "--json")
    own = json.loads((published / "run" / "metrics.json").read_text())["splits"]["test"]
    assert json.loads(scored.stdout)["splits"]["test"]["loss"] == pytest.approx(own["loss"], abs=1e-5)


def test_plain_peft_loads_it(client: Client, published: Path, tmp_path: Path) -> None:
    done = client.python(PLAIN_PEFT)
    assert done.returncode == 0, done.stderr
    name, kind, parameters = json.loads(done.stdout.splitlines()[-1])
    own = json.loads((published / "run" / "metrics.json").read_text())["parameters"]["total"]
    copy_of_the_head = 16 * 2 + 2  # peft keeps the untrained one, too
    assert (name, kind, parameters) == (BASE, "LORA", own + copy_of_the_head)


def test_training_starts_from_it(client: Client, published: Path, tmp_path: Path) -> None:
    """Its weights are merged into those of the base: a model like any other, with the head for the same labels."""
    csv_folder(tmp_path / "rows")
    done = client.hftune("classify", "--model", ADAPTER, "--data", "rows", *BRIEF, "--output", "on")
    assert done.returncode == 0, done.stderr
    model = tmp_path / "on" / "model"
    assert json.loads((model / "config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}
    assert not (model / "adapter_config.json").exists()
    metrics = json.loads((tmp_path / "on" / "metrics.json").read_text())
    assert metrics["parameters"]["trainable"] == metrics["parameters"]["total"]
    assert "newly initialized" not in done.stderr  # the adapter's own head


def test_an_adapter_that_starts_from_it_has_the_merged_weights_for_a_base(
    client: Client, published: Path, tmp_path: Path
) -> None:
    """The name of an adapter is no name for a base."""
    csv_folder(tmp_path / "rows")
    done = client.hftune("classify", "--model", ADAPTER, "--data", "rows", "--method", "lora", *BRIEF, "--output", "on")
    assert done.returncode == 0, done.stderr
    model = tmp_path / "on" / "model"
    assert json.loads((model / "adapter_config.json").read_text())["base_model_name_or_path"] == "./base"
    assert (model / "base" / "model.safetensors").is_file() and not (model / "base" / "adapter_config.json").exists()
