"""Task distillation: targets, loss and layers against hand-computed values, runs, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crash_case import differences, recipe, remains, train_session, write_data
from facts import hftune_error
from safetensors.torch import load_file
from scipy.special import log_softmax, softmax
from tiny_teacher import teacher_tokenizer, write_classifier, write_teacher
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2LMHeadModel, pipeline

from hftune.files import read_json, read_jsonl
from hftune.models.layer_transfer import PROJECTIONS, TeacherLayers, attention_distance, hidden_distance, layer_pairs
from hftune.models.teacher import teacher_section
from hftune.models.teacher_classifier import ClassifierTeacher, open_classifier
from hftune.pipeline.dry_run import dry_run
from hftune.pipeline.train import TrainingJob, assemble, train
from hftune.progress import ProgressReporter
from hftune.runs.directory import RunDir
from hftune.tasks import teacher_outputs
from hftune.tasks.classification import ClassificationLoss
from hftune.tasks.distill import Distillation, DistillationLoss, NumberedRows, SoftTargets
from hftune.tasks.teacher_outputs import LiveLogits, Texts, stored_logits
from hftune.training.callbacks import LossComponents

pytestmark = pytest.mark.numeric
KIND = "distill"
LABELS = ("bad", "good")
LAYERS = {
    "model.model_name_or_path": "student",
    "model.vocab_size": 4000,
    "data.unlabeled": None,
    "task.hidden_weight": 0.5,
    "task.attention_weight": 2.0,
}
"""A student with the teacher's tokenizer, whose layers are compared with the teacher's."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = write_data(tmp_path_factory.mktemp("home"))
    write_classifier(home / "student", seed=3, num_hidden_layers=2, hidden_size=16, intermediate_size=16)
    return home


def wanted(home: Path, **changes: Any) -> Any:
    name = changes.get("model.model_name_or_path")
    return recipe(home, KIND, **{**changes, **({"model.model_name_or_path": str(home / name)} if name else {})})


def assembled(home: Path, folder: Path, **changes: Any) -> TrainingJob:
    return assemble(wanted(home, **changes), RunDir(folder), ProgressReporter())


def teacher_at(folder: Path) -> ClassifierTeacher:
    opened = open_classifier(teacher_section(str(folder), None, trust=False))
    return ClassifierTeacher(opened, opened.order_for(LABELS, "data"))


# ---- what the teacher computes ----

TEXTS = Texts(["a good day", "the dire room was poor", "x", "fine, superb and lovely food on day 3"], None)


def test_logits_come_in_the_label_order_of_the_data(home: Path) -> None:
    teacher, model = (
        teacher_at(home / "classifier"),
        AutoModelForSequenceClassification.from_pretrained(home / "classifier"),
    )
    assert model.config.id2label == {0: "good", 1: "bad"}
    found = teacher.logits(*TEXTS)
    for text, (bad, good) in zip(TEXTS.texts, found, strict=True):
        with torch.no_grad():
            expected = model.eval()(**teacher_tokenizer()(text, return_tensors="pt")).logits[0]
        np.testing.assert_allclose([good, bad], expected.numpy(), rtol=1e-4)


def test_the_cache_equals_the_live_teacher_and_continues(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path))
    monkeypatch.setattr(teacher_outputs, "SHARD_TEXTS", 3)
    teacher = teacher_at(home / "classifier")
    stored = stored_logits(teacher, {"train": TEXTS}, ProgressReporter())["train"]
    live = LiveLogits(teacher, TEXTS)
    entries = sorted((tmp_path / "teacher").glob("[0-9a-f]*"))
    assert len(entries) == 2
    for rows in ([3, 0], [2], range(4)):
        assert stored[rows].dtype == np.float32
        np.testing.assert_allclose(stored[rows], live[rows], rtol=1e-5)
    read: list[int] = []
    original = ClassifierTeacher.logits
    counting = lambda self, texts, *rest: read.append(len(texts)) or original(self, texts, *rest)  # noqa: E731
    monkeypatch.setattr(ClassifierTeacher, "logits", counting)
    shutil.rmtree(entries[0])
    again = stored_logits(teacher, {"train": TEXTS}, ProgressReporter())["train"]
    assert len(read) == 1 and read[0] in (1, 3), "the other shard is found"
    np.testing.assert_array_equal(again[range(4)], stored[range(4)])
    # The same texts as pairs are other inputs.
    stored_logits(teacher, {"train": Texts(TEXTS.texts, TEXTS.texts)}, ProgressReporter())
    assert sum(read[1:]) == 4


