"""What fast dropout saves: one training step of a TinyBERT-shaped classifier with stock, fast and no dropout.

    python benchmarks/dropout.py [--lengths 32 64 128] [--repeats 9] [--threads N] [--clock wall|cpu]

The three take turns within one run, so that other work on the machine affects all equally; medians are compared.
On a busy machine, `--threads 1 --clock cpu` counts only the work of this process.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import torch
from transformers import BertConfig, BertForSequenceClassification

from hftune.training.dropout import install

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def tinybert(rate: float) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=312,
        num_hidden_layers=4,
        num_attention_heads=12,
        intermediate_size=1200,
        num_labels=5,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate,
    )
    return BertForSequenceClassification(config).train()


def step(model: BertForSequenceClassification, batch: dict[str, torch.Tensor], clock: str) -> float:
    now = CLOCKS[clock]
    begun = now()
    model(**batch).loss.backward()
    model.zero_grad()
    return now() - begun


def measure(length: int, batch_size: int, repeats: int, clock: str) -> dict[str, list[float]]:
    models = {"stock": tinybert(0.1), "fast": tinybert(0.1), "none": tinybert(0.0)}
    install(models["fast"])
    ids = torch.randint(1000, 30000, (batch_size, length))
    mask = torch.ones_like(ids)
    mask[: batch_size // 2, -length // 8 :] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 5, (batch_size,))}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(repeats + 1):
        for name, model in models.items():
            taken = step(model, batch, clock)
            if turn:  # the first turn warms up
                seconds[name].append(taken)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}")
    print(f"{'tokens':>6} {'stock ms':>9} {'fast ms':>9} {'none ms':>9} {'step':>6} {'dropout alone':>14}")
    for length in options.lengths:
        seconds = measure(length, options.batch_size, options.repeats, options.clock)
        stock, fast, none = (statistics.median(seconds[name]) for name in ("stock", "fast", "none"))
        alone = (stock - none) / max(fast - none, 1e-9)
        shown = [1000 * value for value in (stock, fast, none)]
        print(f"{length:>6} {shown[0]:9.1f} {shown[1]:9.1f} {shown[2]:9.1f} {stock / fast:5.2f}× {alone:13.1f}×")


if __name__ == "__main__":
    main()
