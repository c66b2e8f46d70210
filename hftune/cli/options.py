"""The flags people change daily, declared once. Used by every command that trains: classify, joint, boolq …

``FLAGS`` says which recipe setting each flag stands for, and ``resolve`` turns what was typed into a ``Recipe``.
The help of such a flag is the sentence under the setting's field; a test keeps the two equal, so that ``--help``
needs no pydantic.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.config import Recipe

FLAGS: dict[str, str] = {
    "model": "model.name",
    "data": "data.name",
    "method": "method.kind",
    "max_length": "data.max_length",
    "batch_size": "train.batch_size",
    "lr": "train.learning_rate",
    "epochs": "train.epochs",
    "eval_steps": "train.eval_steps",
    "seed": "train.seed",
    "labels": "data.labels",
    "push_to_hub": "hub.push_to",
    "text_column": "data.text_column",
    "pair_column": "data.pair_column",
    "label_column": "data.label_column",
    "trust_remote_code": "model.trust_remote_code",
    "allow_pickle": "model.allow_pickle",
}
"""Flag (as a parameter name) → the recipe setting it stands for."""

MOST_SEEDS = 100

_WHAT = "What is trained"
_HOW = "How it is trained"
_COLUMNS = "Columns and trust"
_RUN = "The run"

RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="NAME|PATH",
        help="A shipped recipe (hftune recipes ls), a YAML file, or a run to repeat.",
        rich_help_panel=_WHAT,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        help="A Hub id, a folder, an hftune run, or scratch:<preset>.",
        rich_help_panel=_WHAT,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="NAME|PATH",
        help="An embedded name, a Hub id, a folder of split files, or one file.",
        rich_help_panel=_WHAT,
    ),
]
Method = Annotated[
    str | None, typer.Option("--method", metavar="KIND", help="Which weights move.", rich_help_panel=_WHAT)
]
Labels = Annotated[
    int | None,
    typer.Option(
        "--labels",
        metavar="N",
        help="Train on this many labelled rows: stratified, seeded and nested (the 50 are inside the 500).",
        rich_help_panel=_WHAT,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        metavar="TOKENS",
        help="Tokens kept of each example, special tokens among them.",
        rich_help_panel=_HOW,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", metavar="N", help="Rows in one forward pass on one device.", rich_help_panel=_HOW
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--lr",
        metavar="X",
        help="Peak learning rate; chosen by the method and by whether weights are fresh where not given.",
        rich_help_panel=_HOW,
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        "--epochs",
        metavar="X",
        help="Passes over the training rows; 3 for pretrained weights and 8 for fresh ones where not given.",
        rich_help_panel=_HOW,
    ),
]
EvalSteps = Annotated[
    int | None,
    typer.Option(
        "--eval-steps",
        metavar="N",
        help="Evaluate and save every so many updates; once an epoch where not given.",
        rich_help_panel=_HOW,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        help="Seed of fresh weights, batch order, dropout and masks.",
        rich_help_panel=_HOW,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="N,N,…",
        help="Train once with each seed, as one group with mean ± std: 1,2,3 or 1-5.",
        rich_help_panel=_HOW,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Any other setting, as train.weight_decay=0.01; may be given often (hftune recipes schema).",
        rich_help_panel=_HOW,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text-column",
        metavar="NAME",
        help="Column of the (first) text; found by its name where not given.",
        rich_help_panel=_COLUMNS,
    ),
]
PairColumn = Annotated[
    str | None,
    typer.Option(
        "--pair-column",
        metavar="NAME",
        help="Column of the second text; found by its name where not given, 'none' for single texts.",
        rich_help_panel=_COLUMNS,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        metavar="NAME",
        help="Column of the label; found by its name where not given.",
        rich_help_panel=_COLUMNS,
    ),
]
TrustRemoteCode = Annotated[
    bool | None,
    typer.Option(
        "--trust-remote-code/--no-trust-remote-code",
        help="Run Python code that comes with the checkpoint.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]
AllowPickle = Annotated[
    bool | None,
    typer.Option(
        "--allow-pickle/--no-allow-pickle",
        help="Load weights that exist only as a pickle, which can run any code.",
        rich_help_panel=_COLUMNS,
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        help="The run directory; a new one below runs/ where not given.",
        rich_help_panel=_RUN,
    ),
]
PushToHub = Annotated[
    str | None,
    typer.Option(
        "--push-to-hub",
        metavar="USER/NAME",
        help="Repository that receives the finished model, as user/name; nothing is pushed where not given.",
        rich_help_panel=_RUN,
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on from the last good checkpoint in --output.", rich_help_panel=_RUN),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Resolve and load everything, run one batch, estimate time and memory; train nothing.",
        rich_help_panel=_RUN,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the result as JSON on standard output, and nothing else there.",
        rich_help_panel=_RUN,
    ),
]


def overrides_from(**flags: object) -> dict[str, object]:
    """The recipe settings that the given flags stand for.

    Args:
        **flags: Values by parameter name, a key of ``FLAGS``; None means the flag was not typed.

    Returns:
        Dotted recipe keys and values, ready for ``load_recipe(overrides=…)``.
    """
    return {FLAGS[flag]: value for flag, value in flags.items() if value is not None}


def resolve(
    recipe: str | None,
    sets: list[str] | None,
    *,
    task: str | None = None,
    default: str | None = None,
    **flags: Any,
) -> Recipe:
    """What was typed, as a checked recipe.

    Args:
        recipe: Value of ``--recipe``.
        sets: Values of ``--set``.
        task: The task kind of the command; a recipe of another kind is refused.
        default: The recipe that stands in when ``--recipe`` was not given; the schema's defaults where None.
        **flags: The other flags, by their keys in ``FLAGS``.
    """
    from hftune.config import load_recipe

    return load_recipe(recipe or default, overrides_from(**flags), sets or (), task=task)


def seed_list(seeds: str | None) -> tuple[int, ...]:
    """The seeds of ``--seeds``: ``1,2,3``, ``1-5`` or both; empty where not given."""
    found: list[int] = []
    for part in [] if seeds is None else seeds.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        if match is None:
            raise _bad_seeds(f"whole numbers, got {part.strip()!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_SEEDS:
            raise _bad_seeds(f"a range of 1 to {MOST_SEEDS} seeds, got {part.strip()!r}")
        found.extend(range(first, last + 1))
    if len(set(found)) < len(found):
        raise _bad_seeds(f"each seed once, got {seeds!r}")
    return tuple(found)


def _bad_seeds(expectation: str) -> HftuneError:
    return HftuneError(f"--seeds expects {expectation}", hint="Write --seeds 1,2,3 or --seeds 1-5.")
