"""Muon: momentum whose matrices are orthogonalized before they move the weights; AdamW for all that is no matrix.

A matrix of a block moves by 0.2·√max(rows, cols)·UVᵀ, where USVᵀ is its momentum: every direction by the same amount,
and by as much as AdamW would move an entry, so that one learning rate suits both. UVᵀ comes from five Newton-Schulz
steps. One optimizer with parameter groups, so Trainer's schedule, clipping, saving and resuming work as ever.
Made by ``hftune.training.trainer``. See Jordan et al. 2024 (Muon) and Liu et al. 2025 (the scale).
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from hftune.machine import cpu_trial
from hftune.training.matrices import block_matrices

logger = logging.getLogger(__name__)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial aσ + bσ³ + cσ⁵, as steep at 0 as it can be while it keeps [0, 1] bounded."""
STEPS = 5
MATCH_ADAMW = 0.2
"""Root mean square of an AdamW update, measured over trainings; a matrix with singular values 1 is brought to it."""


def orthogonalize(matrices: Tensor, steps: int = STEPS) -> Tensor:
    """UVᵀ of each USVᵀ, about: singular values come out between 0.7 and 1.2, singular vectors as they were.

    Args:
        matrices: [N, rows, cols]; computed in their own format.
        steps: Newton-Schulz steps; each takes singular values σ to aσ + bσ³ + cσ⁵.
    """
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
    """What all steps together multiply X by, by products on the short side only: half the work for an MLP.

    Each step's gram matrix follows from the one before. Rounding grows on the way, so bf16 must not come here.
    """
    product = factor = _step(gram)
    for _ in range(steps - 1):
        gram = factor @ gram @ factor
        factor = _step(gram)
        product = factor @ product
    return product


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
        """Take groups as ``muon_for`` makes them.

        Args:
            groups: Parameter groups, each with ``params`` and ``weight_decay``; ``parts`` and ``axis`` make it Muon's.
            lr: Learning rate of all groups.
            betas: Those of AdamW.
            eps: That of AdamW.
            momentum: How much of the past a matrix's momentum keeps in a step.
            bf16: Run the Newton-Schulz steps in bf16; in fp32 otherwise. It is a group setting, so that checkpoints
                hold it and a resumed run computes as it began.
        """
        settings = {"betas": betas, "eps": eps, "fused": True, "parts": 0, "axis": 0, "bf16": bf16}
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, **settings})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a checkpoint's state; one from a machine where bf16 works is continued in fp32 elsewhere."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("bf16", False)
        on_cpu = [one for one in self.param_groups if one["bf16"] and one["params"][0].device.type == "cpu"]
        if on_cpu and not cpu_trial("bf16").works:
            logger.warning(
                "The checkpoint was made with Muon in bf16, which does not work on this CPU. Muon continues in fp32, "
                "so results will differ slightly from an uninterrupted run."
            )
            for group in on_cpu:
                group["bf16"] = False

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices: dict[tuple[torch.Size, torch.device], list[tuple[Tensor, Tensor, dict[str, Any]]]] = defaultdict(list)
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moving:
                continue
            if not group["parts"]:
                self._adamw(group, moving)
                continue
            for parameter, update in zip(moving, self._momenta(group, moving), strict=True):
                pieces = (one.chunk(group["parts"], group["axis"]) for one in (parameter, update))
                for weight, wanted in zip(*pieces, strict=True):
                    matrices[_wide(weight).shape, weight.device].append((weight, wanted, group))
        for (shape, _), equal in matrices.items():
            self._move(equal, MATCH_ADAMW * math.sqrt(max(shape)))
        return loss

    def _momenta(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """Gradients with Nesterov momentum, which looks a step ahead: the momentum as it will be with them again."""
        gradients = _gradients(parameters)
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        held = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(held, gradients, 1 - group["momentum"])
        return list(torch._foreach_lerp(gradients, held, group["momentum"]))

    @staticmethod
    def _move(equal: list[tuple[Tensor, Tensor, dict[str, Any]]], scale: float) -> None:
        """Orthogonalise matrices of one shape together, which fills the device better, and take the step."""
        dtype = torch.bfloat16 if equal[0][2]["bf16"] else torch.float32  # the same in all groups
        stacked = torch.stack([_wide(update).to(dtype) for _, update, _ in equal])
        for (weight, _, group), direction in zip(equal, orthogonalize(stacked), strict=True):
            turned = direction if weight.shape == direction.shape else direction.mT
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.add_(turned.to(weight.dtype), alpha=-group["lr"] * scale)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            _gradients(parameters),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def muon_for(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    bf16: bool = False,
) -> Muon:
    """Muon on the blocks' matrices, AdamW on the rest of what moves.

    Weight decay is for matrices: those of the blocks, and linear maps outside them. Norms, biases, embeddings and other
    parameters of one kind have none.

    Raises:
        HftuneError: No matrix of a block moves, or one can't be told into queries, keys and values.
    """
    found = block_matrices(model)
    kinds = sorted({(matrix.parts, matrix.axis) for matrix in found})
    groups: list[dict[str, Any]] = [
        {
            "params": [matrix.parameter for matrix in found if (matrix.parts, matrix.axis) == (parts, axis)],
            "weight_decay": weight_decay,
            "parts": parts,
            "axis": axis,
        }
        for parts, axis in kinds
    ]
    in_blocks = {id(matrix.parameter) for matrix in found}
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    maps = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)} - embedded
    rest = [one for one in model.parameters() if one.requires_grad and id(one) not in in_blocks]
    for decay, belongs in ((weight_decay, True), (0.0, False)):
        chosen = [one for one in rest if (id(one) in maps) == belongs]
        if chosen:
            groups.append({"params": chosen, "weight_decay": decay})
    return Muon(groups, lr=lr, momentum=momentum, betas=betas, eps=eps, bf16=bf16)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
