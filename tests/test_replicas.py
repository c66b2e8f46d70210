"""Checkpoints as they are on the Hub: each replica is trained from, saved, reloaded and predicted with, or refused."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from facts import hftune_error, mentions
from hub_client import Client
from replicas import REPLICAS, bert_tiny, to_bin
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from tiny import BRIEF, csv_folder

from hftune.models.causal import load_causal_lm, load_saved_lm
from hftune.models.classifier import Classifier, load_sequence_classifier
from hftune.models.load import load_tokenizer
from hftune.models.masked import load_joint, load_masked_lm
from hftune.models.settings import ModelSection

METHODS = ("full", "lora")
FAST = {
    ("huawei-noah/TinyBERT_General_4L_312D", "full"),
    ("gpt2", "lora"),
}
"""What make test trains; the other pairs are slow tests."""
PAIRS = [
    pytest.param(name, method, marks=() if (name, method) in FAST else pytest.mark.slow)
    for name in REPLICAS
    for method in METHODS
]
NEW_MODULES = {"classifier", "pre_classifier", "score", "pooler"}
"""What no pretrained checkpoint has; a classifier's head counts too where its labels are other ones."""
NOTICE = "Loading {} with torch.load(weights_only=True): {} has no safetensors weights"
TINYBERT, BERT, BERT_TINY = "huawei-noah/TinyBERT_General_4L_312D", "bert-base-uncased", "prajjwal1/bert-tiny"
MINILM, POOLED = "sentence-transformers/all-MiniLM-L6-v2", ["configuration_pooled.py", "modeling_pooled.py"]
CONVERSION = re.compile(r"discussions|convert|/api/spaces|refs%2Fpr")

PIPELINE = """
import json
from transformers import pipeline
ask = pipeline("text-classification", model="run/model", top_k=None, device="cpu", trust_remote_code=OWN_CODE)
texts = json.loads(open("texts.json").read())
found = ask(texts, batch_size=8, truncation=True)
print(json.dumps([{one["label"]: one["score"] for one in row} for row in found]))
"""


