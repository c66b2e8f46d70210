"""``hftune train``: run a recipe of any task; and what every command that trains does with its flags.

hftune train classify/reviews
hftune train runs/a --learning_rate 1e-4 --output_dir runs/b
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli.flags import Typed, training_command
from hftune.cli.options import resolve
from hftune.cli.outcome import print_dry_run, print_group, print_run
from hftune.cli.seeds import seed_list
from hftune.cli.terminal import note, show_json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.config import Recipe

logger = logging.getLogger(__name__)

TRUST = ("model.trust_remote_code", "model.trust_base_code")
"""Settings that change nothing about a run but what may be trusted for it; consent is asked for anew each time."""

RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]", help="A shipped recipe (hftune recipes ls), a YAML file, or a run.", show_default=False
    ),
]


def _task_of(values: Mapping[str, Any]) -> str:
    """The kind of task of the recipe that was named."""
    from hftune.config import load_recipe

    named, flag = values.get("named"), values.get("recipe")
    if named is not None and flag is not None:
        raise HftuneError(f"the recipe was named twice: {named} and --recipe {flag}", hint="leave one of them out")
    name = named or flag
    if name is None:
        raise HftuneError(
            "hftune train runs a recipe, and none was named",
            hint="name one (hftune recipes ls), or use the command of the task: hftune classify --data …",
        )
    return load_recipe(name).task.kind


@training_command(task=_task_of, own={"named": RecipeArgument}, takes_arguments=True)
def train(typed: Typed) -> None:
    """Run a recipe of any task: the same as the command of its task with --recipe."""
    name = typed.others["named"] or typed.recipe
    run_training(typed, task=_task_of({"recipe": name}), recipe=name, default=None)


def run_training(typed: Typed, *, task: str, recipe: str | None, default: str | None) -> None:
    """Train one run or a group of seeds, score without training, or try the recipe out, and print the outcome.

    Args:
        typed: What was typed.
        task: The task kind of the command.
        recipe: The recipe to start from; None takes the default.
        default: The recipe of the command; the schema's defaults where None.
    """
    if typed.resume and typed.output is None:
        raise HftuneError("--resume needs to know which run", hint="add --output RUN")
    if typed.resume and typed.overwrite:
        raise HftuneError("--resume continues a run and --overwrite replaces it", hint="leave one of them out")
    if typed.seeds is not None and "train.seed" in typed.settings:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    seeds = seed_list(typed.seeds)
    resolved = _recipe(typed, recipe, task, default, resumes=bool(typed.resume) and not seeds)
    splits = _splits_to_score(typed)
    if not typed.do.get("do_train", True):
        _score_only(resolved, splits, typed)
        return

    from hftune.cli.watch import Watcher
    from hftune.dryrun import dry_run as try_out
    from hftune.pipeline import train as train_one
    from hftune.pipeline import train_seeds
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    how: dict[str, Any] = {"resume": typed.resume, "overwrite": typed.overwrite, "score": splits}
    with Watcher() as listener:
        if typed.dry_run:
            print_dry_run(try_out(resolved, typed.output, listener), typed.as_json)
        elif seeds:
            group, summary, results = train_seeds(resolved, seeds, typed.output, **how, listener=listener)
            print_group(group, summary, results, typed.as_json)
        else:
            result = train_one(resolved, typed.output, **how, listener=listener)
            if typed.as_json and result.metrics:
                show_json({"run": str(result.run.path), **result.metrics})
            elif not typed.as_json:
                print_run(result)


def _recipe(typed: Typed, name: str | None, task: str, default: str | None, *, resumes: bool) -> Recipe:
    """The recipe of the command; a resumed run brings its own, and flags may only repeat it."""
    settings = typed.settings
    consent = {key: settings[key] for key in TRUST if key in settings}
    if resumes and name is None and not typed.sets and settings.keys() <= consent.keys():
        assert typed.output is not None, "checked before"
        if (typed.output / "recipe.yaml").is_file():
            return resolve(str(typed.output), None, consent, task=task)
    # The default recipe is made for its own model and data; with others the schema's defaults are the better start.
    own = typed.model is None and typed.data is None
    if name is None and default is not None:
        chosen = default if own else f"defaults ({default} is made for its own model and data)"
        logger.info("recipe: %s", chosen)
    return resolve(name, typed.sets, settings, task=task, default=default if own else None)


def _splits_to_score(typed: Typed) -> tuple[str, ...]:
    """Validation unless --do_eval is false, test unless --do_predict is."""
    chosen = {"validation": typed.do.get("do_eval", True), "test": typed.do.get("do_predict", True)}
    if not typed.do.get("do_train", True) and True in typed.do.values():
        # Without training, what is named is what is done, as in Hugging Face's scripts.
        chosen = {"validation": typed.do.get("do_eval", False), "test": typed.do.get("do_predict", False)}
    return tuple(split for split, wanted in chosen.items() if wanted)


def _score_only(recipe: Recipe, splits: tuple[str, ...], typed: Typed) -> None:
    """``--do_train False``: score the model that is named on the data that is named."""
    from hftune.cli.evaluate import DATA_SETTINGS, evaluate
    from hftune.config.data import LabeledData

    name, data = recipe.model.model_name_or_path, recipe.data
    if recipe.model.from_scratch:
        raise HftuneError(
            f"--do_train is false, and {name} has random weights, so there is nothing to score",
            hint="name a trained model with --model, or leave --do_train False out",
        )
    if not splits:
        raise HftuneError("--do_train, --do_eval and --do_predict are all false", hint="leave one of them out")
    if not isinstance(data, LabeledData):
        raise HftuneError("--do_train False scores classifiers", hint=f"use `hftune evaluate {name}`")
    stated = data.model_dump(include={key.removeprefix("data.") for key in DATA_SETTINGS}, exclude_none=True)
    sets = [f"data.{key}={json.dumps(value)}" for key, value in stated.items()]
    for split in splits:
        note(f"scoring {split}", style="dim")
        evaluate(
            name,
            data=data.dataset_name,
            split=split,
            sets=sets or None,
            batch_size=recipe.train.per_device_eval_batch_size,
            revision=recipe.model.model_revision,
            trust_remote_code=recipe.model.trust_remote_code,
            trust_base_code=recipe.model.trust_base_code,
            as_json=typed.as_json,
        )
