"""The recipe: all settings of a run in six sections; built from a YAML file, flags and ``--set``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from hftune.config import document
from hftune.config.document import Problem, RecipeError
from hftune.config.section import PUBLISHING, BaseRecipe, Flag, Section
from hftune.config.shipped import find_recipe
from hftune.config.values import check, got, merge, nested, parse_sets, plain, stated_kind
from hftune.data.settings import CorpusData, DataSection, QuestionData
from hftune.errors import HftuneError, closest
from hftune.methods import METHODS, FullMethod, MethodSection
from hftune.models.settings import ModelSection
from hftune.runs.directory import RunDir
from hftune.runs.group import MOVED, moved_path
from hftune.tasks.settings import ClassifyTask, MaskedLines, TaskSection, TaskSettings
from hftune.training.settings import MUON, TrainSection

logger = logging.getLogger(__name__)

PRETRAINED_EPOCHS = 3.0
SCRATCH_EPOCHS = 8.0
MUON_SCRATCH_LEARNING_RATE = 4e-3
"""For models from scratch with Muon. Pretrained ones use the method's default: Muon's steps are as large as AdamW's."""
ALL_TOKENS = ("mean", "max")
"""Poolings that read every token, so that the last layer has to compute all of them."""
TYPED = "from a flag or override"
BY_METHOD = "by_method"
"""The key of a recipe file with settings per method; those of the method that is used apply."""
_NOT_HERE = ("every_save", "checkpoint", "all_checkpoints")