def classify(client: Client, model: str, *more: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return client.hftune("classify", "--model", model, "--data", "rows", *BRIEF, "--output", "run", *more, **extra)


@pytest.fixture
def home(client: Client) -> Path:
    csv_folder(client.home / "rows")
    return client.home


def loaded(name: str, folder: Path) -> tuple[torch.nn.Module, tuple[str, ...]]:
    section = ModelSection(model_name_or_path=str(folder))
    tokenizer = load_tokenizer(section, [])
    assert tokenizer.unk_token_id not in tokenizer("the food was great")["input_ids"][1:-1]
    made = load_sequence_classifier(section, tokenizer, ("bad", "good"))
    assert made.model.config.pad_token_id == tokenizer.pad_token_id is not None
    return made.model, made.fresh_modules


@pytest.mark.parametrize("name", REPLICAS)
def test_every_weight_of_the_encoder_is_loaded(name: str, tmp_path: Path) -> None:
    """By value: a weight under an old name or without its prefix would be initialized at random and nothing fails."""
    model, fresh = loaded(name, REPLICAS[name].write(tmp_path / name))
    assert {module.split(".")[0] for module in fresh} <= NEW_MODULES and fresh
    prefix = f"{model.base_model_prefix}."
    given = {
        key.removeprefix(prefix).replace(".gamma", ".weight").replace(".beta", ".bias"): value
        for key, value in REPLICAS[name].state().items()
    }
    encoder = {key.removeprefix(prefix): value for key, value in model.state_dict().items() if key.startswith(prefix)}
    assert len(encoder) > 10
    for key, value in encoder.items():
        assert value.dtype == torch.float32 and torch.equal(value, given[key].float()), key
    assert {value.dtype for value in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_trained_saved_reloaded_and_predicted_with(client: Client, home: Path, name: str, method: str) -> None:
    hub, replica = client.hub, REPLICAS[name]
    if name not in hub.repos():
        hub.add_model(name, replica.files())
    asked = len(hub.requests)
    done = classify(client, name, "--method", method)
    assert done.returncode == 0, done.stderr
    file = {"bin": "pytorch_model.bin", "bin shards": "pytorch_model-*.bin"}.get(replica.weights)
    assert (NOTICE.format(file, name) in done.stderr) == (file is not None)
    assert done.stderr.count("torch.load(weights_only=True)") == (file is not None)
    model = home / "run" / "model"
    assert json.loads((home / "run" / "metrics.json").read_text())["verified"] is True
    weights = load_file(model / ("model.safetensors" if method == "full" else "adapter_model.safetensors"))
    assert {value.dtype for value in weights.values()} == {torch.float32}
    if method == "full":
        assert json.loads((model / "config.json").read_text())["dtype"] == "float32"
    else:
        assert json.loads((model / "adapter_config.json").read_text())["base_model_name_or_path"] == name
    rows = [json.loads(line) for line in (home / "run" / "predictions" / "test.jsonl").read_text().splitlines()]
    there = client.hftune("predict", "run", *(row["text"] for row in rows))
    assert there.returncode == 0, there.stderr
    for line, row in zip(there.stdout.splitlines(), rows, strict=True):
        assert json.loads(line)["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
    if method == "full":
        (home / "texts.json").write_text(json.dumps([row["text"] for row in rows]))
        # Its 1_Pooling/config.json states the mean, which transformers' own class can't read.
        own_code = name == MINILM
        assert [path.name for path in sorted(model.glob("*.py"))] == (POOLED if own_code else [])
        piped = client.python(PIPELINE.replace("OWN_CODE", str(own_code)))
        assert piped.returncode == 0, piped.stderr
        for found, row in zip(json.loads(piped.stdout.splitlines()[-1]), rows, strict=True):
            assert found == pytest.approx(row["probabilities"], abs=1e-5)
    assert [one.path for one in hub.requests[asked:] if CONVERSION.search(one.path) or one.method == "POST"] == []


def test_no_conversion_is_requested(client: Client, home: Path) -> None:
    """Whatever is in the environment: transformers would open a pull request in the repository."""
    client.hub.add_model("someone/only-bin", REPLICAS[TINYBERT].files())
    asked = len(client.hub.requests)
    done = classify(client, "someone/only-bin", "--dry-run", DISABLE_SAFETENSORS_CONVERSION="0")
    assert done.returncode == 0, done.stderr
    slept = client.python("import time\ntime.sleep(0.5)")  # a thread would have been heard by now
    assert slept.returncode == 0
    seen = [f"{one.method} {one.path}" for one in client.hub.requests[asked:]]
    assert any("pytorch_model.bin" in one for one in seen)
    assert [one for one in seen if CONVERSION.search(one) or one.startswith("POST")] == []


def test_a_renamed_repository(client: Client, home: Path) -> None:
    client.hub.add_model("old-name", REPLICAS[BERT].files())
    client.hub.rename("old-name", "google-bert/new-name")
    done = classify(client, "old-name", "--dry-run")
    assert done.returncode == 0, done.stderr
    redirected = {one.path.rpartition("/")[2] for one in client.hub.requests if one.status == 307}
    assert {"config.json", "model.safetensors", "old-name"} <= redirected


@pytest.mark.parametrize("logged_in", [False, True])
def test_a_gated_repository(client: Client, home: Path, logged_in: bool) -> None:
    name = f"meta/gated-{logged_in}"
    client.hub.add_model(name, REPLICAS[BERT].files())
    client.hub.gate(name)
    done = classify(client, name, token=client.hub.token if logged_in else None)
    assert done.returncode == 2 and mentions(done.stderr, str(name), "gated"), done.stderr
    assert mentions(done.stderr, "terms") and not (home / "run").exists()
    client.hub.gate(name, members=[client.hub.user])
    let_in = classify(client, name, "--dry-run", token=client.hub.token)
    assert let_in.returncode == 0, let_in.stderr


def test_safetensors_on_a_pull_request(client: Client, home: Path) -> None:
    """The base of the adapter is recorded with the ref, so that the same weights are loaded again."""
    name, other = "someone/with-a-pull-request", replace(REPLICAS[TINYBERT], weights="safetensors")
    twice = to_safetensors({key: 2 * value for key, value in other.state().items()}, metadata={"format": "pt"})
    client.hub.add_model(name, REPLICAS[TINYBERT].files())
    client.hub.add_model(name, other.files() | {"model.safetensors": twice}, revision="refs/pr/1")
    done = classify(client, name, "--method", "lora", "--set", "model.model_revision=refs/pr/1")
    assert done.returncode == 0 and "weights_only" not in done.stderr, done.stderr
    model = home / "run" / "model"
    assert json.loads((model / "adapter_config.json").read_text())["revision"] == "refs/pr/1"
    assert json.loads((model / "hftune.json").read_text())["base_revision"] == "refs/pr/1"
    assert "model_revision: refs/pr/1" in (home / "run" / "recipe.yaml").read_text()
    row = json.loads((home / "run" / "predictions" / "test.jsonl").read_text().splitlines()[0])
    there = client.hftune("predict", "run", row["text"])
    assert json.loads(there.stdout)["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
    main = classify(client, name, "--dry-run", "--output", "other")
    assert main.returncode == 0 and NOTICE.format("pytorch_model.bin", name) in main.stderr, main.stderr


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (("tf_model.h5",), ["tf_model.h5 (TensorFlow)"]),
        (("flax_model.msgpack",), ["flax_model.msgpack (Flax)"]),
        (("model.ckpt",), ["model.ckpt", "TensorFlow"]),
        (("bert_model.ckpt.index",), ["bert_model.ckpt.index (a TensorFlow checkpoint)"]),
        ((), ["no weights"]),
    ],
)
def test_weights_in_other_formats_are_refused(tmp_path: Path, files: tuple[str, ...], found: list[str]) -> None:
    folder = replace(REPLICAS[BERT], weights="none", others=files).write(tmp_path / "model")
    with hftune_error("model.safetensors", "pytorch_model.bin") as caught:
        loaded(BERT, folder)
    assert mentions(caught.value.message.split("found")[1], *found) and "transformers 4" in caught.value.hint
    with hftune_error("no weights"):
        Classifier.load(str(folder))


def test_weights_in_other_formats_on_the_hub(client: Client, home: Path) -> None:
    client.hub.add_model("someone/tensorflow", replace(REPLICAS[BERT], weights="none").files())
    for command in (["classify", "--data", "rows", "--model"], ["predict"]):
        done = client.hftune(*command, "someone/tensorflow", *(["text"] if command == ["predict"] else []))
        assert done.returncode == 2 and "found flax_model.msgpack (Flax), rust_model.ot (Rust)" in done.stderr, (
            done.stderr
        )
        assert "Hub" not in done.stderr
    assert list((home / "runs").glob("*")) == []


@pytest.mark.parametrize(("file", "found"), [("model-q4.gguf", "model-q4.gguf (GGUF)"), ("README.md", "no weights")])
def test_a_repository_without_a_model(client: Client, home: Path, file: str, found: str) -> None:
    client.hub.add_model(f"someone/only-{file}", {file: b"x"})
    done = classify(client, f"someone/only-{file}")
    assert done.returncode == 2 and f"found {found}" in done.stderr, done.stderr
    assert "sentencepiece" not in done.stderr


def test_a_config_without_model_type(tmp_path: Path) -> None:
    """transformers 4 knew the architecture from the name; architectures in config.json tell more."""
    replica = REPLICAS[BERT_TINY]
    named = replace(replica, config={**replica.config, "architectures": ["BertForMaskedLM"]})
    loaded(BERT_TINY, named.write(tmp_path / "mine"))
    with hftune_error("model_type", "'other'"):
        loaded(BERT_TINY, replica.write(tmp_path / "other"))


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    """The name of a repository may be wrong; a random encoder would look like a bad model."""
    folder = REPLICAS[BERT_TINY].write(tmp_path / "distilbert-tiny")
    config = REPLICAS["distilbert-base-uncased"].settings()
    config = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    config["vocab_size"] = REPLICAS[BERT_TINY].settings()["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with hftune_error("distilbert", "weights of the encoder"):
        loaded(BERT_TINY, folder)


WITHOUT_SENTENCEPIECE = """
from transformers.utils import import_utils
from hftune.cli import main
available, message = import_utils.BACKENDS_MAPPING["sentencepiece"]
import_utils.BACKENDS_MAPPING["sentencepiece"] = (lambda: False, message)
main(["classify", "--model", "microsoft/deberta-v3-small", "--data", "rows"])
"""


def test_without_sentencepiece(client: Client, home: Path) -> None:
    client.hub.add_model("microsoft/deberta-v3-small", REPLICAS["microsoft/deberta-v3-small"].files())
    done = client.python(WITHOUT_SENTENCEPIECE)
    assert done.returncode == 2 and "pip install 'hftune[sentencepiece]'" in done.stderr, done.stderr
    assert "is a SentencePiece model" in done.stderr and "tiktoken" not in done.stderr.partition("Error:")[2]


def test_a_classifier_without_a_padding_token(tmp_path: Path) -> None:
    """Someone else's GPT-2 classifier: texts of several lengths in one batch give what each gives alone."""
    torch.manual_seed(0)
    state = REPLICAS["gpt2"].state() | {"score.weight": torch.randn(2, 16)}
    folder = REPLICAS["gpt2"].write(tmp_path / "gpt2")
    (folder / "model.safetensors").unlink()
    headed = {key if key.startswith("score") else f"transformer.{key}": value for key, value in state.items()}
    (folder / "pytorch_model.bin").write_bytes(to_bin(headed))
    classifier = Classifier.load(str(folder), device="cpu")
    texts = ["the food was great", "the staff was poor on day 5 of visit 1", "tea"]
    alone = [classifier.logits([text])[0].tolist() for text in texts]
    assert classifier.logits(texts).tolist() == [pytest.approx(row, abs=1e-5) for row in alone]


def test_a_half_precision_model_is_saved_in_full_precision(tmp_path: Path) -> None:
    """An fp16 checkpoint of a classifier is also used in fp32."""
    replica = replace(
        REPLICAS["someone/five-star-classifier"],
        dtype=torch.float16,
        config={**REPLICAS["someone/five-star-classifier"].config, "torch_dtype": "float16"},
    )
    classifier = Classifier.load(str(replica.write(tmp_path / "half")), device="cpu")
    assert {value.dtype for value in classifier.model.parameters()} == {torch.float32}
    classifier.save(tmp_path / "saved")
    assert {value.dtype for value in load_file(tmp_path / "saved" / "model.safetensors").values()} == {torch.float32}
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "float32"


def test_half_precision_for_every_other_kind_of_model(tmp_path: Path) -> None:
    """Masked and causal language models, and a classifier with a masked language model, are trained in fp32 as well."""
    encoder = REPLICAS["someone/half-precision"].write(tmp_path / "encoder")
    gpt = replace(REPLICAS["gpt2"], dtype=torch.float16, config={**REPLICAS["gpt2"].config, "torch_dtype": "float16"})
    section, writer = (
        ModelSection(model_name_or_path=str(encoder)),
        ModelSection(model_name_or_path=str(gpt.write(tmp_path / "gpt"))),
    )
    tokenizer = load_tokenizer(section, [])
    for model in (
        load_masked_lm(section, tokenizer).model,
        load_joint(section, tokenizer, ("bad", "good")).model,
        load_causal_lm(writer, load_tokenizer(writer, [], padded=False)).model,
        load_saved_lm(writer.model_name_or_path, writer, "cpu")[0],
    ):
        assert {value.dtype for value in model.parameters()} == {torch.float32}, type(model).__name__
        assert model.config.dtype == torch.float32


def test_the_replicas_are_no_copies_of_each_other() -> None:
    assert len(REPLICAS) >= 18
    assert set(dict(bert_tiny(REPLICAS[BERT_TINY].settings()))) < set(REPLICAS[TINYBERT].state())
