"""Flags that are no setting of a recipe, and those of commands that use a model: declared once.

What the commands that train take besides is read off the recipe's settings: ``hftune.cli.flags``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hftune.config import Recipe

WHAT = "Model, data and method"
"""As in ``hftune.config.model``, which this file does not import: pydantic would slow down every ``--help``."""
WHICH = "Which model"
_COLUMNS = "Columns of the data"
_TRUST = "What may be trusted"
RUN = "The run"


def option(panel: str, metavar: str | None, help_text: str, *names: str, **limits: Any) -> Any:
    """One flag; a default is never shown, because the recipe may state another one."""
    return typer.Option(*names, metavar=metavar, help=help_text, rich_help_panel=panel, show_default=False, **limits)


RecipeName = Annotated[
    str | None,
    option(
        WHAT,
        "NAME|PATH",
        "A shipped recipe (hftune recipes ls), a YAML file, or a run to repeat.",
        "--recipe",
        "--config",
        "-r",
    ),
]
Data = Annotated[
    str | None,
    option(
        WHAT,
        "NAME|PATH",
        "An embedded dataset, a Hub id, a folder of split files, or one file.",
        "--data",
        "--dataset-name",
        "-d",
    ),
]
Seeds = Annotated[
    str | None,
    option(RUN, "N,N,…", "Train once with each seed, as one group with mean ± std: 1,2,3 or 1-5.", "--seeds"),
]
Set = Annotated[
    list[str] | None,
    option(
        RUN,
        "KEY=VALUE",
        "Any setting by its dotted key, as train.weight_decay=0.01; can be repeated (hftune recipes schema).",
        "--set",
        "-s",
    ),
]
TextColumn = Annotated[
    str | None,
    option(
        _COLUMNS,
        "NAME",
        "Column of the (first) text; recognized by its name by default.",
        "--text-column",
        "--text-column-name",
    ),
]
PairColumn = Annotated[
    str | None,
    option(
        _COLUMNS,
        "NAME",
        "Column of the second text; recognized by its name by default, 'none' for single texts.",
        "--pair-column",
        "--text-pair-column-name",
    ),
]
LabelColumn = Annotated[
    str | None,
    option(
        _COLUMNS,
        "NAME",
        "Column of the label; recognized by its name by default.",
        "--label-column",
        "--label-column-name",
        "--target-column",
    ),
]
TrustRemoteCode = Annotated[
    bool | None,
    option(
        _TRUST, None, "Run Python code that comes with the checkpoint.", "--trust-remote-code/--no-trust-remote-code"
    ),
]
TrustBaseCode = Annotated[
    str | None,
    option(
        _TRUST, "REPO@COMMIT", "Run the Python code of an adapter's base on the Hub: REPO@COMMIT.", "--trust-base-code"
    ),
]
Revision = Annotated[
    str | None, option(WHICH, "NAME", "Branch, tag or commit of a Hub model.", "--revision", "--model-revision")
]
Output = Annotated[
    Path | None,
    option(RUN, "FOLDER", "The run directory; a new one below runs/ by default.", "--output", "--output-dir", "-o"),
]
Overwrite = Annotated[
    bool,
    option(
        RUN,
        None,
        "Move an existing run in --output aside (nothing is deleted) and train a new one.",
        "--overwrite",
        "--overwrite-output-dir",
    ),
]
Resume = Annotated[bool, option(RUN, None, "Continue from the last good checkpoint in --output.", "--resume")]
DryRun = Annotated[
    bool,
    option(
        RUN,
        None,
        "Load and check everything, run one batch, estimate time and memory; train nothing.",
        "--dry-run",
    ),
]
Json = Annotated[
    bool,
    option(RUN, None, "Print the result as JSON on standard output, and nothing else there.", "--json"),
]


def resolve(
    recipe: str | None,
    sets: list[str] | None,
    settings: dict[str, Any] | None = None,
    *,
    task: str | None = None,
    default: str | None = None,
) -> Recipe:
    """What was typed, as a checked recipe.

    Args:
        recipe: Value of ``--recipe``.
        sets: Values of ``--set``.
        settings: Flags that are settings, by dotted key; None means not given.
        task: The task kind of the command; a recipe of another kind is refused.
        default: The recipe without ``--recipe``; the schema's defaults where None.
    """
    from hftune.config import load_recipe
    from hftune.config.consent import refuse_unasked, typed_keys
    from hftune.config.overrides import parse_sets

    given = {key: value for key, value in (settings or {}).items() if value is not None}
    if recipe is not None and Path(recipe).exists():
        from hftune.runs.directory import stored_rows

        given = {**stored_rows(recipe), **given}
    resolved = load_recipe(recipe or default, given, sets or (), task=task)
    refuse_unasked(resolved, typed_keys([*given.items(), *parse_sets(sets or ())[0]]))
    return resolved
