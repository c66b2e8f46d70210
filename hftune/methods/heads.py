"""What of a classifier is its head: everything outside the backbone. Every method but full trains it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel


def head_modules(model: PreTrainedModel, fresh_modules: Sequence[str]) -> dict[str, nn.Module]:
    """The modules that must be trained whatever the method, by name.

    The head, and modules of the backbone that did not come from the checkpoint: a pooler with random weights is of no
    use frozen, and an adapter that leaves it out could not be loaded again. A language model's head is no such thing:
    it came with the checkpoint, and is mostly its embeddings.
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
    """Only the parameters of these modules shall move."""
    model.requires_grad_(False)
    for module in modules.values():
        module.requires_grad_(True)
