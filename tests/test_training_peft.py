"""Best weights and resume are exact under every tuning method, also those that Trainer itself gets wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    IA3Config,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from training_case import Case, SignalAt, same, tiny_bert

from hftune.errors import Interrupted
from hftune.training import fit
from hftune.training.weights import moving

METHODS: dict[str, Any] = {
    "lora": LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules=["query", "value"]),
    "ia3": IA3Config(task_type="SEQ_CLS", target_modules=["query"], feedforward_modules=[]),
    "prompt": PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
    "prefix": PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
    "projected prefix": PrefixTuningConfig(
        task_type="SEQ_CLS", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8
    ),
    "p-tuning": PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=3, encoder_hidden_size=8),
}


def tuned(name: str) -> PeftModel:
    torch.manual_seed(3)
    return get_peft_model(tiny_bert(), METHODS[name])


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in moving(model).items()}


def falling(outcome: Any) -> dict[str, float]:
    """The first evaluation is the best, so the best weights are not those that training ends with."""
    falling.score -= 0.1  # type: ignore[attr-defined]
    return {"accuracy": falling.score}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", METHODS)
def test_resume_and_best_are_exact(tmp_path: Path, name: str) -> None:
    settings, inputs = {"epochs": 2, "learning_rate": 1e-2}, {"compute_metrics": falling}
    falling.score = 1.0  # type: ignore[attr-defined]
    whole = Case(tmp_path / "whole", settings, inputs=inputs)
    model = tuned(name)
    begun = state(model)
    fitted = fit(whole.trainer(model))
    assert fitted.best_step == 8
    assert same(state(model), whole.weights_at(8))
    assert not same(state(model), whole.weights_at(16))
    assert not same(state(model), begun)

    falling.score = 1.0  # type: ignore[attr-defined]
    parts = Case(tmp_path / "parts", settings, inputs=inputs)
    trainer = parts.trainer(tuned(name))
    trainer.add_callback(SignalAt(11))
    with pytest.raises(Interrupted):
        fit(trainer)
    again = tuned(name)
    fit(parts.trainer(again), resume=True)
    assert same(state(again), state(model))
    assert same(parts.weights_at(16), whole.weights_at(16))
    assert parts.history == whole.history


def test_checkpoints_hold_only_what_moves(tmp_path: Path) -> None:
    case = Case(tmp_path, {"epochs": 1})
    model = tuned("lora")
    fit(case.trainer(model))
    moved = {name for name, value in model.named_parameters() if value.requires_grad}
    assert set(case.weights_at(8)) == moved | {name for name, _ in model.named_buffers()}
    assert len(moved) < len(list(model.named_parameters()))
