"""From a recipe to a finished run: data, model, method, training, artifact, scores, proof, report.

``train`` reads top to bottom and names no task, model, dataset or method: those come from the recipe, through tables.
Called by ``hftune.cli``, the studies and ``hftune.api``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hftune import hub, methods, training
from hftune.config.recipe import Recipe
from hftune.data.in_memory import InMemoryData
from hftune.errors import HftuneError
from hftune.files import refuse_links, remove_staged, share
from hftune.methods.applied import Applied
from hftune.opening import opened, refuse_other_recipe
from hftune.runs.aside import is_replaceable, move_aside, moved_with, point_to
from hftune.runs.directory import DATA, RunDir, in_use, is_run, with_data
from hftune.runs.environment import describe as describe_environment
from hftune.runs.group import SEEDS, seed_path, seed_runs, write_group
from hftune.runs.naming import default_path, free_name
from hftune.runs.report import write_report
from hftune.tasks import TASKS
from hftune.tasks.features import precompute
from hftune.tasks.task import DataFacts, Evaluation, Task, scored_baselines
from hftune.training.launch import HALF_AN_HOUR, agreed, is_main_process, join, seed_everything
from hftune.training.memory import forget_peak
from hftune.training.progress import Listener, Silent
from hftune.verify import verify

SCORED = ("validation", "test")


@dataclass(frozen=True)
class RunResult:
    """A run that has come to its end; metrics are those of metrics.json."""

    run: RunDir
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """Everything that ``assemble`` put together: what training, saving and scoring work on."""

    task: Task[Any]
    data: Any
    facts: DataFacts
    tokenizer: Any
    inputs: training.TrainingInputs
    applied: Applied
    trainer: training.HftuneTrainer
    ahead_seconds: float
    """What it took to run the frozen part ahead of training; 0 where the method has none."""
    known: dict[str, Any]
    """What metrics.json will hold and is known before training."""


def train(
    recipe: Recipe,
    output: str | Path | None = None,
    *,
    resume: bool | Path = False,
    overwrite: bool = False,
    score: Sequence[str] = SCORED,
    rows: InMemoryData | None = None,
    listener: Listener | None = None,
    command: str | None = None,
) -> RunResult:
    """Train, save, score and verify one model.

    Args:
        recipe: What to do; from ``load_recipe``.
        output: The run directory; a new one below runs/ where not given.
        resume: Continue from the last good checkpoint in output, or from this one; a complete run is returned as it is.
        overwrite: Move a run that is at output aside, to a free name next to it.
        score: Splits to score at the end. Studies leave test out until a setting is selected.
        rows: Data that were given from Python; they are stored with the run, and its recipe names them.
        listener: Who watches.
        command: What started the run, for the report; the command line of this process by default.

    Raises:
        HftuneError: The request can't be carried out; nothing was trained and nothing is left behind.
        RunFailed: Training or verification went wrong; checkpoints are kept.
    """
    join(recipe.train.use_cpu, recipe.train.passed_on.get("ddp_timeout", HALF_AN_HOUR))
    listener = listener if listener and is_main_process() else Silent()
    _refuse_both(bool(resume), overwrite)
    path = agreed(default_path(recipe) if output is None else Path(output))
    if resume and is_run(path) and (run := RunDir.open(path, to_train=True)).complete:
        return _returned(run, recipe, rows, listener)

    with (
        opened(path, recipe, bool(resume), overwrite=overwrite, rows=rows, listener=listener) as (run, recipe),
        hub.Publication(recipe, run, listener) as publication,
    ):
        job = assemble(recipe, run, listener)
        if is_main_process():
            begin(run, recipe, job, command)
            listener.note(f"run directory: {path}")

        probe = job.task.probe(job.data)
        publication.follow(job, probe)

        listener.stage("training")
        fitted = training.fit(job.trainer, resume=resume)

        listener.stage("saving")
        if not is_main_process():
            return RunResult(run, {})
        expected = job.task.outputs(job.applied.model, job.tokenizer, probe)
        job.task.save(job.applied.finish(job.applied.model), job.tokenizer, job.data, run.model)
        share(run.model)

        listener.stage("scoring")
        splits = [name for name in score if name in job.facts.rows]
        evaluation = job.task.evaluate(run.model, job.data, splits, listener, recipe.model.trust_in_saved)
        baselines = scored_baselines(job.task, recipe, job.data, evaluation.splits)

        listener.stage("verifying the saved model in a fresh process")
        verify(run.model, recipe.task.kind, probe, expected, trust=recipe.model.trust_in_saved)

        metrics = {
            "task": recipe.task.kind,
            "splits": evaluation.splits,
            "baselines": baselines,
            **job.known,
            "speed": {**fitted.speed(), **({"ahead_seconds": job.ahead_seconds} if job.ahead_seconds else {})},
            "collapsed": evaluation.collapsed is not None,
            "collapse_reason": evaluation.collapsed,
            "verified": True,
            "selection": fitted.selection(),
            **evaluation.extras,
        }
        keep(run, metrics, evaluation, listener)
        publication.finish()
        return RunResult(run, metrics)


def _returned(run: RunDir, recipe: Recipe, rows: InMemoryData | None, listener: Listener) -> RunResult:
    """A complete run that was asked for again: what is written last may be missing."""
    listener.note(f"{run.path} is complete already")
    refuse_other_recipe(run, recipe if rows is None else with_data(recipe, run.data))
    if rows is not None:
        rows.store(run.data, begun=True)
    if is_main_process():
        with run.locked():
            remove_staged(run.path)
            if not run.report.is_file():  # it was stopped between its scores and its pages
                write_pages(run)
            hub.Publication(recipe, run, listener).finish()
    return RunResult(run, run.read_metrics())


def begin(run: RunDir, recipe: Recipe, job: Job, command: str | None = None) -> None:
    """Write the recipe and the environment of a run that is about to be trained.

    The recipe states the dtype that was chosen, so that the run is resumed and repeated with it on another machine.
    """
    chosen = {"bf16": bool(job.trainer.args.bf16), "fp16": bool(job.trainer.args.fp16)}
    stated = recipe.model_copy(update={"train": recipe.train.model_copy(update=chosen)})
    environment = {**describe_environment(), "launch": job.trainer.launched.as_dict()}
    run.begin(stated, environment if command is None else {**environment, "command": command})


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    output: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    score: Sequence[str] = SCORED,
    rows: InMemoryData | None = None,
    listener: Listener | None = None,
    command: str | None = None,
) -> tuple[Path, dict[str, Any], list[RunResult]]:
    """Train once with each seed; the group's folder, its mean ± std, and the runs. Arguments as of ``train``."""
    join(recipe.train.use_cpu, recipe.train.passed_on.get("ddp_timeout", HALF_AN_HOUR))
    listener = listener if listener and is_main_process() else Silent()
    if recipe.hub.pushes:
        raise HftuneError(
            f"several seeds can't be pushed to one repository ({recipe.hub.hub_model_id})",
            hint="train the group first, then push the run you choose: hftune push GROUP/seed-N USER/NAME",
        )
    _refuse_both(resume, overwrite)
    group = agreed(default_path(recipe, group=True) if output is None else Path(output))
    with _opened_group(group, recipe, resume, overwrite=overwrite, rows=rows, listener=listener) as recipe:
        results = []
        for number, seed in enumerate(seeds, start=1):
            listener.note(f"seed {seed} ({number} of {len(seeds)})")
            seeded, path = _seeded(recipe, seed), seed_path(group, seed)
            results.append(train(seeded, path, resume=resume, score=score, listener=listener, command=command))
        return group, write_group(group) if is_main_process() else {}, results


