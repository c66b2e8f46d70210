"""From a recipe to a finished run: data, model, method, training, saving, scoring, verification, report.

``train`` and ``assemble`` name no task, model, dataset or method: those come from the recipe, through tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import set_seed

from hftune import methods
from hftune.errors import HftuneError
from hftune.files import remove_staged, share
from hftune.hub.card import write_card
from hftune.methods.applied import Applied
from hftune.pipeline.run_session import opened, opened_group, refuse_other_recipe
from hftune.pipeline.verify import verify
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, read_recipe, with_data
from hftune.runs.directory import RunDir, default_path, is_run
from hftune.runs.environment import describe as describe_environment
from hftune.runs.group import seed_path, write_group
from hftune.runs.report import verdict, write_report
from hftune.runs.schema import VERSION
from hftune.studies.report import write_group_page
from hftune.tasks import task_class
from hftune.tasks.task import DataSummary, Evaluation, Task
from hftune.training.arguments import make_arguments
from hftune.training.checkpoints import refuse_other_data
from hftune.training.fit import Fitted, build, fit
from hftune.training.inputs import TrainingInputs
from hftune.training.launch import HALF_AN_HOUR, agreed, is_main_process, join, launch_summary
from hftune.training.memory import forget_peak
from hftune.training.settings import TrainSection
from hftune.training.trainer import HftuneTrainer

if TYPE_CHECKING:
    from hftune.data.in_memory import InMemoryData
    from hftune.hub.publication import Publication

SCORED = ("validation", "test")


@dataclass(frozen=True)
class TrainingJob:
    """Everything that training, saving and scoring work on."""

    task: Task[Any]
    data: Any
    facts: DataSummary
    tokenizer: Any
    inputs: TrainingInputs
    applied: Applied
    trainer: HftuneTrainer
    feature_seconds: float
    """Time to precompute the features of a frozen encoder; 0 if the method has none."""
    known: dict[str, Any]
    """The part of metrics.json that is known before training."""


@dataclass(frozen=True)
class RunResult:
    """A finished run; metrics are those of metrics.json, empty in all processes but the main one."""

    run: RunDir
    metrics: Mapping[str, Any]


class GroupResult(NamedTuple):
    """Several seeds of one recipe."""

    path: Path
    summary: dict[str, Any]
    """Mean and standard deviation over the seeds; empty in all processes but the main one."""
    runs: list[RunResult]


def train(
    recipe: Recipe,
    output: str | Path | None = None,
    *,
    resume: bool | Path = False,
    overwrite: bool = False,
    score: Sequence[str] = SCORED,
    rows: InMemoryData | None = None,
    progress: ProgressReporter | None = None,
    command: str | None = None,
) -> RunResult:
    """Train, save, score and verify one model.

    Args:
        recipe: What to do; from ``load_recipe``.
        output: The run directory; a new one below runs/ by default.
        resume: Resume from the newest complete checkpoint in output, or from this one; a complete run is returned as
            it is.
        overwrite: Move a run that is at output aside, to a free name next to it.
        score: Splits to score at the end. Studies leave test out until a setting is selected.
        rows: Data passed from Python; they are stored with the run, and its recipe names them.
        progress: Progress callback.
        command: What started the run, for the report; the command line of this process by default.

    Raises:
        HftuneError: The request can't be carried out; nothing was trained and nothing is left behind.
        RunFailed: Training or verification went wrong; checkpoints are kept.
    """
    # Under a launcher, each process runs this function from here to the end of training.
    progress = _join(recipe, progress)
    path = agreed(default_path(recipe) if output is None else Path(output))
    if resume and is_run(path) and (run := RunDir.open(path, to_train=True)).complete:
        return _already_complete(run, recipe, rows, progress)

    with (
        opened(path, recipe, bool(resume), overwrite=overwrite, rows=rows, progress=progress) as (run, recipe),
        _publication(recipe, run, progress) as publication,
    ):
        job = assemble(recipe, run, progress)
        if is_main_process():
            begin(run, recipe, job, command)
            progress.note(f"run directory: {path}")
        # A few examples as the model reads them; the saved model is verified on them.
        probe = job.task.probe(job.data)
        if publication is not None:
            publication.follow(job, probe)  # may upload each new best checkpoint

        progress.stage("training")
        fitted = fit(job.trainer, resume=resume)
        if not is_main_process():
            return RunResult(run, {})  # one process saves and scores; the launcher waits for it

        # What the model in memory computes, before an adapter is merged or wrappers are taken off.
        progress.stage("saving")
        expected = job.task.outputs(job.applied.model, job.tokenizer, probe)
        job.task.save(job.applied.finish(job.applied.model), job.tokenizer, job.data, run.model)
        share(run.model)

        # The folder that was just saved is loaded again and scored.
        progress.stage("scoring")
        splits = [name for name in score if name in job.facts.rows]
        evaluation = job.task.evaluate(run.model, job.data, splits, progress, recipe.model.trust_in_saved)
        baselines = job.task.scored_baselines(job.data, evaluation.splits)

        # The same outputs from a process that shares nothing with this one; until then the run is not complete.
        progress.stage("verifying the saved model in a new process")
        verify(run.model, recipe.task.kind, probe, expected, trust=recipe.model.trust_in_saved)

        metrics = _metrics(recipe, job, fitted, evaluation, baselines)
        write_results(run, metrics, evaluation, progress)
        if publication is not None:
            publication.finish()
        return RunResult(run, metrics)


def assemble(recipe: Recipe, run: RunDir, progress: ProgressReporter, *, ahead: bool = True) -> TrainingJob:
    """Load and check everything that a run needs. All errors of a request are raised here.

    Args:
        recipe: What to do.
        run: Where checkpoints and history go.
        progress: Progress callback.
        ahead: Precompute the features of a frozen encoder now, if the method has one; a dry run does not.
    """
    # New weights (a head, a model from scratch) are drawn below, so the seed comes before anything else.
    set_seed(recipe.train.seed)
    forget_peak()
    task = task_class(recipe.task.kind)(recipe)

    # Settings that this machine or the installed transformers can't honor are refused here, before any data is read;
    # ``build`` makes the arguments that are used, once the batch size is known.
    make_arguments(recipe.train, checkpoints=run.checkpoints)
    task.check_request()
    progress.stage("loading data")
    data = task.load_data()
    facts = task.describe(data)
    for note in facts.notes:
        progress.note(note)
    for warning in facts.warnings:
        progress.warn(warning)
    tokenizer = task.load_tokenizer(data)
    inputs = task.prepare(data, tokenizer)
    for note in inputs.notes:
        progress.note(note)
    facts = replace(facts, notes=(*facts.notes, *inputs.notes))

    progress.stage("loading model")
    loaded = task.build_model(data, tokenizer)
    for note in loaded.notes:
        progress.note(note)
    facts = replace(facts, notes=(*facts.notes, *loaded.notes))
    applied = methods.apply(loaded.model, recipe.method, loaded.fresh_modules)
    feature_seconds = 0.0
    if ahead:
        # The checkpoint is compared with everything later; these would be computed for nothing.
        refuse_other_data(run.checkpoints, facts.fingerprints)
        inputs, feature_seconds = _precomputed(task, data, inputs, applied, recipe.train, progress)
    trainer = build(
        recipe.train,
        inputs,
        model=applied.trained if ahead else applied.model,
        tokenizer=tokenizer,
        checkpoints=run.checkpoints,
        history=run.history,
        progress=progress,
        must_match={
            "data": dict(facts.fingerprints),
            "tokens": inputs.tokens,
            "parameters": applied.parameters.as_dict(),
            **loaded.facts,
        },
    )
    # auto_find_batch_size may have lowered the evaluation batch size too: the task scores with what fits.
    size = trainer.args.per_device_eval_batch_size
    if size != recipe.train.per_device_eval_batch_size:
        task = task_class(recipe.task.kind)(recipe.changed("train", per_device_eval_batch_size=size))
    progress.note(launch_summary(trainer.launched))
    return TrainingJob(
        task=task,
        data=data,
        facts=facts,
        tokenizer=tokenizer,
        inputs=inputs,
        applied=applied,
        trainer=trainer,
        feature_seconds=round(feature_seconds, 3),
        known={
            "parameters": applied.parameters.as_dict(),
            "seed": recipe.train.seed,
            "data": facts.as_dict(),
            **loaded.facts,
        },
    )


def _precomputed(
    task: Task[Any],
    data: Any,
    inputs: TrainingInputs,
    applied: Applied,
    train: TrainSection,
    progress: ProgressReporter,
) -> tuple[TrainingInputs, float]:
    """Compute once what does not change in training: outputs of a teacher, or features of a frozen encoder.

    Returns:
        The inputs with it, and the seconds that it took.
    """
    began = time.perf_counter()
    made = task.precompute(data, inputs, progress)
    inputs, seconds = (inputs, 0.0) if made is None else (made, time.perf_counter() - began)
    if applied.precomputed is None:
        return inputs, seconds
    from hftune.pipeline.precompute import precompute  # most methods have no frozen part that could run once

    size = train.per_device_eval_batch_size
    inputs, more = precompute(inputs, applied, use_cpu=train.use_cpu, batch_size=size, progress=progress)
    return inputs, seconds + more


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    output: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    score: Sequence[str] = SCORED,
    rows: InMemoryData | None = None,
    progress: ProgressReporter | None = None,
    command: str | None = None,
) -> GroupResult:
    """Train once with each seed, as runs of one group. Arguments as for ``train``."""
    progress = _join(recipe, progress)
    if recipe.hub.pushes:
        raise HftuneError(
            f"several seeds can't be pushed to one repository ({recipe.hub.hub_model_id})",
            hint="train the group first, then push the run you choose: `hftune push GROUP/seed-N USER/NAME`",
        )
    group = agreed(default_path(recipe, group=True) if output is None else Path(output))
    with opened_group(group, recipe, resume, overwrite=overwrite, rows=rows, progress=progress) as recipe:
        results = []
        for number, seed in enumerate(seeds, start=1):
            progress.note(f"seed {seed} ({number} of {len(seeds)})")
            one, path = recipe.changed("train", seed=seed), seed_path(group, seed)
            results.append(train(one, path, resume=resume, score=score, progress=progress, command=command))
        return GroupResult(group, _write_group(group) if is_main_process() else {}, results)


def _write_group(group: Path) -> dict[str, Any]:
    """Write the summary of a group and its page; without any score there is nothing to show."""
    summary = write_group(group)
    if summary["splits"]:
        write_group_page(group)
    return summary


def rescore(run: RunDir, splits: Sequence[str], progress: ProgressReporter | None = None) -> RunResult:
    """Score further splits of a finished run: studies leave test out until validation has selected a setting."""
    progress = progress or ProgressReporter()
    metrics = run.read_metrics()
    if all(name in metrics["splits"] for name in splits):
        return RunResult(run, metrics)
    recipe = read_recipe(run)
    task = task_class(recipe.task.kind)(recipe)
    data = task.load_data()
    facts = task.describe(data)
    if dict(facts.fingerprints) != metrics["data"]["fingerprints"]:
        raise HftuneError(
            f"the data of {run.path} has changed since it was trained",
            hint="restore the old data, or train again with another --output",
        )
    # Also the splits that are in metrics.json already: collapse and baselines are properties of all of them together.
    scored = [name for name in SCORED if name in facts.rows and (name in splits or name in metrics["splits"])]
    with run.locked():
        evaluation = task.evaluate(run.model, data, scored, progress, recipe.model.trust_in_saved)
        baselines = task.scored_baselines(data, evaluation.splits)
        updated = {**metrics, **_scores(evaluation, baselines)}
        write_results(run, updated, evaluation, progress)
    return RunResult(run, updated)


def begin(run: RunDir, recipe: Recipe, job: TrainingJob, command: str | None = None) -> None:
    """Write the recipe and the environment of a run that is about to be trained.

    The recipe states the dtype that was chosen, so that the run is resumed and repeated with it on another machine.
    """
    chosen = {"bf16": bool(job.trainer.args.bf16), "fp16": bool(job.trainer.args.fp16)}
    stated = {} if command is None else {"command": command}
    environment = {**describe_environment(), "launch": job.trainer.launched, **stated}
    run.begin(recipe.changed("train", **chosen), environment)


def write_results(run: RunDir, metrics: Mapping[str, Any], evaluation: Evaluation, progress: ProgressReporter) -> None:
    """Write scores and predictions, then the report that is made from them."""
    for split, rows in evaluation.predictions.items():
        run.write_predictions(split, rows)
    run.write_metrics(metrics)
    progress.stage("writing the report")
    write_pages(run)
    report_collapse(metrics, progress)
    report_verdict(metrics, progress)


def report_collapse(metrics: Mapping[str, Any], progress: ProgressReporter) -> None:
    """Warn of a run that collapsed, also when it is found complete."""
    if reason := metrics.get("collapse_reason"):
        progress.warn(f"the model has collapsed: {reason}")


def report_verdict(metrics: Mapping[str, Any], progress: ProgressReporter) -> None:
    """Report whether the model is better than its baselines, which the report states too."""
    found = verdict(metrics)
    if found is not None:
        (progress.warn if found.beaten else progress.note)(f"{found.summary} {found.scores}")


def write_pages(run: RunDir) -> None:
    """The model card and the report, both made from the files of the run directory."""
    write_card(run)
    write_report(run)


def _publication(recipe: Recipe, run: RunDir, progress: ProgressReporter) -> AbstractContextManager[Publication | None]:
    """What publishes the run; None if it is not published, and the client of the Hub is then not imported."""
    if not recipe.hub.pushes:
        return nullcontext()
    from hftune.hub.publication import Publication

    return Publication(recipe, run, progress)


def _join(recipe: Recipe, progress: ProgressReporter | None) -> ProgressReporter:
    """Join the other processes of the launch; only the main one reports progress."""
    join(recipe.train.use_cpu, recipe.train.passed_on.get("ddp_timeout", HALF_AN_HOUR))
    return progress if progress and is_main_process() else ProgressReporter()


def _already_complete(run: RunDir, recipe: Recipe, rows: InMemoryData | None, progress: ProgressReporter) -> RunResult:
    """Return a run that is complete; its pages and its publication, which come last, may be missing."""
    refuse_other_recipe(run, recipe if rows is None else with_data(recipe, run.data))
    progress.note(f"{run.path} is complete already")
    metrics = run.read_metrics()
    report_collapse(metrics, progress)
    report_verdict(metrics, progress)
    if rows is not None:
        rows.store(run.data, begun=True)
    if is_main_process():
        with run.locked():
            remove_staged(run.path)
            if not run.report.is_file():
                write_pages(run)
            if recipe.hub.pushes:
                from hftune.hub.publication import Publication

                Publication(recipe, run, progress).finish()
    return RunResult(run, run.read_metrics())


def _metrics(
    recipe: Recipe, job: TrainingJob, fitted: Fitted, evaluation: Evaluation, baselines: Mapping[str, Any]
) -> dict[str, Any]:
    """metrics.json of a run whose saved model was verified."""
    ahead = {"feature_seconds": job.feature_seconds} if job.feature_seconds else {}
    return {
        "version": VERSION,
        "task": recipe.task.kind,
        **job.known,
        "speed": {**fitted.speed, **ahead},
        "verified": True,
        "selection": fitted.selection,
        **_scores(evaluation, baselines),
    }


def _scores(evaluation: Evaluation, baselines: Mapping[str, Any]) -> dict[str, Any]:
    """The part of metrics.json that scoring gives."""
    return {
        "splits": evaluation.splits,
        "baselines": baselines,
        "collapsed": evaluation.collapsed is not None,
        "collapse_reason": evaluation.collapsed,
        **evaluation.extras,
    }
