"""``hftune finetune``: fine-tune a GPT for question answering, from a pretrained run or from scratch.

hftune finetune --from runs/pretrained --data births
hftune finetune --attention rope --corpus wiki.txt --data questions/
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from hftune.cli.flags import Typed, training_command
from hftune.cli.options import WHAT, option
from hftune.cli.train import run_training
from hftune.errors import HftuneError

PRETRAINED = "finetune/births"
"""The recipe for a pretrained model; its settings suit other questions too."""
FROM_SCRATCH = "finetune/fresh"
"""The same for a named model from scratch, which needs more training; its shape is its own."""
UNNAMED = "finetune/births-fresh"
"""The recipe without a model."""

From = Annotated[
    str | None,
    option(
        WHAT,
        "RUN|FOLDER|ID",
        "The pretrained model: a run, a model folder or a Hub id; from scratch by default.",
        "--from",
    ),
]


@training_command(task="answer", own={"pretrained": From})
def finetune(typed: Typed) -> None:
    """Fine-tune a GPT for question answering, from a pretrained run or from scratch.

    Data: the embedded births, a folder of tsv files (question, tab, answer), or one such file.
    """
    pretrained = typed.others["pretrained"]
    if pretrained is not None and typed.model is not None:
        raise HftuneError("--from and --model both name the model", hint="leave one of them out")
    if pretrained is not None:
        typed = replace(typed, settings={**typed.settings, "model.model_name_or_path": pretrained})
    # A resumed run brings its own recipe.
    resumes = typed.resume and not typed.sets and not typed.settings
    recipe = typed.recipe if typed.recipe or resumes else _recipe_for(typed.model)
    run_training(typed, task="answer", recipe=recipe, default=_recipe_for(typed.model))


def _recipe_for(model: str | None) -> str:
    if model is None:
        return UNNAMED
    from hftune.config.model import ModelSection

    return FROM_SCRATCH if ModelSection(model_name_or_path=model).from_scratch else PRETRAINED
