"""``hftune pretrain``: train a language model on plain text, so that it knows what the text says.

hftune pretrain --objective span --corpus wiki.txt
hftune pretrain --recipe pretrain/births-span --output runs/births
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from hftune.cli.flags import Typed, training_command
from hftune.cli.options import WHAT, option
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
        "Pretraining objective: span (span corruption) or clm (causal language modeling) with a GPT, mlm (masked "
        "language modeling) with a BERT. The recipe's, or span, by default.",
        "--objective",
    ),
]


def _task_of(values: Mapping[str, Any]) -> str:
    """The kind of task: the objective that was typed, else the recipe's or the resumed run's."""
    resumed = values["output"] if values["resume"] else None
    return _objective(values["objective"], values["recipe"], resumed)


@training_command(task=_task_of, own={"objective": Objective}, help_task="span")
def pretrain(typed: Typed) -> None:
    """Train a language model on plain text, from scratch or from a checkpoint.

    `hftune finetune --from RUN` then fine-tunes it to answer questions about that text.
    """
    task = _objective(typed.others["objective"], typed.recipe, typed.output if typed.resume else None)
    defaults, recipe, corpus = OBJECTIVES[task], typed.recipe, typed.data
    if recipe is None and typed.model is None and corpus is not None:
        recipe = defaults.for_text(corpus)
    run_training(typed, task=task, recipe=recipe, default=defaults.nothing_named)


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