def test_an_ensemble_is_the_mean_of_probabilities() -> None:
    class Fixed:
        def __init__(self, logits: Any) -> None:
            self.all = np.array(logits, dtype=np.float32)

        def __getitem__(self, rows: Any) -> Any:
            return self.all[list(rows)]

    one, two = [[4.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 9.0]]
    targets = SoftTargets([Fixed(one), Fixed(two)])
    for temperature in (1.0, 3.0):
        expected = (softmax(np.array(one) / temperature, axis=1) + softmax(np.array(two) / temperature, axis=1)) / 2
        np.testing.assert_allclose(targets.probabilities([0, 1], temperature), expected, rtol=1e-6)
    assert targets.labels([0, 1]).tolist() == [0, 1], "the second is sure where the first is not"


# ---- the loss ----

GOLD = [0, -1, 2, 1]
"""The second row has no label."""
TEACHER = np.array([[2.0, 0.0, 1.0], [0.5, 3.0, -1.0], [1.0, 1.0, 4.0], [0.0, 2.0, 2.0]], dtype=np.float32)


def loss(home: Path, **settings: Any) -> DistillationLoss:
    section = wanted(home, **{f"task.{name}": value for name, value in settings.items()}).task
    return DistillationLoss(section, ClassificationLoss(None, 0.0), SoftTargets([TEACHER]), LossComponents())


def test_the_loss_by_hand(home: Path) -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(4, 3)).astype(np.float32)
    order = [2, 0, 1, 3]
    labels = torch.tensor([[GOLD[row], row] for row in order])
    outputs = {"logits": torch.from_numpy(logits[order]).requires_grad_()}
    weight, temperature = 0.3, 2.5
    of_labels = -sum(log_softmax(logits[row])[gold] for row, gold in enumerate(GOLD) if gold >= 0)
    wanted = softmax(TEACHER.astype(float) / temperature, axis=1)
    of_teacher = (wanted * (np.log(wanted) - log_softmax(logits.astype(float) / temperature, axis=1))).sum()
    expected = (weight * of_labels + (1 - weight) * temperature**2 * of_teacher) / 4
    made = loss(home, hard_label_weight=weight, temperature=temperature)
    assert made(outputs, labels).item() == pytest.approx(expected, rel=1e-5)
    # Of a step: each micro-batch divides by the examples of all, of which Trainer counts two numbers each.
    parts = [
        made({"logits": outputs["logits"][part]}, labels[part], torch.tensor(8)) for part in (slice(0, 1), slice(1, 4))
    ]
    assert sum(parts).item() == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():  # an evaluation: as in classification
        assert made(outputs, labels).item() == pytest.approx(of_labels / 4, rel=1e-5)
    assert loss(home, hard_label_weight=0.0)(outputs, labels).item() > 0


def test_accumulation_makes_the_same_steps(home: Path, tmp_path: Path) -> None:
    settings = {"train.max_steps": 3, "model.dropout": 0.0, "train.logging_steps": 1}
    train_session(wanted(home, **settings), tmp_path / "whole")
    few = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4}
    train_session(wanted(home, **settings, **few), tmp_path / "parts")
    names = ("loss", "hard_loss", "soft_loss", "grad_norm")
    one, two = (
        [[row[name] for name in names] for row in read_jsonl(tmp_path / run / "history.jsonl") if "soft_loss" in row]
        for run in ("whole", "parts")
    )
    assert len(one) == 3
    np.testing.assert_allclose(one, two, rtol=2e-4)