@contextmanager
def _opened_group(
    group: Path,
    recipe: Recipe,
    resume: bool,
    *,
    overwrite: bool,
    rows: InMemoryData | None,
    listener: Listener,
) -> Iterator[Recipe]:
    """The folder of several seeds, with the rows that they share; arguments as of ``opened``."""
    moved: Path | None = None
    recipe = recipe if rows is None else with_data(recipe, group / DATA)
    if is_main_process():
        if overwrite and is_replaceable(group):
            moved = move_aside(group)
            recipe = recipe if rows is not None else moved_with(recipe, group, moved)
        elif in_use(group) and (is_run(group) or not resume):
            raise HftuneError(
                f"{group} is in use: it holds {'a run' if is_run(group) else 'something'} already",
                hint=f"take a free name: --output {free_name(group)}; a group that was begun goes on with --resume",
            )
        refuse_links(group, SEEDS, depth=1)
        for run in seed_runs(group):
            refuse_other_recipe(RunDir.open(run.path, to_train=True), _seeded(recipe, run.read_recipe().train.seed))
        if rows is not None:
            rows.store(group / DATA, begun=bool(seed_runs(group)))
        if moved is not None:
            listener.note(f"the runs that were at {group} are now at {moved}")
    try:
        yield agreed(recipe)
    finally:
        if is_main_process() and not seed_runs(group):  # not one of them began
            RunDir(group).discard_if_not_begun()
        if moved is not None:
            point_to(moved, group) if group.exists() else moved.rename(group)


