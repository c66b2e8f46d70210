"""The train section becomes TrainingArguments in one place: every field is declared, passed on or refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error, mentions
from pydantic import ValidationError
from training_case import Case
from transformers import TrainerCallback, TrainingArguments

from hftune.config.training_arguments import argument_fields
from hftune.errors import HftuneError
from hftune.machine import Trial
from hftune.recipe import load_recipe
from hftune.training import arguments as module
from hftune.training.arguments import check_optimizer, make_arguments
from hftune.training.fit import fit
from hftune.training.settings import DEFAULT_OPTIM, REFUSED, REMOVED, TrainSection


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


def test_fsdp_without_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate would train whole copies; the launch itself is in test_launch_sharded.py."""
    make(use_cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with hftune_error("FSDP", "cpu") as caught:
        make(use_cpu=True)
    assert "--multi_gpu --num_processes" in caught.value.hint


def trial(monkeypatch: pytest.MonkeyPatch, found: Trial) -> None:
    monkeypatch.setattr("hftune.machine.cpu_trial", lambda name: found)


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
    assert made.bf16 and len(notes) == 1 and mentions(notes[0], "0.25×", "fp32")


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_compiler", lambda: None)
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


# ---- every field of the class ----

# Field → another value than its default. Together they make a few trainings: values that exclude each other are apart.
DECLARED: list[dict[str, Any]] = [
    {
        "num_train_epochs": 2.5,
        "per_device_train_batch_size": 5,
        "per_device_eval_batch_size": 7,
        "gradient_accumulation_steps": 3,
        "learning_rate": 0.02,
        "lr_scheduler_type": "cosine",
        "lr_scheduler_kwargs": {"num_cycles": 0.25},
        "warmup_steps": 0.25,
        "weight_decay": 0.3,
        "adam_beta1": 0.8,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-7,
        "optim": "adamw_torch",
        "max_grad_norm": 0.5,
        "logging_steps": 4,
        "logging_first_step": True,
        "seed": 11,
        "data_seed": 12,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "save_total_limit": 3,
        "metric_for_best_model": "loss",
        "greater_is_better": True,
        "use_cpu": True,
        "run_name": "mine",
        "train_sampling_strategy": "sequential",
        "save_strategy": "epoch",
        "torch_empty_cache_steps": 2,
        "eval_accumulation_steps": 2,
        "include_num_input_tokens_seen": "non_padding",
        "use_cache": True,
        "ddp_find_unused_parameters": False,
        "ddp_bucket_cap_mb": 1,
        "ddp_broadcast_buffers": False,
        "ddp_timeout": 60,
        "neftune_noise_alpha": 5.0,
    },
    {
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 4,
        "logging_strategy": "epoch",
        "logging_steps": 10,  # the default of the section: another value would be refused with this strategy
        "label_smoothing_factor": 0.1,
        "optim": "sgd",
        "optim_args": "momentum=0.5",
        "eval_on_start": True,
        "eval_delay": 1,
        "dataloader_num_workers": 1,
        "dataloader_prefetch_factor": 4,
        "dataloader_multiprocessing_context": "fork",
        "dataloader_pin_memory": False,
        "ddp_static_graph": True,
        "report_to": ("tensorboard",),
    },
]
APART: dict[str, Any] = {
    "tf32": "needs a GPU of NVIDIA",
    "bf16": "tests of bf16 on a CPU below",
    "fp16": "test_fp16_needs_a_gpu",
    "torch_compile": "test_compile_without_a_compiler_is_refused, and bench",
    "torch_compile_backend": "with torch_compile",
    "torch_compile_mode": "with torch_compile",
    "auto_find_batch_size": "test_auto_batch.py: a batch that fits is found before training",
    "optim_target_modules": "needs galore_torch",
    "project": "needs trackio",
    "full_determinism": "test_full_determinism_reaches_the_arguments: it changes the whole process",
}
"""Fields that reach the arguments in a test of their own, or need what this machine has not."""


def test_every_field_is_declared_passed_on_or_refused() -> None:
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert fields == set(argument_fields()), "read from the source as the class has them"
    assert len(fields) == 112
    tried = {name for settings in DECLARED for name in settings} | set(APART)
    assert fields == (tried | REFUSED.keys()) & fields
    assert not tried & REFUSED.keys()
    assert tried <= fields
    assert REFUSED.keys() - fields == {"overwrite_output_dir", "save_safetensors", "logging_dir"}


@pytest.mark.parametrize("settings", DECLARED, ids=["epochs", "steps"])
def test_every_field_is_in_the_arguments_while_training(settings: dict[str, Any], tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Look(TrainerCallback):
        def on_step_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
            seen.update({name: getattr(args, name) for name in settings})

    trainer = Case(tmp_path, settings).trainer()
    trainer.add_callback(Look())
    fit(trainer)
    shown = {"report_to": ["tensorboard"]}
    for name, value in settings.items():
        assert seen[name] == shown.get(name, value), name
        default = argument_fields()[name].default
        assert value != default, f"{name}: {value!r} is the default"


@pytest.mark.parametrize(
    "name", sorted(REFUSED.keys() & {field.name for field in dataclasses.fields(TrainingArguments)})
)
def test_a_refused_field_names_its_reason(name: str) -> None:
    used = REFUSED[name].used
    other = {bool: not used, str: "underflow_overflow", int: 3}.get(type(used), "x")
    with pytest.raises(HftuneError) as refused:
        load_recipe(sets=[f"train.{name}={json.dumps(other)}"])
    assert REFUSED[name].reason in refused.value.message and f"train.{name}" in refused.value.message
    with pytest.raises(ValidationError, match=name):
        TrainSection(**{name: other})
    if used is not None:  # what hftune does anyway can be stated, as people copy it
        assert name not in load_recipe(sets=[f"train.{name}={json.dumps(used)}"]).train.model_dump()


def test_full_determinism_reaches_the_arguments() -> None:
    section = TrainSection(full_determinism=True)
    assert section.passed_on == {"full_determinism": True}


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_a_removed_name_is_an_error_in_a_recipe(name: str) -> None:
    with pytest.raises(HftuneError) as refused:
        load_recipe(sets=[f"train.{name}=1"])
    assert REMOVED[name].field in refused.value.message


IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"bf16": True, "fp16": True}, "exclude each other"),
    ({"lr_scheduler_type": "constant", "warmup_steps": 3}, "skips the warmup"),
    ({"lr_scheduler_type": "greedy", "warmup_steps": 0.1}, "skips the warmup"),
    (
        {"lr_scheduler_type": "constant_with_warmup", "lr_scheduler_kwargs": {"power": 2}},
        "takes no lr_scheduler_kwargs",
    ),
    ({"optim_args": "betas=0.5"}, "ignores optim_args betas"),
    ({"optim": "sgd", "optim_args": "bogus=1"}, "momentum, dampening, nesterov"),
    ({"optim": "sgd", "optim_args": "momentum"}, "key=value"),
    ({"optim": "muon", "optim_args": "beta=0.5"}, "it takes momentum"),
    ({"optim": "adafactor", "adam_beta2": 0.9}, "ignores adam_beta2"),
    ({"optim": "adamw"}, "adamw_torch_fused"),
    ({"eval_strategy": "no"}, "selected on validation"),
    ({"eval_strategy": "epoch", "save_strategy": "steps"}, "leave save_strategy out"),
    ({"eval_strategy": "epoch", "eval_steps": 3}, "eval_steps does nothing"),
    ({"eval_steps": 4, "save_steps": 6}, "expected a multiple"),
    ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "without gradient_checkpointing"),
    ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"offload": True}}, "use_reentrant"),
    ({"torch_compile_backend": "eager"}, "without torch_compile"),
    ({"torch_compile": True, "torch_compile_mode": "max-autotune"}, "picks kernels by timing"),
    ({"logging_strategy": "no", "logging_steps": 5}, "logging_steps does nothing"),
    ({"logging_strategy": "epoch", "logging_steps": 5}, "logging_steps does nothing"),
    ({"dataloader_prefetch_factor": 2}, "without dataloader_num_workers"),
    ({"project": "p"}, "trackio"),
    ({"optim_target_modules": "all-linear"}, "GaLore"),
    ({"ddp_static_graph": True, "gradient_accumulation_steps": 2}, "gradient accumulation"),
    ({"train_sampling_strategy": "batch_rebalance"}, "group_by_length"),
    ({"max_steps": 0}, "at least 1"),
    ({"max_tokens_per_batch": 100, "auto_find_batch_size": True}, "exclude each other"),
]


