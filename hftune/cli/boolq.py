"""``hftune boolq``: yes/no questions over passages, under one tuning method or the whole ladder.

hftune boolq --method prefix
hftune boolq --recipe boolq/roberta-base/lora --seeds 1,2,3
hftune boolq --method lora,head --seeds 1,2,3
hftune boolq --method all --jobs 2
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from hftune.cli import options
from hftune.cli.flags import COLUMNS, Typed, training_command
from hftune.errors import HftuneError

DEFAULTS = "boolq/mini"
"""Folder of the recipes that stand in where none was given, one a method."""
STUDY = "boolq-methods"
"""The study that ``--method all`` carries out."""
ALL = "all"
FOR_FRESH_WEIGHTS = ("lr", "epochs")
"""What these recipes state for their own model, and is far too much for weights that have been trained before."""

Method = Annotated[
    str | None,
    options.option(
        options.WHAT,
        "KIND",
        "Which weights move: full, head, prefix, prompt, ptuning, lora, ia3 or bitfit; several with commas, "
        f"or {ALL}, as one study.",
        "--method",
    ),
]
Jobs = Annotated[
    int | None,
    options.option(
        options.RUN, "N", "With several methods: runs at once; threads are shared out.", "--jobs", "-j", min=1
    ),
]


@training_command(own={"method": Method, "jobs": Jobs}, without=COLUMNS)
def boolq(typed: Typed) -> None:
    """Answer yes/no questions over passages, under one method or several, which are trained and compared.

    Data: the embedded boolq-mini, google/boolq, or a folder with BoolQ's or SuperGLUE's jsonl files.
    """
    typed = _suited_to_model(typed)
    methods = _methods(typed.flags["method"])
    if len(methods) > 1:
        _train_several(typed, methods)
        return
    if typed.others["jobs"] is not None:
        raise HftuneError(
            "--jobs says how many runs of a study are made at once, and one method is one run",
            hint=f"leave it out, or train every method: --method {ALL}",
        )
    default = f"{DEFAULTS}/{methods[0] if methods else 'full'}"
    typed.train(task="classify", default=default, suits_others=True)


def _suited_to_model(typed: Typed) -> Typed:
    """A pretrained model that is named gets the learning rate and epochs that suit its method, where none was said."""
    from hftune.config.model import SCRATCH

    model = typed.flags["model"]
    if model is None or model.startswith(SCRATCH) or typed.recipe is not None:
        return typed
    unsaid = [f"{options.FLAGS[flag]}=null" for flag in FOR_FRESH_WEIGHTS if typed.flags[flag] is None]
    return dataclasses.replace(typed, sets=[*unsaid, *(typed.sets or [])])


def _methods(typed: str | None) -> list[str]:
    """The methods that were asked for; none where the recipe says it."""
    from hftune.config.kinds import section_kinds
    from hftune.suggest import did_you_mean

    known = [str(kind) for kind in section_kinds("method")]
    if typed is None:
        return []
    asked = known if typed.strip() == ALL else [name.strip() for name in typed.split(",")]
    for name in asked:
        if name not in known:
            raise HftuneError(
                f"--method: expected {', '.join(known)}, several of them with commas, or {ALL}; got {name!r}",
                hint=did_you_mean(name, [*known, ALL]) or f"train every method: --method {ALL}",
            )
    if len(set(asked)) < len(asked):
        raise HftuneError(f"--method {typed} names a method twice", hint="name each once")
    return asked


def _train_several(typed: Typed, methods: list[str]) -> None:
    """Several methods as one study; what the flags say holds for each of them."""
    from hftune.cli.sweep import sweep

    flags, seeds = typed.flags, typed.seeds
    for flag, given, instead in (
        ("--merge", flags["merge"], "leave it out: scores are the same"),
        ("--hub-model-id", flags["push_to_hub"], "publish the run you choose: hftune push RUN REPO"),
    ):
        if given:
            raise HftuneError(f"{flag} goes with one method, and these are {len(methods)}", hint=instead)
    if seeds is not None and flags["seed"] is not None:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    same = {key: value for key, value in flags.items() if key not in ("method", "seed")}
    stated = [f"{key}={_as_yaml(value)}" for key, value in options.overrides_from(**same).items()]
    sweep(
        study=STUDY,
        recipe=typed.recipe,
        grid=[f"method={','.join(methods)}"],
        sets=[*stated, *(typed.sets or [])],
        seeds=seeds if flags["seed"] is None else str(flags["seed"]),
        jobs=typed.others["jobs"],
        output=typed.output,
        dry_run=typed.dry_run,
        as_json=typed.as_json,
    )


def _as_yaml(value: object) -> str:
    import json

    return json.dumps(value)
