"""Data and training loops that the benchmarks share: a recipe through hftune, and the same examples under Trainer.

Both are timed by one callback from the first step to the last: loading, evaluation and saving do not count.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from harness import Scale, Stopwatch, Timing
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from hftune.data.generators.reviews import write_review
from hftune.pipeline.train import assemble
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir
from hftune.tasks import task_class
from hftune.training.fit import fit

# ---- texts whose lengths are distributed as in real data; the words are those of the embedded reviews ----


def _sentence_lengths(draw: np.random.Generator, count: int) -> np.ndarray:
    """SST-5: training examples have 24.8 BERT tokens on average, standard deviation 11.1, from 4 to 66."""
    return np.clip(draw.gamma((24.8 / 11.1) ** 2, 11.1**2 / 24.8, count).round(), 4, 66) - 2


def _review_lengths(draw: np.random.Generator, count: int) -> np.ndarray:
    """Whole reviews: half have fewer than 100 words, one in six more than 210, a few are very long."""
    return np.clip(draw.lognormal(np.log(100), 0.75, count).round(), 8, 1000)


LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "sentences": _sentence_lengths,
    "reviews": _review_lengths,
    "longest": lambda draw, count: np.full(count, 600),  # truncated by every model here
}


def texts(kind: str, count: int, seed: int = 0) -> list[tuple[int, str]]:
    """Stars and text of generated reviews."""
    lengths = LENGTHS[kind](np.random.default_rng(seed), count).astype(int).tolist()
    draw = Random(seed)
    return [_review_of(draw, length) for length in lengths]


def _review_of(draw: Random, length: int) -> tuple[int, str]:
    stars, text = write_review(draw)
    words = text.replace("\\n", " ").split()
    while len(words) < length:
        words += write_review(draw)[1].replace("\\n", " ").split()
    return stars, " ".join(words[:length])


def write_dataset(folder: Path, kind: str, *, train: int, validation: int = 64) -> Path:
    """A folder for `--data`, with train.csv and validation.csv."""
    folder.mkdir(parents=True)
    rows = texts(kind, train + validation)
    for split, part in (("train", rows[:train]), ("validation", rows[train:])):
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *part])
    return folder


def classify_recipe(data: Path, scale: Scale, max_length: int, **settings: Any) -> Recipe:
    """One epoch over a dataset with the defaults of `hftune classify`."""
    defaults = {
        "model.model_name_or_path": f"scratch:{scale.encoder}",
        "data.dataset_name": str(data),
        "data.max_seq_length": max_length,
        "data.test_size": 0,
        "train.num_train_epochs": 1,
        "train.use_cpu": True,
    }
    return load_recipe(None, defaults | settings)


# ---- training ----


class StepTimer(TrainerCallback):  # type: ignore[misc]
    """Times the training steps after the first few; it is also the collator, and adds up the work in the batches."""

    def __init__(self, collate: Callable[[Any], Any], count: Callable[[Mapping[str, Any]], int], skipped: int) -> None:
        """count: the work in a batch; skipped: steps at the start that only warm up."""
        self.collate, self.count, self.skipped = collate, count, skipped
        self.sizes: list[int] = []
        self._watch, self._open = Stopwatch(), ExitStack()
        self.timing: Timing | None = None

    def __call__(self, examples: Any) -> Any:
        batch = self.collate(examples)
        self.sizes.append(self.count(batch))
        return batch

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self.skipped:
            self._open.enter_context(self._watch.running())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.skipped:
            self._open.enter_context(self._watch.running())
        if state.global_step == state.max_steps:
            self._open.close()
            # The loader may be a batch ahead of the last step, so sizes are matched with steps by their order.
            self.timing = self._watch.timing(sum(self.sizes[self.skipped : state.max_steps]))

    def result(self) -> Timing:
        """The measured steps."""
        assert self.timing is not None, "training did not reach its last step"
        return self.timing


def real_tokens(batch: Mapping[str, Any]) -> int:
    """Tokens of a batch without padding."""
    return int(batch["attention_mask"].sum())


def batch_size(batch: Mapping[str, Any]) -> int:
    """Examples of a batch."""
    return len(batch["labels"])


def through_hftune(
    recipe: Recipe, folder: Path, *, count: Callable[[Mapping[str, Any]], int] = batch_size, skipped: int = 0
) -> Timing:
    """Train as hftune does, in a temporary run directory."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        trainer = assemble(recipe, RunDir(Path(run)), ProgressReporter()).trainer
        timer = StepTimer(trainer.data_collator, count, skipped)
        trainer.data_collator = timer
        trainer.add_callback(timer)
        fit(trainer)
    return timer.result()


class Prepared:
    """What a script for the stock Trainer starts from: tokenized examples, tokenizer and the unmodified model."""

    def __init__(self, recipe: Recipe) -> None:
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"cls_only_last_layer": False})})
        self.recipe = recipe
        self.task: Any = task_class(recipe.task.kind)(recipe)
        self.data = self.task.load_data()
        self.tokenizer = self.task.load_tokenizer(self.data)
        self.inputs = self.task.prepare(self.data, self.tokenizer)

    def model(self) -> Any:
        """A new model with the same random weights each time."""
        torch.manual_seed(self.recipe.train.seed)
        return self.task.build_model(self.data, self.tokenizer).model


def stock_trainer(
    recipe: Recipe, folder: Path, *, kind: type[Trainer] = Trainer, callbacks: Sequence[Any] = (), **arguments: Any
) -> Trainer:
    """Trainer with its defaults and the recipe's steps, batch sizes and learning rate; it logs and saves nothing."""
    train = recipe.train
    trainer = kind(
        args=TrainingArguments(
            output_dir=str(folder / "stock"),
            num_train_epochs=train.num_train_epochs,
            max_steps=train.max_steps or -1,
            per_device_train_batch_size=train.per_device_train_batch_size,
            per_device_eval_batch_size=train.per_device_eval_batch_size,
            learning_rate=train.learning_rate,
            seed=train.seed,
            eval_strategy="epoch" if "eval_dataset" in arguments else "no",
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        ),
        callbacks=list(callbacks),
        **arguments,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def through_trainer(
    recipe: Recipe,
    folder: Path,
    *,
    model: Any,
    examples: Any,
    collate: Callable[[Any], Any],
    count: Callable[[Mapping[str, Any]], int] = batch_size,
    skipped: int = 0,
    kind: type[Trainer] = Trainer,
) -> Timing:
    """Train with the stock Trainer."""
    timer = StepTimer(collate, count, skipped)
    stock_trainer(
        recipe, folder, kind=kind, model=model, train_dataset=examples, data_collator=timer, callbacks=[timer]
    ).train()
    return timer.result()
