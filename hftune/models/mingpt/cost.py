"""What attention costs as sequences grow: time and memory of each variant. Called by the lab and benchmarks/.

Only the attention layer runs, forward and backward, in a narrow shape: projections and MLP are linear in the
length for every variant and would hide what differs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import attention_class
from .attention_base import CausalAttention, Layout
from .configuration_mingpt import MinGPTConfig


@dataclass(frozen=True)
class Cost:
    """Forward and backward of one attention layer at one length."""

    variant: str
    length: int
    seconds: float
    """Processor time of the cheapest repetition, all threads together: what else the machine does is not in it."""
    saved_bytes: int
    """Memory kept from forward to backward, inputs and weights included."""


def measure(
    lengths: Iterable[int],
    variants: Iterable[str],
    *,
    hidden_size: int = 64,
    heads: int = 2,
    seconds_each: float = 0.5,
    seed: int = 0,
    progress: Callable[[Cost], None] | None = None,
) -> list[Cost]:
    """Time each variant at each length, one sequence at a time.

    Args:
        lengths: tokens in the sequence.
        variants: names in ``ATTENTION``.
        hidden_size: width of the layer.
        heads: heads of the layer.
        seconds_each: repeat until so much processor time is spent; at least one run after the warm-up.
        seed: for weights and inputs.
        progress: called with each result as it comes.
    """
    results = []
    for variant in variants:
        for length in lengths:
            layer, x, layout = _layer_and_input(variant, length, hidden_size, heads, seed)
            saved = _saved_bytes(layer, x, layout)  # also warms up
            best, spent, runs = math.inf, 0.0, 0
            while not runs or spent < seconds_each:
                start = time.process_time()
                _forward_backward(layer, x, layout)
                took = time.process_time() - start
                best, spent, runs = min(best, took), spent + took, runs + 1
            results.append(Cost(variant, length, best, saved))
            if progress is not None:
                progress(results[-1])
    return results


def slope(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """Exponent p of the fit cost ≈ c · lengthᵖ: least squares on logarithms."""
    if len(lengths) != len(costs) or len(set(lengths)) < 2:
        raise ValueError("A slope needs one cost for each length, and at least two different lengths.")
    xs, ys = [math.log(x) for x in lengths], [math.log(y) for y in costs]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in xs)


def _layer_and_input(
    variant: str, length: int, hidden_size: int, heads: int, seed: int
) -> tuple[CausalAttention, Tensor, Layout]:
    config = MinGPTConfig(
        attention=variant,
        block_size=length,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_hidden_layers=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = attention_class(variant)(config, layer_index=0)
        layer.init_parameters(config)
        x = torch.randn(1, length, hidden_size, requires_grad=True)
    return layer, x, Layout.build(x, None, None, None)


def _forward_backward(layer: CausalAttention, x: Tensor, layout: Layout) -> None:
    y, _ = layer(x, layout)
    y.sum().backward()
    layer.zero_grad(set_to_none=True)
    x.grad = None


def _saved_bytes(layer: CausalAttention, x: Tensor, layout: Layout) -> int:
    """Bytes of the storages that autograd keeps, each counted once however many views of it are kept."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _forward_backward(layer, x, layout)
    return sum(storages.values())
