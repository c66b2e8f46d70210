"""The trainer: the loss that is reported and descended, what stops it, what it writes, and what order it answers in."""

from __future__ import annotations

import logging
import math
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from facts import facts, hftune_error, mentions
from torch import nn
from training_case import Case, SignalAt, collate, rows, same, tiny_bert
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState
from transformers.modeling_outputs import SequenceClassifierOutput

from hftune.errors import HftuneError, Interrupted, RunFailed
from hftune.portability import WARNING_SIGNAL
from hftune.training.callbacks import ReportProgress
from hftune.training.checkpoints import newest_complete
from hftune.training.fit import MIN_SECONDS, fit, matmul_peak, model_flops_utilization

pytestmark = pytest.mark.numeric


def sum_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    total = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
    return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)


def silent_head(model: Any) -> Any:
    """A classifier that predicts nothing: its loss is the logarithm of the number of labels."""
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
    return model


def lora(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("how", ["own loss", "loss function", "peft"])
def test_the_loss_is_not_inflated(tmp_path: Path, accumulation: int, how: str) -> None:
    model = silent_head(tiny_bert(0.0))
    case = Case(
        tmp_path,
        {
            "gradient_accumulation_steps": accumulation,
            "learning_rate": 1e-12,
            "num_train_epochs": 1,
            "logging_steps": 1,
        },
        inputs={"loss": sum_loss} if how == "loss function" else None,
    )
    fit(case.trainer(lora(model) if how == "peft" else model))
    losses = [row["loss"] for row in case.history]
    assert losses == pytest.approx([math.log(3)] * len(losses), rel=1e-4)


@pytest.mark.parametrize("how", ["own loss", "loss function"])
def test_accumulated_micro_batches_make_the_step_of_one_batch(tmp_path: Path, how: str) -> None:
    """50 examples in steps of 18: the last has micro-batches of 6, 6 and 2, and yet every example weighs the same."""
    ends = []
    for name, settings in {
        "whole": {"per_device_train_batch_size": 18},
        "parts": {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 3},
    }.items():
        case = Case(
            tmp_path / name,
            {**settings, "num_train_epochs": 2, "learning_rate": 1e-2, "logging_steps": 1},
            train_rows=50,
            inputs={"loss": sum_loss} if how == "loss function" else None,
        )
        fit(case.trainer(tiny_bert(0.0)))
        train = [(row["loss"], row["grad_norm"]) for row in case.history if "split" not in row]
        ends.append((case.weights_at(6), train))
    for left, right in zip(ends[0][0].values(), ends[1][0].values(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
    for (loss, norm), (other_loss, other_norm) in zip(ends[0][1], ends[1][1], strict=True):
        assert loss == pytest.approx(other_loss, rel=1e-4)
        assert norm == pytest.approx(other_norm, rel=1e-3)


class Poisoned(nn.Module):
    """A linear model that answers nan, or has an endless gradient, for rows that hold one token."""

    def __init__(self, token: int, gradient_only: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(64, 3)
        self.token = token
        self.gradient_only = gradient_only

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> SequenceClassifierOutput:
        logits = self.embedding(input_ids).mean(1)
        if (input_ids == self.token).any():
            # sqrt has an endless slope at 0, so the value stays finite while its gradient does not.
            logits = logits + (torch.sqrt(logits * 0) if self.gradient_only else math.nan)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


@pytest.mark.parametrize("gradient_only", [False, True], ids=["loss", "gradient"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_number_that_is_none_stops_the_run(tmp_path: Path, gradient_only: bool, accumulation: int) -> None:
    poison = 9  # no row has this token but one
    train = rows(60, 1)
    train[17]["input_ids"][2] = poison
    settings = {
        "eval_steps": 1,
        "gradient_accumulation_steps": accumulation,
        "fast_dropout": False,
        "learning_rate": 1e-3,
    }
    case = Case(tmp_path, settings, inputs={"train": train})
    trainer = case.trainer(Poisoned(poison, gradient_only))
    order = trainer.batches
    where = next(i for i in range(len(order)) if 17 in order.batch(0, i))
    update = where // accumulation + 1
    assert update > 1, "the test needs a good checkpoint before the bad update"

    with pytest.raises(RunFailed) as failed:
        fit(trainer)
    message = failed.value.message
    assert ("the gradient became" if gradient_only else "the loss became nan") in message
    assert f"at step {update} (epoch 1)" in message
    passes = [where] if not gradient_only else range((update - 1) * accumulation, update * accumulation)
    named = sorted(row for i in passes for row in order.batch(0, i))
    assert f"training examples {', '.join(map(str, named))};" in message
    assert mentions(message, f"checkpoint-{update - 1}")
    assert newest_complete(case.checkpoints) == (case.checkpoints / f"checkpoint-{update - 1}", [])
    assert same(dict(trainer.model.named_parameters()), case.weights_at(update - 1)), "the weights did not move"


def test_predictions_come_in_row_order(tmp_path: Path) -> None:
    seen: list[Any] = []

    def metrics(outcome: EvalPrediction) -> dict[str, float]:
        seen.append((outcome.predictions, outcome.label_ids))
        return {"accuracy": 1.0}

    trainer = Case(tmp_path, {"per_device_eval_batch_size": 4}, inputs={"compute_metrics": metrics}).trainer()
    asked = rows(23, 9)
    trainer.model.eval()
    with torch.no_grad():
        expected = np.stack([trainer.model(**collate([row])).logits[0].numpy() for row in asked])
    output = trainer.predict(asked)
    np.testing.assert_allclose(output.predictions, expected, atol=1e-5)
    assert output.label_ids.tolist() == [row["labels"] for row in asked]
    np.testing.assert_allclose(seen[0][0], expected, atol=1e-5)
    trainer.evaluate()
    assert seen[1][1].tolist() == [row["labels"] for row in rows(21, 2)]


def test_evaluation_goes_by_length(tmp_path: Path) -> None:
    """Long rows first, and far less padding than in row order."""
    widths: list[tuple[int, int]] = []

    def noting(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        made = collate(batch)
        widths.append(tuple(made["input_ids"].shape))
        return made

    trainer = Case(tmp_path, {"per_device_eval_batch_size": 4}, inputs={"collator": noting}).trainer()
    trainer.evaluate()
    assert [width for _, width in widths] == sorted((width for _, width in widths), reverse=True)
    tokens = sum(len(row["input_ids"]) for row in rows(21, 2))
    assert sum(count * width for count, width in widths) < 1.15 * tokens


class Hearing:
    """A progress that keeps what it hears."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []

    def stage(self, text: str) -> None:
        self.received.append(("stage", text))

    def begin(self, total: int, unit: str) -> None:
        self.received.append(("begin", (total, unit)))

    def advance(self, done: int, facts: Any) -> None:
        self.received.append(("advance", (done, dict(facts))))

    def end(self) -> None:
        self.received.append(("end", None))

    def note(self, text: str) -> None:
        self.received.append(("note", text))

    def warn(self, text: str) -> None:
        self.received.append(("warn", text))


def test_history_and_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hearing = Hearing()
    case = Case(tmp_path, {"num_train_epochs": 2, "logging_steps": 4})
    fitted = fit(case.trainer(progress=hearing))
    train = [row for row in case.history if "split" not in row]
    validation = [row for row in case.history if "split" in row]
    assert [row["step"] for row in train] == [4, 8, 12, 16]
    assert all(set(row) == {"step", "epoch", "loss", "learning_rate", "grad_norm"} for row in train)
    assert [(row["step"], row["epoch"], row["split"]) for row in validation] == [
        (8, 1.0, "validation"),
        (16, 2.0, "validation"),
    ]
    assert all(set(row) == {"step", "epoch", "split", "loss", "accuracy"} for row in validation)

    assert hearing.received[0][0] == "note" and hearing.received[0][1].startswith("only 16 steps in all")
    assert hearing.received[1] == ("begin", (16, "steps"))
    assert hearing.received[-1] == ("end", None)
    done, facts = next(value for kind, value in reversed(hearing.received) if kind == "advance")
    assert done == 16
    assert facts["validation accuracy"] == validation[-1]["accuracy"]
    assert facts["loss"] == pytest.approx(train[-1]["loss"])

    best = max(validation, key=lambda row: (row["accuracy"], -row["step"]))
    assert fitted.selection == {"metric": "accuracy", "step": best["step"], "score": best["accuracy"]}
    assert fitted.speed["steps"] == 16
    assert fitted.speed["examples_per_second"] >= 120 / fitted.speed["train_seconds"] > 0
    assert capfd.readouterr().out == "", "Trainer's own printing is off"


def test_time_outside_the_steps_is_left_out_once(tmp_path: Path) -> None:
    """Samples are written inside an evaluation: subtracted twice, they would leave no time for the steps at all."""

    def write(model: Any) -> list[dict[str, Any]]:
        time.sleep(1)
        return [{"prompt": "", "text": "slow"}]

    fitted = fit(Case(tmp_path, {"num_train_epochs": 1}, inputs={"samples": write}).trainer())
    assert 60 / fitted.speed["train_seconds"] < fitted.speed["examples_per_second"] < 1e8


def test_the_share_of_the_peak_is_a_share_or_left_out() -> None:
    cpu, threads = torch.device("cpu"), torch.get_num_threads()
    peak = matmul_peak(cpu, torch.float32)
    share = model_flops_utilization(peak, 10 * MIN_SECONDS, cpu, torch.float32)
    assert share is not None and 0 < share < 1
    assert model_flops_utilization(100 * peak, MIN_SECONDS, cpu, torch.float32) is None, "no training is above the peak"
    assert model_flops_utilization(peak / 100, MIN_SECONDS / 2, cpu, torch.float32) is None, "too short to tell"
    assert model_flops_utilization(0, MIN_SECONDS, cpu, torch.float32) is None, "nothing was counted"
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("scores", [(0.9, 0.2, 0.3), (0.1, 0.8, 0.2), (0.1, 0.2, 0.9)])
def test_the_best_weights_come_back(tmp_path: Path, scores: tuple[float, ...]) -> None:
    messages = iter(scores)
    case = Case(tmp_path, {}, inputs={"compute_metrics": lambda outcome: {"accuracy": next(messages)}})
    trainer = case.trainer()
    fitted = fit(trainer)
    best = 8 * (1 + scores.index(max(scores)))
    assert (fitted.selection["step"], fitted.selection["score"]) == (best, max(scores))
    held = {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}
    assert same(held, case.weights_at(best))


def test_lower_can_be_better(tmp_path: Path) -> None:
    messages = iter((0.4, 0.1, 0.3))
    inputs = {"compute_metrics": lambda o: {"error": next(messages)}}
    settings = {"metric_for_best_model": "error", "greater_is_better": False}
    fitted = fit(Case(tmp_path, settings, inputs=inputs).trainer())
    assert fitted.selection == {"metric": "error", "step": 16, "score": 0.1}


def test_an_unknown_score_to_select_by(tmp_path: Path) -> None:
    with pytest.raises(HftuneError, match="'f1'") as refused:
        fit(Case(tmp_path, {"metric_for_best_model": "f1"}).trainer())
    assert "accuracy" in refused.value.hint


def test_no_score_that_is_a_number(tmp_path: Path) -> None:
    case = Case(tmp_path, {"num_train_epochs": 1}, inputs={"compute_metrics": lambda outcome: {"accuracy": math.nan}})
    with hftune_error("no evaluation", "finite", code=1):
        fit(case.trainer())
    assert case.history[-1]["accuracy"] is None


def test_early_stopping(tmp_path: Path) -> None:
    messages = iter((0.5, 0.6, 0.6, 0.5, 0.9))
    case = Case(
        tmp_path,
        {"early_stopping_patience": 2, "num_train_epochs": 5},
        inputs={"compute_metrics": lambda o: {"accuracy": next(messages)}},
    )
    fitted = fit(case.trainer())
    assert (fitted.speed["steps"], fitted.selection["step"]) == (32, 16)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, WARNING_SIGNAL])
def test_signals_have_their_own_codes_and_handlers_come_back(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    trainer = Case(tmp_path, {}).trainer()
    trainer.add_callback(SignalAt(3, number))
    with pytest.raises(Interrupted, match=facts("step 3 of 24")) as stopped:
        fit(trainer)
    assert stopped.value.exit_code == 128 + number
    assert "--resume" in stopped.value.hint
    assert signal.getsignal(number) is before


class Twice(TrainerCallback):
    """Two signals within one step."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 9:
            for number in self.numbers:
                signal.raise_signal(number)


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    case = Case(tmp_path, {})
    trainer = case.trainer()
    trainer.add_callback(Twice(signal.SIGINT, signal.SIGINT))
    with pytest.raises(Interrupted, match="stopped at once") as stopped:
        fit(trainer)
    assert stopped.value.exit_code == 130
    assert newest_complete(case.checkpoints) == (case.checkpoints / "checkpoint-8", [])


def test_a_warning_and_then_a_term_are_let_finish(tmp_path: Path) -> None:
    """Slurm sends SIGUSR1 and, soon after, SIGTERM: the second must not break the save."""
    case = Case(tmp_path, {})
    trainer = case.trainer()
    trainer.add_callback(Twice(WARNING_SIGNAL, signal.SIGTERM, signal.SIGTERM))
    with pytest.raises(Interrupted) as stopped:
        fit(trainer)
    assert stopped.value.exit_code == 128 + WARNING_SIGNAL
    assert newest_complete(case.checkpoints) == (case.checkpoints / "checkpoint-10", [])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_names_the_settings(tmp_path: Path, error: Exception) -> None:
    trainer = Case(tmp_path, {"gradient_accumulation_steps": 2}).trainer()

    def full(*args: Any, **kwargs: Any) -> Any:
        raise error

    trainer.training_step = full
    with hftune_error("memory", "train.per_device_train_batch_size=8", code=1) as failed:
        fit(trainer)
    assert "train.per_device_train_batch_size=4 train.gradient_accumulation_steps=4" in failed.value.hint


def test_other_errors_are_not_taken_for_memory(tmp_path: Path) -> None:
    trainer = Case(tmp_path, {}).trainer()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("shapes do not match")

    trainer.training_step = broken
    with pytest.raises(RuntimeError, match="shapes do not match"):
        fit(trainer)


def test_library_warnings_go_to_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Case(tmp_path, {}).trainer()
    transformers.utils.logging.set_verbosity_warning()  # a command that ran before may have asked for silence
    with caplog.at_level(logging.WARNING):
        logging.getLogger("transformers.trainer").warning("from the library")
    assert "from the library" in caplog.text
    for library in ("transformers", "datasets"):
        assert not [h for h in logging.getLogger(library).handlers if type(h) is logging.StreamHandler]


def test_fast_dropout_can_be_turned_off(tmp_path: Path) -> None:
    from hftune.training.dropout import CheapDropout

    for wanted in (True, False):
        trainer = Case(tmp_path, {"fast_dropout": wanted}).trainer()
        assert any(isinstance(module, CheapDropout) for module in trainer.model.modules()) is wanted


def test_no_training_rows(tmp_path: Path) -> None:
    with pytest.raises(HftuneError, match="no training examples"):
        Case(tmp_path, {}, train_rows=0).trainer()


def test_a_line_per_evaluation_has_a_loss_before_the_first_logging_step(tmp_path: Path) -> None:
    hearing = Hearing()
    reporter, state = ReportProgress(hearing, "accuracy"), TrainerState(max_steps=100)
    args: Any = SimpleNamespace(max_steps=100, greater_is_better=True)
    control = TrainerControl()
    reporter.on_train_begin(args, state, control)
    for step, logs in (
        (4, {"eval_loss": 1.5, "eval_accuracy": 0.5}),
        (5, {"loss": 1.25, "learning_rate": 0.1}),
        (8, {"eval_loss": 1.4, "eval_accuracy": 0.4}),
    ):
        state.global_step = step
        reporter.on_log(args, state, control, logs=logs)
    first, second = (value for kind, value in hearing.received if kind == "note")
    assert first.startswith(
        "step 4 of 100, validation loss 1.5000, validation accuracy 0.5000, best 0.5000 at step 4, "
    )
    assert second.startswith("step 8 of 100, loss 1.2500, validation accuracy 0.4000, best 0.5000 at step 4, ")
    assert first.endswith(" left") and second.endswith(" left")
