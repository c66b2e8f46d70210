"""Pretraining a minGPT by span corruption: real tokens a second, padding not counted.

The other side is transformers' GPT-2 in the same shape under Trainer, every row padded to the block, as scripts do that
know no better. It comes with dropout, which our preset has not; a third side is GPT-2 without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hftune.bench.case import Case, Goal, Scale, Side, Turn
from hftune.bench.training import Prepared, through_hftune, through_trainer
from hftune.config import Recipe, load_recipe

STOCK = "GPT-2 under Trainer, padded"
UNDROPPED = "GPT-2 under Trainer, padded, no dropout"
BLOCK = 128
SKIPPED = 2
"""Updates at the start of a turn that only warm up."""


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """The embedded births through hftune, and corrupted in the same way under Trainer."""
    recipe = span_recipe(scale)
    prepared = Prepared(recipe)
    rows = [prepared.inputs.train[0, row] for row in range(len(prepared.inputs.train_lengths))]

    def stock(**shape: Any) -> Turn:
        torch.manual_seed(recipe.train.seed)
        model = GPT2LMHeadModel(gpt2_like(prepared, **shape))
        return through_trainer(
            recipe, folder, model=model, rows=rows, collate=_Padded(prepared), count=tokens_of, skipped=SKIPPED
        )

    return {
        "hftune": lambda: through_hftune(recipe, folder, count=tokens_of, skipped=SKIPPED),
        STOCK: stock,
        UNDROPPED: lambda: stock(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    }


def span_recipe(scale: Scale, **settings: Any) -> Recipe:
    """The default pretraining, cut off after a few updates."""
    updates = SKIPPED + scale.of(4, least=1)
    return load_recipe(
        None,
        {
            "task.kind": "span",
            "data.dataset_name": "births",
            "model.model_name_or_path": f"scratch:{scale.decoder}",
            "train.per_device_train_batch_size": scale.of(64, least=4),
            "train.max_steps": updates,
            "train.eval_steps": updates,
            "train.use_cpu": True,
            **settings,
        },
    )


def gpt2_like(prepared: Prepared, **shape: Any) -> GPT2Config:
    """GPT-2's configuration in the shape of our model."""
    config = prepared.model().config
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=BLOCK,
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
        **shape,
    )


def tokens_of(batch: Mapping[str, Any]) -> int:
    """Real tokens of a batch; the first of a row is no label."""
    return int((batch["labels"] != -100).sum()) + len(batch["labels"])


class _Padded:
    """Rows as a batch that is as wide as the block."""

    def __init__(self, prepared: Prepared) -> None:
        self.collate = prepared.inputs.collator
        self.pad = int(prepared.tokenizer.pad_token_id)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        short = self.collate(rows)
        missing = (0, BLOCK - short["input_ids"].shape[1])
        ids = torch.nn.functional.pad(short["input_ids"], missing, value=self.pad)
        labels = torch.nn.functional.pad(short["labels"], missing, value=-100)
        return {"input_ids": ids, "attention_mask": (ids != self.pad).long(), "labels": labels}


CASE = Case(
    name="pretraining",
    what="minGPT pretraining, real tokens",
    unit="tokens",
    goals=(Goal(STOCK, least=3), Goal(UNDROPPED)),
    sides=sides,
)
