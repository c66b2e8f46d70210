"""The train section becomes TrainingArguments in one place, and ``train.extra`` is checked before anything runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hftune.training.extra import OURS, RECIPE_KEYS
from transformers import TrainingArguments

from hftune.config.train import TrainSection
from hftune.errors import HftuneError
from hftune.machine import Trial
from hftune.training import arguments as module
from hftune.training.arguments import make_arguments


def make(**settings: Any) -> tuple[TrainingArguments, list[str]]:
    section = TrainSection(**{"num_train_epochs": 3, "learning_rate": 1e-3, **settings})
    return make_arguments(section, checkpoints=Path("checkpoints"), select_by="f1_macro", greater_is_better=True)


def test_every_setting_arrives() -> None:
    made, notes = make(
        epochs=2.5,
        batch_size=5,
        accumulation=3,
        eval_batch_size=7,
        learning_rate=0.02,
        schedule="cosine",
        warmup=0.25,
        weight_decay=0.3,
        max_grad_norm=0.5,
        log_steps=4,
        workers=2,
        seed=11,
        gradient_checkpointing=True,
    )
    expected = {
        "num_train_epochs": 2.5,
        "max_steps": -1,
        "per_device_train_batch_size": 5,
        "gradient_accumulation_steps": 3,
        "per_device_eval_batch_size": 7,
        "learning_rate": 0.02,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.25,
        "weight_decay": 0.3,
        "max_grad_norm": 0.5,
        "logging_steps": 4,
        "dataloader_num_workers": 2,
        "seed": 11,
        "data_seed": 11,
        "gradient_checkpointing": True,
        "optim": "adamw_torch_fused",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "metric_for_best_model": "f1_macro",
        "greater_is_better": True,
        "load_best_model_at_end": True,
        "report_to": [],
        "push_to_hub": False,
        "hub_token": None,
        "logging_nan_inf_filter": False,
    }
    assert {name: getattr(made, name) for name in expected} == expected
    assert notes == []


def test_eval_steps_save_and_evaluate_together() -> None:
    made, _ = make(eval_steps=50, max_steps=120)
    assert (made.eval_strategy, made.eval_steps, made.save_strategy, made.save_steps) == ("steps", 50, "steps", 50)
    assert made.max_steps == 120


def test_extra_goes_through() -> None:
    made, _ = make(extra={"adam_beta2": 0.95, "neftune_noise_alpha": 5.0, "lr_scheduler_kwargs": {}})
    assert (made.adam_beta2, made.neftune_noise_alpha) == (0.95, 5.0)


@pytest.mark.parametrize(
    ("extra", "message", "hint"),
    [
        ({"adam_beta_2": 0.9}, "train.adam_beta_2 is not a field", "did you mean 'adam_beta2'?"),
        ({"learning_rate": 1.0}, "what train.learning_rate already says", "set train.learning_rate instead"),
        (
            {"metric_for_best_model": "loss"},
            "what train.metric_for_best_model already says",
            "set train.metric_for_best_model instead",
        ),
        ({"push_to_hub": True}, "what hub.hub_model_id already says", "set hub.hub_model_id instead"),
        ({"hub_token": "hf_abc"}, "train.hub_token can't be set", "HF_TOKEN"),
        ({"auto_find_batch_size": True}, "can't be set", "train.auto_find_batch_size"),
        ({"adam_beta2": "high"}, "train.adam_beta2 is 'high'", "TrainingArguments"),
        ({"torch_empty_cache_steps": -1}, "transformers refuses", "train.extra"),
    ],
)
def test_extra_is_refused(extra: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(HftuneError) as refused:
        make(extra=extra)
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert refused.value.exit_code == 2
    assert "hf_abc" not in str(refused.value)


def test_the_tables_name_fields_that_exist() -> None:
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert fields >= RECIPE_KEYS.keys()
    assert fields >= OURS.keys()
    assert not RECIPE_KEYS.keys() & OURS.keys()
    keys = {key.removeprefix("train.") for key in RECIPE_KEYS.values() if key.startswith("train.")}
    assert keys <= TrainSection.model_fields.keys()


def test_nothing_that_arguments_sets_can_be_overruled_by_extra() -> None:
    """Every name that is set here is in one of the two tables, so extra can't change it behind the recipe's back."""
    defaults = TrainingArguments(output_dir="checkpoints", use_cpu=True)
    made, _ = make(eval_steps=5)
    automatic = {"mixed_precision", "dataloader_pin_memory"}
    changed = {
        field.name
        for field in dataclasses.fields(TrainingArguments)
        if getattr(made, field.name) != getattr(defaults, field.name)
    }
    assert changed - automatic <= RECIPE_KEYS.keys() | OURS.keys()


def trial(monkeypatch: pytest.MonkeyPatch, found: Trial) -> None:
    monkeypatch.setattr(module, "cpu_trial", lambda name: found)


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(HftuneError, match="fp16") as refused:
        make(precision="fp16", device="cpu")
    assert "train.precision=auto" in refused.value.hint


@pytest.mark.parametrize("outcome", ["crashed", "hung", "wrong", "failed"])
def test_bf16_on_a_cpu_where_it_does_not_work_is_refused(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, Trial("bf16", outcome, 0.7, "was killed by SIGILL", works_with="AVX2"))
    with pytest.raises(HftuneError, match="bf16") as refused:
        make(precision="bf16", device="cpu")
    assert "train.precision=auto" in refused.value.hint and "ONEDNN_MAX_CPU_ISA=AVX2" in refused.value.hint
    assert outcome != "crashed" or "SIGILL" in refused.value.message
    assert not make(precision="auto", device="cpu")[0].bf16


@pytest.mark.parametrize("name", ["bf16_full_eval", "fp16_full_eval"])
def test_scores_are_always_computed_in_fp32(name: str) -> None:
    with pytest.raises(HftuneError, match=name) as refused:
        make(extra={name: True})
    assert "fp32" in refused.value.hint


def test_bf16_on_a_cpu_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, Trial("bf16", "works", speed=2.0))
    made, notes = make(precision="bf16", device="cpu")
    assert made.bf16 and not notes
    assert not make(precision="auto", device="cpu")[0].bf16
    trial(monkeypatch, Trial("bf16", "works", speed=0.25))
    made, notes = make(precision="bf16", device="cpu")
    assert made.bf16 and len(notes) == 1 and "0.25× the speed of fp32" in notes[0]


def test_compile_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    made, notes = make(compile=True, device="cpu")
    assert not made.torch_compile
    assert len(notes) == 1 and "no C++ compiler" in notes[0]


def test_trackers_are_known_and_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HftuneError, match="tensorbord") as unknown:
        make(report_to=("tensorbord",))
    assert unknown.value.hint == "did you mean 'tensorboard'?"
    monkeypatch.setattr(module, "get_available_reporting_integrations", list)
    with pytest.raises(HftuneError, match="not installed") as missing:
        make(report_to=("wandb",))
    assert "pip install wandb" in missing.value.hint