def _refuse_both(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise HftuneError(
            "resume and overwrite exclude each other: one continues the run, the other moves it aside",
            hint="leave one of them out",
        )


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})


def assemble(recipe: Recipe, run: RunDir, listener: Listener, *, ahead: bool = True) -> Job:
    """Load and check everything a run needs. All that can be wrong with a request comes out here.

    Args:
        recipe: What to do.
        run: Where it will lie.
        listener: Who watches.
        ahead: Run a frozen part over all rows now, where the method has one; a dry run does not.
    """
    seed_everything(recipe.train.seed)
    forget_peak()
    task: Task[Any] = TASKS[recipe.task.kind](recipe)

    listener.stage("loading data")
    data = task.load_data()
    facts = task.describe(data)
    for note in facts.notes:
        listener.note(note)
    for warning in facts.warnings:
        listener.warn(warning)
    tokenizer = task.load_tokenizer(data)
    inputs = task.prepare(data, tokenizer)
    for note in inputs.notes:
        listener.note(note)
    facts = replace(facts, notes=(*facts.notes, *inputs.notes))

    listener.stage("loading model")
    loaded = task.build_model(data, tokenizer)
    applied = methods.apply(loaded.model, recipe.method, loaded.fresh_modules)
    ahead_seconds = 0.0
    if ahead:
        inputs, ahead_seconds = precompute(
            inputs,
            applied,
            use_cpu=recipe.train.use_cpu,
            batch_size=recipe.train.per_device_eval_batch_size,
            listener=listener,
        )
    trainer = training.build(
        recipe.train,
        inputs,
        model=applied.trained if ahead else applied.model,
        tokenizer=tokenizer,
        checkpoints=run.checkpoints,
        history=run.history,
        listener=listener,
        must_match={
            "data": dict(facts.fingerprints),
            "tokens": inputs.tokens,
            "parameters": applied.parameters.as_dict(),
        },
    )
    # What is scored at the end goes by the size that was found to fit.
    train = recipe.train.model_copy(update={"per_device_eval_batch_size": trainer.args.per_device_eval_batch_size})
    task = task if train == recipe.train else TASKS[recipe.task.kind](recipe.model_copy(update={"train": train}))
    listener.note(trainer.launched.in_words())
    known = {"parameters": applied.parameters.as_dict(), "seed": recipe.train.seed, "data": facts.as_dict()}
    return Job(task, data, facts, tokenizer, inputs, applied, trainer, round(ahead_seconds, 3), known)


def keep(run: RunDir, metrics: Mapping[str, Any], evaluation: Evaluation, listener: Listener) -> None:
    """Write scores and predictions, then the report that is made of them."""
    for split, rows in evaluation.predictions.items():
        run.write_predictions(split, rows)
    run.write_metrics(metrics)
    listener.stage("writing the report")
    write_pages(run)
    if evaluation.collapsed:
        listener.warn(f"the model has collapsed: {evaluation.collapsed}")


def write_pages(run: RunDir) -> None:
    """The model card and the report, both made of what the run directory holds."""
    hub.write_card(run)
    write_report(run)


def rescore(run: RunDir, splits: Sequence[str], listener: Listener | None = None) -> RunResult:
    """Score further splits of a finished run: studies leave test out until validation has selected a setting."""
    listener = listener or Silent()
    metrics = run.read_metrics()
    missing = [name for name in splits if name not in metrics["splits"]]
    if not missing:
        return RunResult(run, metrics)
    recipe = run.read_recipe()
    task: Task[Any] = TASKS[recipe.task.kind](recipe)
    data = task.load_data()
    facts = task.describe(data)
    if dict(facts.fingerprints) != metrics["data"]["fingerprints"]:
        raise HftuneError(
            f"the data of {run.path} has changed since it was trained",
            hint="bring the old data back, or train again with another --output",
        )
    scored = [name for name in SCORED if name in facts.rows and (name in splits or name in metrics["splits"])]
    with run.locked():
        evaluation = task.evaluate(run.model, data, scored, listener, recipe.model.trust_in_saved)
        updated = {
            **metrics,
            "splits": evaluation.splits,
            "baselines": scored_baselines(task, recipe, data, evaluation.splits),
            "collapsed": evaluation.collapsed is not None,
            "collapse_reason": evaluation.collapsed,
            **evaluation.extras,
        }
        keep(run, updated, evaluation, listener)
    return RunResult(run, updated)
