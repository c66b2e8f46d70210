"""The train section becomes TrainingArguments in one place: every field is declared, passed on or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from hftune.config.train import TrainSection
from hftune.errors import HftuneError
from hftune.machine import Trial
from hftune.training import arguments as module
from hftune.training.arguments import make_arguments


def make(**settings: Any) -> tuple[TrainingArguments, list[str]]:
    filled = {"num_train_epochs": 3, "learning_rate": 1e-3, "metric_for_best_model": "f1_macro"}
    return make_arguments(TrainSection(**{**filled, **settings}), checkpoints=Path("checkpoints"))


def test_what_hftune_decides() -> None:
    made, notes = make()
    expected = {
        "data_seed": 1,
        "optim": "adamw_torch_fused",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "greater_is_better": True,
        "load_best_model_at_end": True,
        "report_to": [],
        "push_to_hub": False,
        "hub_token": None,
        "logging_nan_inf_filter": False,
        "auto_find_batch_size": False,
    }
    assert {name: getattr(made, name) for name in expected} == expected
    assert notes == []
    assert not make(metric_for_best_model="eval_loss")[0].greater_is_better
    assert make(metric_for_best_model="loss", greater_is_better=True)[0].greater_is_better


def test_eval_steps_save_and_evaluate_together() -> None:
    made, _ = make(eval_steps=50, max_steps=120)
    assert (made.eval_strategy, made.eval_steps, made.save_strategy, made.save_steps) == ("steps", 50, "steps", 50)
    assert made.max_steps == 120
    made, _ = make(eval_strategy="steps", logging_steps=7)
    assert (made.eval_steps, made.save_steps) == (7, 7), "as in TrainingArguments"
    made, _ = make(save_steps=9, save_strategy="steps")
    assert (made.eval_strategy, made.eval_steps) == ("steps", 9)


def test_a_stable_phase_ends_in_a_linear_decay() -> None:
    made, _ = make(lr_scheduler_type="warmup_stable_decay")
    assert made.lr_scheduler_kwargs == {"num_decay_steps": 0.6, "decay_type": "linear"}
    made, _ = make(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs='{"num_decay_steps": 40}')
    assert made.lr_scheduler_kwargs == {"num_decay_steps": 40, "decay_type": "linear"}


def test_what_only_transformers_can_check_is_an_error_with_a_hint() -> None:
    with pytest.raises(HftuneError, match="transformers refuses") as refused:
        make(torch_empty_cache_steps=-1)
    assert refused.value.exit_code == 2 and "train section" in refused.value.hint


def trial(monkeypatch: pytest.MonkeyPatch, found: Trial) -> None:
    monkeypatch.setattr(module, "cpu_trial", lambda name: found)


def test_fp16_needs_a_gpu() -> None:
    with pytest.raises(HftuneError, match="fp16") as refused:
        make(fp16=True, use_cpu=True)
    assert "leave train." in refused.value.hint


@pytest.mark.parametrize("outcome", ["crashed", "hung", "wrong", "failed"])
def test_bf16_on_a_cpu_where_it_does_not_work_is_refused(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, Trial("bf16", outcome, 0.7, "was killed by SIGILL", works_with="AVX2"))
    with pytest.raises(HftuneError, match="bf16") as refused:
        make(bf16=True, use_cpu=True)
    assert "leave train." in refused.value.hint and "ONEDNN_MAX_CPU_ISA=AVX2" in refused.value.hint
    assert outcome != "crashed" or "SIGILL" in refused.value.message
    assert not make(use_cpu=True)[0].bf16


def test_bf16_on_a_cpu_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, Trial("bf16", "works", speed=2.0))
    made, notes = make(bf16=True, use_cpu=True)
    assert made.bf16 and not notes
    assert not make(use_cpu=True)[0].bf16
    trial(monkeypatch, Trial("bf16", "works", speed=0.25))
    made, notes = make(bf16=True, use_cpu=True)
    assert made.bf16 and len(notes) == 1 and "0.25× the speed of fp32" in notes[0]


def test_compile_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    made, notes = make(torch_compile=True, use_cpu=True)
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
