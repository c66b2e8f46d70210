"""Checkpoints that lack weights: a known prefix is stripped, a new head is normal, anything else is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error, mentions
from hub_client import Client
from method_case import model as tiny_model
from method_case import tokenizer as tiny_tokenizer
from replicas import REPLICAS, Replica
from safetensors.torch import load_file, save_file
from tiny import BRIEF, csv_folder, rows
from tiny_qa import BORN, plant
from tiny_qa import rows as questions
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from hftune import methods
from hftune.errors import HftuneError
from hftune.methods.lora import LoraMethod
from hftune.methods.prefix import PrefixMethod
from hftune.models.causal import load_causal_lm, load_saved_lm
from hftune.models.classifier import Classifier, load_sequence_classifier
from hftune.models.load import load_tokenizer
from hftune.models.masked import load_joint, load_masked_lm, reload_masked_lm
from hftune.models.settings import ModelSection

Hftune = Callable[..., tuple[int, str, str]]
Shape = tuple[int, ...]
BERT, GPT, RATED = "bert-base-uncased", "gpt2", "someone/five-star-classifier"
NOTICE = "Stripped the prefix"


def variant(name: str, change: Callable[[str, Shape], tuple[str, Shape] | None], **more: Any) -> Replica:
    """A replica whose weights have other names or shapes, or are missing."""
    replica = REPLICAS[name]

    def keys(config: Any) -> Any:
        return (new for old in replica.keys(config) if (new := change(*old)) is not None)

    return replace(replica, keys=keys, **more)


def prefixed(name: str, prefix: str, **more: Any) -> Replica:
    return variant(name, lambda key, shape: (prefix + key, shape), **more)


def without(name: str, part: str) -> Replica:
    return variant(name, lambda key, shape: None if part in key else (key, shape))


def reshaped(name: str, part: str) -> Replica:
    return variant(name, lambda key, shape: (key, (*shape[:-1], shape[-1] + 2) if part in key else shape))


# ---- every loader ----


def classifier(folder: Path) -> PreTrainedModel:
    section = ModelSection(model_name_or_path=str(folder))
    torch.manual_seed(7)
    return load_sequence_classifier(section, load_tokenizer(section, []), ("bad", "good")).model


def joint(folder: Path) -> PreTrainedModel:
    section = ModelSection(model_name_or_path=str(folder))
    torch.manual_seed(7)
    return load_joint(section, load_tokenizer(section, []), ("bad", "good")).model


def masked(folder: Path) -> PreTrainedModel:
    section = ModelSection(model_name_or_path=str(folder))
    torch.manual_seed(7)
    return load_masked_lm(section, load_tokenizer(section, [])).model


def causal(folder: Path) -> PreTrainedModel:
    section = ModelSection(model_name_or_path=str(folder))
    return load_causal_lm(section, load_tokenizer(section, [], padded=False)).model


def used_causal(folder: Path) -> PreTrainedModel:
    return load_saved_lm(str(folder), device="cpu")[0]


def used_classifier(folder: Path) -> PreTrainedModel:
    return Classifier.load(str(folder), device="cpu").model


LOADERS: dict[str, tuple[str, Callable[[Path], PreTrainedModel]]] = {
    "classify": (BERT, classifier),
    "joint": (BERT, joint),
    "mlm": (BERT, masked),
    "reloaded mlm": ("roberta-base", lambda folder: reload_masked_lm(folder)[0]),
    "clm": (GPT, causal),
    "generate": (GPT, used_causal),
    "predict": (RATED, used_classifier),
}


def same(left: PreTrainedModel, right: PreTrainedModel) -> bool:
    one, other = left.state_dict(), right.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_known_prefix_is_stripped_by_every_loader(
    loader: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new head included: it is drawn as it would be without the prefix."""
    name, load = LOADERS[loader]
    expected = load(REPLICAS[name].write(tmp_path / "plain"))
    caplog.set_level(logging.INFO, "hftune")
    assert same(load(prefixed(name, "module.").write(tmp_path / "wrapped")), expected)
    assert sum(NOTICE in line and "'module.'" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("weights", ["safetensors", "bin", "safetensors shards", "bin shards"])
def test_it_is_stripped_in_every_format(weights: Any, tmp_path: Path) -> None:
    expected = classifier(REPLICAS[BERT].write(tmp_path / "plain"))
    assert same(classifier(prefixed(BERT, "module.", weights=weights).write(tmp_path / "wrapped")), expected)


MODERN, MINILM = "answerdotai/ModernBERT-base", "sentence-transformers/all-MiniLM-L6-v2"


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("name", [BERT, MODERN, MINILM, GPT, RATED])
def test_every_known_prefix(name: str, prefix: str, tmp_path: Path) -> None:
    """ModernBERT's own names begin with model., MiniLM's and GPT-2's with no prefix."""
    expected = classifier(REPLICAS[name].write(tmp_path / "plain"))
    assert same(classifier(prefixed(name, prefix).write(tmp_path / "wrapped")), expected)


def test_on_the_command_line_and_in_what_is_saved(here: Path, hftune: Hftune) -> None:
    """transformers would put the prefix back when it saves the model; no other tool could load that."""
    csv_folder(here / "rows")
    prefixed(BERT, "module.").write(here / "wrapped")
    command = ("classify", "--model", "wrapped", "--data", "rows", *BRIEF, "--output")
    code, _, err = hftune(*command, "run")
    assert code == 0 and err.count(NOTICE) == 1, err
    assert not [name for name in load_file("run/model/model.safetensors") if name.startswith("module.")]
    _, info = AutoModelForSequenceClassification.from_pretrained("run/model", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    code, _, err = hftune(*command, "adapted", "--method", "lora")
    assert code == 0, err
    code, out, err = hftune("predict", "adapted", "the food was great")
    assert code == 0 and NOTICE not in err and json.loads(out)["label"] in ("bad", "good"), err


def test_on_the_hub(client: Client) -> None:
    csv_folder(client.home / "rows")
    client.hub.add_model("someone/wrapped", prefixed(RATED, "module.", weights="bin").files())
    client.hub.add_model("someone/half", without(RATED, ".layer.1.").files())
    done = client.hftune("predict", "someone/wrapped", "the food was great")
    assert done.returncode == 0 and done.stderr.count(NOTICE) == 1, done.stderr
    for command in (["predict", "someone/half", "a text"], ["classify", "--model", "someone/half", "--data", "rows"]):
        done = client.hftune(*command)
        assert done.returncode == 2 and mentions(done.stderr, "weights of the encoder are missing"), done.stderr


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda key, shape: (("model." if "layer.1." in key else "module.") + key, shape), "two prefixes"),
        (lambda key, shape: (key if "layer.1." in key else f"module.{key}", shape), "only some have it"),
        (lambda key, shape: (f"teacher.{key}", shape), "nobody knows this one"),
        (lambda key, shape: (f"xmodule.{key}", shape), "nor this one"),
    ],
)
def test_a_prefix_that_could_mean_anything_is_refused(change: Any, why: str, tmp_path: Path) -> None:
    folder = variant(BERT, change).write(tmp_path / "model")
    with hftune_error("weights of the encoder"):
        classifier(folder)


