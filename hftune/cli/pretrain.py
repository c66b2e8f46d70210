"""``hftune pretrain``: train a language model on plain text, so that it knows what the text says.

hftune pretrain --objective span --corpus wiki.txt
hftune pretrain --recipe pretrain/births-span --output runs/births
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from hftune.cli import options
from hftune.cli.train import run_training
from hftune.errors import HftuneError


class Defaults(NamedTuple):
    """The recipes that stand in where none is given."""

    nothing_named: str
    """Where neither text nor model is named: an embedded text, small enough to try."""
    other_text: str | None
    """Where a text is named; the schema's defaults where None, and where a model is named."""

    def for_text(self, corpus: str) -> str | None:
        """The recipe for a text: the embedded one has its own."""
        from hftune.config import load_recipe

        return self.nothing_named if load_recipe(self.nothing_named).data.name == corpus else self.other_text


OBJECTIVES = {
    "span": Defaults("pretrain/births-span", "pretrain/span"),
    "clm": Defaults("pretrain/prose-clm", "pretrain/clm"),
    "mlm": Defaults("pretrain/reviews-mlm", None),
}
"""What can be learned from text alone, by task kind."""

Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="|".join(OBJECTIVES),
        help="What is learned: span (write what was taken out), clm (write what comes next), both with a GPT, or mlm "
        "(fill in masked words, with a BERT). The recipe's, or span, where not given.",
        rich_help_panel="What is trained",
        show_default=False,
    ),
]
CorpusName = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        "-c",
        metavar="NAME|PATH",
        help="The text: an embedded name, a txt, jsonl or parquet file, a folder of split files, or a Hub id.",
        rich_help_panel="What is trained",
        show_default=False,
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="NAME",
        help="How a fresh minGPT attends: vanilla, rope, synthesizer, performer, bigbird or linformer.",
        rich_help_panel="What is trained",
        show_default=False,
    ),
]


def pretrain(
    recipe: options.RecipeName = None,
    objective: Objective = None,
    corpus: CorpusName = None,
    model: options.Model = None,
    tokenizer: options.Tokenizer = None,
    method: options.Method = None,
    merge: options.Merge = None,
    attention: Attention = None,
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
    """Train a language model on plain text, from scratch or from a checkpoint.

    `hftune finetune --from RUN` then teaches it to answer questions about that text.
    """
    task = _objective(objective, recipe, output if resume else None)
    shape = [] if attention is None else [f"model.attention={attention}"]
    defaults = OBJECTIVES[task]
    run_training(
        recipe if recipe is not None or model is not None or corpus is None else defaults.for_text(corpus),
        [*shape, *(sets or [])] or None,
        flags={
            "model": model,
            "tokenizer": tokenizer,
            "method": method,
            "merge": merge,
            "data": corpus,
            "batch_size": batch_size,
            "lr": lr,
            "epochs": epochs,
            "eval_steps": eval_steps,
            "seed": seed,
            "trust_remote_code": trust_remote_code,
            "allow_pickle": allow_pickle,
            "push_to_hub": push_to_hub,
        },
        task=task,
        default=defaults.nothing_named,
        seeds=seeds,
        output=output,
        resume=resume,
        dry_run=dry_run,
        as_json=as_json,
    )


def _objective(asked: str | None, recipe: str | None, resumed: Path | None) -> str:
    """The objective that was asked for, else the recipe's, else the resumed run's, else the first of the table."""
    if asked is None:
        source = recipe or (str(resumed) if resumed is not None and (resumed / "recipe.yaml").is_file() else None)
        if source is None:
            return next(iter(OBJECTIVES))
        from hftune.config import load_recipe

        task = load_recipe(source).task
        if task.kind in OBJECTIVES:
            return task.kind
        raise HftuneError(f"{source} is no recipe for pretraining", hint=f"run it with `hftune {task.command}`")
    if asked not in OBJECTIVES:
        from hftune.suggest import did_you_mean

        known = ", ".join(OBJECTIVES)
        raise HftuneError(
            f"--objective expects one of {known}; got {asked!r}",
            hint=did_you_mean(asked, OBJECTIVES) or f"write --objective {next(iter(OBJECTIVES))}",
        )
    return asked
