"""Training a classifier of TinyBERT's shape with dropout, in batches of 32, on rows as short and as long as real ones.

The other sides are transformers' Trainer on the same rows and model: padded to max_length, as its run_classification
example does, and padded to the longest row of each batch. Work is counted in real tokens. Ours runs one epoch, since
its batches differ in length; the others' batches are all alike, and a few of them tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hftune.bench.case import Case, Goal, Scale, Side
from hftune.bench.rows import write_rows
from hftune.bench.training import Prepared, through_hftune, through_trainer
from hftune.config import Recipe, load_recipe

PADDED, DYNAMIC = "Trainer, padded to max_length", "Trainer, dynamic padding"


def classify_recipe(data: Path, scale: Scale, max_length: int, **settings: Any) -> Recipe:
    """One epoch over a folder of rows with the defaults of ``hftune classify``."""
    return load_recipe(
        None,
        {
            "model.model_name_or_path": f"scratch:{scale.encoder}",
            "data.dataset_name": str(data),
            "data.max_seq_length": max_length,
            "data.test_size": 0,
            "train.num_train_epochs": 1,
            "train.use_cpu": True,
            **settings,
        },
    )


def sides(folder: Path, scale: Scale, *, kind: str, rows: int, updates: int, max_length: int) -> Mapping[str, Side]:
    """hftune, and Trainer with both ways of padding."""
    data = write_rows(folder / "rows", kind, train=scale.of(rows, least=64))
    recipe = classify_recipe(data, scale, max_length)
    few = classify_recipe(data, scale, max_length, **{"train.max_steps": scale.of(updates, least=1)})
    prepared = Prepared(recipe)

    def stock(collate: Callable[[Any], Any]) -> Any:
        return through_trainer(
            few, folder, model=prepared.model(), rows=prepared.inputs.train, collate=collate, count=real_tokens
        )

    full = partial(prepared.tokenizer.pad, padding="max_length", max_length=max_length, return_tensors="pt")
    return {
        "hftune": lambda: through_hftune(recipe, folder, count=real_tokens),
        PADDED: lambda: stock(full),
        DYNAMIC: lambda: stock(partial(prepared.tokenizer.pad, return_tensors="pt")),
    }


def real_tokens(batch: Mapping[str, Any]) -> int:
    """Tokens of a batch, padding not counted."""
    return int(batch["attention_mask"].sum())


GOALS = (Goal(PADDED, least=2.5), Goal(DYNAMIC, least=1.5))
CASES = (
    Case(
        name="classify-sentences",
        what="classify training, lengths as in SST-5",
        unit="tokens",
        goals=GOALS,
        sides=partial(sides, kind="sentences", rows=1600, updates=6, max_length=128),
    ),
    Case(
        name="classify-reviews",
        what="classify training, lengths as in reviews",
        unit="tokens",
        goals=GOALS,
        sides=partial(sides, kind="reviews", rows=480, updates=4, max_length=256),
        repeats=2,
    ),
)
