"""Training with LoRA and with a prefix: through hftune, and with stock peft under Trainer.

The peers get the same adapter over the same weights and rows: once in batches as they come, padded to their longest
row, and once in the very batches of like length that hftune makes, so that only the step itself differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peft import LoraConfig, PeftModel, PrefixTuningConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader
from transformers import Trainer

from hftune.bench.case import Case, Goal, Scale, Side, Turn
from hftune.bench.classify import classify_recipe, real_tokens
from hftune.bench.rows import write_rows
from hftune.bench.training import Prepared, Updates, stock_trainer, through_hftune, through_trainer
from hftune.training.sampler import epoch_order

STOCK = "peft under Trainer, dynamic padding"
ALIKE = "peft under Trainer, batches of like length"
ROWS = 640


def sides(folder: Path, scale: Scale, *, kind: str) -> Mapping[str, Side]:
    """One epoch each."""
    data = write_rows(folder / "rows", "sentences", train=scale.of(ROWS, least=64))
    recipe = classify_recipe(data, scale, 128, **{"method.kind": kind})
    prepared = Prepared(recipe)
    collate = partial(prepared.tokenizer.pad, return_tensors="pt")

    def stock() -> Turn:
        return through_trainer(
            recipe, folder, model=adapted(prepared), rows=prepared.inputs.train, collate=collate, count=real_tokens
        )

    def alike() -> Turn:
        watch = Updates(collate, real_tokens, 0)
        trainer = stock_trainer(
            recipe,
            folder,
            kind=_InOurOrder,
            model=adapted(prepared),
            train_dataset=prepared.inputs.train,
            data_collator=watch,
            callbacks=[watch],
        )
        trainer.train()
        return watch.turn

    return {"hftune": lambda: through_hftune(recipe, folder, count=real_tokens), STOCK: stock, ALIKE: alike}


def adapted(prepared: Prepared) -> PeftModel:
    """The plain model with the adapter of the recipe's method, in peft's own words."""
    method: Any = prepared.recipe.method
    if method.kind == "lora":
        config: Any = LoraConfig(
            task_type=TaskType.SEQ_CLS, r=method.r, lora_alpha=method.lora_alpha, lora_dropout=method.lora_dropout
        )
    else:
        config = PrefixTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=method.num_virtual_tokens)
    return get_peft_model(prepared.model(), config)


class _InOurOrder(Trainer):  # type: ignore[misc]
    """Trainer with batches of like length."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        rows: Any = self.train_dataset
        size = self.args.per_device_train_batch_size
        order = epoch_order(self.args.seed, 0, len(rows), size, np.asarray(rows.lengths)).tolist()
        batches: Sequence[list[int]] = [order[start : start + size] for start in range(0, len(order), size)]
        return DataLoader(rows, batch_sampler=batches, collate_fn=self.data_collator)


CASES = tuple(
    Case(
        name=kind,
        what=f"{said} step",
        unit="tokens",
        goals=(Goal(STOCK, least=1.3), Goal(ALIKE)),
        sides=partial(sides, kind=kind),
    )
    for kind, said in (("lora", "LoRA"), ("prefix", "prefix"))
)