class HubSection(Section):
    """Publishing to the Hugging Face Hub."""

    push_to_hub: Annotated[bool | None, Flag(group=PUBLISHING)] = None
    """Publish the finished model; on by default if hub_model_id is set."""
    hub_model_id: Annotated[str | None, Flag(group=PUBLISHING, metavar="USER/NAME")] = None
    """Repository of the model; by default named after the run, under your account."""
    hub_strategy: Literal["end", "best"] = "end"
    """What to publish: the finished model, or also each best checkpoint during training."""
    hub_private_repo: bool | None = None
    """Create the repository as private; your account's default if unset."""
    hub_revision: str | None = None
    """Branch to push to; main by default."""

    @model_validator(mode="before")
    @classmethod
    def _explain_strategies(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("hub_strategy") in _NOT_HERE:
            raise ValueError(
                f"hub_strategy {given['hub_strategy']} would publish files that only resume reads; expected end or best"
            )
        return given

    @property
    def pushes(self) -> bool:
        """Whether anything is published."""
        return self.hub_model_id is not None if self.push_to_hub is None else self.push_to_hub


def _with_method_settings(schema: dict[str, Any]) -> None:
    """The JSON schema with ``by_method``, a key of recipe files only."""
    schema["properties"][BY_METHOD] = {
        "type": "object",
        "description": "Settings for one method only: method → section → setting.",
        "properties": {kind: {"type": "object"} for kind in METHODS},
        "additionalProperties": False,
    }


def _for_the_task(section: str) -> Callable[[dict[str, Any]], Any]:
    """Makes the default of a section that depends on the task, from the fields before it."""

    def make(made: dict[str, Any]) -> Section:
        given = Recipe.defaults(section, getattr(made.get("task"), "kind", None))
        return Recipe.section_class(section, given.get("kind"))(**given)

    return make


class Recipe(BaseRecipe):
    """All settings of a run. The copy in the run directory reproduces the run."""

    model_config = ConfigDict(json_schema_extra=_with_method_settings)

    task: TaskSection = Field(default_factory=ClassifyTask)
    """What is predicted and how it is scored."""
    data: DataSection = Field(default_factory=_for_the_task("data"))
    """Where the examples come from."""
    model: ModelSection = Field(default_factory=_for_the_task("model"))
    """Which model is trained."""
    method: MethodSection = Field(
        default_factory=FullMethod, description=f"Which parameters are trained: {', '.join(METHODS)}."
    )
    train: TrainSection = Field(default_factory=TrainSection)
    """How it is trained: the fields of TrainingArguments."""
    hub: HubSection = Field(default_factory=HubSection)
    """Where the result is published."""

    @classmethod
    def task_class(cls, kind: object) -> type[TaskSettings]:
        """The settings class of a kind of task; that of the default kind if it is unknown."""
        known = cls.section_kinds("task")
        owner = known[kind if isinstance(kind, str) and kind in known else cls.default_kind("task")]
        assert issubclass(owner, TaskSettings)
        return owner

    @classmethod
    def defaults(cls, section: str, task: object = None) -> dict[str, str]:
        """Default settings of a section that the file lacks: data and model depend on the task."""
        match section:
            case "task":
                return {"kind": "classify"}
            case "data":
                return {"kind": cls.task_class(task).data_kind}
            case "model":
                return {"model_name_or_path": cls.task_class(task).default_model}
            case "method":
                return {"kind": "full"}
            case _:
                return {}

    @classmethod
    def owners(cls, task: str | None) -> Iterator[tuple[str, type[Section]]]:
        """The section classes of a task: its own, that of its data, every method, and those that all tasks share."""
        for section in ("task", "data", "method"):
            known = cls.section_kinds(section)
            if task is not None and section != "method":
                kind = task if section == "task" else cls.default_kind(section, task)
                known = {kind: known[kind]}
            yield from ((section, section_type) for section_type in known.values())
        for section in ("train", "model", "hub"):
            yield section, cls.section_class(section, None)

    def changed(self, section: str, **settings: Any) -> Recipe:
        """A copy with other settings in one section; values are taken as they are, without filling in defaults."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=settings)})

    @model_validator(mode="after")
    def _refuse_data_that_does_not_suit(self) -> Recipe:
        if self.data.kind != self.task.data_kind:
            raise ValueError(f"a task of kind {self.task.kind} reads {self.task.data_kind} data; got {self.data.kind}")
        return self

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> Recipe:
        """Refuse settings that have no effect in combination with the others."""
        scratch, model = self.model.from_scratch, self.model
        name = model.model_name_or_path
        default_size = ModelSection.model_fields["vocab_size"].default
        if not scratch and model.vocab_size != default_size:
            raise ValueError("model.vocab_size is for models from scratch; a pretrained one has its vocabulary")
        if self.task.kind == "clm" and model.tokenizer_type == "char":
            raise ValueError("task.kind clm trains a bpe or unigram tokenizer; leave model.tokenizer_type out")
        characters = model.scratch_mingpt and self.task.kind != "clm" and model.tokenizer_type not in ("bpe", "unigram")
        if characters and model.vocab_size != default_size:
            if model.tokenizer_name is not None:
                raise ValueError(
                    f"model.vocab_size is for a trained tokenizer; tokenizer_name is {model.tokenizer_name}"
                )
            raise ValueError(
                f"model.vocab_size can't be set for {name} and task.kind {self.task.kind}, which read the characters "
                "of the text; model.tokenizer_type=bpe (or unigram) trains a vocabulary"
            )
        if scratch and model.model_revision is not None:
            raise ValueError("model.model_revision is for models of the Hub; a model from scratch has none")
        if model.model_type is not None and model.scratch_model_type not in (None, model.model_type):
            raise ValueError(f"model.model_type is {model.model_type}; {name} is a {model.scratch_model_type}")
        brought = model.tokenizer_name or (None if scratch else name)
        if isinstance(self.data, QuestionData) and self.data.corpus is not None and brought is not None:
            raise ValueError(f"data.corpus is for the tokenizer of a model from scratch; {brought} has its own")
        masked = isinstance(self.task, MaskedLines)
        if isinstance(self.data, CorpusData) and self.data.documents == "labeled" and not masked:
            raise ValueError("data.documents labeled, the texts of labeled examples, is for masked language models")
        if (
            not self.hub.pushes
            and self.hub.model_copy(update={"push_to_hub": None, "hub_model_id": None}) != HubSection()
        ):
            raise ValueError("hub_strategy, hub_private_repo and hub_revision do nothing without hub.push_to_hub")
        if self.train.optim == MUON and self.method.kind != "full":
            raise ValueError(f"train.optim muon is for method.kind full; {self.method.kind} trains no whole matrix")
        if "neftune_noise_alpha" in self.train.passed_on and not self.method.trains_embeddings_path:
            raise ValueError(f"train.neftune_noise_alpha perturbs word embeddings; it can't with {self.method.kind}")
        if model.pooling != "auto" and not isinstance(self.task, ClassifyTask):
            raise ValueError(f"model.pooling is for classifiers; task.kind is {self.task.kind}")
        first_token_only = self.train.cls_only_last_layer and "cls_only_last_layer" in self.train.model_fields_set
        if model.pooling in ALL_TOKENS and first_token_only:
            raise ValueError(
                f"train.cls_only_last_layer computes the first token only; model.pooling {model.pooling} reads all "
                "of them. Leave one of the two out, or set cls_only_last_layer to false"
            )
        if self.train.label_smoothing_factor and not isinstance(self.task, ClassifyTask):
            raise ValueError(f"train.label_smoothing_factor is for classifiers; task.kind is {self.task.kind}")
        return self

    @model_validator(mode="after")
    def _fill_what_depends_on_other_sections(self) -> Recipe:
        """Some settings of train depend on task, method and model; a resolved recipe states them."""
        scratch, method = self.model.from_scratch, self.method
        filled: dict[str, Any] = {}
        if self.train.learning_rate is None:
            filled["learning_rate"] = method.scratch_learning_rate if scratch else method.pretrained_learning_rate
            if scratch and self.train.optim == MUON:
                filled["learning_rate"] = MUON_SCRATCH_LEARNING_RATE
        if self.train.num_train_epochs is None:
            filled["num_train_epochs"] = SCRATCH_EPOCHS if scratch else PRETRAINED_EPOCHS
        if self.train.metric_for_best_model is None:
            filled["metric_for_best_model"] = self.task.default_metric
        if self.model.pooling in ALL_TOKENS and self.train.cls_only_last_layer:
            filled["cls_only_last_layer"] = False
        # The model is frozen for its users; here it is still being made.
        if filled:
            object.__setattr__(self, "train", self.train.model_copy(update=filled))
        if isinstance(self.data, CorpusData) and self.data.validation_size in (None, self.task.held_out):
            data = self.data.model_copy(update={"validation_size": self.task.held_out})
            # A resolved recipe states the default as well: only another value counts as set by the user.
            data.model_fields_set.discard("validation_size")
            object.__setattr__(self, "data", data)
        return self


def load_recipe(
    recipe: str | Path | Mapping[str, Any] | Recipe | None = None,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    *,
    task: str | None = None,
) -> Recipe:
    """Read, merge and check a recipe: schema defaults < file < its settings for the method < overrides < sets.

    Args:
        recipe: A shipped recipe's name or its last part, a YAML file, a run directory, a dict of sections, or a
            ``Recipe``; None for defaults.
        overrides: Dotted keys and values, as flags give them; None means not given.
        sets: ``a.b=c`` texts, the value read as YAML.
        task: The task kind of the command; a file for another one is refused.

    Returns:
        The recipe, frozen, with every default filled in.

    Raises:
        RecipeError: Something is wrong; ``problems`` holds all of it.
        HftuneError: The recipe, the overrides or the sets are of a wrong type.
    """
    if not isinstance(recipe, str | Path | Mapping | Recipe | None):
        raise HftuneError(
            f"expected a recipe by name, path, dict or Recipe; got {type(recipe).__name__}",
            hint="give the data as data=…, and settings as keywords",
        )
    if isinstance(recipe, Recipe):
        recipe = recipe.model_dump()
    name = str(recipe) if isinstance(recipe, str | Path) else "the recipe"
    set_pairs, problems = parse_sets(sets)
    flag_pairs, bad_values = _override_pairs(overrides or {})
    problems = bad_values + problems
    try:
        path = find_recipe(recipe) if isinstance(recipe, str | Path) else None
        stated, lines = _sections_of(path)
        if isinstance(recipe, Mapping):
            sections_given, bad_sections = _override_pairs(recipe)
            stated, problems = nested(sections_given), problems + bad_sections
    except RecipeError as error:
        # Overrides of an unreadable file can't be checked: the file's kinds decide which settings exist.
        raise RecipeError(name, [*error.problems, *problems]) from error
    # The method must be known before the file's settings for it can be taken, and flags can change the method.
    by_method, pairs = stated.pop(BY_METHOD, None), flag_pairs + set_pairs
    method_pairs, lines, bad_methods = _of_the_method(by_method, stated, pairs, lines)
    values = merge(Recipe, stated, method_pairs + pairs, task)
    _leave_out_of_another_method(stated, nested(pairs), values)

    def source(dotted: str) -> str:
        for origin, pairs in (("--set", set_pairs), (TYPED, flag_pairs)):
            if any(f"{dotted}.".startswith(f"{key}.") for key, _ in pairs):
                return origin
        while dotted and dotted not in lines:
            dotted = dotted.rpartition(".")[0]
        return f"{path}:{lines[dotted]}" if dotted else ""

    problems += [*bad_methods, *(_for_task(task, values) if task is not None else ())]
    sections, found = check(Recipe, values)
    problems += [*found, *_ill_suited(sections)]
    if problems:
        raise RecipeError(name, [one if one.source else replace(one, source=source(one.path)) for one in problems])
    try:
        return Recipe.model_validate(sections)
    except ValidationError as error:
        raise RecipeError(name, [_across_sections(details) for details in error.errors()]) from error


def recipe_yaml(recipe: Recipe) -> str:
    """The whole recipe as YAML, defaults included; loading it gives an equal recipe."""
    return document.dump(plain(recipe.model_dump()))


def read_recipe(run: RunDir) -> Recipe:
    """The recipe of a run; data that are stored with it are found wherever the run is now."""
    return load_recipe(run.recipe, run.moved_data())


def with_data(recipe: Recipe, folder: Path | str) -> Recipe:
    """The recipe with its data in this folder."""
    return recipe.changed("data", dataset_name=str(folder))


def moved_with(recipe: Recipe, path: Path, moved: Path) -> Recipe:
    """A recipe whose data or model are in a run that was moved, with their new paths."""
    update = {
        section: (given := getattr(recipe, section)).model_copy(
            update={key: moved_path(getattr(given, key), path, moved)}
        )
        for section, key in MOVED
    }
    return recipe.model_copy(update=update)


def _sections_of(path: Path | None) -> tuple[dict[str, Any], dict[str, int]]:
    """The content of a recipe file by section, and the line of each setting; empty without a file."""
    stated, lines = (None, {}) if path is None else document.read(path)
    if stated is not None and not isinstance(stated, dict):
        message = f"expected sections such as task, data and train; got {got(stated)}"
        raise RecipeError(str(path), [Problem("", message, source=str(path))])
    return {section: {} if value is None else value for section, value in (stated or {}).items()}, lines


def _of_the_method(
    by_method: Any, stated: Mapping[str, Any], pairs: list[tuple[str, Any]], lines: dict[str, int]
) -> tuple[list[tuple[str, Any]], dict[str, int], list[Problem]]:
    """The settings of a file for the method that is used: dotted keys and values, their lines, and problems."""
    known = list(Recipe.section_kinds("method"))
    if by_method is None:
        return [], lines, []
    if not isinstance(by_method, dict):
        return [], lines, [Problem(BY_METHOD, f"expected settings by method, got {got(by_method)}")]
    problems = []
    for name, sections in by_method.items():
        path = f"{BY_METHOD}.{name}"
        if name not in known:
            near = closest(str(name), known)
            hint = f"Did you mean {near}?" if near else ""
            problems.append(Problem(path, f"expected a method ({', '.join(known)})", hint))
        elif not isinstance(sections, dict) or not all(isinstance(part, dict) for part in sections.values()):
            problems.append(Problem(path, "expected sections such as method and train, with settings"))
    if problems:
        return [], lines, problems
    kind = stated_kind(nested(pairs), "method") or stated_kind(stated, "method") or Recipe.default_kind("method")
    here = f"{BY_METHOD}.{kind}."
    moved = {path.removeprefix(here): line for path, line in lines.items() if path.startswith(here)}
    found = by_method.get(kind, {})
    settings = [(f"{section}.{key}", value) for section, part in found.items() for key, value in part.items()]
    return settings, {**lines, **moved}, []


def _ill_suited(sections: Mapping[str, Section]) -> Iterator[Problem]:
    """Data of a kind that the task does not read."""
    task, data = sections.get("task"), sections.get("data")
    if not isinstance(task, TaskSettings) or data is None:
        return
    given = data.model_dump()["kind"]
    if given != task.data_kind:
        others = [kind for kind in Recipe.section_kinds("task") if Recipe.default_kind("data", kind) == given]
        hint = f"Leave data.kind out, or set task.kind to {' or '.join(others)}." if others else "Leave data.kind out."
        message = f"task.kind {task.kind} reads data of kind {task.data_kind}; got {given}"
        yield Problem("data.kind", message, hint)


def _across_sections(details: ErrorDetails) -> Problem:
    """A problem of the combination: each section alone is valid."""
    message = details["msg"].removeprefix("Value error, ").rstrip(".")
    return Problem(".".join(map(str, details["loc"])), message)


def _override_pairs(overrides: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[Problem]]:
    pairs: list[tuple[str, Any]] = []
    problems: list[Problem] = []
    for key, value in overrides.items():
        try:
            if not isinstance(key, str):
                raise TypeError(f"expected text as the name of a setting; got {key!r:.100}")
            if value is not None:
                pairs.append((key, plain(value)))
        except TypeError as error:
            problems.append(Problem(str(key), str(error), source=TYPED))
    return pairs, problems


def _for_task(task: str, values: dict[str, Any]) -> list[Problem]:
    """Fill in the caller's task kind, or report that the recipe is for another one."""
    assert task in Recipe.section_kinds("task"), f"no task kind {task}"
    section = values.setdefault("task", {})
    if not isinstance(section, dict):
        return []
    stated = section.setdefault("kind", task)
    if stated == task or stated not in list(Recipe.section_kinds("task")):
        return []
    message = f"expected a recipe for {task}; got one for {stated}"
    return [Problem("task.kind", message, f"Run `hftune {Recipe.task_class(stated).command}`.")]


def _leave_out_of_another_method(document: Mapping[str, Any], given: Mapping[str, Any], merged: dict[str, Any]) -> None:
    """Leave out a learning rate that the file gives for another method: each method has its own default.

    Muon is left out too if the method trains no whole matrices.
    """
    kind, train, typed = stated_kind(given, "method"), merged.get("train"), given.get("train", {})
    stated = stated_kind(document, "method") or Recipe.default_kind("method")
    if kind not in Recipe.section_kinds("method") or kind == stated or not isinstance(document.get("train"), Mapping):
        return
    if not isinstance(train, dict) or not isinstance(typed, Mapping):
        return
    muon = ("optim", "optim_args") if document["train"].get("optim") == MUON and kind != "full" else ()
    left_out = [key for key in ("learning_rate", *muon) if key in train and key not in typed]
    if left_out:
        logger.info("method.kind is now %s: the recipe's %s left out", kind, ", ".join(left_out))
        merged["train"] = {key: value for key, value in train.items() if key not in left_out}
