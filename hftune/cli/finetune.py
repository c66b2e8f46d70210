"""``hftune finetune``: teach a GPT to answer questions, from a pretrained run or from nothing.

hftune finetune --from runs/pretrained --data births
hftune finetune
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

from hftune.cli.flags import COLUMNS, Typed, training_command
from hftune.cli.options import WHAT, option
from hftune.errors import HftuneError

PRETRAINED = "finetune/births"
"""The recipe that stands in where a pretrained model is named but no recipe; its settings suit other questions too."""
FRESH = "finetune/fresh"
"""The same for a model with fresh weights, which need more; its shape is its own."""
UNNAMED = "finetune/births-fresh"
"""The recipe that stands in where no model is named either."""

From = Annotated[
    str | None,
    option(
        WHAT,
        "RUN|FOLDER|ID",
        "What was pretrained: a run, a model folder or a Hub id; fresh weights where not given.",
        "--from",
    ),
]


@training_command(own={"pretrained": From}, without=("tokenizer", "method", "merge", "labels", "max_length", *COLUMNS))
def finetune(typed: Typed) -> None:
    """Teach a GPT to answer questions, from a pretrained run or from nothing.

    Data: the embedded births, a folder of tsv files (question, tab, answer), or one such file.
    """
    pretrained, model = typed.others["pretrained"], typed.flags["model"]
    if pretrained is not None and model is not None:
        raise HftuneError("--from and --model both name the model", hint="leave one of them out")
    model = pretrained if pretrained is not None else model
    chosen = dataclasses.replace(typed, flags={**typed.flags, "model": model})
    chosen.train(task="answer", default=_recipe_for(model), suits_others=True)


def _recipe_for(model: str | None) -> str:
    if model is None:
        return UNNAMED
    from hftune.config.model import ModelSection

    return FRESH if ModelSection(model_name_or_path=model).from_scratch else PRETRAINED
