"""``hftune boolq``: yes/no questions over passages, under one tuning method or the whole ladder.

hftune boolq --method prefix
hftune boolq --recipe boolq/roberta-base/lora --seeds 1,2,3
hftune boolq --method all
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hftune.cli import options
from hftune.cli.train import run_training
from hftune.errors import HftuneError

DEFAULTS = "boolq/mini"
"""Folder of the recipes that stand in where none was given, one a method."""
STUDY = "boolq-methods"
"""The study that ``--method all`` carries out."""
ALL = "all"


def boolq(
    recipe: options.RecipeName = None,
    model: options.Model = None,
    data: options.Data = None,
    method: options.Method = None,
    merge: options.Merge = None,
    labels: options.Labels = None,
    max_length: options.MaxLength = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    epochs: options.Epochs = None,
    eval_steps: options.EvalSteps = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    sets: options.Set = None,
    trust_remote_code: options.TrustRemoteCode = None,
    allow_pickle: options.AllowPickle = None,
    output: options.Output = None,
    push_to_hub: options.PushToHub = None,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Answer yes/no questions over passages, under one method or all: --method all trains and compares every one.

    Data: the embedded boolq-mini, google/boolq, or a folder with BoolQ's or SuperGLUE's jsonl files.
    """
    flags = {
        "model": model,
        "data": data,
        "method": method,
        "merge": merge,
        "labels": labels,
        "max_length": max_length,
        "batch_size": batch_size,
        "lr": lr,
        "epochs": epochs,
        "eval_steps": eval_steps,
        "seed": seed,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "push_to_hub": push_to_hub,
    }
    if method == ALL:
        _train_all(recipe, sets, flags, seeds, output, dry_run=dry_run, as_json=as_json)
        return
    goes_on = resume and not sets and not options.overrides_from(**flags)
    run_training(
        # A run that goes on brings its own recipe.
        recipe if recipe is not None or goes_on else _default_recipe(method),
        sets,
        flags=flags,
        task="classify",
        default=_default_recipe(method),
        seeds=seeds,
        output=output,
        resume=resume,
        dry_run=dry_run,
        as_json=as_json,
    )


def _default_recipe(method: str | None) -> str:
    """The recipe made for the method; with a method that is not one, the check of the recipe says so."""
    from hftune.config.kinds import section_kinds

    return f"{DEFAULTS}/{method if method in section_kinds('method') else 'full'}"


def _train_all(
    recipe: str | None,
    sets: list[str] | None,
    flags: dict[str, Any],
    seeds: str | None,
    output: Path | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Every method as one study; what the flags say holds for each of them."""
    from hftune.cli.sweep import sweep

    for flag, given, instead in (
        ("--merge", flags["merge"], "leave it out: scores are the same"),
        ("--push-to-hub", flags["push_to_hub"], "publish the run you choose: hftune push RUN REPO"),
        ("--dry-run", dry_run, "try the methods one by one: --method lora --dry-run"),
    ):
        if given:
            raise HftuneError(f"{flag} does not go with --method {ALL}", hint=instead)
    if seeds is not None and flags["seed"] is not None:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    same = {key: value for key, value in flags.items() if key not in ("method", "seed")}
    stated = [f"{key}={_as_yaml(value)}" for key, value in options.overrides_from(**same).items()]
    sweep(
        study=STUDY,
        recipe=recipe,
        sets=[*stated, *(sets or [])],
        seeds=seeds if flags["seed"] is None else str(flags["seed"]),
        output=output,
        as_json=as_json,
    )


def _as_yaml(value: object) -> str:
    import json

    return json.dumps(value)
