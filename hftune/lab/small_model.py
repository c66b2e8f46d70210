"""A minGPT that is trained for a few seconds, for the experiments about a language model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hftune.data.corpus import lines_of
from hftune.files import embedded_data_dir
from hftune.models.mingpt import MinGPTConfig, MinGPTForCausalLM
from hftune.models.tokenizers import train_tokenizer

LINES = 600  # of the corpus; more than a model of this size can learn in this time
BATCH = 16
LEARNING_RATE = 3e-3
HELD_OUT = 50  # last lines, not used for training


@dataclass(frozen=True)
class SmallModel:
    """A model, its tokenizer, and text that it was not trained on."""

    model: MinGPTForCausalLM
    tokenizer: PreTrainedTokenizerFast
    unseen: Tensor
    """Token ids of the held-out text, as one sequence."""
    first_loss: float
    last_loss: float


@lru_cache(maxsize=4)
def small_model(steps: int, length: int, seed: int) -> SmallModel:
    """Train a small minGPT; with 0 steps it is randomly initialized. The same arguments give the same model.

    Args:
        steps: Training steps with AdamW.
        length: Context length.
        seed: For weights and batches.
    """
    path = embedded_data_dir() / "births" / "wiki.txt"
    lines = [f"{line}\n" for line in lines_of(path).all_texts()[:LINES]]
    tokenizer = train_tokenizer("char", lambda: lines, family="mingpt", printable_ascii=False)
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
