"""The two ways of training that cases compare: a recipe through hftune, and the same rows under transformers' Trainer.

Both are timed by one callback, from the first update to the last: loading, evaluating and saving are in neither.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from hftune.bench.case import Stopwatch, Turn
from hftune.config import Recipe
from hftune.pipeline import assemble
from hftune.runs.directory import RunDir
from hftune.tasks import TASKS
from hftune.training import fit
from hftune.training.progress import Silent


class Updates(TrainerCallback):  # type: ignore[misc]
    """Times the updates of a training, all but the first few, and adds up what the batches of those hold."""

    def __init__(self, collate: Callable[[Any], Any], count: Callable[[Mapping[str, Any]], int], skipped: int) -> None:
        """count: a batch → its work; skipped: updates at the start that only warm up."""
        self.collate = collate
        self.count = count
        self.skipped = skipped
        self.sizes: list[int] = []
        self.watch = Stopwatch()
        self._open = ExitStack()
        self._done: Turn | None = None

    def __call__(self, rows: Any) -> Any:
        """The collator, counting batches as they go by."""
        batch = self.collate(rows)
        self.sizes.append(self.count(batch))
        return batch

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start at once where nothing is skipped."""
        if not self.skipped:
            self._open.enter_context(self.watch.running())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start after the skipped updates; stop after the last."""
        if state.global_step == self.skipped:
            self._open.enter_context(self.watch.running())
        if state.global_step == state.max_steps:
            self._open.close()
            # The loader may be a batch ahead: batches and updates are matched by their order.
            self._done = self.watch.turn(sum(self.sizes[self.skipped : state.max_steps]))

    @property
    def turn(self) -> Turn:
        """What the training took."""
        assert self._done is not None, "a training comes to its last update"
        return self._done


def rows_of(batch: Mapping[str, Any]) -> int:
    """Rows of a batch."""
    return len(batch["labels"])


def through_hftune(
    recipe: Recipe, folder: Path, *, count: Callable[[Mapping[str, Any]], int] = rows_of, skipped: int = 0
) -> Turn:
    """Train as ``hftune`` does, once, in a run directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        trainer = assemble(recipe, RunDir(Path(run)), Silent()).trainer
        watch = Updates(trainer.data_collator, count, skipped)
        trainer.data_collator = watch
        trainer.add_callback(watch)
        fit(trainer)
    return watch.turn


class Prepared:
    """What a stock script would have at hand: rows, tokenizer and plain model of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        """Loads and tokenizes; the model is made anew each time it is asked for, with nothing of ours in it."""
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"cls_only_last_layer": False})})
        self.recipe = recipe
        self.task: Any = TASKS[recipe.task.kind](recipe)
        self.data = self.task.load_data()
        self.tokenizer = self.task.load_tokenizer(self.data)
        self.inputs = self.task.prepare(self.data, self.tokenizer)

    def model(self) -> Any:
        """The plain model with fresh weights, the same each time."""
        torch.manual_seed(self.recipe.train.seed)
        return self.task.build_model(self.data, self.tokenizer).model


def stock_trainer(
    recipe: Recipe, folder: Path, *, kind: type[Trainer] = Trainer, callbacks: Sequence[Any] = (), **parts: Any
) -> Trainer:
    """Trainer with its defaults, the recipe's batch, length and learning rate, and nothing that prints or saves."""
    train = recipe.train
    arguments = TrainingArguments(
        output_dir=str(folder / "stock"),
        num_train_epochs=train.num_train_epochs,
        max_steps=train.max_steps or -1,
        per_device_train_batch_size=train.per_device_train_batch_size,
        per_device_eval_batch_size=train.per_device_eval_batch_size,
        learning_rate=train.learning_rate,
        seed=train.seed,
        eval_strategy="epoch" if "eval_dataset" in parts else "no",
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = kind(args=arguments, callbacks=list(callbacks), **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def through_trainer(
    recipe: Recipe,
    folder: Path,
    *,
    model: Any,
    rows: Any,
    collate: Callable[[Any], Any],
    count: Callable[[Mapping[str, Any]], int] = rows_of,
    skipped: int = 0,
) -> Turn:
    """Train with transformers' Trainer as it comes."""
    watch = Updates(collate, count, skipped)
    stock_trainer(recipe, folder, model=model, train_dataset=rows, data_collator=watch, callbacks=[watch]).train()
    return watch.turn
