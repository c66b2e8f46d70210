"""The commands that train one run or a group of seeds: train, classify, joint, pretrain, finetune and distill.

hftune train classify/reviews
hftune train runs/a --learning_rate 1e-4 --output_dir runs/b
hftune classify --model huawei-noah/TinyBERT_General_4L_312D --data reviews.csv --seeds 1,2,3
hftune classify --model_name_or_path prajjwal1/bert-tiny --task_name sst2 --num_train_epochs 3 --output_dir runs/sst2
hftune joint --data reviews --max_train_samples 50 --unlabeled reviews --mlm_alpha 1 --seeds 1-5
hftune pretrain --objective span --corpus wiki.txt
hftune finetune --from runs/pretrained --data births
hftune distill --teacher sentence-transformers/all-MiniLM-L6-v2 --model scratch:bert-tiny --corpus texts.txt
hftune distill --teacher runs/large --model prajjwal1/bert-tiny --data reviews --unlabeled reviews
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hftune.cli.options import WHAT, Given, ParsedArguments, option, training_command
from hftune.cli.terminal import RunProgress
from hftune.errors import HftuneError, did_you_mean

if TYPE_CHECKING:
    from hftune.recipe import Recipe

logger = logging.getLogger(__name__)

CLASSIFY, JOINT = "classify/reviews", "joint/reviews"
ANSWER_PRETRAINED = "finetune/births"
"""The recipe for a pretrained GPT; its settings suit other questions too."""
ANSWER_FROM_SCRATCH = "finetune/scratch"
"""The recipe if ``--model`` names a model from scratch, which needs more training than a pretrained one."""
ANSWER = "finetune/births-scratch"
"""The recipe if neither ``--from`` nor ``--model`` is given."""


# ---- train ----


def _task_of_recipe(values: Mapping[str, Any], given: Given) -> str:
    """The kind of task of the recipe that was named."""
    from hftune.recipe import load_recipe

    named, flag = values.get("named"), values.get("recipe")
    if named is not None and flag is not None:
        raise HftuneError(f"the recipe was named twice: {named} and --recipe {flag}", hint="leave one of them out")
    name = named or flag or _recipe_of_resumed(values)
    if name is None:
        raise HftuneError(
            "expected a recipe to run; none was named",
            hint="name one (`hftune recipes ls`), or use the command of the task: `hftune classify --data NAME|PATH`",
        )
    return load_recipe(name).task.kind


def _recipe_of_resumed(values: Mapping[str, Any]) -> str | None:
    """The run that is resumed, if it has a recipe."""
    run: Path | None = values["output"] if values["resume"] else None
    return str(run) if run is not None and (run / "recipe.yaml").is_file() else None


RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]", help="A shipped recipe (hftune recipes ls), a YAML file, or a run.", show_default=False
    ),
]


@training_command(task=_task_of_recipe)
def train(arguments: ParsedArguments, named: RecipeArgument = None) -> None:
    """Run a recipe of any task: the same as the command of its task with --recipe."""
    run_training(arguments, recipe=named or arguments.recipe, default=None)


@training_command(task="classify")
def classify(arguments: ParsedArguments) -> None:
    """Fine-tune a classifier on single texts or pairs: best checkpoint on validation, then test."""
    run_training(arguments, recipe=arguments.recipe, default=CLASSIFY)


@training_command(task="joint")
def joint(arguments: ParsedArguments) -> None:
    """Fine-tune a classifier and train a masked language model on unlabeled text, in one model at the same time.

    The classifier's validation score selects the checkpoint. A plain classifier is saved, and the masked language
    model next to it.
    """
    run_training(arguments, recipe=arguments.recipe, default=JOINT)


# ---- finetune ----

From = Annotated[
    str | None,
    option(
        WHAT,
        "RUN|FOLDER|ID",
        "The pretrained model: a run, a model folder or a Hub id; from scratch by default.",
        "--from",
    ),
]


@training_command(task="answer")
def finetune(arguments: ParsedArguments, pretrained: From = None) -> None:
    """Fine-tune a GPT for question answering, from a pretrained run or from scratch.

    Data: the embedded births, a folder of tsv files (question, tab, answer), or one such file.
    """
    if pretrained is not None and arguments.model is not None:
        raise HftuneError("--from and --model both name the model", hint="leave one of them out")
    if pretrained is not None:
        arguments = replace(arguments, settings={**arguments.settings, "model.model_name_or_path": pretrained})
    run_training(arguments, recipe=arguments.recipe, default=_recipe_for_answers(arguments.model), suits_all=True)


def _recipe_for_answers(model: str | None) -> str:
    if model is None:
        return ANSWER
    from hftune.models.settings import ModelSection

    return ANSWER_FROM_SCRATCH if ModelSection(model_name_or_path=model).from_scratch else ANSWER_PRETRAINED


# ---- pretrain ----


class Defaults(NamedTuple):
    """The recipes of an objective when none is named."""

    nothing_named: str
    """The recipe if no text is named, or the small embedded text that it is made for."""
    other_text: str | None
    """The recipe if another text is named; None for the defaults of the settings, which a named model gets too."""

    def for_text(self, corpus: str | None) -> str | None:
        """The recipe for a text: an embedded text has its own."""
        return self.nothing_named if _is_own(self.nothing_named, None, corpus) else self.other_text


OBJECTIVES = {
    "span": Defaults("pretrain/births-span", "pretrain/span"),
    "clm": Defaults("pretrain/prose-clm", "pretrain/clm"),
    "mlm": Defaults("pretrain/reviews-mlm", None),
}
"""Pretraining objectives, by task kind."""

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


def _task_of_objective(values: Mapping[str, Any], given: Given) -> str:
    return _objective(values["objective"], values["recipe"], _recipe_of_resumed(values))


@training_command(task=_task_of_objective, help_task="span", help_kinds={kind: kind for kind in OBJECTIVES})
def pretrain(arguments: ParsedArguments, objective: Objective = None) -> None:
    """Train a language model on plain text, from scratch or from a checkpoint.

    `hftune finetune --from RUN` then fine-tunes it to answer questions about that text.
    """
    defaults = OBJECTIVES[arguments.task]
    chosen = defaults.for_text(arguments.data) if arguments.model is None else None
    default = defaults.nothing_named if chosen is None else chosen
    run_training(arguments, recipe=arguments.recipe, default=default, suits_all=chosen is not None)


def _objective(asked: str | None, recipe: str | None, resumed: str | None) -> str:
    """The objective that was typed, else the recipe's, else the resumed run's, else the first of the table."""
    if asked is None:
        source = recipe or resumed
        if source is None:
            return next(iter(OBJECTIVES))
        from hftune.recipe import load_recipe

        task = load_recipe(source).task
        if task.kind in OBJECTIVES:
            return task.kind
        raise HftuneError(f"{source} is not a recipe for pretraining", hint=f"run it with `hftune {task.command}`")
    if asked not in OBJECTIVES:
        raise HftuneError(
            f"--objective expects one of {', '.join(OBJECTIVES)}; got {asked!r}",
            hint=did_you_mean(asked, OBJECTIVES) or f"write --objective {next(iter(OBJECTIVES))}",
        )
    return asked


# ---- distill ----

GENERAL, LABELED = "distill_encoder", "distill"
DISTILL = {GENERAL: "distill/prose", LABELED: "distill/reviews"}
"""The recipe of each kind of distillation if no data are named."""
NAMES_LABELED = {"data", "dataset_name", "task_name", "unlabeled", "train_data_file", "hard_label_weight"}
"""Settings of labeled data and of learning from it."""


def _task_of_distillation(values: Mapping[str, Any], given: Given) -> str:
    """A corpus means general distillation, labeled data a classifier; else the recipe decides."""
    labeled = sorted(NAMES_LABELED & given.keys())
    if "corpus" in given and labeled:
        flag = f"--{labeled[0].replace('_', '-')}"
        raise HftuneError(
            f"--corpus, a text without labels, and {flag} were both given: distillation learns an encoder from one "
            "or a classifier from the other",
            hint="for a classifier write --data and --unlabeled; for an encoder --corpus alone, then `hftune classify "
            "--model RUN --data FILE`",
        )
    source = values["recipe"] or _recipe_of_resumed(values)
    if source is None:
        return LABELED if labeled else GENERAL
    from hftune.recipe import load_recipe

    task = load_recipe(source).task
    if task.kind not in DISTILL:
        raise HftuneError(f"{source} is not a recipe for distillation", hint=f"run it with `hftune {task.command}`")
    return task.kind


@training_command(task=_task_of_distillation, help_task=LABELED, help_kinds={"--corpus": GENERAL})
def distill(arguments: ParsedArguments) -> None:
    """Distill a smaller model from a teacher: a classifier (--data), or an encoder on plain text (--corpus).

    A classifier learns from the labels and from the teacher's probabilities, which unlabeled text (--unlabeled) gets
    too. An encoder learns to give words and texts the teacher's vectors, and to fill in masked words; `hftune classify
    --model RUN` or `hftune joint --model RUN` then fine-tunes it.
    """
    if arguments.task == GENERAL:  # its recipe suits other models
        default = DISTILL[GENERAL] if arguments.data is None else None
        run_training(arguments, recipe=arguments.recipe, default=default, suits_all=True)
    else:
        run_training(arguments, recipe=arguments.recipe, default=DISTILL[LABELED])


# ---- shared ----


def run_training(
    arguments: ParsedArguments, *, recipe: str | None, default: str | None, suits_all: bool = False
) -> None:
    """Train one run or a group of seeds, score without training, or estimate, and print the result.

    Args:
        arguments: The parsed command line.
        recipe: The recipe to start from; None takes the default.
        default: The recipe of the command; None means the defaults of the settings.
        suits_all: Whether the default recipe is also used for other data and models than its own.
    """
    from hftune.cli.tables import print_result
    from hftune.pipeline.request import TrainRequest, carry_out, list_seeds
    from hftune.progress import quiet_libraries

    if arguments.seeds is not None and "train.seed" in arguments.settings:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    seeds = list_seeds(arguments.seeds)
    resolved = _recipe(arguments, recipe, default, suits_all=suits_all)
    request = TrainRequest(
        resolved,
        arguments.output,
        seeds,
        arguments.resume,
        arguments.overwrite,
        dry_run=arguments.dry_run,
        do=arguments.do,
    )
    request.check()
    quiet_libraries()
    with RunProgress() as progress:
        result = carry_out(request, progress)
    print_result(result, arguments.as_json)


def resumed_recipe(arguments: ParsedArguments) -> Path | None:
    """The recipe of the run or the group of seeds that is resumed; None if nothing is resumed."""
    if not arguments.resume or arguments.output is None:
        return None
    found = [arguments.output / "recipe.yaml", *sorted(arguments.output.glob("seed-*/recipe.yaml"))]
    return next((path for path in found if path.is_file()), None)


def _recipe(arguments: ParsedArguments, name: str | None, default: str | None, *, suits_all: bool) -> Recipe:
    """The recipe of the command: a resumed run's own, so that flags are compared with what it was started with."""
    from hftune.pipeline.request import resolve_recipe

    resumed = resumed_recipe(arguments)
    if name is None and resumed is not None:
        name = str(resumed.parent)
    elif name is None and default is not None:
        # A default recipe is made for its own model and data; with others the schema's defaults are a better start.
        name = default if suits_all or _is_own(default, arguments.model, arguments.data) else None
        logger.info("recipe: %s", name or f"defaults ({default} is made for its own model and data)")
    return resolve_recipe(name, arguments.settings, arguments.sets or (), task=arguments.task)


def _is_own(recipe: str, model: str | None, data: str | None) -> bool:
    """Whether a model and data are those of a recipe, under any of their names; None was not given and matches."""
    from hftune.data.locate import same_data
    from hftune.recipe import load_recipe

    own = load_recipe(recipe)
    model_is_own = model in (None, own.model.model_name_or_path)
    return model_is_own and (data is None or same_data(data, own.data.dataset_name))