@pytest.mark.parametrize(("settings", "message"), IGNORED, ids=lambda value: str(value)[:50])
def test_what_would_be_ignored_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TrainSection(**settings)
    assert message in str(refused.value)


def test_a_scheduler_without_warmup_has_none() -> None:
    assert TrainSection(lr_scheduler_type="constant").warmup_steps == 0
    assert TrainSection().warmup_steps == 0.1
    assert TrainSection(lr_scheduler_type="constant", warmup_steps=0).warmup_steps == 0


def test_a_scheduler_is_tried_before_training() -> None:
    with pytest.raises(HftuneError, match="min_lr"):
        make(lr_scheduler_type="cosine_with_min_lr")
    with pytest.raises(HftuneError, match="bogus"):
        make(lr_scheduler_type="linear", lr_scheduler_kwargs={"bogus": 1})
    assert make(lr_scheduler_type="reduce_lr_on_plateau")[0].lr_scheduler_kwargs == {"mode": "max"}
    assert make(lr_scheduler_type="greedy", metric_for_best_model="loss")[0].lr_scheduler_kwargs == {
        "mode": "min",
        "min_lr": pytest.approx(1e-5),
    }
    with pytest.raises(HftuneError, match="greater_is_better"):
        make(lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"mode": "min"})


@pytest.mark.parametrize("name", argument_fields()["optim"].choices)
def test_every_optimizer_is_there_or_refused_before_training(name: str, tmp_path: Path) -> None:
    try:
        check_optimizer(name)
    except HftuneError as error:
        assert name in error.message and ("pip install" in error.hint or DEFAULT_OPTIM in error.hint)
    else:
        fitted = fit(Case(tmp_path, {"optim": name, "max_steps": 2}).trainer())
        assert fitted.speed["steps"] == 2


