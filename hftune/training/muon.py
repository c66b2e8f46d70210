"""Muon: the momentum of matrices is orthogonalized before the step; AdamW for all other parameters.

A matrix of a block changes by 0.2·√max(rows, cols)·UVᵀ, where USVᵀ is its momentum: by the same amount in every
direction, and about as much per entry as with AdamW, so that both can have one learning rate. UVᵀ comes from five
Newton-Schulz steps. It is one optimizer with parameter groups, so Trainer's schedule, clipping, saving and resuming
work unchanged.

torch.optim.Muon always computes in bf16, which is slow on a CPU without bf16 units, and moves a fused q/k/v weight as a
single matrix. See Jordan et al. 2024 (kellerjordan.github.io/posts/muon) and Liu et al. 2025 (arXiv:2502.16982).
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from transformers.pytorch_utils import Conv1D

from hftune.errors import HftuneError

logger = logging.getLogger(__name__)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial aσ + bσ³ + cσ⁵, as steep at 0 as it can be while it keeps [0, 1] bounded."""
STEPS = 5
MATCH_ADAMW = 0.2
"""Root mean square of an AdamW update, measured over trainings; a matrix with singular values 1 is brought to it."""
FUSED = {"qkv": 3, "Wqkv": 3, "c_attn": 3, "gate_up_proj": 2, "Wi": 2}
"""Names of linear maps that stack whole matrices (all queries, all keys, all values; gate and value), and how many.

minGPT and vision transformers use qkv, ModernBERT and MPT Wqkv, GPT-2 c_attn; its cross-attention has two.
"""
SQUARE = ("qkv", "Wqkv", "c_attn")
"""Those whose parts are as wide as their input; fewer rows mean that heads share keys and values."""
UNCLEAR = ("query_key_value", "qkv_proj", "in_proj", "kv_proj", "qkv_linear")
"""Fused maps whose rows go head by head, or whose parts differ in size: equal parts would mix them."""


# ---- Newton-Schulz ----


def orthogonalize(matrices: Tensor, steps: int = STEPS) -> Tensor:
    """UVᵀ of each USVᵀ, approximately: singular values come out between 0.7 and 1.2, singular vectors unchanged.

    Each Newton-Schulz step takes singular values σ to aσ + bσ³ + cσ⁵, because XXᵀ and X have the same left singular
    vectors. No SVD is computed, which is slow on every device.
    """
    # (N, rows, cols). XXᵀ is as small as it can be if X is wide.
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # no singular value is above 1 then
    if x.shape[2] >= 2 * x.shape[1] and x.dtype != torch.bfloat16:
        x = _product_of_steps(x @ x.mT, steps) @ x
    else:
        for _ in range(steps):
            x = _step(x @ x.mT) @ x
    return x.mT if tall else x


def _step(gram: Tensor) -> Tensor:
    """What one step multiplies X by, from XXᵀ: aI + bXXᵀ + c(XXᵀ)²."""
    a, b, c = COEFFICIENTS
    factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal(dim1=1, dim2=2).add_(a)
    return factor


def _product_of_steps(gram: Tensor, steps: int) -> Tensor:
    """What all steps together multiply X by, from products on the short side only: half the work for an MLP.

    Each step's Gram matrix follows from the one before. Rounding errors grow on the way, so this is not for bf16.
    """
    product = factor = _step(gram)
    for _ in range(steps - 1):
        gram = factor @ gram @ factor
        factor = _step(gram)
        product = factor @ product
    return product


# ---- the optimizer ----


