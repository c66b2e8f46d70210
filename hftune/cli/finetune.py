"""``hftune finetune``: teach a GPT to answer questions, from a pretrained run or from nothing.

hftune finetune --from runs/pretrained --data births
hftune finetune
"""

from __future__ import annotations

from typing import Annotated

import typer

from hftune.cli import options
from hftune.cli.train import run_training
from hftune.errors import HftuneError

NAMED = "finetune/births"
"""The recipe that stands in where a model is named but no recipe; its settings suit other questions too."""
FRESH = "finetune/births-fresh"
"""The recipe that stands in where no model is named either: fresh weights need more than pretrained ones."""

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN|FOLDER|ID",
        help="What was pretrained: a run, a model folder or a Hub id; fresh weights where not given.",
        rich_help_panel="What is trained",
        show_default=False,
    ),
]


def finetune(
    pretrained: From = None,
    recipe: options.RecipeName = None,
    model: options.Model = None,
    data: options.Data = None,
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
    """Teach a GPT to answer questions, from a pretrained run or from nothing.

    Data: the embedded births, a folder of tsv files (question, tab, answer), or one such file.
    """
    if pretrained is not None and model is not None:
        raise HftuneError("--from and --model both name the model", hint="leave one of them out")
    flags = {
        "model": pretrained if pretrained is not None else model,
        "data": data,
        "batch_size": batch_size,
        "lr": lr,
        "epochs": epochs,
        "eval_steps": eval_steps,
        "seed": seed,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "push_to_hub": push_to_hub,
    }
    goes_on = resume and not sets and not options.overrides_from(**flags)
    default = FRESH if flags["model"] is None else NAMED
    run_training(
        # A run that goes on brings its own recipe.
        recipe if recipe is not None or goes_on else default,
        sets,
        flags=flags,
        task="answer",
        default=default,
        seeds=seeds,
        output=output,
        resume=resume,
        dry_run=dry_run,
        as_json=as_json,
    )