def test_a_best_model_between_two_saves_has_its_checkpoint(tmp_path: Path) -> None:
    """With save_steps a multiple of eval_steps, Trainer would restore a checkpoint that was never written."""
    settings = {
        "max_steps": 8,
        "eval_steps": 2,
        "save_steps": 8,
        "metric_for_best_model": "loss",
        "learning_rate": 1e-3,
    }
    fitted = fit(Case(tmp_path, settings).trainer())
    assert (tmp_path / "checkpoints" / f"checkpoint-{fitted.selection['step']}").is_dir()


def test_an_evaluation_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HftuneError, match="eval_delay"):
        Case(tmp_path, {"num_train_epochs": 2, "eval_delay": 3}).trainer()


def test_betas_reach_the_optimizer_of_language_models_too(tmp_path: Path) -> None:
    settings = {"adam_beta2": 0.9, "adam_epsilon": 1e-6}
    for inputs in ({"decay_embeddings": False}, {}):
        trainer = Case(tmp_path, settings, inputs=inputs).trainer()
        optimizer = trainer.create_optimizer()
        assert optimizer.defaults["betas"] == (0.9, 0.9) and optimizer.defaults["eps"] == 1e-6
        decayed = {id(one) for group in optimizer.param_groups if group["weight_decay"] for one in group["params"]}
        embedding = trainer.model.get_input_embeddings().weight
        assert (id(embedding) in decayed) == (not inputs)
