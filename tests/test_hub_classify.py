"""``hftune classify`` with a model of the Hub, served on 127.0.0.1: trained, published, refused where it must be."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from facts import mentions
from finished_run import tokenizer
from hub_client import Client
from loopback_hub import serve
from transformers import BertConfig, BertModel

ROOT = str(Path(__file__).parent.parent)
TINYBERT = "someone/tiny-encoder"  # not a name of tests/replicas.py: all tests share one hub


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TinyBERT's architecture with fresh weights and a vocabulary of a few words: what the Hub holds under its name."""
    folder = tmp_path_factory.mktemp("tinybert")
    words = tokenizer(folder.parent / "words", max_length=512)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=312,
        num_hidden_layers=4,
        num_attention_heads=12,
        intermediate_size=1200,
    )
    BertModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    lines = ["text,label"]
    for number in range(40):
        lines.append(f"the food was great {number},good" if number % 2 else f"the soup was cold {number},bad")
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


SETTINGS = ("--data", "rows.csv", "--max-length", "16", "--set", "train.max_steps=3", "--output", "run")


def classify(
    client: Client, home: Path, *more: str, model: str = TINYBERT, token: str | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    return client.hftune("classify", "--model", model, *SETTINGS, *more, token=token, cwd=home, **extra)


def test_trained_from_the_hub_and_published(client: Client, home: Path, encoder: Path) -> None:
    hub = client.hub
    hub.add_model(TINYBERT, encoder)
    done = classify(client, home, "--hub-model-id", "tester/reviews-tinybert", "--json", token=hub.token)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    metrics = json.loads((home / "run" / "metrics.json").read_text())
    assert metrics["verified"] is True and metrics["labels"] == ["bad", "good"]
    assert answer["splits"] == metrics["splits"]
    assert metrics["parameters"]["total"] > 4_000_000  # four layers, 312 wide
    config = json.loads((home / "run" / "model" / "config.json").read_text())
    shape = (config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"])
    assert shape == (4, 312, 1200) and config["id2label"] == {"0": "bad", "1": "good"}

    files = hub.files("tester/reviews-tinybert")
    local = {path.name: path.read_bytes() for path in (home / "run" / "model").iterdir()}
    assert files.keys() == local.keys() | {".gitattributes"}
    assert {name for name in local if files[name] != local[name]} == {"README.md"}  # the address was filled in
    card = files["README.md"].decode()
    assert f"base_model: {TINYBERT}" in card and 'model="tester/reviews-tinybert"' in card
    assert mentions(done.stderr, "published and verified")

    assert hub.token not in done.stdout + done.stderr
    kept = [path for path in (*home.rglob("*"), *client.caches.rglob("*")) if path.is_file()]
    assert [path for path in kept if hub.token.encode() in path.read_bytes()] == []
    assert any(path.name == "optimizer.pt" for path in kept)  # checkpoints were among what was searched


def test_a_wrong_token_is_reported_before_training(client: Client, home: Path, encoder: Path) -> None:
    client.hub.add_model(TINYBERT, encoder)
    done = classify(client, home, "--hub-model-id", "tester/x", token="hf_wrong")
    assert done.returncode == 2 and mentions(done.stderr, "token")
    assert not (home / "run").exists()


def test_without_a_network(home: Path) -> None:
    """In a process of its own: where the Hub is, is read once."""
    command = [sys.executable, "-m", "hftune", "classify", "--model", TINYBERT, *SETTINGS]
    with serve() as hub, socket.socket() as taken:  # bound and never listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = hub.run(command, home, HF_ENDPOINT=nowhere, PYTHONPATH=ROOT, OMP_NUM_THREADS="1")
    assert done.returncode == 2, done.stderr
    assert "Hub" in done.stderr and "--model scratch:bert-tiny" in done.stderr
    assert "Traceback" not in done.stderr and not (home / "run").exists()


def test_an_unknown_name_is_reported(client: Client, home: Path) -> None:
    done = classify(client, home, model="someone/unheard-of")
    assert done.returncode == 2 and "no model 'someone/unheard-of'" in done.stderr and not (home / "run").exists()
