"""Mean and max pooling: the values, what ``auto`` finds, what is refused, and what a saved model needs elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error, mentions
from method_case import NAMES, config, small
from replicas import REPLICAS
from tiny import csv_folder
from training_case import collate, rows
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    GPT2Config,
    ModernBertForSequenceClassification,
    PreTrainedModel,
    T5Config,
    XLNetConfig,
)

from hftune import methods
from hftune.errors import HftuneError
from hftune.files import read_json
from hftune.hub.contents import published_files
from hftune.methods.head import HeadMethod
from hftune.methods.method import AdapterMethod
from hftune.models.checkpoint import open_checkpoint
from hftune.models.classifier import Classifier, load_sequence_classifier
from hftune.models.joint import as_classifier, as_masked_lm, with_mlm_head
from hftune.models.load import load_tokenizer
from hftune.models.masked import load_masked_lm
from hftune.models.pooled import PooledForSequenceClassification, pool
from hftune.models.pooling import check_pooling, choose_pooling, sentence_pooling, with_pooling
from hftune.models.settings import ModelSection
from hftune.pipeline.onnx_export import export
from hftune.pipeline.precompute import precompute
from hftune.pipeline.train import train
from hftune.progress import ProgressReporter
from hftune.recipe import RecipeError, load_recipe
from hftune.tasks.task import EvaluationRequest
from hftune.training.dropout import install
from hftune.training.inputs import TrainingInputs

pytestmark = pytest.mark.numeric

MINILM, BERT = "sentence-transformers/all-MiniLM-L6-v2", "bert-base-uncased"
ARCHITECTURES = ("bert", "roberta", "electra", "distilbert", "deberta-v2", "modernbert", "albert", "mpnet")
TEXTS = ["the food was great", "the staff was poor on day 5 of visit 1", "tea"]


def classifier(architecture: str) -> PreTrainedModel:
    torch.manual_seed(7)
    return AutoModelForSequenceClassification.from_config(config(architecture)).eval()


def batch(count: int = 6) -> dict[str, torch.Tensor]:
    made = collate(rows(count, 1))
    made.pop("labels")
    return made


def test_values() -> None:
    """By hand; what is padding does not count, whatever is there."""
    hidden = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]], [[-5.0, 2.0], [-7.0, 4.0], [-9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert pool(hidden, mask, "mean").tolist() == [[2.0, -3.0], [-7.0, 5.0]]
    assert pool(hidden, mask, "max").tolist() == [[3.0, -2.0], [-5.0, 9.0]]
    assert pool(hidden, None, "mean")[1].tolist() == [-7.0, 5.0] and pool(hidden, None, "max")[0].tolist() == [99, 99]
    assert pool(hidden, torch.zeros(2, 3), "mean").tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("architecture", [f"{name}-{how}" for name in ARCHITECTURES for how in ("mean", "max")])
def test_a_batch_gives_what_each_text_gives_alone(architecture: str) -> None:
    model, given = classifier(architecture), batch()
    stock = architecture == "modernbert-mean"  # its own class can do it
    assert type(model) is (ModernBertForSequenceClassification if stock else PooledForSequenceClassification)
    with torch.no_grad():
        logits = model(**given).logits
        encoded = model.base_model(**given).last_hidden_state  # [B, T, d]
        alone = [
            model(**{name: value[place : place + 1, :size] for name, value in given.items()}).logits[0]
            for place, size in enumerate(given["attention_mask"].sum(dim=1).tolist())
        ]
        if not stock:
            pairs = list(zip(encoded, given["attention_mask"].bool(), strict=True))
            kept = [
                vectors[mask].mean(dim=0) if "mean" in architecture else vectors[mask].amax(dim=0)
                for vectors, mask in pairs
            ]
            assert torch.allclose(model.classifier(torch.stack(kept)), logits, atol=1e-5)
        assert torch.allclose(torch.stack(alone), logits, atol=1e-5) and (logits - logits[0]).abs().max() > 1e-3
        install(model)
        model.eval()
        assert torch.allclose(model(**given).logits, logits, atol=1e-5), "fast dropout changes the attention"


def test_dropout_of_the_pooled_vector() -> None:
    """Only in training, with the rate of the encoder's own classifier or, if it has none, of its hidden states."""
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    assert config("bert-mean", hidden_dropout_prob=0.25).classifier_dropout == 0.25
    torch.manual_seed(7)
    made = config("bert-mean", **none, classifier_dropout=0.5)
    model, given = AutoModelForSequenceClassification.from_config(made).eval(), batch()
    with torch.no_grad():
        vectors = pool(model.bert(**given).last_hidden_state, given["attention_mask"], "mean")
        assert torch.allclose(model(**given).logits, model.classifier(vectors), atol=1e-5)
        torch.manual_seed(9)
        logits = model.train()(**given).logits
        torch.manual_seed(9)
        assert torch.allclose(logits, model.classifier(torch.nn.functional.dropout(vectors, 0.5)), atol=1e-5)
    assert (logits - model.classifier(vectors)).abs().max() > 1e-2


