"""``hftune.train`` and ``hftune.prepare``: from keywords and rows to a finished run, or to a trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, overload

from hftune import pipeline
from hftune.api.request import RecipeLike, Request, call_text, for_python, resolve
from hftune.api.run import MEMORY, Run, RunGroup
from hftune.api.show import ProgressOption, shown
from hftune.config.model import ModelSection
from hftune.config.recipe import Recipe
from hftune.data.in_memory import Data
from hftune.dryrun import Estimate
from hftune.dryrun import dry_run as try_out
from hftune.errors import HftuneError
from hftune.opening import opened
from hftune.runs.directory import RunDir, with_data
from hftune.runs.naming import default_path
from hftune.training.fitting import ready
from hftune.training.launch import agreed, is_main_process, join
from hftune.training.progress import Listener, Silent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer

    from hftune.tasks.task import DataFacts


@overload
def train(
    recipe: RecipeLike | None = ...,
    output_dir: str | Path | None = ...,
    *,
    data: Data | None = ...,
    task: str | None = ...,
    seeds: None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    dry_run: Literal[False] = ...,
    progress: ProgressOption = ...,
    **settings: Any,
) -> Run: ...


@overload
def train(
    recipe: RecipeLike | None = ...,
    output_dir: str | Path | None = ...,
    *,
    data: Data | None = ...,
    task: str | None = ...,
    seeds: Iterable[int],
    resume: bool = ...,
    overwrite: bool = ...,
    dry_run: Literal[False] = ...,
    progress: ProgressOption = ...,
    **settings: Any,
) -> RunGroup: ...


@overload
def train(
    recipe: RecipeLike | None = ...,
    output_dir: str | Path | None = ...,
    *,
    data: Data | None = ...,
    task: str | None = ...,
    seeds: Iterable[int] | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    dry_run: Literal[True],
    progress: ProgressOption = ...,
    **settings: Any,
) -> Estimate: ...


@for_python
def train(
    recipe: RecipeLike | None = None,
    output_dir: str | Path | None = None,
    *,
    data: Data | None = None,
    task: str | None = None,
    seeds: Iterable[int] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: ProgressOption = True,
    **settings: Any,
) -> Run | RunGroup | Estimate:
    """Train, save, score and verify a model.

    Args:
        recipe: A shipped recipe's name, a path, a dict of sections or a ``Recipe``; settings are laid over it.
        output_dir: The run directory; a new one below runs/ by default.
        data: A path, a Hub id, a ``datasets.Dataset`` or ``DatasetDict``, a ``pandas.DataFrame``, a list of dicts, or a
            dict of split name to any of these. Rows are checked as files are, and stored with the run.
        task: classify, joint, mlm, clm, span or answer; that of the recipe by default, or classify.
        seeds: Train once with each seed, as a group with mean and standard deviation.
        resume: Resume the run in output_dir from its last checkpoint; a complete run is returned as it is.
        overwrite: Move a run in output_dir aside to a free name; nothing is deleted.
        dry_run: Load everything, run one batch and estimate time and memory; train nothing.
        progress: Show progress (a bar in a notebook and on a terminal, lines elsewhere); False is silent.
        **settings: Any setting of a recipe by the name of its flag: model, method, num_train_epochs, learning_rate,
            per_device_train_batch_size, max_seq_length, seed … and every field of TrainingArguments.

    Returns:
        The run; a ``RunGroup`` with ``seeds``, an ``Estimate`` with ``dry_run``.

    Raises:
        HftuneError: The request can't be carried out; nothing was trained and nothing is left behind.
        RunFailed: Training or verification went wrong; checkpoints are kept.

    Examples:
        >>> run = hftune.train(data=rows, model="scratch:bert-tiny", max_steps=2, output_dir="runs/a", progress=False)
        >>> run.metrics["verified"]
        True
        >>> run.metrics["data"]["rows"]
        {'train': 32, 'validation': 4, 'test': 4}
    """
    with shown(progress) as listener:
        listener = listener if is_main_process() else Silent()
        chosen = _seeds(seeds, settings)
        output = None if output_dir is None else Path(os.fspath(output_dir))
        if resume and output is None:
            raise HftuneError("resume needs to know which run", hint="add output_dir=…")
        request = resolve(recipe, data, task, settings, resumed=output if resume and not chosen else None)
        for notice in request.notices:
            listener.note(notice)
        if dry_run:
            return _tried(request, output, listener)
        how: dict[str, Any] = {
            "resume": resume,
            "overwrite": overwrite,
            "rows": request.rows,
            "listener": listener,
            "command": call_text(
                "train", {"recipe": recipe, "data": data, "task": task, **settings, "seeds": chosen or None}
            ),
        }
        if chosen:
            group, _, _ = pipeline.train_seeds(request.recipe, chosen, output, **how)
            return RunGroup(group, _as_trained(request.recipe, group))
        result = pipeline.train(request.recipe, output, **how)
        return Run(result.run.path, _as_trained(request.recipe, result.run.path))


def _as_trained(recipe: Recipe, path: Path) -> ModelSection:
    """How a model is loaded that was just trained: what it was allowed to run then it may run again."""
    return ModelSection(model_name_or_path=str(path), **recipe.model.trust_in_saved)


def _seeds(seeds: Iterable[int] | None, settings: Mapping[str, Any]) -> tuple[int, ...]:
    if seeds is None:
        return ()
    if settings.get("seed") is not None:
        raise HftuneError("seed and seeds can't both be given", hint="leave one of them out")
    if not isinstance(seeds, Iterable) or isinstance(seeds, str):
        raise HftuneError(f"expected seeds to be a list of whole numbers; got {seeds!r}", hint="write seeds=[1, 2, 3]")
    found = tuple(seeds)
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32 for seed in found)
    if not found or not whole or len(set(found)) < len(found):
        raise HftuneError(
            f"expected seeds to be different whole numbers from 0 on; got {list(found)}", hint="write seeds=[1, 2, 3]"
        )
    return found


def _tried(request: Request, output: Path | None, listener: Listener) -> Estimate:
    """A dry run; rows lie in a folder meanwhile."""
    if request.rows is None:
        return try_out(request.recipe, output, listener)
    with TemporaryDirectory() as folder:
        request.rows.write(Path(folder))
        return replace(try_out(with_data(request.recipe, Path(folder)), output, listener), data=MEMORY)


@dataclass(frozen=True)
class Prepared:
    """Everything that training needs, before it has begun.

    Examples:
        >>> prepared = hftune.prepare(data=rows, model="scratch:bert-tiny", max_steps=2, progress=False)
        >>> output = prepared.trainer.train()
        >>> output.global_step
        2
    """

    recipe: Recipe
    """The recipe, with every setting filled in."""
    model: Any
    """The model; of a PEFT method with its adapter. What is trained has ``requires_grad``."""
    tokenizer: PreTrainedTokenizerBase
    datasets: Mapping[str, Any]
    """The rows of each split as they were read: a datasets.Dataset, for a streamed corpus an IterableDataset.

    The tokenized ones are trainer.train_dataset and trainer.eval_dataset.
    """
    trainer: Trainer
    """A subclass of transformers.Trainer: call ``train()``, add callbacks, or take its parts."""
    facts: DataFacts
    """Where the rows come from, how many there are, and what was done to them."""
    path: Path
    """The run directory, with recipe, environment and rows; ``hftune.train(output_dir=path, resume=True)`` finishes
    what the trainer has begun: it continues from its last checkpoint, then scores and verifies."""


@for_python
def prepare(
    recipe: RecipeLike | None = None,
    output_dir: str | Path | None = None,
    *,
    data: Data | None = None,
    task: str | None = None,
    overwrite: bool = False,
    progress: ProgressOption = True,
    **settings: Any,
) -> Prepared:
    """Load and check everything that ``train`` would, and hand it out before training.

    Args:
        recipe: As for ``train``.
        output_dir: The run directory, for checkpoints and history; a new one below runs/ by default.
        data: As for ``train``.
        task: As for ``train``.
        overwrite: As for ``train``.
        progress: Show progress; False is silent.
        **settings: As for ``train``.

    Returns:
        Model, tokenizer, datasets and a trainer that is ready for ``trainer.train()``.

    Raises:
        HftuneError: The request can't be carried out; nothing is left behind.

    Examples:
        >>> prepared = hftune.prepare(data=rows, model="scratch:bert-tiny", max_steps=2, progress=False)
        >>> sorted(prepared.datasets), prepared.datasets["train"].column_names
        (['test', 'train', 'validation'], ['text', 'label'])
        >>> prepared.trainer.args.max_steps
        2
    """
    output = None if output_dir is None else Path(os.fspath(output_dir))
    with shown(progress) as listener:
        request = resolve(recipe, data, task, settings)
        if request.recipe.method.kind == "head":
            # Features that are computed once would not pass through the model that is handed out.
            settings = {**settings, "cache_features": False}
            request = resolve(recipe, data, task, settings)
        join(request.recipe.train.use_cpu)
        listener = listener if is_main_process() else Silent()
        path = agreed(default_path(request.recipe) if output is None else output)
        how: dict[str, Any] = {"overwrite": overwrite, "rows": request.rows, "listener": listener}
        with opened(path, request.recipe, False, **how) as (run, made):
            job = pipeline.assemble(made, run, listener, ahead=False)
            if is_main_process():
                call = {"recipe": recipe, "data": data, "task": task, **settings}
                pipeline.begin(run, made, job, call_text("prepare", call))
            ready(job.trainer)
    return Prepared(
        recipe=RunDir(path).read_recipe(),
        model=job.applied.model,
        tokenizer=job.tokenizer,
        datasets={split: _dataset(rows) for split, rows in _splits(job.data).items()},
        trainer=job.trainer,
        facts=job.facts,
        path=path,
    )


def _splits(data: Any) -> Mapping[str, Any]:
    """The splits of any task's data by name."""
    named: Mapping[str, Any] = data.named if hasattr(data, "named") else data.splits
    return named


def _dataset(rows: Any) -> Any:
    """Rows of any task as a Dataset."""
    from datasets import Dataset, IterableDataset

    from hftune.data.questions import Questions
    from hftune.data.stream import TextSplit

    if isinstance(rows, Questions):
        columns: dict[str, Sequence[str]] = {"question": rows.questions}
        return Dataset.from_dict(columns if rows.answers is None else {**columns, "answer": rows.answers})
    if isinstance(rows, TextSplit):

        def texts() -> Iterator[dict[str, str]]:
            yield from ({"text": text} for text in rows.texts())

        return IterableDataset.from_generator(texts)
    return rows if isinstance(rows, Dataset) else Dataset.from_dict({"text": rows})