def test_two_weights_for_one_name_are_refused(tmp_path: Path) -> None:
    """The head once with the prefix and once without: which one was trained?"""
    folder = prefixed(RATED, "module.").write(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "classifier.bias": torch.ones(5)}, folder / "model.safetensors", metadata={"format": "pt"})
    with hftune_error("weights of the encoder"):
        used_classifier(folder)


# ---- what is missing ----

PARTS = {  # one layer; an embedding
    BERT: (".layer.1.", "position_embeddings"),
    "roberta-base": (".layer.1.", "token_type_embeddings"),
    RATED: (".layer.1.", "word_embeddings"),
    GPT: ("h.1.", "wpe"),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_an_encoder_that_lacks_weights_is_refused_by_every_loader(loader: str, tmp_path: Path) -> None:
    name, load = LOADERS[loader]
    for number, part in enumerate(PARTS[name]):
        lacking = without(name, part).write(tmp_path / f"lacking-{number}")
        with hftune_error("weights of the encoder", "such as") as caught:
            load(lacking)
        assert part in str(caught.value) and caught.value.hint
        wrong = reshaped(name, part).write(tmp_path / f"reshaped-{number}")
        with hftune_error("configuration", "another shape"):
            load(wrong)
    half = variant(name, lambda key, shape: None if PARTS[name][0] in key else (f"module.{key}", shape))
    with hftune_error("weights of the encoder"):
        load(half.write(tmp_path / "half"))


def test_only_the_head_for_other_labels_is_new(tmp_path: Path) -> None:
    folder = REPLICAS[RATED].write(tmp_path / "rated")
    assert classifier(folder).config.num_labels == 2
    with hftune_error("classifier.", "another shape"):
        used_classifier(reshaped(RATED, "classifier.").write(tmp_path / "reshaped"))
    with hftune_error("lm_head.", "another shape"):
        masked(reshaped("roberta-base", "lm_head.dense").write(tmp_path / "mlm"))
    with hftune_error("no weights", "lm_head"):
        reload_masked_lm(without("roberta-base", "lm_head").write(tmp_path / "headless"))


def test_no_command_continues_with_random_weights(here: Path, hftune: Hftune) -> None:
    csv_folder(here / "rows")
    (here / "texts.txt").write_text("".join(f"{text}\n" for _, text in rows(40, 1)))
    without(BERT, ".layer.1.").write(here / "encoder")
    without(RATED, ".layer.1.").write(here / "rated")
    without(GPT, "h.1.").write(here / "gpt")
    answers = plant(here / "answers", "people").model
    weights = load_file(answers / "model.safetensors")
    lacking = {name: value for name, value in weights.items() if ".attn" not in name and ".attention" not in name}
    assert len(lacking) < len(weights)
    save_file(lacking, answers / "model.safetensors", metadata={"format": "pt"})
    (here / "people").mkdir()
    for split in ("train", "validation"):
        (here / "people" / f"{split}.tsv").write_text(questions(list(BORN)))
    for command in (
        ("classify", "--model", "encoder", "--data", "rows"),
        ("joint", "--model", "encoder", "--data", "rows", "--unlabeled", "texts.txt", *BRIEF),
        ("pretrain", "--objective", "mlm", "--model", "encoder", "--corpus", "texts.txt"),
        ("pretrain", "--objective", "clm", "--model", "gpt", "--corpus", "texts.txt"),
        ("finetune", "--from", "answers", "--data", "people"),
        ("generate", "gpt", "--prompt", "the"),
        ("predict", "rated", "a text"),
        ("evaluate", "rated", "--data", "rows"),
        ("predict", "answers", "Where was Ann Ash born?"),
    ):
        code, _, err = hftune(*command)
        assert code == 2 and mentions(err.replace("\n", " "), "weights of the encoder"), (command, err)


# ---- adapters ----


@pytest.fixture(params=["lora", "prefix"])
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An adapter whose base has no head, so that the adapter must bring it."""
    torch.manual_seed(0)
    section = LoraMethod(r=4) if request.param == "lora" else PrefixMethod(num_virtual_tokens=2)
    adapted = methods.apply(tiny_model("bert"), section, ("classifier",)).model
    labels = tuple(adapted.config.id2label.values())
    made = tmp_path / "adapter"
    Classifier(adapted, tiny_tokenizer(tmp_path), labels, 16, "longest_first").save(
        made, base=ModelSection(model_name_or_path="scratch:bert-tiny")
    )
    keep(made / "base" / "model.safetensors", lambda name: not name.startswith("classifier"))
    Classifier.load(str(made), device="cpu")
    return made


def keep(file: Path, wanted: Callable[[str], bool]) -> None:
    weights = load_file(file)
    kept = {name: value for name, value in weights.items() if wanted(name)}
    assert len(kept) < len(weights)
    save_file(kept, file, metadata={"format": "pt"})


def test_the_base_of_an_adapter_is_complete(adapter: Path) -> None:
    keep(adapter / "base" / "model.safetensors", lambda name: ".layer.1." not in name)
    with hftune_error("weights of the encoder"):
        Classifier.load(str(adapter), device="cpu")


def test_an_adapter_without_its_weights_is_refused(adapter: Path) -> None:
    keep(adapter / "adapter_model.safetensors", lambda name: ".layer.1." not in name and name != "prompt_embeddings")
    with pytest.raises(HftuneError, match=r"has weights for .*lora_|num_virtual_tokens of the adapter"):
        Classifier.load(str(adapter), device="cpu")


def test_a_head_that_neither_adapter_nor_base_has_is_refused(adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    changed = {**config, "task_type": "FEATURE_EXTRACTION", "modules_to_save": None}
    (adapter / "adapter_config.json").write_text(json.dumps(changed))
    with hftune_error("base has weights", "classifier."):
        Classifier.load(str(adapter), device="cpu")
