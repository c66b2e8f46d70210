"""``hftune.train`` and ``hftune.prepare``: from keywords and rows to a finished run, or to a trainer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from hftune.api.call import ProgressOption, call_text, for_python, path_of, resolve, shown
from hftune.api.run import Run, RunGroup
from hftune.data.in_memory import Data
from hftune.errors import HftuneError
from hftune.models.settings import ModelSection
from hftune.pipeline import train as pipeline
from hftune.pipeline.dry_run import Estimate
from hftune.pipeline.request import (
    RecipeLike,
    ScoredModel,
    TrainRequest,
    carry_out,
    find_checkpoint,
    list_seeds,
)
from hftune.pipeline.run_session import opened
from hftune.pipeline.train import assemble
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, read_recipe
from hftune.runs.directory import RunDir, default_path
from hftune.tasks.task import DataSummary, EvaluationResult
from hftune.training.launch import agreed, is_main_process, join

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer


@overload
def train(
    recipe: RecipeLike | None = ..., output_dir: str | Path | None = ..., *, dry_run: Literal[True], **settings: Any
) -> Estimate: ...
@overload
def train(
    recipe: RecipeLike | None = ..., output_dir: str | Path | None = ..., *, do_train: Literal[False], **settings: Any
) -> dict[str, EvaluationResult]: ...
@overload
def train(
    recipe: RecipeLike | None = ..., output_dir: str | Path | None = ..., *, seeds: Iterable[int] | str, **settings: Any
) -> RunGroup: ...
@overload
def train(recipe: RecipeLike | None = ..., output_dir: str | Path | None = ..., **settings: Any) -> Run: ...


@for_python
def train(
    recipe: RecipeLike | None = None,
    output_dir: str | Path | None = None,
    *,
    data: Data | None = None,
    task: str | None = None,
    seeds: Iterable[int] | str | None = None,
    resume: bool = False,
    resume_from_checkpoint: bool | str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    do_train: bool | None = None,
    do_eval: bool | None = None,
    do_predict: bool | None = None,
    progress: ProgressOption = True,
    **settings: Any,
) -> Run | RunGroup | Estimate | dict[str, EvaluationResult]:
    """Train, save, score and verify a model.

    Args:
        recipe: A shipped recipe's name, a path, a dict of sections or a ``Recipe``; settings override it.
        output_dir: The run directory; a new one below runs/ by default.
        data: A path, a Hub id, a ``datasets.Dataset`` or ``DatasetDict``, a ``pandas.DataFrame``, a list of dicts, or a
            dict of split name to any of these. Rows are checked as files are, and stored with the run.
        task: classify, joint, mlm, clm, span or answer; that of the recipe by default, or classify.
        seeds: Train once with each seed, as a group with mean and standard deviation.
        resume: Resume the run in output_dir from its last checkpoint; a complete run is returned as it is.
        resume_from_checkpoint: The run to resume, or one of its checkpoints.
        overwrite: Move a run in output_dir aside to a free name; nothing is deleted.
        dry_run: Load everything, run one batch and estimate time and memory; train nothing.
        do_train: False scores the model that is named, without training.
        do_eval: Score validation; with do_train=False, only if true or do_predict is not given either.
        do_predict: Score test; in the same way.
        progress: Show progress (a bar in a notebook and on a terminal, lines elsewhere); False is silent.
        **settings: Any setting of a recipe by the name of its flag: model, method, num_train_epochs, learning_rate,
            per_device_train_batch_size, max_seq_length, seed … and every field of TrainingArguments.

    Returns:
        The run; a ``RunGroup`` with ``seeds``, an ``Estimate`` with ``dry_run``, scores by split with
        ``do_train=False``.

    Raises:
        HftuneError: The request can't be carried out; nothing was trained and nothing is left behind.
        RunFailed: Training or verification went wrong; checkpoints are kept.

    Examples:
        >>> run = hftune.train(data=rows, model="scratch:bert-tiny", max_steps=2, output_dir="runs/a", progress=False)
        >>> run.metrics["verified"]
        True
        >>> run.metrics["data"]["rows"]
        {'train': 32, 'validation': 4, 'test': 4}
        >>> found = hftune.train(model="runs/a", data={"test": rows}, do_train=False, progress=False, do_predict=True)
        >>> sorted(found)
        ['test']
    """
    if seeds is not None and settings.get("seed") is not None:
        raise HftuneError("seed and seeds can't both be given", hint="leave one of them out")
    chosen, do = list_seeds(seeds), {"do_train": do_train, "do_eval": do_eval, "do_predict": do_predict}
    resumes, output = _where_to_resume(resume, resume_from_checkpoint, output_dir)
    with shown(progress) as reporter:
        reporter = reporter if is_main_process() else ProgressReporter()
        resumed = output if resumes and not chosen else None
        made = resolve(recipe, data, task, settings, resumed=resumed, trains=do_train is not False)
        for notice in made.notices:
            reporter.note(notice)
        given = {name: value for name, value in do.items() if value is not None}
        request = TrainRequest(made.recipe, output, chosen, resumes, overwrite, dry_run, given, made.rows)
        call = {"recipe": recipe, "data": data, "task": task, **settings, "seeds": chosen or None}
        result = carry_out(request, reporter, call_text("train", call))
    if isinstance(result, Estimate):
        return result
    if isinstance(result, ScoredModel):
        return result.splits
    path = result.path if isinstance(result, pipeline.GroupResult) else result.run.path
    # Consent for training includes using the trained model.
    trusted = ModelSection(model_name_or_path=str(path), **made.recipe.model.trust_in_saved)
    return RunGroup(path, trusted) if isinstance(result, pipeline.GroupResult) else Run(path, trusted)


def _where_to_resume(
    resume: bool, checkpoint: bool | str | Path | None, output_dir: str | Path | None
) -> tuple[bool | Path, Path | None]:
    """Whether to resume, or from which checkpoint, and the run directory."""
    output = None if output_dir is None else Path(output_dir)
    if checkpoint is None or isinstance(checkpoint, bool):
        return resume or bool(checkpoint), output
    return find_checkpoint(path_of(checkpoint, "resume_from_checkpoint"), output)


@dataclass(frozen=True)
class Prepared:
    """Everything that training needs, before it starts.

    Examples:
        >>> prepared = hftune.prepare(data=rows, model="scratch:bert-tiny", max_steps=2, progress=False)
        >>> output = prepared.trainer.train()
        >>> output.global_step
        2
    """

    recipe: Recipe
    """The recipe, with every setting filled in."""
    model: Any
    """The model, with its adapter if the method has one. Trained parameters have ``requires_grad``."""
    tokenizer: PreTrainedTokenizerBase
    datasets: Mapping[str, Any]
    """The rows of each split as they were read: a datasets.Dataset, for a streamed corpus an IterableDataset.

    The tokenized ones are trainer.train_dataset and trainer.eval_dataset.
    """
    trainer: Trainer
    """A subclass of transformers.Trainer: call ``train()``, add callbacks, or use its attributes."""
    facts: DataSummary
    """Source, number and splits of the rows, with notes."""
    path: Path
    """The run directory, with recipe, environment and rows; ``hftune.train(output_dir=path, resume=True)`` finishes
    what the trainer has begun: it continues from the last checkpoint, then scores and verifies."""


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
    """Load and check everything that ``train`` would, and return it before training.

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
    output = None if output_dir is None else Path(output_dir)
    with shown(progress) as reporter:
        request = resolve(recipe, data, task, settings)
        if request.recipe.method.kind == "head":
            # Cached features would bypass the model that is returned.
            settings = {**settings, "cache_features": False}
            request = resolve(recipe, data, task, settings)
        join(request.recipe.train.use_cpu)
        reporter = reporter if is_main_process() else ProgressReporter()
        path = agreed(default_path(request.recipe) if output is None else output)
        how: dict[str, Any] = {"overwrite": overwrite, "rows": request.rows, "progress": reporter}
        with opened(path, request.recipe, False, **how) as (run, made):
            job = assemble(made, run, reporter, ahead=False)
            if is_main_process():
                call = {"recipe": recipe, "data": data, "task": task, **settings}
                pipeline.begin(run, made, job, call_text("prepare", call))
            if job.trainer.sharding:  # only ``fit`` makes the weights whole again
                raise HftuneError(
                    f"this launch shards the weights with {job.trainer.sharding}, which hftune.prepare does not "
                    "support",
                    hint="use hftune.train, or launch with data parallelism",
                )
    return Prepared(
        recipe=read_recipe(RunDir(path)),
        model=job.applied.model,
        tokenizer=job.tokenizer,
        datasets={split: _dataset(rows) for split, rows in job.data.named.items()},
        trainer=job.trainer,
        facts=job.facts,
        path=path,
    )


def _dataset(rows: Any) -> Any:
    """Rows of any task as a Dataset."""
    from datasets import Dataset, IterableDataset

    from hftune.data.corpus import TextSplit
    from hftune.data.questions import Questions

    if isinstance(rows, Questions):
        columns: dict[str, Sequence[str]] = {"question": rows.questions}
        return Dataset.from_dict(columns if rows.answers is None else {**columns, "answer": rows.answers})
    if isinstance(rows, TextSplit):

        def texts() -> Iterator[dict[str, str]]:
            yield from ({"text": text} for text in rows.texts())

        return IterableDataset.from_generator(texts)
    return rows if isinstance(rows, Dataset) else Dataset.from_dict({"text": rows})