@pytest.mark.parametrize("architecture", [f"{name}-{how}" for name in ARCHITECTURES for how in ("mean", "max")])
def test_features_of_a_frozen_encoder(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    applied = methods.apply(classifier(architecture), HeadMethod(), ())
    assert applied.precomputed is not None
    given = rows(9, 1)
    lengths = [len(row["input_ids"]) for row in given]
    inputs = TrainingInputs(given, given, collate, lengths, lengths, compute_metrics=None, loss=None)
    made, _ = precompute(inputs, applied, use_cpu=True, batch_size=4, progress=ProgressReporter())
    applied.trained.eval()
    stacked = made.collator([made.train[place] for place in range(9)])
    with torch.no_grad():
        ahead = applied.trained(inputs_embeds=stacked["inputs_embeds"]).logits
        assert torch.allclose(ahead, applied.model(**batch(9)).logits, atol=1e-5)
    if "modernbert-mean" not in architecture:
        assert applied.parameters.trainable == 3 * 16 + 3 and applied.parameters.formula == "3d+3"


@pytest.mark.parametrize("kind", sorted(methods.METHODS))
def test_formulas_and_virtual_tokens(kind: str) -> None:
    """Every method; a prefix adds nothing to pool, and the vectors of prompts are tokens like any other."""
    model, given = classifier("bert-mean"), batch()
    plain = methods.apply(classifier("bert"), small(kind), ()).parameters
    applied = methods.apply(model, small(kind), ())
    pooler = 16 * 16 + 16
    gone = {"full": pooler, "bitfit": 16}.get(kind, 0)  # BERT's own class has a pooler, and BitFit its bias
    assert applied.parameters.trainable == plain.trainable - gone
    assert applied.parameters.total == plain.total - pooler
    assert applied.parameters.formula == (plain.formula if kind != "bitfit" else "7·L·d + L·f + d + 3d+3")
    applied.model.eval()
    sizes = given["attention_mask"].sum(dim=1).tolist()
    with torch.no_grad():
        logits = applied.model(**given).logits
        for place, size in enumerate(sizes):
            one = {name: value[place : place + 1, :size] for name, value in given.items()}
            assert torch.allclose(applied.model(**one).logits[0], logits[place], atol=1e-5)
    if not issubclass(methods.METHODS[kind], AdapterMethod) or not hasattr(applied.model, "prompt_tokens"):
        return
    seen: list[torch.Tensor] = []
    model.base_model.register_forward_hook(lambda *call: seen.append(call[2].last_hidden_state))
    with torch.no_grad():
        applied.model(**one)
    virtual = 0 if kind == "prefix" else 3
    assert seen[0].shape[1] == one["input_ids"].shape[1] + virtual


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode_cls_token": True, "include_prompt": True}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "mean", "embedding_dimension": 8}, "mean"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": ["max", "mean"]}, None),
        ({"pooling_mode": {"mean": 1}}, None),
        ({"pooling_mode": "lasttoken"}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, None),
        ({}, None),
    ],
)
def test_what_sentence_transformers_writes(values: dict[str, Any], kind: str | None) -> None:
    assert sentence_pooling(values) == kind


def loaded(folder: Path, labels: tuple[str, ...] = ("bad", "good"), **settings: Any) -> Any:
    section = ModelSection(model_name_or_path=str(folder), **settings)
    return load_sequence_classifier(section, load_tokenizer(section, []), labels)


def test_auto(tmp_path: Path) -> None:
    minilm, bert = REPLICAS[MINILM].write(tmp_path / "minilm"), REPLICAS[BERT].write(tmp_path / "bert")
    found = loaded(minilm)
    assert found.model.config.pooling == "mean" and found.fresh_modules == ("classifier",)
    assert found.facts == {"pooling": {"kind": "mean", "source": "1_Pooling/config.json"}} and found.notes
    stock = loaded(bert)
    assert type(stock.model) is BertForSequenceClassification and not stock.facts and not stock.notes
    assert type(loaded(minilm, pooling="cls").model) is BertForSequenceClassification
    assert loaded(bert, pooling="max").model.config.pooling == "max"
    for content, note in (
        ({"pooling_mode": "lasttoken"}, True),
        ({"pooling_mode_cls_token": True}, True),
        ([1], False),
    ):
        (minilm / "1_Pooling" / "config.json").write_text(json.dumps(content))
        found = loaded(minilm)
        assert type(found.model) is BertForSequenceClassification and bool(found.notes) == note


