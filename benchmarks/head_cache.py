"""What kept features save: head-only tuning of a TinyBERT-shaped encoder, cached, uncached and with a plain Trainer.

    python benchmarks/head_cache.py [--rows 1500] [--epochs 20] [--preset tinybert]

All three train the same head on the same rows of the embedded reviews, with batches of 32 and an evaluation each epoch.
The time of the cached run includes the one pass of the encoder over the rows; its cache starts empty.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from hftune.config import Recipe, load_recipe
from hftune.pipeline import assemble
from hftune.runs.directory import RunDir
from hftune.tasks import TASKS
from hftune.training import fit
from hftune.training.progress import Silent


def recipe(rows: int, epochs: int, preset: str, cached: bool) -> Recipe:
    return load_recipe(
        None,
        {
            "model.name": f"scratch:{preset}",
            "data.labels": rows,
            "method.kind": "head",
            "method.cache_features": cached,
            "train.epochs": epochs,
            "train.batch_size": 32,
            "train.device": "cpu",
        },
    )


def ours(made: Recipe, folder: Path) -> float:
    """Seconds from the assembled trainer, or from the encoder's pass before it, to the best head."""
    job = assemble(made, RunDir(folder), Silent())
    begun = time.perf_counter()
    fit(job.trainer)
    return job.ahead_seconds + time.perf_counter() - begun


def plain(made: Recipe, folder: Path) -> float:
    """Seconds of transformers' Trainer with the encoder's weights frozen, and nothing else changed."""
    task = TASKS[made.task.kind](made)
    data = task.load_data()
    tokenizer = task.load_tokenizer(data)
    inputs = task.prepare(data, tokenizer)
    model = task.build_model(data, tokenizer).model
    model.base_model.requires_grad_(False)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=made.train.epochs,
            per_device_train_batch_size=made.train.batch_size,
            per_device_eval_batch_size=made.train.eval_batch_size,
            learning_rate=made.train.learning_rate,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=inputs.train,
        eval_dataset=inputs.dev,
        data_collator=inputs.collator,
    )
    begun = time.perf_counter()
    trainer.train()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--preset", default="tinybert")
    asked = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"scratch:{asked.preset}, {asked.rows} rows, {asked.epochs} epochs")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HFTUNE_CACHE"] = str(Path(folder) / "cache")
        seconds = {}
        for name, cached in (("cached", True), ("uncached", False)):
            made = recipe(asked.rows, asked.epochs, asked.preset, cached)
            seconds[name] = ours(made, Path(folder) / name)
        seconds["plain Trainer"] = plain(made, Path(folder) / "plain")
    for name, taken in seconds.items():
        print(f"{name:>14}: {taken:8.1f} s, {seconds['plain Trainer'] / taken:6.1f} times the speed of a plain Trainer")


if __name__ == "__main__":
    main()
