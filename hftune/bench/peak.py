"""How much of the processor's arithmetic a compiled minGPT uses: its operations a second beside a matrix product's.

Operations are counted by convention (``hftune.bench.operations``). Padding, normalization, the optimizer and loading
cost time and count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hftune.bench.case import Case, Goal, Scale, Side, Stopwatch, Turn
from hftune.bench.operations import token_operations
from hftune.bench.pretraining import SKIPPED, span_recipe, tokens_of
from hftune.bench.training import Prepared, through_hftune

MATMUL = "one large fp32 matrix product"
SIDE = 1024
"""Rows and columns of the product: large enough for the peak, small enough for the cache."""
SECONDS = 2.0


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """The default pretraining, compiled, and a matrix product."""
    recipe = span_recipe(scale, **{"train.torch_compile": True})
    model = Prepared(recipe).model()

    def operations(batch: Mapping[str, Any]) -> int:
        tokens = tokens_of(batch)
        return round(tokens * token_operations(model, tokens / len(batch["labels"])))

    return {
        "hftune, compiled": lambda: through_hftune(recipe, folder, count=operations, skipped=SKIPPED),
        MATMUL: product,
    }


def product() -> Turn:
    """Multiply two matrices over and over."""
    left, watch, done = torch.rand(SIDE, SIDE), Stopwatch(), 0
    left @ left
    while watch.wall < SECONDS:
        with watch.running():
            left @ left
        done += 1
    return watch.turn(done * 2 * SIDE**3)


CASE = Case(
    name="peak",
    what="minGPT pretraining, compiled, share of the peak of fp32",
    unit="operations",
    goals=(Goal(MATMUL, least=0.6),),
    sides=sides,
    warm_ups=1,
)
