"""A minGPT of a few thousand weights, trained for some seconds on the embedded births corpus, and its fresh twin.

Used by low-rank and logit-bias, which want the weights and distributions of a model that has learned something.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hftune.assets import embedded_data_dir
from hftune.models.chars import build_char_tokenizer
from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM

LINES = 600
"""Lines of the corpus that are used; more than a model of this size can learn in the time."""
BATCH = 16
LEARNING_RATE = 3e-3
HELD_OUT = 50
"""Last lines, which are not trained on."""


@dataclass(frozen=True)
class SmallModel:
    """A model, its tokenizer, and text it has not seen."""

    model: MinGPTForCausalLM
    tokenizer: PreTrainedTokenizerFast
    unseen: Tensor
    """Token ids of the held-out text, one long row."""
    first_loss: float
    last_loss: float


@lru_cache(maxsize=4)
def small_model(steps: int, length: int, seed: int) -> SmallModel:
    """Train a small minGPT; 0 steps leave it fresh. The same arguments give the same model.

    Args:
        steps: updates of AdamW.
        length: tokens of context.
        seed: for weights and batches.
    """
    path = embedded_data_dir() / "births" / "wiki.txt"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:LINES]
    tokenizer = build_char_tokenizer(lines)
    seen, unseen = (
        torch.tensor(tokenizer("".join(part))["input_ids"]) for part in (lines[:-HELD_OUT], lines[-HELD_OUT:])
    )
    config = MinGPTConfig(
        vocab_size=len(tokenizer), block_size=length, hidden_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    losses = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MinGPTForCausalLM(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=max(1, steps))
        for _ in range(steps):
            starts = torch.randint(len(seen) - length, (BATCH,))
            batch = torch.stack([seen[start : start + length] for start in starts.tolist()])
            loss = model(input_ids=batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
    return SmallModel(model.eval(), tokenizer, unseen, *((losses[0], losses[-1]) if losses else (0.0, 0.0)))
