"""A request to train: check recipe and settings, then train, score without training, or estimate.

The command line and the Python API both end here, so that both have the same names, checks and errors.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hftune.config.values import parse_sets, refuse_unasked, typed_keys
from hftune.data.settings import SCORING_SETTINGS, LabeledData
from hftune.errors import HftuneError
from hftune.recipe import Recipe, load_recipe, with_data
from hftune.runs.directory import RunDir, in_use, is_run, refuse_used, stored_rows
from hftune.runs.group import is_replaceable, refuse_used_group
from hftune.runs.schema import VERSION

if TYPE_CHECKING:
    from hftune.data.in_memory import InMemoryData
    from hftune.pipeline.dry_run import Estimate
    from hftune.pipeline.train import GroupResult, RunResult
    from hftune.progress import ProgressReporter
    from hftune.tasks.task import EvaluationResult

RecipeLike: TypeAlias = str | Path | Mapping[str, Any] | Recipe
"""A shipped recipe's name, a path, a dict of sections, or a Recipe."""
MEMORY = "rows in memory"
"""The name of data without a name, in results."""
MAX_SEEDS = 100
NAMES_SPLITS = ("dataset_", "train_", "validation_", "test_")
"""How settings begin that name a dataset or its splits."""


@dataclass(frozen=True)
class TrainRequest:
    """A checked recipe, and the arguments of the command."""

    recipe: Recipe
    output: Path | None = None
    seeds: tuple[int, ...] = ()
    resume: bool | Path = False
    """Whether to resume, or the checkpoint to resume from."""
    overwrite: bool = False
    dry_run: bool = False
    do: Mapping[str, bool] = field(default_factory=dict)
    """Those of do_train, do_eval and do_predict that were given."""
    rows: InMemoryData | None = None
    """Data given from Python."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to score: validation unless do_eval is false, test unless do_predict is."""
        # Without training, only what is named is done, as in Hugging Face's scripts.
        named_only = not self.do.get("do_train", True) and True in self.do.values()
        wanted = {"validation": "do_eval", "test": "do_predict"}
        return tuple(split for split, name in wanted.items() if self.do.get(name, not named_only))

    def check(self) -> None:
        """Refuse arguments that exclude each other, before any data is read.

        Raises:
            HftuneError: The request can't be carried out.
        """
        if self.resume and self.output is None:
            raise HftuneError("--resume needs the run directory", hint="add --output RUN")
        if self.resume and self.overwrite:
            raise HftuneError(
                "resume and overwrite exclude each other: one continues the run, the other moves it aside",
                hint="leave one of them out",
            )
        if self.dry_run and self.resume:
            raise HftuneError("a dry run estimates a whole run, so --resume changes nothing", hint="leave one out")
        if self.do.get("do_train", True):
            self._refuse_used_output()
            return
        excluded = {"--seeds": self.seeds, "--resume": self.resume, "--dry-run": self.dry_run}
        for flag, given in (*excluded.items(), ("--overwrite", self.overwrite)):
            if given:
                raise HftuneError(f"--do-train is false, so {flag} has no effect", hint=f"leave {flag} out")
        model = self.recipe.model
        if model.from_scratch:
            raise HftuneError(
                f"--do-train is false, and {model.model_name_or_path} has random weights, so there is nothing to score",
                hint="name a trained model with --model, or leave --do-train False out",
            )
        if not self.splits:
            raise HftuneError("--do-train, --do-eval and --do-predict are all false", hint="leave one of them out")
        if not isinstance(self.recipe.data, LabeledData):
            raise HftuneError(
                "--do-train False scores classifiers", hint=f"`hftune evaluate {model.model_name_or_path}`"
            )
        if self.output is not None and in_use(self.output):
            raise HftuneError(f"{self.output} is in use", hint="name a new folder for the scores with --output")

    def _refuse_used_output(self) -> None:
        """Refuse an output that is taken, before anything heavy is imported; the run checks it again when it is made.

        Not under a launcher: there the main process may have made the folder before another one looks.
        """
        if self.output is None or "LOCAL_RANK" in os.environ or (self.overwrite and is_replaceable(self.output)):
            return
        if self.seeds:
            refuse_used_group(self.output, bool(self.resume))
        elif not (self.resume and is_run(self.output)):
            refuse_used(self.output)