def test_starting_from_a_classifier(tmp_path: Path) -> None:
    """Its pooling goes on; a head that knows another vector does not."""
    first = loaded(REPLICAS[MINILM].write(tmp_path / "minilm"))
    Classifier(
        first.model,
        load_tokenizer(ModelSection(model_name_or_path=str(tmp_path / "minilm")), []),
        ("bad", "good"),
        16,
        "longest_first",
    ).save(tmp_path / "first")
    again = loaded(tmp_path / "first")
    assert again.model.config.pooling == "mean" and not again.fresh_modules
    assert torch.equal(again.model.classifier.weight, first.model.classifier.weight)
    for pooling in ("max", "cls"):
        other = loaded(tmp_path / "first", pooling=pooling)
        assert "classifier" in other.fresh_modules
        assert not torch.equal(other.model.classifier.weight, first.model.classifier.weight)
        assert torch.equal(
            other.model.bert.embeddings.word_embeddings.weight, first.model.bert.embeddings.word_embeddings.weight
        )
    section = ModelSection(model_name_or_path=str(tmp_path / "first"))
    masked = load_masked_lm(section, load_tokenizer(section, []))
    assert torch.equal(
        masked.model.bert.encoder.layer[0].output.dense.weight, first.model.bert.encoder.layer[0].output.dense.weight
    )
    with hftune_error("model_type", "roberta", "bert"):
        loaded(tmp_path / "first", model_type="roberta")


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_joint(architecture: str) -> None:
    plain = classifier(f"{architecture}-mean")
    joint, given = with_mlm_head(plain), batch()
    labels = torch.full_like(given["input_ids"], -100)
    labels[:, 1] = 5
    second = {"mlm_input_ids": given["input_ids"], "mlm_attention_mask": given["attention_mask"], "mlm_labels": labels}
    found = joint(**given, **second)
    assert torch.equal(found.logits, plain(**given).logits)
    found.mlm_loss.backward()
    back, masked = as_classifier(joint), as_masked_lm(joint)
    assert type(back) is PooledForSequenceClassification and masked.config.model_type == architecture
    assert masked.get_output_embeddings().weight is masked.get_input_embeddings().weight
    assert torch.equal(masked.base_model.embeddings.word_embeddings.weight, plain.get_input_embeddings().weight)


def test_refused() -> None:
    for made in (GPT2Config(), T5Config(), replace_decoder()):
        for pooling in ("mean", "max", "cls"):
            with hftune_error(f"model.pooling is {pooling}", made.model_type):
                check_pooling(ModelSection(pooling=pooling), made)
        check_pooling(ModelSection(), made)
    with hftune_error("model.pooling is cls", "xlnet"):
        check_pooling(ModelSection(pooling="cls"), XLNetConfig())
    for task in ("mlm", "clm", "span"):
        with pytest.raises(RecipeError) as caught:
            load_recipe(None, {"model.pooling": "mean", "data.dataset_name": "x"}, task=task)
        assert mentions(str(caught.value), "model.pooling", task)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_the_last_layer_computes_what_is_read(pooling: str) -> None:
    """A resolved recipe says so, and can be loaded again; stating the opposite is refused."""
    recipe = load_recipe(None, {"model.pooling": pooling})
    assert recipe.train.cls_only_last_layer is False and load_recipe(recipe) == recipe
    assert load_recipe(None, {"model.pooling": pooling, "train.cls_only_last_layer": False}) == recipe
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, {"model.pooling": pooling, "train.cls_only_last_layer": True})
    assert mentions(str(caught.value), "train.cls_only_last_layer", f"model.pooling {pooling}")
    for other in ("auto", "cls"):
        stated = load_recipe(None, {"model.pooling": other, "train.cls_only_last_layer": True})
        assert stated.train.cls_only_last_layer is True and stated == load_recipe(None, {"model.pooling": other})


def replace_decoder() -> Any:
    made = config("bert")
    made.is_decoder = True
    return made


# ---- one run, from a sentence encoder to a model that others load ----

