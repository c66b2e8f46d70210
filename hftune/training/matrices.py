"""Which weights of a model are matrices of its transformer blocks, and where one tensor holds several of them.

Muon moves these and nothing else. The rule goes by structure, not by architecture: a block is an element of a
``ModuleList`` that holds at least two linear maps, and its matrices are the weights of those maps. Embeddings, norms,
biases, heads and parameters that are no linear map stay out. Called by ``hftune.training.muon``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hftune.errors import HftuneError

SIDE_BY_SIDE = {"qkv": 3, "Wqkv": 3, "c_attn": 3, "gate_up_proj": 2, "Wi": 2}
"""Names of linear maps that stack whole matrices (all queries, all keys, all values; gate and value), and how many.

minGPT and vision transformers say qkv, ModernBERT and MPT Wqkv, GPT-2 c_attn; its cross-attention has two.
"""
SQUARE = ("qkv", "Wqkv", "c_attn")
"""Those whose parts are as wide as their input; fewer rows mean that heads share keys and values."""
UNCLEAR = ("query_key_value", "qkv_proj", "in_proj", "kv_proj", "qkv_linear")
"""Fused maps whose rows go head by head, or whose parts differ in size: a cut into equal parts would mix them."""


@dataclass(frozen=True)
class Matrix:
    """One weight of a block."""

    name: str
    parameter: Tensor
    parts: int
    """Matrices that lie side by side in it."""
    axis: int
    """The axis along which they do: 0 for ``Linear`` [out, in], 1 for ``Conv1D`` [in, out]."""


def block_matrices(model: nn.Module) -> list[Matrix]:
    """The 2-D weights of the blocks that move, in the model's order.

    Raises:
        HftuneError: There is none, or one is fused in a way that can't be told apart.
    """
    moving = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    found: dict[int, Matrix] = {}
    for prefix, block in blocks(model):
        for name, module in block.named_modules(prefix=prefix):
            weight, axis = _map(module)
            if weight is not None and id(weight) in moving and id(weight) not in found:
                found[id(weight)] = Matrix(name, weight, _parts(name, module, weight, axis), axis)
    if not found:
        raise HftuneError(
            "train.optim is muon, but no matrix of a transformer block moves in this model",
            hint="use train.optim=adamw_torch_fused, or method.kind=full with a model that has blocks",
        )
    return list(found.values())


def blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The transformer blocks, by name; what Muon looks into and FSDP gathers one at a time."""
    return [
        (f"{name}.{index}" if name else index, block)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        for index, block in module.named_children()
        if sum(isinstance(part, nn.Linear | Conv1D | nn.MultiheadAttention) for part in block.modules()) > 1
    ]


def _map(module: nn.Module) -> tuple[Tensor | None, int]:
    """The weight of a linear map and the axis of its outputs; None for any other module."""
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight, 0
    if isinstance(module, nn.Linear | Conv1D):
        return module.weight, int(isinstance(module, Conv1D))
    return None, 0


def _parts(name: str, module: nn.Module, weight: Tensor, axis: int) -> int:
    """How many matrices a weight holds."""
    if isinstance(module, nn.MultiheadAttention):
        return 3
    path, _, last = name.rpartition(".")
    outputs, inputs = weight.shape[axis], weight.shape[1 - axis]
    parts = 2 if last == "c_attn" and outputs == 2 * inputs else SIDE_BY_SIDE.get(last, 1)
    if parts == 1:
        unclear = last in UNCLEAR or ("att" in path.lower() and outputs == 3 * inputs)
    else:
        unclear = outputs % parts != 0 or (last in SQUARE and outputs != parts * inputs)
    if unclear:
        raise HftuneError(
            f"train.optim is muon, which orthogonalizes queries, keys and values apart, but {name} ({outputs} × "
            f"{inputs}) holds them together in an order that its name does not tell",
            hint="use train.optim=adamw_torch_fused for this architecture",
        )
    return parts
