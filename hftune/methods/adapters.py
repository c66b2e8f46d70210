"""Wrapping a model with peft so that all of it can be saved and counted. Used by the methods that peft has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from peft import PeftConfig, PeftModel, PeftModelForCausalLM, PeftModelForSequenceClassification, TaskType
from peft.utils import ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hftune.errors import HftuneError
from hftune.methods.accounting import count
from hftune.methods.applied import Applied, itself
from hftune.methods.formula import head_formula, letters_of
from hftune.methods.heads import head_modules
from hftune.suggest import did_you_mean

ALWAYS_SAVED = {"classifier", "score"}
"""Names that peft adds by itself to what an adapter carries."""


def wrapped(
    model: PreTrainedModel,
    fresh_modules: Sequence[str],
    config: Callable[..., PeftConfig],
    settings: dict[str, Any],
    *,
    formula: Callable[[str], str],
    letters: dict[str, int] | None = None,
    merge: bool = False,
) -> Applied:
    """Put an adapter around the model, which then carries the head and every fresh module.

    Args:
        model: The plain classifier or language model.
        fresh_modules: Modules that did not come from the checkpoint.
        config: peft's configuration class.
        settings: What it is given beside the task and the modules to save.
        formula: The head's formula → that of all trainable parameters.
        letters: What further letters of the formula stand for.
        merge: Whether the trained adapter ends up in the weights.
    """
    modules = head_modules(model, fresh_modules)
    head = head_formula(modules, model.config.num_labels, model.config.hidden_size)
    known = letters_of(model, **(letters or {}))
    causal = model.can_generate()
    _check_targets(model, settings.get("target_modules", ()))
    made = config(task_type=TaskType.CAUSAL_LM if causal else TaskType.SEQ_CLS, **settings)
    made.modules_to_save = [name for name in modules if name not in ALWAYS_SAVED] or None
    if "fan_in_fan_out" in vars(made):  # GPT-2's layers hold their weights transposed
        made.fan_in_fan_out = any(isinstance(part, Conv1D) for part in model.modules())
    adapted = (PeftModelForCausalLM if causal else PeftModelForSequenceClassification)(model, made)
    return Applied(
        model=adapted,
        parameters=count(adapted, formula(head or "").removesuffix(" + ") if head or causal else None, known),
        finish=_merged if merge else itself,
    )


def _check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Refuse a name that no linear layer ends with; peft passes over some of them in silence."""
    layers = {name: isinstance(part, nn.Linear | Conv1D) for name, part in model.named_modules()}
    for target in targets:
        found = [linear for name, linear in layers.items() if f".{name}".endswith(f".{target}")]
        if not any(found):
            what = "is no linear layer" if found else "names no layer"
            known = sorted({name.rpartition(".")[2] for name, linear in layers.items() if linear})
            raise HftuneError(
                f"method.target_modules: {target!r} {what} of this {model.config.model_type} model",
                hint=did_you_mean(target, known) or f"its linear layers end in {', '.join(known)}",
            )


def _merged(adapted: PeftModel) -> PreTrainedModel:
    # peft puts the trained copy of a head back in all tuners alike, but in IA3 it fails for a head that is no single
    # layer, such as RoBERTa's: it is put back here, before the update is merged.
    for name, module in list(adapted.base_model.model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            trained = module.modules_to_save[module.active_adapters[0]]
            adapted.base_model.model.set_submodule(name, trained)
    return adapted.merge_and_unload()