PIPELINE = """
import json, sys
from transformers import pipeline
try:
    pipeline("text-classification", model=sys.argv[1], device="cpu", trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code" in str(error), error
else:
    raise SystemExit("it loaded without its code")
assert not any(name.partition(".")[0] == "hftune" for name in sys.modules)
ask = pipeline("text-classification", model=sys.argv[1], top_k=None, device="cpu", trust_remote_code=True)
print(json.dumps([{one["label"]: one["score"] for one in row} for row in ask(json.loads(sys.argv[2]), batch_size=3)]))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pooling")
    REPLICAS[MINILM].write(folder / "minilm")
    csv_folder(folder / "rows")
    return folder


def start(home: Path, name: str, **changes: Any) -> Path:
    settings = {
        "data.dataset_name": str(home / "rows"),
        "data.max_seq_length": 16,
        "model.model_name_or_path": str(home / "minilm"),
        "train.max_steps": 4,
        "train.per_device_train_batch_size": 8,
        **changes,
    }
    return train(load_recipe(None, settings, task="classify"), home / name).run.path


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    return start(home, "run")


@pytest.fixture(scope="module")
def lora(home: Path) -> Path:
    return start(home, "lora", **{"method.kind": "lora"})


def logits(folder: Path) -> torch.Tensor:
    return torch.from_numpy(Classifier.load(str(folder), device="cpu").logits(TEXTS))


def test_what_a_run_records(run: Path) -> None:
    metrics = read_json(run / "metrics.json")
    assert metrics["verified"] is True and metrics["pooling"] == {"kind": "mean", "source": "1_Pooling/config.json"}
    assert any("mean" in note for note in metrics["data"]["notes"])
    assert read_json(run / "model" / "hftune.json")["pooling"] == "mean"
    assert "mean (1_Pooling/config.json)" in (run / "report.html").read_text(encoding="utf-8")
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "Pooling: mean" in card and "trust_remote_code=True" in card
    assert str(run.parent) not in (run / "model" / "config.json").read_text(encoding="utf-8")
    files, left_out = published_files(run / "model")
    assert {"modeling_pooled.py", "configuration_pooled.py"} <= set(files) and not left_out


def test_pipeline_loads_it_without_hftune(run: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", PIPELINE, str(run / "model"), json.dumps(TEXTS)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    for row, ours in zip(found, torch.softmax(logits(run), dim=-1).tolist(), strict=True):
        assert [row["bad"], row["good"]] == pytest.approx(ours, abs=1e-5)


def test_an_adapter_remembers_it(lora: Path, home: Path, tmp_path: Path) -> None:
    before = logits(lora)
    assert read_json(lora / "model" / "hftune.json")["pooling"] == "mean"
    files, left_out = published_files(lora / "model")
    assert "base/modeling_pooled.py" in files and not left_out
    # A base on the Hub is the encoder as its authors saved it.
    other = tmp_path / "other"
    shutil.copytree(lora / "model", other)
    shutil.rmtree(other / "base")
    shutil.copytree(home / "minilm", other / "base")
    assert torch.equal(logits(other), before)
    continued = loaded(other)
    assert continued.model.config.pooling == "mean" and not continued.fresh_modules
    section = ModelSection(model_name_or_path=str(other))
    checkpoint = open_checkpoint(section)
    assert checkpoint.adapter is not None
    chosen = choose_pooling(replace_pooling(section, "auto"), checkpoint, checkpoint.adapter.base.config())
    assert chosen.kind == "mean" and with_pooling(config("bert"), None).model_type == "bert"


def replace_pooling(section: ModelSection, pooling: str) -> ModelSection:
    return section.model_copy(update={"pooling": pooling})


def test_code_in_the_folder_is_not_run(run: Path, tmp_path: Path) -> None:
    """A folder that says it is ours is loaded with our code."""
    folder, mark = tmp_path / "model", tmp_path / "ran"
    shutil.copytree(run / "model", folder)
    for path in folder.glob("*.py"):
        path.write_text(f"open({str(mark)!r}, 'w')\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert torch.equal(logits(folder), logits(run)) and not mark.exists()
    with pytest.raises(HftuneError, match=r"_pooled\.py"):
        published_files(folder)
    values = read_json(folder / "config.json")
    for inner in (
        {"model_type": "evil", "auto_map": {"AutoModel": "modeling_pooled.X"}},
        {"model_type": "pooled_encoder"},
    ):
        (folder / "config.json").write_text(json.dumps({**values, "encoder_config": inner}))
        with hftune_error("encoder_config.model_type", inner["model_type"]):
            logits(folder)
    assert not mark.exists()


@pytest.mark.parametrize("what", ["run", pytest.param("lora", marks=pytest.mark.slow)])
def test_onnx(what: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = request.getfixturevalue(what)
    made = export(
        EvaluationRequest(str(path), ModelSection(model_name_or_path=str(path))), tmp_path / "onnx", int8=False
    )
    assert made.largest_difference < 1e-4 and made.labels_changed == 0
    assert torch.allclose(logits(tmp_path / "onnx"), logits(path), atol=1e-4)


def test_labels_are_those_of_the_classifier() -> None:
    made = with_pooling(config("bert"), "mean")
    assert tuple(made.id2label.values()) == NAMES and made.num_labels == 3
    back = with_pooling(made, "cls")
    assert type(back) is type(config("bert")) and tuple(back.id2label.values()) == NAMES
    assert replace(Classifier(classifier("bert"), None, NAMES, 8, "longest_first")).metadata().get("pooling") is None  # type: ignore[arg-type]