def test_a_weight_of_1_is_classification_bit_for_bit(home: Path, tmp_path: Path) -> None:
    settings = {"train.num_train_epochs": 1}
    train_session(recipe(home, "classify", **settings), tmp_path / "plain")
    train_session(wanted(home, **settings, **{"task.hard_label_weight": 1.0}), tmp_path / "none")
    train_session(wanted(home, **settings, **{"task.hard_label_weight": 0.9}), tmp_path / "some")
    plain, none, some = (remains(tmp_path / name) for name in ("plain", "none", "some"))
    assert differences(plain, none) == []
    assert differences(plain["weights"], some["weights"])


# ---- layers ----


def test_layers_are_those_that_transformers_returns(home: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(home / "classifier", attn_implementation="eager").eval()
    batch = teacher_tokenizer()(list(TEXTS.texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**batch, output_hidden_states=True, output_attentions=True)
    loaded = teacher_at(home / "classifier").classifier.model
    (hidden,), (scores,) = TeacherLayers(loaded, [(0, 0)])(batch, torch.device("cpu"))
    mask = batch["attention_mask"]
    real = mask.bool()
    torch.testing.assert_close(hidden[real], expected.hidden_states[1][real], rtol=1e-4, atol=1e-5)
    weights = scores.masked_fill(~real[:, None, None], -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(
        weights.transpose(1, 2)[real], expected.attentions[0].transpose(1, 2)[real], rtol=1e-4, atol=1e-5
    )
    # Row by row, without padding, the distances are plain means.
    ours, our_scores = torch.randn_like(hidden), torch.randn(len(mask), 1, *scores.shape[2:])
    sizes = mask.sum(dim=1).tolist()
    rows = [(a[:n] - b[:n]).square().mean() for a, b, n in zip(ours, hidden, sizes, strict=True)]
    shifted = torch.cat([torch.randn_like(ours[:, :3]), ours], dim=1)  # three virtual tokens in front
    assert hidden_distance([shifted], [hidden], mask).item() == pytest.approx(float(sum(rows)), rel=1e-5)
    means = scores.mean(dim=1)  # two heads and one
    rows = [(a[0, :n, :n] - b[:n, :n]).square().mean() for a, b, n in zip(our_scores, means, sizes, strict=True)]
    assert attention_distance([our_scores], [scores], mask).item() == pytest.approx(float(sum(rows)), rel=1e-4)


def test_the_layer_map() -> None:
    assert layer_pairs("uniform", 4, 12) == [(0, 2), (1, 5), (2, 8), (3, 11)]
    assert layer_pairs("uniform", 4, 6) == [(0, 1), (1, 2), (2, 4), (3, 5)]
    assert layer_pairs("uniform", 3, 2) == [(0, 0), (1, 1), (2, 1)]
    assert layer_pairs("last", 4, 12) == [(3, 11)]
    assert layer_pairs([1, 12], 2, 12) == [(0, 0), (1, 11)]
    for wrong in ([1], [0, 1], [1, 13]):
        with hftune_error("layer_map", "12"):
            layer_pairs(wrong, 2, 12)


@pytest.fixture(scope="module")
def run(home: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run with every loss."""
    return train(wanted(home, **LAYERS), tmp_path_factory.mktemp("runs") / "run").run


def test_a_run_with_layers_saves_a_plain_classifier(run: RunDir, home: Path, tmp_path: Path) -> None:
    assert not [name for name in load_file(run.model / "model.safetensors") if PROJECTIONS in name]
    _, info = AutoModelForSequenceClassification.from_pretrained(run.model, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert pipeline("text-classification", model=str(run.model))("a fine room")[0]["label"] in LABELS
    rows = [row for row in read_jsonl(run.history) if "hidden_loss" in row]
    for row in rows:
        parts = 0.5 * row["hard_loss"] + 0.5 * row["soft_loss"] + 0.5 * row["hidden_loss"] + 2 * row["attention_loss"]
        assert row["loss"] == pytest.approx(parts, rel=1e-4)
    assert rows[-1]["hidden_loss"] < 0.8 * rows[0]["hidden_loss"], "the projections are trained"
    metrics = run.read_metrics()
    assert metrics["verified"] and metrics["task"] == KIND and metrics["data"]["fingerprints"]["teacher"]
    assert read_json(run.model / "hftune.json")["teacher"] == "classifier"
    assert "distilled from classifier" in (run.model / "README.md").read_text(encoding="utf-8")
    # The run is resumed bit for bit, projections included.
    settings = wanted(home, **LAYERS)
    train_session(settings, tmp_path / "whole")
    train_session(settings, tmp_path / "parts", stop=5)
    train_session(settings, tmp_path / "parts", resume=True)
    assert differences(remains(tmp_path / "whole"), remains(tmp_path / "parts")) == []
    last = max((tmp_path / "whole" / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    trained = load_file(next(last.glob("*.safetensors")))
    assert {value.shape for name, value in trained.items() if PROJECTIONS in name} == {(24, 16), (24,)}


def test_the_agreement_and_the_teacher_are_scored(run: RunDir, home: Path) -> None:
    metrics, teacher = run.read_metrics(), teacher_at(home / "classifier")
    for split in ("validation", "test"):
        lines = run.read_predictions(split)
        theirs = [LABELS[place] for place in teacher.logits([line["text"] for line in lines], None).argmax(axis=1)]
        assert [line["teacher"] for line in lines] == theirs
        same = np.mean([line["label"] == label for line, label in zip(lines, theirs, strict=True)])
        assert metrics["splits"][split]["teacher_agreement"] == pytest.approx(same)
        right = np.mean([line["gold"] == label for line, label in zip(lines, theirs, strict=True)])
        assert metrics["baselines"]["teacher"][split]["accuracy"] == pytest.approx(right)
    (best,) = [
        row
        for row in read_jsonl(run.history)
        if row.get("split") == "validation" and row["step"] == metrics["selection"]["step"]
    ]
    assert best["teacher_agreement"] == metrics["splits"]["validation"]["teacher_agreement"]


def test_unlabeled_texts_are_labeled_by_the_teacher(home: Path, tmp_path: Path) -> None:
    repeated = (home / "labeled" / "train.csv").read_text().splitlines()[1].partition(",")[2]
    (home / "more.txt").write_text(f"{repeated}\nnew text\nanother one\n")
    job = assembled(home, tmp_path, **{"data.unlabeled": "more.txt"})
    assert job.facts.rows["unlabeled"] == 2 and any("1 unlabeled text left out" in note for note in job.facts.notes)
    rows, made = job.inputs.train, job.inputs.loss
    assert isinstance(rows, NumberedRows) and isinstance(made, DistillationLoss) and len(rows) == 45
    assert [rows[place]["labels"] for place in (43, 44)] == [[-1, 43], [-1, 44]]
    expected = teacher_at(home / "classifier").logits(["new text", "another one"], None)
    np.testing.assert_allclose(made.targets.logits[0][[43, 44]], expected, rtol=1e-4)
    assert rows[43]["input_ids"] == job.tokenizer("new text")["input_ids"]
    assert dry_run(wanted(home, **{"data.unlabeled": str(home / "more.txt")})).loss_of_first_batch > 0


# ---- refused ----


def test_a_changed_teacher_is_refused_on_resume(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = {"task.teacher": str(write_classifier(tmp_path / "changing")), "train.max_steps": 1}
    train_session(wanted(home, **changing), tmp_path / "run")
    shutil.rmtree(tmp_path / "changing")
    write_classifier(tmp_path / "changing", seed=1)
    monkeypatch.setattr(ClassifierTeacher, "logits", None)
    with hftune_error("data.teacher"):
        assembled(home, tmp_path / "run", **changing)


def test_what_is_no_teacher(home: Path, tmp_path: Path) -> None:
    gpt = tmp_path / "gpt"
    GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=8, n_layer=1, n_head=2)).save_pretrained(gpt)
    teacher_tokenizer().save_pretrained(gpt)
    coded = write_classifier(tmp_path / "coded")
    config = (coded / "config.json").read_text()
    own = '"auto_map": {"AutoConfig": "strange.Strange"}, "model_type": "strange", '
    (coded / "config.json").write_text(config.replace('"model_type": "bert",', "").replace("{", "{" + own, 1))
    (coded / "strange.py").write_text("raise SystemExit('it ran')")
    headless = write_teacher(tmp_path / "headless")
    for teacher, *facts in (
        (gpt, "GPT2LMHeadModel"),
        (headless, "BertModel"),
        (coded, "--trust-teacher-code"),
        (tmp_path / "missing", "no folder"),
        (write_classifier(tmp_path / "others", ("good", "ugly")), "ugly", "bad, good"),
        (write_classifier(tmp_path / "more", ("good", "bad", "fair")), "3", "fair", "bad, good"),
    ):
        with hftune_error(*facts):
            refuse(home, **{"task.teacher": str(teacher)})


def refuse(home: Path, **changes: Any) -> None:
    task = Distillation(wanted(home, **changes))
    task.check_request()
    task.load_data()


def test_settings_that_do_not_suit(home: Path, tmp_path: Path) -> None:
    lines = (home / "labeled" / "train.csv").read_text().splitlines()[1:]
    (home / "known.txt").write_text("\n".join(line.partition(",")[2] for line in lines))
    several = [str(home / "classifier"), str(home / "student")]
    for changes, *facts in (
        ({"task.teacher": several, "task.hidden_weight": 1}, "one teacher"),
        ({"task.teacher": several, "task.teacher_revision": "main"}, "teacher_revision"),
        ({"task.teacher": []}, "teacher"),
        ({"task.layer_map": "last"}, "layer_map"),
        ({"data.unlabeled": None, "data.max_unlabeled_samples": 3}, "max_unlabeled_samples"),
        ({"data.block_size": 8}, "block_size"),
        ({**LAYERS, "method.kind": "lora"}, "hidden_weight", "lora"),
        ({**LAYERS, "method.kind": "head", "task.hidden_weight": 0}, "attention_weight", "head"),
        ({**LAYERS, "train.gradient_checkpointing": True}, "gradient_checkpointing"),
        ({**LAYERS, "task.layer_map": [1]}, "layer_map", "2 layers"),
        ({"data.unlabeled": "known.txt"}, "every unlabeled text"),
    ):
        with hftune_error(*facts):
            refuse(home, **changes)
    with hftune_error("--tokenizer-name"):
        assembled(home, tmp_path, **{"task.attention_weight": 1})
    with hftune_error("teacher_agreement"):
        refuse(home, **{"task.hard_label_weight": 1, "train.metric_for_best_model": "teacher_agreement"})


def test_attention_works_with_adapters(home: Path, tmp_path: Path) -> None:
    for method in ("lora", "prompt"):
        changes = {**LAYERS, "task.hidden_weight": 0, "train.max_steps": 2, "train.logging_steps": 1}
        few = {"method.num_virtual_tokens": 2} if method == "prompt" else {}
        train_session(wanted(home, **changes, **few, **{"method.kind": method}), tmp_path / method)
        rows = [row for row in read_jsonl(tmp_path / method / "history.jsonl") if "attention_loss" in row]
        assert len(rows) == 2 and all(row["attention_loss"] > 0 for row in rows)


def test_the_command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from hftune.cli.commands import app

    monkeypatch.chdir(home)
    brief = ("--set", "train.max_steps=1", "--set", "model.vocab_size=300", "--batch-size", "8", "--json")
    two = ("--teacher", "classifier", "student", "--data", "labeled", "--unlabeled", "lines.txt")
    done = CliRunner().invoke(app, ["distill", *two, "--output", str(tmp_path / "run"), *brief], prog_name="hftune")
    assert done.exit_code == 0, done.output
    run = RunDir.open(tmp_path / "run")
    assert run.read_metrics()["task"] == KIND and run.read_metrics()["data"]["rows"]["unlabeled"] == 54
    assert read_json(run.model / "hftune.json")["teacher"] == ["classifier", "student"]
    for arguments, shown in ((("--help",), "--hard-label-weight"), (("--corpus", "x", "--help"), "--corpus")):
        assert shown in CliRunner().invoke(app, ["distill", *arguments], prog_name="hftune").output
