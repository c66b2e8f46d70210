"""Models that name files outside themselves: none is opened, and nothing of it reaches what is saved."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from facts import hftune_error, mentions
from finished_run import LABELS, finished_run, tokenizer
from hub_client import Client
from safetensors.torch import load_file, save_file
from tiny import BRIEF, csv_folder
from transformers import BertForSequenceClassification

from hftune.models.adapter import OTHER_FILES, open_adapter
from hftune.models.checkpoint import open_checkpoint
from hftune.models.classifier import Classifier
from hftune.models.hub_files import ModelFiles
from hftune.models.settings import ModelSection
from hftune.models.trust import refuse_outside_paths, trusted

Hftune = Callable[..., tuple[int, str, str]]
VALUE = 0.4242
WORD = "hunter2"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("made") / "run").model


@pytest.fixture
def home(here: Path, original: Path) -> Path:
    """A model, data to train on, and next to them a private folder."""
    shutil.copytree(original, here / "model")
    private(here / "private", original)
    csv_folder(here / "rows")
    return here


def private(folder: Path, original: Path) -> Path:
    """Weights, a vocabulary and a tokenizer that are known when they turn up elsewhere."""
    shutil.copytree(original, folder)
    weights = {name: torch.full_like(value, VALUE) for name, value in load_file(original / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((original / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words[WORD] = words.pop("kind")  # as many as the model embeds, so that nothing else is wrong with it
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=words.__getitem__)))
    for name in ("tokenizer.json", "tokenizer.4.0.0.json"):
        (folder / name).write_text(json.dumps(content))
    return folder


def change(path: Path, **values: Any) -> None:
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**before, **values}), encoding="utf-8")


def index_of(weights: Path, shard: str) -> bytes:
    """An index by which all weights are in one shard."""
    return json.dumps({"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), shard)}).encode()


def assert_nothing_leaked(home: Path) -> None:
    for path in home.rglob("*"):
        if "private" in path.relative_to(home).parts or not path.is_file():
            continue
        if path.suffix == ".safetensors":
            assert not any((value == VALUE).all() for value in load_file(path).values()), path
        elif path.name in ("tokenizer.json", "vocab.txt"):
            assert WORD not in path.read_text(), path


def assert_refused(hftune: Hftune, home: Path, *facts: str, model: str = "model") -> None:
    """Every command that could read it refuses the model, and nothing is saved."""
    for command in (
        ("classify", "--model", model, "--data", "rows", *BRIEF, "--output", "run"),
        ("predict", model, "a text"),
        ("evaluate", model, "--data", "rows"),
    ):
        code, out, err = hftune(*command)
        assert_nothing_leaked(home)
        assert code == 2 and WORD not in out, (command, err)
        assert all(fact in " ".join(err.split()) for fact in facts), (facts, err)
    assert not (home / "run").exists()


# ---- weights ----


@pytest.mark.parametrize("key", ["transformers_weights", "renamed"])
@pytest.mark.parametrize("absolute", [True, False])
def test_shards_of_the_index_that_config_json_names(home: Path, hftune: Hftune, key: str, absolute: bool) -> None:
    weights = home / "private" / "model.safetensors"
    shard = str(weights) if absolute else "../private/model.safetensors"
    index = home / "model" / "deep" / "er" / "x.safetensors.index.json"
    index.parent.mkdir(parents=True)
    index.write_bytes(index_of(weights, shard))
    renamed = {"attribute_map": {"transformers_weights": "renamed"}} if key == "renamed" else {}
    change(home / "model" / "config.json", **{key: "deep/er/x.safetensors.index.json"}, **renamed)
    assert_refused(hftune, home, "x.safetensors.index.json", shard, "leads out of the model folder", str(weights))


def test_weights_that_config_json_names(home: Path, hftune: Hftune) -> None:
    for named in (str(home / "private" / "model.safetensors"), "../private/model.safetensors"):
        change(home / "model" / "config.json", text_config={"transformers_weights": named})
        assert_refused(hftune, home, "config.json", named, "leads out", str(home / "private" / "model.safetensors"))


@pytest.mark.posix("makes symbolic links")
def test_a_shard_below_a_link(home: Path, hftune: Hftune) -> None:
    (home / "model" / "a" / "b").mkdir(parents=True)
    (home / "model" / "a" / "b" / "c").symlink_to(home / "private")
    (home / "model" / "model.safetensors").unlink()
    content = index_of(home / "private" / "model.safetensors", "a/b/c/model.safetensors")
    (home / "model" / "model.safetensors.index.json").write_bytes(content)
    assert_refused(hftune, home, "a/b/c/model.safetensors", "leads out", str(home / "private" / "model.safetensors"))


def test_shards_in_a_folder_of_the_model_are_its_own(home: Path) -> None:
    folder = home / "model"
    (folder / "deep").mkdir()
    (folder / "model.safetensors").rename(folder / "deep" / "all.safetensors")
    content = index_of(folder / "deep" / "all.safetensors", "deep/all.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(content)
    assert Classifier.load("model").labels == LABELS
    (folder / "deep" / "x.safetensors.index.json").write_bytes(content)
    change(folder / "config.json", transformers_weights="deep/x.safetensors.index.json")
    assert Classifier.load("model").labels == LABELS


def test_weights_on_the_hub(client: Client, original: Path) -> None:
    """Its index and its config.json are checked too, before huggingface_hub is asked for what they name."""
    secret = private(client.home / "private", original) / "model.safetensors"
    csv_folder(client.home / "rows")
    files = {path.name: path.read_bytes() for path in original.iterdir()}
    config = json.loads(files["config.json"])
    named = json.dumps({**config, "transformers_weights": str(secret)}).encode()
    client.hub.add_model("evil/named", files | {"config.json": named})
    shards = {"model.safetensors.index.json": index_of(secret, str(secret))}
    client.hub.add_model(
        "evil/shards", {name: content for name, content in files.items() if "safe" not in name} | shards
    )
    deep = json.dumps({**config, "transformers_weights": "a/b/x.safetensors.index.json"}).encode()
    shards = {"a/b/x.safetensors.index.json": index_of(secret, str(secret)), "config.json": deep}
    client.hub.add_model("evil/deep", files | shards)
    for model in ("evil/named", "evil/shards", "evil/deep"):
        for command in (
            ("classify", "--model", model, "--data", "rows", *BRIEF, "--output", "run"),
            ("predict", model, "a text"),
            ("predict", model, "a text", "--revision", client.hub.commits(model)[0].oid),
        ):
            done = client.hftune(*command)
            assert_nothing_leaked(client.home)
            assert done.returncode == 2, done.stderr
            assert mentions(" ".join(done.stderr.split()), str(model), str(secret)), done.stderr


# ---- tokenizers ----


@pytest.mark.parametrize(
    ("file", "key", "named"),
    [
        ("tokenizer_config.json", "vocab", "vocab.txt"),
        ("tokenizer_config.json", "init_inputs", "vocab.txt"),
        ("tokenizer_config.json", "fast_tokenizer_files", "tokenizer.4.0.0.json"),
        ("special_tokens_map.json", "vocab", "vocab.txt"),
        ("special_tokens_map.json", "vocab_file", "vocab.txt"),
        ("special_tokens_map.json", "tokenizer_file", "tokenizer.json"),
    ],
)
@pytest.mark.parametrize("absolute", [True, False])
def test_files_that_a_tokenizer_names(
    home: Path, hftune: Hftune, file: str, key: str, named: str, absolute: bool
) -> None:
    listed = key in ("init_inputs", "fast_tokenizer_files")
    if absolute:
        path = str(home / "private" / named)
    else:  # relative to the model where transformers joins the two, to the current folder everywhere else
        path = f"../private/{named}" if key == "fast_tokenizer_files" else f"private/{named}"
    change(home / "model" / file, **{key: [path] if listed else path})
    if named == "vocab.txt":
        (home / "model" / "tokenizer.json").unlink()
    assert_refused(hftune, home, file, path, "leads out", str(home / "private" / named))


def test_a_tokenizer_apart_from_its_model(home: Path, hftune: Hftune) -> None:
    (home / "model" / "tokenizer.json").unlink()
    change(home / "model" / "tokenizer_config.json", vocab=str(home / "private" / "vocab.txt"))
    command = ("--model", "scratch:bert-tiny", "--tokenizer", "model", "--data", "rows", *BRIEF, "--output", "run")
    code, _, err = hftune("classify", *command)
    assert code == 2 and "leads out" in err and not (home / "run").exists(), err


def test_a_tokenizer_on_the_hub(client: Client, original: Path) -> None:
    secret = private(client.home / "private", original) / "vocab.txt"
    files = {path.name: path.read_bytes() for path in original.iterdir() if path.name != "tokenizer.json"}
    config = json.loads(files["tokenizer_config.json"])
    client.hub.add_model(
        "evil/words", files | {"tokenizer_config.json": json.dumps({**config, "vocab": str(secret)}).encode()}
    )
    done = client.hftune("predict", "evil/words", "a text")
    assert done.returncode == 2 and str(secret) in done.stderr and "leads out" in done.stderr, done.stderr


def test_paths_of_another_machine_and_words_that_are_files_here_are_no_paths(home: Path) -> None:
    """transformers 4 wrote where it had read; and a token may be called like a file of the current folder."""
    (home / "kind").write_text("a file\n")
    change(
        home / "model" / "tokenizer_config.json",
        tokenizer_file=str(home / "private" / "tokenizer.json"),
        special_tokens_map_file=str(home / "private" / "tokenizer_config.json"),
        name_or_path=str(home / "private"),
        vocab_file="/somewhere/else/vocab.txt",
        additional_special_tokens=["kind"],
    )
    change(home / "model" / "config.json", _name_or_path=str(home / "private"))
    assert WORD not in Classifier.load("model").tokenizer.get_vocab()


# ---- adapters ----


def save_adapter(folder: Path, original: Path, base: str, **settings: Any) -> Path:
    """A LoRA adapter as hftune saves it, which names this base."""
    model = BertForSequenceClassification.from_pretrained(original)
    lora = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    words = tokenizer(folder.with_name(f"{folder.name}-words"))
    Classifier(lora, words, LABELS, 16, "longest_first").save(
        folder, base=ModelSection(model_name_or_path="someone/encoder")
    )
    change(folder / "adapter_config.json", base_model_name_or_path=base, **settings)
    return folder


@pytest.mark.parametrize("base", ["team/model", "model1"])
def test_a_base_on_the_hub_is_never_a_local_folder(home: Path, original: Path, hftune: Hftune, base: str) -> None:
    save_adapter(home / "adapter", original, base)
    (home / base).parent.mkdir(exist_ok=True)
    shutil.copytree(home / "private", home / base)
    facts = ("adapter", base, "on the Hub", str(home / base), "./base")
    shutil.move(home / base, home / "private" / "moved")
    (home / base).symlink_to(home / "private" / "moved")
    assert_refused(hftune, home, *facts, model="adapter")
    (home / base).unlink()
    shutil.copy(home / "private" / "model.safetensors", home / base)  # transformers reads a file, too
    code, _, err = hftune("predict", "adapter", "a text")
    assert code == 2 and all(fact in " ".join(err.split()) for fact in facts), err


def test_the_base_of_an_adapter_on_the_hub_is_never_a_local_folder(client: Client, original: Path) -> None:
    client.hub.add_model("evil/adapter", save_adapter(client.home / "made", original, "team/model"))
    shutil.rmtree(client.home / "made")
    (client.home / "team").mkdir()
    secret = private(client.home / "private", original)
    (client.home / "team" / "model").symlink_to(secret)
    done = client.hftune("predict", "evil/adapter", "a text")
    message = " ".join(done.stderr.split())
    assert done.returncode == 2 and mentions(message, "evil/adapter", "'team/model'"), done.stderr
    (client.home / "team" / "model").unlink()
    client.hub.add_model("team/model", original)
    assert client.hftune("predict", "evil/adapter", "a text").returncode == 0


def test_base_is_a_whole_model(home: Path, original: Path, hftune: Hftune) -> None:
    """One that is an adapter names a base in turn, which transformers would load from anywhere."""
    adapter = save_adapter(home / "adapter", original, "./base")
    code, _, err = hftune("predict", "adapter", "a text")
    assert code == 2 and "base/config.json" in err, err
    shutil.copytree(original, adapter / "base")
    assert hftune("predict", "adapter", "a text")[0] == 0
    inner = save_adapter(home / "inner", original, str(home / "private"))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(inner / name, adapter / "base" / name)
    assert_refused(hftune, home, "base/adapter_config.json", "a whole model is expected", model="adapter")
    (adapter / "base" / "config.json").unlink()
    assert_refused(hftune, home, "a whole model is expected", model="adapter")


def test_the_base_of_an_adapter_is_checked_too(home: Path, original: Path, hftune: Hftune) -> None:
    adapter = save_adapter(home / "adapter", original, "./base")
    shutil.copytree(original, adapter / "base")
    secret = home / "private" / "model.safetensors"
    (adapter / "base" / "model.safetensors").unlink()
    (adapter / "base" / "model.safetensors.index.json").write_bytes(index_of(secret, str(secret)))
    assert_refused(hftune, home, "base/model.safetensors.index.json", "leads out", str(secret), model="adapter")


def test_a_base_on_the_hub_that_is_an_adapter(client: Client, original: Path) -> None:
    secret = private(client.home / "private", original)
    csv_folder(client.home / "rows")
    inner = save_adapter(client.home / "inner", original, str(secret))
    shutil.copy(original / "config.json", inner)
    client.hub.add_model("evil/base", inner)
    client.hub.add_model("evil/outer", save_adapter(client.home / "outer", original, "evil/base"))
    for command in (
        ("predict", "evil/outer", "a text"),
        ("classify", "--model", "evil/outer", "--data", "rows", *BRIEF, "--output", "run"),
    ):
        done = client.hftune(*command)
        message = " ".join(done.stderr.split())
        assert done.returncode == 2 and mentions(message, "adapter", "(evil/base)"), done.stderr
    assert_nothing_leaked(client.home)


def test_a_masked_language_model_on_the_hub_that_is_an_adapter(client: Client, original: Path) -> None:
    """A joint run has one in mlm/, which transformers would take for an adapter around any other model."""
    secret = private(client.home / "private", original)
    rows = csv_folder(client.home / "rows")
    folder = Path(shutil.copytree(original, client.home / "made"))
    inner = save_adapter(client.home / "inner", original, str(secret))
    shutil.copytree(inner, folder / "mlm")
    shutil.copy(original / "config.json", folder / "mlm")
    client.hub.add_model("evil/joint", folder)
    command = ("--model", "evil/joint", "--data", str(rows), "--unlabeled", "train", *BRIEF, "--output", "run")
    done = client.hftune("joint", *command)
    assert done.returncode == 2 and "mlm/adapter_config.json" in done.stderr, done.stderr
    assert_nothing_leaked(client.home)


@pytest.mark.parametrize("key", OTHER_FILES)
def test_an_adapter_names_no_other_file_or_model(home: Path, original: Path, hftune: Hftune, key: str) -> None:
    secret = str(home / "private")
    adapter = save_adapter(home / "adapter", original, "./base", **{key: secret})
    shutil.copytree(original, adapter / "base")
    assert_refused(hftune, home, "names another file or model", key, secret, model="adapter")
    change(adapter / "adapter_config.json", **{key: None})
    open_adapter(open_checkpoint(ModelSection(model_name_or_path="adapter")))


def test_settings_of_peft_that_name_files_are_refused() -> None:
    """A new one must be looked at: when is it opened, and does it belong to OTHER_FILES?"""
    fields = {
        field.name
        for kind in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.values()
        for field in dataclasses.fields(kind)
        if re.search(r"path|file|dir$|repo|url|adapters$|_model$|module$|core$|library", field.name)
    }
    not_opened = {"base_model_name_or_path", "tokenizer_name_or_path", "use_trainable_adapters", "megatron_core"}
    assert fields - not_opened == set(OTHER_FILES)


# ---- code and graphs ----


@pytest.mark.parametrize(
    "reference", ["{}/evil.Mine", "{}--evil.Mine", "../private/evil.Mine", "x/../../private/evil.Mine", "a/b/evil.Mine"]
)
def test_consent_to_a_folder_runs_no_code_outside_it(home: Path, reference: str) -> None:
    (home / "private" / "evil.py").write_text(f"open({str(home / 'ran')!r}, 'w')\nclass Mine: pass\n")
    (home / "model" / "a").mkdir()
    (home / "model" / "a" / "b").mkdir()
    (home / "model" / "a" / "b" / "evil.py").symlink_to(home / "private" / "evil.py")
    named = reference.format(home / "private")
    change(home / "model" / "config.json", model_type="mine", auto_map={"AutoConfig": named})
    section = ModelSection(model_name_or_path="model", trust_remote_code=True)
    with hftune_error("model"):
        trusted(ModelFiles("model"), section)
    with hftune_error("model"):
        Classifier.load("model", section=section)
    assert not (home / "ran").exists()


@pytest.mark.parametrize("inside", ["initializer", "attribute"])
@pytest.mark.parametrize("where", ["../private/data.bin", "{}/private/data.bin"])
def test_onnx_reads_no_weights_outside_its_folder(home: Path, hftune: Hftune, where: str, inside: str) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (home / "private" / "data.bin").write_bytes(torch.full((len(LABELS),), VALUE).numpy().tobytes())
    weights = onnx.TensorProto(name="w", dims=[len(LABELS)], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=where.format(home))
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Identity", ["w"], ["logits"])
            if inside == "initializer"
            else onnx.helper.make_node("Constant", [], ["logits"], value=weights)
        ],
        "graph",
        [onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [None, None])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [len(LABELS)])],
        [weights] if inside == "initializer" else [],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    (home / "model" / "model.onnx").write_bytes(model.SerializeToString())
    (home / "model" / "model.safetensors").unlink()
    code, out, err = hftune("predict", "model", "a text")
    facts = ("model.onnx", where.format(home), "leads out of the model folder", str(home / "private" / "data.bin"))
    assert code == 2 and not out and all(fact in " ".join(err.split()) for fact in facts), err


def test_deeply_nested_json_does_not_stop_the_check(tmp_path: Path) -> None:
    """Nested as deeply as json reads it, the last value is found all the same."""
    (tmp_path / "secret.safetensors").touch()
    (tmp_path / "model").mkdir()
    named = json.dumps(str(tmp_path / "secret.safetensors"))
    (tmp_path / "model" / "config.json").write_text('{"a": ' * 900 + named + "}" * 900)
    with hftune_error("secret.safetensors"):
        refuse_outside_paths(ModelFiles(str(tmp_path / "model")))