@dataclass(frozen=True)
class ScoredModel:
    """A saved model that was scored without training."""

    model: str
    splits: dict[str, EvaluationResult]
    path: Path | None
    """The folder with metrics.json and predictions, if one was named."""

    def as_dict(self) -> dict[str, Any]:
        """One document, with the keys of metrics.json."""
        baselines: dict[str, dict[str, Any]] = {}
        for split, found in self.splits.items():
            for name, scores in found.baselines.items():
                baselines.setdefault(name, {})[split] = scores
        return {
            "version": VERSION,
            "model": self.model,
            "data": next(iter(self.splits.values())).source,
            "splits": {split: found.scores for split, found in self.splits.items() if found.scores},
            "baselines": baselines,
            "collapsed": any(found.collapsed for found in self.splits.values()),
        }


def resolve_recipe(
    recipe: RecipeLike | None,
    overrides: Mapping[str, Any],
    sets: Sequence[str] = (),
    *,
    task: str | None = None,
    trusted: bool = False,
) -> Recipe:
    """A checked recipe: one of any form, overridden by settings.

    Args:
        recipe: The recipe that the settings override; None means the defaults of the settings.
        overrides: Settings that were typed as flags or keywords, by dotted key; None means not given.
        sets: ``key=value`` texts that were typed.
        task: The kind of task; a recipe of another kind is refused.
        trusted: Skip the check of consent, for a recipe that is only read.

    Raises:
        HftuneError: The recipe or a setting is invalid, or a file requests to run code that no flag allows.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    # The recipe of a run names the rows that are stored with it by the path that the run had when it began.
    moved = stored_rows(recipe) if isinstance(recipe, str | Path) else {}
    made = load_recipe(recipe, {**moved, **given}, sets, task=task)
    # A recipe can come from anybody: a file may request to run code, only what was typed allows it.
    if not trusted:
        refuse_unasked(made, typed_keys([*given.items(), *parse_sets(sets)[0]]))
    return made


def list_seeds(seeds: str | Iterable[int] | None) -> tuple[int, ...]:
    """Distinct seeds from ``1,2,3``, ``1-5`` or a list of whole numbers; empty for None.

    Raises:
        HftuneError: They are not.
    """
    found: list[Any] = []
    if isinstance(seeds, str):
        for part in seeds.split(","):
            match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
            if match is None:
                raise _bad_seeds(f"whole numbers, got {part.strip()!r}")
            first, last = int(match[1]), int(match[2] or match[1])
            if not first <= last < first + MAX_SEEDS:
                raise _bad_seeds(f"a range of 1 to {MAX_SEEDS} seeds, got {part.strip()!r}")
            found.extend(range(first, last + 1))
    elif seeds is not None:
        found = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, bytes | Mapping) else [None]
        if not found or not all(type(seed) is int and 0 <= seed < 2**32 for seed in found):
            raise _bad_seeds(f"whole numbers from 0 on, got {seeds!r}")
    if len(set(found)) < len(found):
        raise _bad_seeds(f"each seed once, got {seeds!r}")
    return tuple(found)


def _bad_seeds(expectation: str) -> HftuneError:
    return HftuneError(f"--seeds expects {expectation}", hint="write --seeds 1,2,3 or --seeds 1-5, in Python [1, 2, 3]")


def find_checkpoint(checkpoint: Path, output: Path | None) -> tuple[bool | Path, Path]:
    """The checkpoint (or True) and its run directory, from the path of a run or of one of its checkpoints.

    Raises:
        HftuneError: It is neither, or not in the run directory that was named.
    """
    run = next((folder for folder in (checkpoint, *checkpoint.parents) if is_run(folder)), None)
    if run is None or not checkpoint.is_dir():
        raise HftuneError(
            f"--resume-from-checkpoint expects a run or one of its checkpoints; {str(checkpoint)!r} is neither",
            hint="name RUN or RUN/checkpoints/checkpoint-N",
        )
    if output is not None and output.resolve() != run.resolve():
        raise HftuneError(
            f"--resume-from-checkpoint is in the run {run}, but --output-dir is {output}",
            hint="leave --output-dir out: a resumed run is continued in its folder",
        )
    return (True if checkpoint == run else checkpoint), run


def carry_out(
    request: TrainRequest, progress: ProgressReporter, command: str | None = None
) -> RunResult | GroupResult | ScoredModel | Estimate:
    """Train one run or a group of seeds, score without training, or estimate, as requested.

    Args:
        request: What to do.
        progress: Progress callback.
        command: What started it, for the report; the command line of this process by default.

    Raises:
        HftuneError: The request can't be carried out; nothing was trained.
        RunFailed: Training or verification went wrong.
    """
    request.check()
    if not request.do.get("do_train", True):
        return _score_without_training(request, progress)
    if "do_train" not in request.do and True in request.do.values():
        # In Hugging Face's scripts these flags alone would only score.
        progress.note("training too: do_train False only scores a trained model")
    if request.dry_run:
        return _estimate(request, progress)
    from hftune.pipeline.train import train, train_seeds

    how: dict[str, Any] = {
        "overwrite": request.overwrite,
        "score": request.splits,
        "rows": request.rows,
        "progress": progress,
        "command": command,
    }
    if request.seeds:
        return train_seeds(request.recipe, request.seeds, request.output, resume=bool(request.resume), **how)
    return train(request.recipe, request.output, resume=request.resume, **how)


def _estimate(request: TrainRequest, progress: ProgressReporter) -> Estimate:
    """A dry run; rows are stored in a temporary folder."""
    from hftune.pipeline.dry_run import dry_run

    # Rows from Python are read as a run would read them: from files.
    with tempfile.TemporaryDirectory() as folder:
        recipe = request.recipe
        if request.rows is not None:
            request.rows.write(Path(folder))
            recipe = with_data(recipe, Path(folder))
        found = dry_run(recipe, request.output, progress, overwrite=request.overwrite)
    runs = len(request.seeds) or 1
    source = found.data if request.rows is None else MEMORY
    return replace(found, data=source, runs=runs, estimated_minutes=round(found.estimated_minutes * runs, 2))


def _score_without_training(request: TrainRequest, progress: ProgressReporter) -> ScoredModel:
    from hftune.data.locate import MissingSplit, as_path
    from hftune.pipeline.inference import evaluate
    from hftune.pipeline.train import report_verdict
    from hftune.tasks.task import EvaluationRequest

    recipe, data = request.recipe, request.recipe.data
    name = recipe.model.model_name_or_path
    with tempfile.TemporaryDirectory() as place:
        if request.rows is not None:
            tables = request.rows.tables
            if missing := [split for split in request.splits if split not in tables]:
                raise HftuneError(
                    f"the data has no {missing[0]} split; its splits are {', '.join(tables)}",
                    hint=f'name the rows to score: data={{"{missing[0]}": rows}}',
                )
            # A folder of data needs a training file, which is not scored.
            replace(request.rows, tables={"train": next(iter(tables.values())), **tables}).write(Path(place))
            data = with_data(recipe, Path(place)).data
        stated = data.model_dump(include=set(SCORING_SETTINGS), exclude_none=True, exclude_defaults=True)
        source = data.dataset_name
        settings = {key: value for key, value in stated.items() if key != "dataset_name"}
        size, metrics = recipe.train.per_device_eval_batch_size, getattr(recipe.task, "metrics", ())
        found = {}
        for split in request.splits:
            progress.note(f"scoring {split}")
            # As in run_glue: a test split without labels gets predictions, if they are written to a folder.
            unlabeled = split == "test" and request.output is not None
            asked = EvaluationRequest(name, recipe.model, source, split, settings, metrics, size, unlabeled)
            if (file := data.split_files[split]) and Path(file).is_file():
                # A file of its own needs no dataset around it: its labels are those of the model.
                columns = {key: value for key, value in settings.items() if not key.startswith(NAMES_SPLITS)}
                asked = replace(asked, data=file, columns={**columns, f"{split}_file": file})
            try:
                found[split] = evaluate(asked, progress)
            except MissingSplit as error:
                # Commands that train name splits by their files, not with --split.
                flag = f"--{split}-file FILE" if as_path(source) else f"--{split}-split-name NAME"
                hint = f"name it with {flag}, or score all rows: `hftune evaluate {name} --data {source} --split all`"
                raise HftuneError(error.message, hint=hint) from error
            if found[split].collapsed:
                progress.warn(f"the predictions have collapsed: {found[split].collapsed}")
    if request.rows is not None:
        found = {split: replace(scores, source=MEMORY) for split, scores in found.items()}
    result = ScoredModel(name, found, request.output)
    if request.output is not None:
        folder = RunDir.create(request.output)
        for split, scores in found.items():
            folder.write_predictions(split, scores.predictions)
        folder.write_metrics(result.as_dict())
    report_verdict(result.as_dict(), progress)
    return result
