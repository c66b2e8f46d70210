"""Exported classifiers: the same answers from ONNX Runtime, what int8 costs, and what can't be exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from facts import hftune_error, mentions
from finished_run import LABELS, finished_run
from method_case import model

from hftune import methods, predict
from hftune.methods.lora import LoraMethod
from hftune.methods.prefix import PrefixMethod
from hftune.models import onnx_model
from hftune.models.classifier import Classifier
from hftune.models.settings import ModelSection
from hftune.pipeline.onnx_export import export
from hftune.tasks.task import EvaluationRequest

pytestmark = pytest.mark.numeric

Hftune = Callable[..., tuple[int, str, str]]
TEXTS = ("the soup was cold", "great food", "we will never come back", "kind but bad", "good soup", "warm kind food")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("trained") / "run").path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Gold labels are what the model predicts, but for one: the scores are known."""
    path = tmp_path / "rows.jsonl"
    path.write_text("")
    return path


def write_gold(path: Path, run: Path) -> None:
    output = [answer.label for answer in predict(run, TEXTS)]
    output[0] = next(label for label in LABELS if label != output[0])
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, output, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_onnx_gives_the_outputs_of_the_model(run: Path, data: Path, here: Path, hftune: Hftune) -> None:
    write_gold(data, run)
    code, out, err = hftune("export", str(run), "--onnx", "--data", str(data), "--output", "out", "--json")
    assert code == 0, err
    reported = json.loads(out)
    assert reported["labels_changed"] == 0 and reported["accuracy_lost"] == 0 and reported["largest_difference"] < 1e-4
    assert reported["scores"]["exported"]["accuracy"] == pytest.approx(5 / 6) and reported["rows"] == 6
    assert {path.name for path in Path("out").iterdir()} >= {"model.onnx", "config.json", "hftune.json", "export.json"}
    for ours, theirs in zip(predict("out", TEXTS), predict(run, TEXTS), strict=True):
        assert ours.label == theirs.label
        assert ours.probabilities == pytest.approx(theirs.probabilities, abs=1e-4)
    code, out, _ = hftune("evaluate", "out", "--data", str(data), "--json")
    assert code == 0 and json.loads(out)["splits"]["all"]["accuracy"] == pytest.approx(5 / 6)
    code, _, err = hftune("export", str(run), "--onnx", "--data", str(data), "--output", "out")
    assert code == 2 and "exists already" in err


def test_int8_is_smaller_and_what_it_costs_is_reported(run: Path, data: Path, here: Path, hftune: Hftune) -> None:
    write_gold(data, run)
    code, out, err = hftune("export", str(run), "--int8", "--data", str(data))
    assert code == 0, err
    assert "accuracy lost" in out and "of 6 labels" in out and "exports/run-int8" in out
    reported = json.loads(Path("exports/run-int8/export.json").read_text(encoding="utf-8"))
    assert 0 < reported["largest_difference"] < 0.5
    assert reported["scores"].keys() == {"trained", "exported"}


def test_an_adapter_is_merged_and_a_prefix_refused(data: Path, tmp_path: Path, run: Path) -> None:
    tokenizer = Classifier.load(str(run)).tokenizer
    data.write_text("".join(json.dumps({"text": text, "label": "bad"}) + "\n" for text in TEXTS), encoding="utf-8")
    for name, section in (("lora", LoraMethod()), ("prefix", PrefixMethod(num_virtual_tokens=2))):
        torch.manual_seed(1)
        adapted = methods.apply(model("bert"), section, ()).model
        for part, value in adapted.named_parameters():
            if "lora_B" in part:
                torch.nn.init.normal_(value)
        Classifier(adapted, tokenizer, LABELS, 16, "longest_first").save(
            tmp_path / name, base=ModelSection(model_name_or_path="scratch:bert-tiny")
        )
    request = EvaluationRequest(
        str(tmp_path / "lora"), ModelSection(model_name_or_path=str(tmp_path / "lora")), str(data)
    )
    made = export(request, tmp_path / "merged", int8=False)
    assert made.largest_difference < 1e-4
    base = Classifier.load(str(tmp_path / "lora" / "base")).logits(TEXTS)
    assert np.abs(base - Classifier.load(str(tmp_path / "merged")).logits(TEXTS)).max() > 1e-2, "the update is in it"
    request = EvaluationRequest(
        str(tmp_path / "prefix"), ModelSection(model_name_or_path=str(tmp_path / "prefix")), str(data)
    )
    with hftune_error("virtual tokens"):
        export(request, tmp_path / "none", int8=False)
    assert not (tmp_path / "none").exists()


def test_bad_requests_are_reported_before_any_work(
    run: Path, here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags, output in (((), "--onnx"), (("--onnx", "--int8"), "both --onnx and --int8")):
        code, _, err = hftune("export", str(run), *flags)
        assert code == 2 and output in err
    folder = Path("gpt")
    folder.mkdir()
    for name in ("config.json", "hftune.json"):
        (folder / name).write_text('{"version": 1, "task": "clm", "model_type": "gpt2"}')
    (folder / "model.safetensors").touch()
    code, _, err = hftune("export", "gpt", "--onnx")
    assert code == 2 and mentions(err, "classifier", "export")

    def lacking(name: str) -> Any:
        return None if name == "onnxruntime" else object()

    monkeypatch.setattr(onnx_model, "find_spec", lacking)
    code, _, err = hftune("export", str(run), "--onnx")
    assert code == 2 and "needs onnxruntime" in err and "hftune[onnx]" in err


def test_nothing_is_left_behind_when_it_fails(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gold(data, run)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setattr("transformers.exporters.exporter_onnx.OnnxExporter.export", fail)
    with hftune_error("ONNX", "no such operator"):
        export(
            EvaluationRequest(str(run), ModelSection(model_name_or_path=str(run)), str(data)),
            tmp_path / "out",
            int8=False,
        )
    assert not (tmp_path / "out").exists()
