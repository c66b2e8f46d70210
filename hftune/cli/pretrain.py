"""``hftune pretrain``: train a language model on plain text, so that it knows what the text says.

hftune pretrain --objective span --corpus wiki.txt
hftune pretrain --recipe pretrain/births-span --output runs/births
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, NamedTuple

from hftune.cli.flags import COLUMNS, Typed, training_command
from hftune.cli.options import WHAT, option
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

        return self.nothing_named if load_recipe(self.nothing_named).data.dataset_name == corpus else self.other_text


OBJECTIVES = {
    "span": Defaults("pretrain/births-span", "pretrain/span"),
    "clm": Defaults("pretrain/prose-clm", "pretrain/clm"),
    "mlm": Defaults("pretrain/reviews-mlm", None),
}
"""What can be learned from text alone, by task kind."""

Objective = Annotated[
    str | None,
    option(
        WHAT,
        "|".join(OBJECTIVES),
        "What is learned: span (write what was taken out), clm (write what comes next), both with a GPT, or mlm "
        "(fill in masked words, with a BERT). The recipe's, or span, where not given.",
        "--objective",
    ),
]
CorpusName = Annotated[
    str | None,
    option(
        WHAT,
        "NAME|PATH",
        "The text: an embedded name, a txt, csv, jsonl or parquet file, a folder of split files, or a Hub id.",
        "--corpus",
        "-c",
    ),
]
Attention = Annotated[
    str | None,
    option(
        WHAT,
        "vanilla|rope|synthesizer|performer|bigbird|linformer",
        "How a fresh minGPT attends; vanilla where not given.",
        "--attention",
    ),
]


@training_command(
    own={"objective": Objective, "corpus": CorpusName, "attention": Attention},
    without=("data", "labels", "max_length", *COLUMNS),
)
def pretrain(typed: Typed) -> None:
    """Train a language model on plain text, from scratch or from a checkpoint.

    `hftune finetune --from RUN` then teaches it to answer questions about that text.
    """
    objective, corpus = typed.others["objective"], typed.others["corpus"]
    task = _objective(objective, typed.recipe, typed.output if typed.resume else None)
    defaults, recipe = OBJECTIVES[task], typed.recipe
    if recipe is None and typed.flags["model"] is None and corpus is not None:
        recipe = defaults.for_text(corpus)
    chosen = dataclasses.replace(typed, recipe=recipe, flags={**typed.flags, "data": corpus})
    chosen.train(task=task, default=defaults.nothing_named)


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
