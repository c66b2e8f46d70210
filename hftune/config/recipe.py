"""The whole recipe: six sections, frozen, with every default filled in. Made by ``hftune.config.load``."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import Field, model_validator

from hftune.config.data import CorpusData, DataSection, QuestionData
from hftune.config.hub import HubSection
from hftune.config.method import FullMethod, MethodSection
from hftune.config.model import ModelSection
from hftune.config.section import Section
from hftune.config.task import ClassifyTask, Task, TaskSection
from hftune.config.train import TrainSection

PRETRAINED_EPOCHS = 3.0
SCRATCH_EPOCHS = 8.0
MUON_SCRATCH_LEARNING_RATE = 4e-3
"""Of fresh weights under Muon; pretrained ones take the method's, since Muon's steps are as large as AdamW's."""


def _task_of(made: dict[str, Any]) -> Task:
    task = made.get("task", ClassifyTask())
    assert isinstance(task, Task)
    return task


def _model_for(made: dict[str, Any]) -> ModelSection:
    """The model section of a recipe that states none."""
    return ModelSection(name=_task_of(made).default_model)


def _data_for(made: dict[str, Any]) -> Any:
    """The data section of a recipe that states none: of the kind that its task reads."""
    task = _task_of(made)
    by_kind = {section.model_fields["kind"].default: section for section in get_args(get_args(DataSection)[0])}
    return by_kind[task.data_kind]()


class Recipe(Section):
    """Everything that decides a run. The copy in the run directory gives the same run again."""

    task: TaskSection = Field(default_factory=ClassifyTask)
    """What is predicted and scored."""
    data: DataSection = Field(default_factory=_data_for)
    """Where rows come from."""
    model: ModelSection = Field(default_factory=_model_for)
    """Which network."""
    method: MethodSection = Field(default_factory=FullMethod)
    """Which weights move: full, head, prefix, prompt, ptuning, lora, ia3 or bitfit."""
    train: TrainSection = Field(default_factory=TrainSection)
    """How they move."""
    hub: HubSection = Field(default_factory=HubSection)
    """Where the result is published."""

    @model_validator(mode="after")
    def _refuse_data_that_does_not_suit(self) -> Recipe:
        if self.data.kind != self.task.data_kind:
            raise ValueError(f"a task of kind {self.task.kind} reads {self.task.data_kind} data; got {self.data.kind}")
        return self

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> Recipe:
        """A setting that has no effect beside the others is a mistake of whoever wrote it."""
        fresh, model = self.model.from_scratch, self.model
        default_size = ModelSection.model_fields["vocab_size"].default
        if not fresh and model.vocab_size != default_size:
            raise ValueError("model.vocab_size is for scratch models; a pretrained one has its vocabulary")
        if self.task.kind == "clm" and model.vocabulary is not None:
            raise ValueError(
                "model.vocabulary is for task.kind span and answer; clm learns pieces, of model.vocab_size"
            )
        learns_none = model.fresh_mingpt and self.task.kind != "clm" and not model.reads_pieces
        if learns_none and model.vocab_size != default_size:
            if model.tokenizer is not None:
                raise ValueError(f"model.vocab_size is for a vocabulary that is learned; {model.tokenizer} is there")
            raise ValueError(
                f"model.vocab_size can't be set for {model.name} and task.kind {self.task.kind}: its vocabulary are "
                "the characters of the text; model.vocabulary=pieces learns one"
            )
        if fresh and model.revision is not None:
            raise ValueError("model.revision is for models of the Hub; a scratch model has none")
        brought = model.tokenizer or (None if fresh else model.name)
        if isinstance(self.data, QuestionData) and self.data.corpus is not None and brought is not None:
            raise ValueError(f"data.corpus is for the vocabulary of a fresh model; {brought} has one of its own")
        if isinstance(self.data, CorpusData) and self.data.documents == "labeled" and self.task.kind != "mlm":
            raise ValueError("data.documents labeled, the texts of labeled rows, is for task.kind mlm")
        if self.hub.push_to is None and self.hub != HubSection():
            raise ValueError("hub.private, hub.revision and hub.push_each_best do nothing without hub.push_to")
        if self.train.optimizer == "muon" and self.method.kind != "full":
            raise ValueError(f"train.optimizer muon is for method.kind full; {self.method.kind} moves no whole matrix")
        return self

    @model_validator(mode="after")
    def _fill_what_depends_on_other_sections(self) -> Recipe:
        """Learning rate and epochs depend on method and model; a resolved recipe states them as numbers."""
        fresh = self.model.from_scratch
        filled: dict[str, Any] = {}
        if self.train.learning_rate is None:
            method = self.method
            filled["learning_rate"] = method.scratch_learning_rate if fresh else method.pretrained_learning_rate
            if fresh and self.train.optimizer == "muon":
                filled["learning_rate"] = MUON_SCRATCH_LEARNING_RATE
        if self.train.epochs is None:
            filled["epochs"] = SCRATCH_EPOCHS if fresh else PRETRAINED_EPOCHS
        # The model is frozen for its users; here it is still being made.
        if filled:
            object.__setattr__(self, "train", self.train.model_copy(update=filled))
        if isinstance(self.data, CorpusData) and self.data.validation_size is None:
            object.__setattr__(self, "data", self.data.model_copy(update={"validation_size": self.task.held_out}))
        return self
