"""``Applied``, which every method returns, and its parts: heads, frozen weights, peft models, parameter counts.

A frozen encoder can be split from its head, so that the features of an example are computed once, not in every epoch.

Letters of formulas: d hidden size, e size of the word embeddings, f size of the feed-forward layer, L layers, n virtual
tokens, r rank, h width of a network that computes a prompt or prefix.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from peft import PeftModel, PeftModelForCausalLM, PeftModelForSequenceClassification, TaskType
from peft.utils import ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.pytorch_utils import Conv1D

from hftune.errors import HftuneError, did_you_mean
from hftune.methods.method import AdapterMethod
from hftune.models.pooled import pool
from hftune.models.pooling import pooling_of
from hftune.models.settings import encoder_config

DUPLICATE = ".original_module."
"""peft keeps the untrained module next to the trained copy that replaces it; nothing uses it."""
ALWAYS_SAVED = {"classifier", "score"}
"""Names that peft itself adds to modules_to_save."""
_FACTOR = re.compile(r"(\d+)|([A-Za-z])(²?)")


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters, and the closed formula if the method has one."""

    trainable: int
    total: int
    formula: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The ``parameters`` object of metrics.json."""
        return asdict(self)


@dataclass(frozen=True)
class Precomputed:
    """The model split in two: a frozen part that runs once over the examples, and the rest, trained on its output."""

    trained: nn.Module
    """Takes ``inputs_embeds`` of one position per example; shares its weights with the whole model."""
    encode: Callable[[Mapping[str, Tensor]], Tensor]
    """A batch of token ids → the output of the frozen part [N, d]."""


def unchanged(model: PreTrainedModel) -> PreTrainedModel:
    """The ``finish`` of a method that has nothing to do after training."""
    return model


@dataclass(frozen=True)
class Applied:
    """A model on which a method was applied."""

    model: PreTrainedModel
    """The whole model: token ids in, logits out."""
    parameters: ParameterCount
    precomputed: Precomputed | None = None
    """Set if the frozen part can run once instead of once per epoch."""
    finish: Callable[[Any], PreTrainedModel] = unchanged
    """Turns the trained model into the one that is saved: merges an adapter if the recipe requests it."""

    def so_far(self) -> PreTrainedModel:
        """The model as it would be saved now, in the middle of training, which continues unchanged."""
        # ``finish`` changes the model, so it gets a copy.
        return self.model if self.finish is unchanged else self.finish(copy.deepcopy(self.model))

    @property
    def trained(self) -> nn.Module:
        """The model for the trainer."""
        return self.precomputed.trained if self.precomputed else self.model


def head_modules(model: PreTrainedModel, fresh_modules: Sequence[str]) -> dict[str, nn.Module]:
    """The modules that every method trains, by name.

    These are the head (everything outside the backbone) and modules of the backbone that the checkpoint lacks: a frozen
    pooler with random weights would be useless, and an adapter without it could not be loaded again. The head of a
    language model comes with the checkpoint and is mostly its embeddings, so it does not count as one.
    """
    if model.can_generate():
        return {name: model.get_submodule(name) for name in fresh_modules}
    head = {
        name: module
        for name, module in model.named_children()
        if name != model.base_model_prefix and any(True for _ in module.parameters())
    }
    inside = tuple(f"{name}." for name in head)
    fresh = {name: model.get_submodule(name) for name in fresh_modules if name not in head}
    return {**head, **{name: module for name, module in fresh.items() if not name.startswith(inside)}}


def freeze_all_but(model: PreTrainedModel, modules: dict[str, nn.Module]) -> None:
    """Freeze all parameters outside these modules."""
    model.requires_grad_(False)
    for module in modules.values():
        module.requires_grad_(True)


def count(model: nn.Module, formula: str | None = None, letters: Mapping[str, int] | None = None) -> ParameterCount:
    """Count each parameter once, however often it is used (tied weights).

    Args:
        model: The model, with all other weights frozen.
        formula: Of the trainable parameters. One that does not fit this model, because of an unusual bias or norm, is
            left out.
        letters: Values of the letters in the formula.
    """
    parameters = [value for name, value in model.named_parameters() if DUPLICATE not in name]
    trainable = sum(value.numel() for value in parameters if value.requires_grad)
    fits = formula is not None and evaluate(formula, letters or {}) == trainable
    total = sum(value.numel() for value in parameters)
    return ParameterCount(trainable, total, formula if fits else None)


def evaluate(formula: str, letters: Mapping[str, int]) -> int:
    """The value of a sum of products: ``2·L·n·d + 2d+2``, ``d²+d+2d+2``."""
    return sum(
        prod(
            int(number) if number else letters[letter] ** (2 if square else 1)
            for number, letter, square in _FACTOR.findall(term)
        )
        for term in formula.split("+")
    )


def letters_of(model: PreTrainedModel, **more: int) -> dict[str, int]:
    """Values of the letters for this model; more: those of the method."""
    config: PreTrainedConfig = encoder_config(model.config)
    embeddings: int = model.get_input_embeddings().embedding_dim
    values = {"d": config.hidden_size, "L": config.num_hidden_layers, "e": embeddings}
    feed_forward = config.to_dict().get("intermediate_size") or config.to_dict().get("hidden_dim")
    if not feed_forward and model.can_generate():
        feed_forward = 4 * config.hidden_size  # the default of GPTs
    return {**values, **({"f": feed_forward} if feed_forward else {}), **more}


def head_formula(model: PreTrainedModel, modules: Mapping[str, nn.Module]) -> str | None:
    """The formula of a head that is one linear layer, or a square one and that; None for any other."""
    labels, hidden_size = model.config.num_labels, model.config.hidden_size
    size = sum(parameter.numel() for module in modules.values() for parameter in module.parameters())
    for formula in (f"{labels}d+{labels}", f"d²+d+{labels}d+{labels}"):
        if evaluate(formula, {"d": hidden_size}) == size:
            return formula
    return None


def wrapped(method: AdapterMethod, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
    """Wrap the model with the adapter of a method, which saves the head and every fresh module too."""
    modules = head_modules(model, fresh_modules)
    head = head_formula(model, modules)
    known = {**letters_of(model), **method.letters(model)}
    causal = model.can_generate()
    settings = method.settings(model)
    _check_targets(model, settings.get("target_modules", ()), method.linear_targets)
    made = method.make_config(task_type=TaskType.CAUSAL_LM if causal else TaskType.SEQ_CLS, **settings)
    made.modules_to_save = [name for name in modules if name not in ALWAYS_SAVED] or None
    if "fan_in_fan_out" in vars(made):  # GPT-2's layers store their weights transposed
        made.fan_in_fan_out = any(isinstance(part, Conv1D) for part in model.modules())
    try:
        adapted = (PeftModelForCausalLM if causal else PeftModelForSequenceClassification)(model, made)
    except (ValueError, TypeError, NotImplementedError) as error:  # sizes or layers that the tuner does not support
        raise HftuneError(
            f"peft can't apply {made.peft_type.value} to this {encoder_config(model.config).model_type} model: {error}",
            hint="change the settings of the method section, or use --method lora",
        ) from error
    # A language model has no head of its own that is trained.
    formula = method.full_formula(model, head or "").removesuffix(" + ") if head or causal else ""
    finish = _merged if vars(method).get("merge") else unchanged
    return Applied(model=adapted, parameters=count(adapted, formula or None, known), finish=finish)


def norm_names(model: PreTrainedModel) -> tuple[str, ...]:
    """Suffixes of the names of the norms of a model."""
    found = {name.rpartition(".")[2] for name, part in model.named_modules() if type(part).__name__.endswith("Norm")}
    return tuple(sorted(found))


def _check_targets(model: PreTrainedModel, targets: Sequence[str], linear_only: bool) -> None:
    """Refuse a name that is not the suffix of a linear layer; peft silently ignores some of them."""
    layers = {name: isinstance(part, nn.Linear | Conv1D) or not linear_only for name, part in model.named_modules()}
    for target in targets:
        found = [linear for name, linear in layers.items() if f".{name}".endswith(f".{target}")]
        if not any(found):
            what = "is no linear layer" if found else "names no layer"
            known = sorted({name.rpartition(".")[2] for name, linear in layers.items() if linear})
            raise HftuneError(
                f"method.target_modules: {target!r} {what} of this {encoder_config(model.config).model_type} model",
                hint=did_you_mean(target, known) or f"its linear layers end in {', '.join(known)}",
            )


def _merged(adapted: PeftModel) -> PreTrainedModel:
    # peft's merge_and_unload puts the trained copy of a head back for all tuners, but for IA3 it fails if the head is
    # more than one layer, such as RoBERTa's: so it is put back here before the update is merged.
    for name, module in list(adapted.base_model.model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            trained = module.modules_to_save[module.active_adapters[0]]
            adapted.base_model.model.set_submodule(name, trained)
    return adapted.merge_and_unload()


class _Features(nn.Module):
    """Replaces the backbone, and returns its precomputed output."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        # Kept whole, so that a checkpoint still records the frozen weights on which the head was trained.
        self.backbone = backbone

    def get_input_embeddings(self) -> None:
        """None; FSDP calls it to see whether they are tied to an output."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPooling:
        """The output of the backbone for one position per example, its last hidden states [B, 1, d]."""
        # The pooler runs here, because it may be trained.
        pooler = getattr(self.backbone, "pooler", None)
        return BaseModelOutputWithPooling(
            last_hidden_state=inputs_embeds,
            pooler_output=None if pooler is None else pooler(inputs_embeds),  # [B, d]
        )


def can_split(model: PreTrainedModel, trained: Mapping[str, nn.Module]) -> bool:
    """Whether the features of a text do not change: only the pooler of the backbone may be trained.

    GPT-2's head reads the last token of a text, and ALBERT's pooler is a linear layer whose activation is elsewhere:
    they run the frozen backbone in every epoch.
    """
    if hasattr(model, "score") or isinstance(getattr(model.base_model, "pooler", None), nn.Linear):
        return False
    prefix = model.base_model_prefix
    return all(not name.startswith(f"{prefix}.") or name.startswith(f"{prefix}.pooler") for name in trained)


def split(model: PreTrainedModel) -> Precomputed:
    """The model as a frozen encoder, and a head that shares its weights with the model."""
    backbone = model.base_model
    # A copy of the outermost module alone: deepcopy takes what the memo has for everything inside.
    memo: dict[int, Any] = {id(part): part for part in (model.config, *model.children())}
    trained = copy.deepcopy(model, {**memo, id(backbone): _Features(backbone)})
    takes = inspect.signature(backbone.forward).parameters
    pooling = pooling_of(model.config) or "cls"  # a class with one way only reads the first token

    @torch.no_grad()
    def encode(batch: Mapping[str, Tensor]) -> Tensor:
        hidden: Tensor = backbone(**{name: value for name, value in batch.items() if name in takes}).last_hidden_state
        # [B, T, d] → [B, d]
        return hidden[:, 0] if pooling == "cls" else pool(hidden, batch["attention_mask"], pooling)

    return Precomputed(trained=trained, encode=encode)
