"""``hftune boolq``: yes/no questions over passages, under one tuning method or all of them.

hftune boolq --method prefix
hftune boolq --recipe boolq/roberta-base --method lora --seeds 1,2,3
hftune boolq --method lora,head --seeds 1,2,3
hftune boolq --method all --jobs 2
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hftune.cli.options import ParsedArguments, training_command
from hftune.cli.sweep import Jobs, run_study
from hftune.cli.train import resumed_recipe, run_training
from hftune.errors import HftuneError

DEFAULT = "boolq/mini"
"""The default recipe."""
STUDY = "boolq-methods"
"""The study of ``--method all``."""
ALL = "all"
METHOD = "method.kind"
FROM_SCRATCH = ("train.learning_rate", "train.num_train_epochs")
"""Settings that ``DEFAULT`` has for its model from scratch; they are far too high for a pretrained one."""


@training_command(task="classify")
def boolq(arguments: ParsedArguments, jobs: Jobs = None) -> None:
    """Train on yes/no questions over passages, under one method or several, which are compared.

    --method takes several methods separated by commas, or all, and trains them as one study. Data: the embedded
    boolq-mini, google/boolq, or a folder with BoolQ's or SuperGLUE's jsonl files.
    """
    methods = _methods(arguments.settings.get(METHOD))
    if len(methods) > 1:
        _train_several(_suited_to_model(arguments), methods, jobs)
        return
    if jobs is not None:
        raise HftuneError(
            "--jobs is the number of runs of a study at once, and one method is one run",
            hint=f"leave it out, or train every method: --method {ALL}",
        )
    suited = arguments if resumed_recipe(arguments) else _suited_to_model(arguments)
    run_training(suited, recipe=arguments.recipe, default=DEFAULT, suits_all=True)


def _suited_to_model(arguments: ParsedArguments) -> ParsedArguments:
    """Give a pretrained model the default learning rate and epochs of its method, unless they were set."""
    from hftune.models.settings import SCRATCH

    if arguments.model is None or arguments.model.startswith(SCRATCH) or arguments.recipe is not None:
        return arguments
    unset = [f"{key}=null" for key in FROM_SCRATCH if key not in arguments.settings]
    return replace(arguments, sets=[*unset, *(arguments.sets or [])])


def _methods(named: str | None) -> list[str]:
    """The methods that ``--method`` names; empty without it, when the method of the recipe is used."""
    from hftune.errors import did_you_mean
    from hftune.recipe import Recipe

    known = [str(kind) for kind in Recipe.section_kinds("method")]
    if named is None:
        return []
    asked = known if named.strip() == ALL else [name.strip() for name in named.split(",")]
    for name in asked:
        if name not in known:
            raise HftuneError(
                f"--method: expected {', '.join(known)}, several of them separated by commas, or {ALL}; got {name!r}",
                hint=did_you_mean(name, [*known, ALL]) or f"train every method: --method {ALL}",
            )
    if len(set(asked)) < len(asked):
        raise HftuneError(f"--method {named} names a method twice", hint="name each once")
    return asked


def _train_several(arguments: ParsedArguments, methods: list[str], jobs: int | None) -> None:
    """Train several methods as one study; the other flags apply to each of them."""
    publish = "publish the run you choose: `hftune push RUN USER/NAME`"
    for flag, key, instead in (
        ("--merge", "method.merge", "leave it out: scores are the same"),
        ("--push-to-hub", "hub.push_to_hub", publish),
        ("--hub-model-id", "hub.hub_model_id", publish),
    ):
        if arguments.settings.get(key):
            raise HftuneError(f"{flag} is for one method, and these are {len(methods)}", hint=instead)
    seed = arguments.settings.get("train.seed")
    if arguments.seeds is not None and seed is not None:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    for flag, given in (
        ("--resume", arguments.resume),
        ("a false --do-train, --do-eval or --do-predict", False in arguments.do.values()),
    ):
        if given:
            raise HftuneError(
                f"{flag} is for one method, and these are {len(methods)}",
                hint="leave it out: the same command continues a study, and trains and scores every method",
            )
    if arguments.overwrite:
        raise HftuneError(
            "--overwrite is for one run, and several methods are a study",
            hint="name another --output; the same command continues a study that was stopped",
        )
    shared: dict[str, Any] = {
        key: value for key, value in arguments.settings.items() if key not in (METHOD, "train.seed")
    }
    run_study(
        study=STUDY,
        recipe=arguments.recipe,
        grid=[f"{METHOD}={','.join(methods)}"],
        settings=shared,
        sets=arguments.sets,
        seeds=arguments.seeds if seed is None else str(seed),
        jobs=jobs,
        output=arguments.output,
        dry_run=arguments.dry_run,
        as_json=arguments.as_json,
    )