class Muon(torch.optim.Optimizer):
    """Muon for groups with ``parts``, AdamW for the others."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bf16: bool = False,
    ) -> None:
        """Take groups as ``muon_for`` makes them: ``parts`` and ``axis`` make one Muon's; betas and eps are AdamW's."""
        # bf16 (of the Newton-Schulz steps) is a group setting, so that checkpoints hold it and a resumed run computes
        # as it began.
        settings = {"betas": betas, "eps": eps, "fused": True, "parts": 0, "axis": 0, "bf16": bf16}
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, **settings})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint's state; one from a machine where bf16 works is continued in fp32 elsewhere."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("bf16", False)  # a state without the setting was computed in fp32
        on_cpu = [one for one in self.param_groups if one["bf16"] and one["params"][0].device.type == "cpu"]
        if not on_cpu:
            return
        from hftune.machine import cpu_trial

        if not cpu_trial("bf16").works:
            logger.warning(
                "The checkpoint was made with Muon in bf16, which does not work on this CPU. Muon continues in fp32, "
                "so results will differ slightly from an uninterrupted run."
            )
            for group in on_cpu:
                group["bf16"] = False

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Matrices of one shape are orthogonalized together, which keeps the device busier. A fused q/k/v weight is
        # split before: the singular vectors of the three stacked matrices are not those of each, so orthogonalizing
        # them as one would move queries, keys and values by different amounts.
        matrices: dict[tuple[torch.Size, torch.device], list[tuple[Tensor, Tensor, dict[str, Any]]]] = defaultdict(list)
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moving:
                continue
            if not group["parts"]:
                self._adamw(group, moving)
                continue
            for parameter, update in zip(moving, self._momenta(group, moving), strict=True):
                chunks = (one.chunk(group["parts"], group["axis"]) for one in (parameter, update))
                for weight, wanted in zip(*chunks, strict=True):
                    matrices[_wide(weight).shape, weight.device].append((weight, wanted, group))
        for (shape, _), equal in matrices.items():
            self._move(equal, MATCH_ADAMW * math.sqrt(max(shape)))
        return loss

    def _momenta(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """Gradients with Nesterov momentum."""
        gradients = _gradients(parameters)
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        held = [self.state[parameter]["momentum"] for parameter in parameters]
        # Nesterov: the gradient is added once more to the average that already has it, a step of looking ahead.
        torch._foreach_lerp_(held, gradients, 1 - group["momentum"])
        return list(torch._foreach_lerp(gradients, held, group["momentum"]))

    @staticmethod
    def _move(equal: list[tuple[Tensor, Tensor, dict[str, Any]]], scale: float) -> None:
        dtype = torch.bfloat16 if equal[0][2]["bf16"] else torch.float32  # the same in all groups
        stacked = torch.stack([_wide(update).to(dtype) for _, update, _ in equal])
        for (weight, _, group), direction in zip(equal, orthogonalize(stacked), strict=True):
            turned = direction if weight.shape == direction.shape else direction.mT
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(turned.to(weight.dtype), alpha=-group["lr"] * scale)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        # torch's own function, so that these parameters move bit for bit as under torch.optim.AdamW(fused=True). A
        # second optimizer object would need its own schedule, gradient scaler and place in the checkpoint.
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        averages, squares, steps = (
            [self.state[parameter][name] for parameter in parameters] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        beta1, beta2 = group["betas"]
        settings = {name: group[name] for name in ("lr", "weight_decay", "eps", "fused")}
        adamw(
            parameters,
            _gradients(parameters),
            averages,
            squares,
            [],
            steps,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            **settings,
        )


def muon_for(model: nn.Module, *, lr: float, weight_decay: float, **settings: Any) -> Muon:
    """Muon on the blocks' matrices, AdamW on the rest of what is trained.

    Weight decay is for matrices: those of the blocks, and linear maps outside them. Norms, biases, embeddings and other
    parameters have none.
    """
    found = block_matrices(model)
    groups: list[dict[str, Any]] = [
        {
            "params": [matrix.parameter for matrix in found if (matrix.parts, matrix.axis) == (parts, axis)],
            "weight_decay": weight_decay,
            "parts": parts,
            "axis": axis,
        }
        for parts, axis in sorted({(matrix.parts, matrix.axis) for matrix in found})
    ]
    in_blocks = {id(matrix.parameter) for matrix in found}
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    maps = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)} - embedded
    rest = [one for one in model.parameters() if one.requires_grad and id(one) not in in_blocks]
    for decay, is_map in ((weight_decay, True), (0.0, False)):
        chosen = [one for one in rest if (id(one) in maps) == is_map]
        if chosen:
            groups.append({"params": chosen, "weight_decay": decay})
    return Muon(groups, lr=lr, **settings)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


# ---- which weights are matrices ----


class Matrix(NamedTuple):
    """One weight of a block."""

    name: str
    parameter: Tensor
    parts: int
    """Number of matrices that are stacked in it."""
    axis: int
    """The axis along which they are: 0 for ``Linear`` (out, in), 1 for ``Conv1D`` (in, out)."""


def block_matrices(model: nn.Module) -> list[Matrix]:
    """The trained 2-D weights of the blocks, in the model's order; refuses a model without any.

    They are found by structure, not by architecture: the weights of the linear maps in the blocks. Embeddings, norms,
    biases and heads stay out: a row of an embedding gets gradients from the few examples with its token, and
    orthogonalizing would change all rows by the same amount.
    """
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    found: dict[int, Matrix] = {}
    for prefix, block in blocks(model):
        for name, module in block.named_modules(prefix=prefix):
            weight, axis = _map(module)
            if weight is not None and id(weight) in trained and id(weight) not in found:
                found[id(weight)] = Matrix(name, weight, _parts(name, module, weight, axis), axis)
    if not found:
        raise HftuneError(
            "train.optim is muon, but no matrix of a transformer block is trained in this model",
            hint="use train.optim=adamw_torch_fused, or method.kind=full with a model that has blocks",
        )
    return list(found.values())


def blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The transformer blocks by name: elements of a ``ModuleList`` with at least two linear maps."""
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
    if isinstance(module, nn.MultiheadAttention):
        return 3
    path, _, last = name.rpartition(".")
    outputs, inputs = weight.shape[axis], weight.shape[1 - axis]
    parts = 2 if last == "c_attn" and outputs == 2 * inputs else FUSED.get(last, 1)
    if parts == 1:
        unclear = last in UNCLEAR or ("att" in path.lower() and outputs == 3 * inputs)
    else:
        unclear = outputs % parts != 0 or (last in SQUARE and outputs != parts * inputs)
    if unclear:
        raise HftuneError(
            f"train.optim is muon, which orthogonalizes queries, keys and values separately, but {name} ({outputs} × "
            f"{inputs}) holds them together in an order that its name does not tell",
            hint="use train.optim=adamw_torch_fused for this architecture",
        )
    return parts
