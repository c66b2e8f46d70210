"""``hftune boolq``: yes/no questions over passages, under one tuning method or the whole ladder.

hftune boolq --method prefix
hftune boolq --recipe boolq/roberta-base --method lora --seeds 1,2,3
hftune boolq --method lora,head --seeds 1,2,3
hftune boolq --method all --jobs 2
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from hftune.cli import options
from hftune.cli.flags import Typed, training_command
from hftune.cli.train import run_training
from hftune.errors import HftuneError

DEFAULT = "boolq/mini"
"""The recipe that is used when none was given."""
STUDY = "boolq-methods"
"""The study that ``--method all`` carries out."""
ALL = "all"
METHOD = "method.kind"
FROM_SCRATCH = ("train.learning_rate", "train.num_train_epochs")
"""What that recipe sets for a model from scratch, and is far too much for a pretrained one."""

Jobs = Annotated[
    int | None,
    options.option(
        options.RUN, "N", "With several methods: runs at once; threads are shared out.", "--jobs", "-j", min=1
    ),
]


@training_command(task="classify", own={"jobs": Jobs})
def boolq(typed: Typed) -> None:
    """Answer yes/no questions over passages, under one method or several, which are trained and compared.

    --method takes several methods separated by commas, or all, and trains them as one study. Data: the embedded
    boolq-mini, google/boolq, or a folder with BoolQ's or SuperGLUE's jsonl files.
    """
    methods = _methods(typed.settings.get(METHOD))
    if len(methods) > 1:
        _train_several(_suited_to_model(typed), methods)
        return
    if typed.others["jobs"] is not None:
        raise HftuneError(
            "--jobs is the number of runs of a study at once, and one method is one run",
            hint=f"leave it out, or train every method: --method {ALL}",
        )
    # A resumed run brings its own recipe.
    resumes = typed.resume and not typed.sets and not typed.settings
    typed = _suited_to_model(typed)
    run_training(typed, task="classify", recipe=typed.recipe if typed.recipe or resumes else DEFAULT, default=DEFAULT)


def _suited_to_model(typed: Typed) -> Typed:
    """A pretrained model gets the learning rate and epochs that suit its method, unless they were typed."""
    from hftune.config.model import SCRATCH

    if typed.model is None or typed.model.startswith(SCRATCH) or typed.recipe is not None:
        return typed
    unset = [f"{key}=null" for key in FROM_SCRATCH if key not in typed.settings]
    return replace(typed, sets=[*unset, *(typed.sets or [])])


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
    """Several methods as one study; the other flags hold for each of them."""
    from hftune.cli.sweep import carry_out

    publish = "publish the run you choose: hftune push RUN REPO"
    for flag, key, instead in (
        ("--merge", "method.merge", "leave it out: scores are the same"),
        ("--push-to-hub", "hub.push_to_hub", publish),
        ("--hub-model-id", "hub.hub_model_id", publish),
    ):
        if typed.settings.get(key):
            raise HftuneError(f"{flag} is for one method, and these are {len(methods)}", hint=instead)
    seed = typed.settings.get("train.seed")
    if typed.seeds is not None and seed is not None:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    for flag, given in (
        ("--resume", typed.resume),
        ("a false --do-train, --do-eval or --do-predict", False in typed.do.values()),
    ):
        if given:
            raise HftuneError(
                f"{flag} is for one method, and these are {len(methods)}",
                hint="leave it out: the same command continues a study, and trains and scores every method",
            )
    if typed.overwrite:
        raise HftuneError(
            "--overwrite is for one run, and several methods are a study",
            hint="name another --output; the same command continues a study that was stopped",
        )
    inherit: dict[str, Any] = {key: value for key, value in typed.settings.items() if key not in (METHOD, "train.seed")}
    carry_out(
        study=STUDY,
        recipe=typed.recipe,
        grid=[f"{METHOD}={','.join(methods)}"],
        settings=inherit,
        sets=typed.sets,
        seeds=typed.seeds if seed is None else str(seed),
        jobs=typed.others["jobs"],
        output=typed.output,
        dry_run=typed.dry_run,
        as_json=typed.as_json,
    )
