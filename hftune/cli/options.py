"""The flags people change daily, declared once. Used by every command that trains: classify, joint, boolq …

``FLAGS`` says which setting each flag stands for; ``resolve`` turns what was typed into a ``Recipe``.
The help of such a flag is the sentence under the setting's field; a test keeps the two equal, so that
``--help`` needs no pydantic.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hftune.config import Recipe

FLAGS: dict[str, str] = {
    "model": "model.model_name_or_path",
    "data": "data.dataset_name",
    "method": "method.kind",
    "merge": "method.merge",
    "max_length": "data.max_seq_length",
    "batch_size": "train.per_device_train_batch_size",
    "auto_batch": "train.auto_find_batch_size",
    "lr": "train.learning_rate",
    "epochs": "train.num_train_epochs",
    "eval_steps": "train.eval_steps",
    "seed": "train.seed",
    "labels": "data.max_train_samples",
    "push_to_hub": "hub.hub_model_id",
    "push_each_best": "hub.hub_strategy",
    "text_column": "data.text_column_name",
    "pair_column": "data.text_pair_column_name",
    "label_column": "data.label_column_name",
    "tokenizer": "model.tokenizer_name",
    "attention": "model.attention",
    "trust_remote_code": "model.trust_remote_code",
    "trust_base_code": "model.trust_base_code",
    "unlabeled": "data.unlabeled",
    "line_by_line": "data.line_by_line",
    "block_size": "data.block_size",
    "limit_unlabeled": "data.max_unlabeled_samples",
    "mlm_alpha": "task.mlm_alpha",
    "mlm_alpha_end": "task.mlm_alpha_end",
    "mlm_batch_size": "task.mlm_batch_size",
    "mlm_probability": "task.mlm_probability",
    "whole_word": "task.whole_word_mask",
}
"""Flag (as a parameter name) → the recipe setting it stands for."""

TRUST = ("trust_remote_code", "trust_base_code")
"""Flags that change nothing about a run but what may be trusted for it; they are asked for anew each time."""

WHAT = "What is trained"
WHICH = "Which model"
_HOW = "How it is trained"
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
        "-r",
    ),
]
Model = Annotated[
    str | None,
    option(WHAT, "NAME", "A Hub id, a folder, an hftune run, or scratch:<preset>.", "--model", "-m"),
]
Tokenizer = Annotated[
    str | None,
    option(WHAT, "NAME", "Tokenizer to use instead of the model's own: a Hub id or a folder.", "--tokenizer"),
]
Data = Annotated[
    str | None,
    option(
        WHAT,
        "NAME|PATH",
        "An embedded name, a Hub id, a folder of split files, or one file.",
        "--data",
        "-d",
    ),
]
Method = Annotated[
    str | None,
    option(
        WHAT,
        "KIND",
        "Which weights move: full, head, prefix, prompt, ptuning, lora, ia3 or bitfit.",
        "--method",
    ),
]
Merge = Annotated[
    bool | None,
    option(
        WHAT,
        None,
        "Put the trained adapter into the weights and save a plain checkpoint; lora and ia3 only.",
        "--merge/--no-merge",
    ),
]
Labels = Annotated[
    int | None,
    option(
        WHAT,
        "N",
        "Train on this many labeled rows: stratified, seeded and nested (the 50 are inside the 500).",
        "--max-train-samples",
    ),
]
MaxLength = Annotated[
    int | None,
    option(_HOW, "TOKENS", "Tokens kept of each example, special tokens among them.", "--max-length"),
]
BatchSize = Annotated[int | None, option(_HOW, "N", "Rows in one forward pass on one device.", "--batch-size")]
AutoBatch = Annotated[
    bool | None,
    option(
        _HOW,
        None,
        "Lower batch_size until the longest batch fits into memory; accumulation rises, so that updates stay the same.",
        "--auto-find-batch-size/--no-auto-find-batch-size",
    ),
]
LearningRate = Annotated[
    float | None,
    option(
        _HOW,
        "X",
        "Peak learning rate; chosen by the method and by whether weights are fresh where not given.",
        "--lr",
    ),
]
Epochs = Annotated[
    float | None,
    option(
        _HOW,
        "X",
        "Passes over the training rows; where the recipe says none, 3 for pretrained weights and 8 for fresh ones.",
        "--epochs",
    ),
]
EvalSteps = Annotated[
    int | None,
    option(_HOW, "N", "Evaluate and save every so many updates; once an epoch where not given.", "--eval-steps"),
]
Seed = Annotated[int | None, option(_HOW, "N", "Seed of fresh weights, batch order, dropout and masks.", "--seed")]
Seeds = Annotated[
    str | None,
    option(_HOW, "N,N,…", "Train once with each seed, as one group with mean ± std: 1,2,3 or 1-5.", "--seeds"),
]
Set = Annotated[
    list[str] | None,
    option(
        _HOW,
        "KEY=VALUE",
        "Any other setting, as train.weight_decay=0.01; may be given often (hftune recipes schema).",
        "--set",
        "-s",
    ),
]
TextColumn = Annotated[
    str | None,
    option(_COLUMNS, "NAME", "Column of the (first) text; found by its name where not given.", "--text-column"),
]
PairColumn = Annotated[
    str | None,
    option(
        _COLUMNS,
        "NAME",
        "Column of the second text; found by its name where not given, 'none' for single texts.",
        "--pair-column",
    ),
]
LabelColumn = Annotated[
    str | None,
    option(_COLUMNS, "NAME", "Column of the label; found by its name where not given.", "--label-column"),
]
TrustRemoteCode = Annotated[
    bool | None,
    option(
        _TRUST,
        None,
        "Run Python code that comes with the checkpoint.",
        "--trust-remote-code/--no-trust-remote-code",
    ),
]
TrustBaseCode = Annotated[
    str | None,
    option(
        _TRUST,
        "REPO@COMMIT",
        "Run the Python code of an adapter's base on the Hub: REPO@COMMIT.",
        "--trust-base-code",
    ),
]
Revision = Annotated[str | None, option(WHICH, "NAME", "Branch, tag or commit of a Hub model.", "--revision")]
Output = Annotated[
    Path | None,
    option(RUN, "FOLDER", "The run directory; a new one below runs/ where not given.", "--output", "-o"),
]
PushToHub = Annotated[
    str | None,
    option(
        RUN,
        "USER/NAME",
        "Repository that receives the finished model, as user/name; nothing is pushed where not given.",
        "--hub-model-id",
    ),
]
PushEachBest = Annotated[
    bool | None,
    option(
        RUN,
        None,
        "Push each best checkpoint while training goes on, not only the finished model.",
        "--hub-strategy best/--no-push-each-best",
    ),
]
Resume = Annotated[bool, option(RUN, None, "Go on from the last good checkpoint in --output.", "--resume")]
DryRun = Annotated[
    bool,
    option(
        RUN,
        None,
        "Resolve and load everything, run one batch, estimate time and memory; train nothing.",
        "--dry-run",
    ),
]
Json = Annotated[
    bool,
    option(RUN, None, "Print the result as JSON on standard output, and nothing else there.", "--json"),
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
    from hftune.config.consent import refuse_unasked, typed_keys
    from hftune.config.overrides import parse_sets

    overrides = overrides_from(**flags)
    resolved = load_recipe(recipe or default, overrides, sets or (), task=task)
    refuse_unasked(resolved, typed_keys([*overrides.items(), *parse_sets(sets or ())[0]]))
    return resolved
