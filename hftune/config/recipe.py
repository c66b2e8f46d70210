"""The whole recipe: six sections, frozen, with every default filled in. Made by ``hftune.config.load``."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import Field, model_validator

from hftune.config.data import CorpusData, DataSection, QuestionData
from hftune.config.hub import HubSection
from hftune.config.model import ModelSection
from hftune.config.section import Section
from hftune.config.task import ClassifyTask, Task, TaskSection
from hftune.config.train import MUON, TrainSection
from hftune.methods import METHODS, FullMethod, MethodSection

PRETRAINED_EPOCHS = 3.0
SCRATCH_EPOCHS = 8.0
MUON_SCRATCH_LEARNING_RATE = 4e-3
"""Of a model from scratch under Muon; a pretrained one takes the method's: Muon's steps are as large as AdamW's."""


def _task_of(made: dict[str, Any]) -> Task:
    task = made.get("task", ClassifyTask())
    assert isinstance(task, Task)
    return task


def _model_for(made: dict[str, Any]) -> ModelSection:
    """The model section of a recipe that states none."""
    return ModelSection(model_name_or_path=_task_of(made).default_model)


def _data_for(made: dict[str, Any]) -> Any:
    """The data section of a recipe that states none: of the kind that its task reads."""
    task = _task_of(made)
    by_kind = {section.model_fields["kind"].default: section for section in get_args(get_args(DataSection)[0])}
    return by_kind[task.data_kind]()


class Recipe(Section):
    """Everything that decides a run. The copy in the run directory gives the same run again."""

    task: TaskSection = Field(default_factory=ClassifyTask)
    """What is predicted and how it is scored."""
    data: DataSection = Field(default_factory=_data_for)
    """Where the examples come from."""
    model: ModelSection = Field(default_factory=_model_for)
    """Which model is trained."""
    method: MethodSection = Field(
        default_factory=FullMethod, description=f"Which parameters are trained: {', '.join(METHODS)}."
    )
    train: TrainSection = Field(default_factory=TrainSection)
    """How it is trained: the fields of TrainingArguments."""
    hub: HubSection = Field(default_factory=HubSection)
    """Where the result is published."""

    @model_validator(mode="after")
    def _refuse_data_that_does_not_suit(self) -> Recipe:
        if self.data.kind != self.task.data_kind:
            raise ValueError(f"a task of kind {self.task.kind} reads {self.task.data_kind} data; got {self.data.kind}")
        return self

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> Recipe:
        """A setting that has no effect next to the others is a mistake in the recipe."""
        scratch, model = self.model.from_scratch, self.model
        name = model.model_name_or_path
        default_size = ModelSection.model_fields["vocab_size"].default
        if not scratch and model.vocab_size != default_size:
            raise ValueError("model.vocab_size is for models from scratch; a pretrained one has its vocabulary")
        if self.task.kind == "clm" and model.tokenizer_type == "char":
            raise ValueError("task.kind clm trains a bpe tokenizer; leave model.tokenizer_type out")
        characters = model.scratch_mingpt and self.task.kind != "clm" and model.tokenizer_type != "bpe"
        if characters and model.vocab_size != default_size:
            if model.tokenizer_name is not None:
                raise ValueError(
                    f"model.vocab_size is for a trained tokenizer; tokenizer_name is {model.tokenizer_name}"
                )
            raise ValueError(
                f"model.vocab_size can't be set for {name} and task.kind {self.task.kind}, which read the characters "
                "of the text; model.tokenizer_type=bpe trains a vocabulary"
            )
        if scratch and model.model_revision is not None:
            raise ValueError("model.model_revision is for models of the Hub; a model from scratch has none")
        if scratch and model.model_type is not None:
            raise ValueError(f"model.model_type is checked against a checkpoint; {name} names its architecture")
        brought = model.tokenizer_name or (None if scratch else name)
        if isinstance(self.data, QuestionData) and self.data.corpus is not None and brought is not None:
            raise ValueError(f"data.corpus is for the tokenizer of a model from scratch; {brought} has its own")
        if isinstance(self.data, CorpusData) and self.data.documents == "labeled" and self.task.kind != "mlm":
            raise ValueError("data.documents labeled, the texts of labeled examples, is for task.kind mlm")
        if (
            not self.hub.pushes
            and self.hub.model_copy(update={"push_to_hub": None, "hub_model_id": None}) != HubSection()
        ):
            raise ValueError("hub_strategy, hub_private_repo and hub_revision do nothing without hub.push_to_hub")
        if self.train.optim == MUON and self.method.kind != "full":
            raise ValueError(f"train.optim muon is for method.kind full; {self.method.kind} trains no whole matrix")
        if "neftune_noise_alpha" in self.train.passed_on and not self.method.trains_embeddings_path:
            raise ValueError(f"train.neftune_noise_alpha perturbs word embeddings; it can't with {self.method.kind}")
        if self.train.label_smoothing_factor and not isinstance(self.task, ClassifyTask):
            raise ValueError(f"train.label_smoothing_factor is for classifiers; task.kind is {self.task.kind}")
        return self

    @model_validator(mode="after")
    def _fill_what_depends_on_other_sections(self) -> Recipe:
        """Learning rate, epochs and metric depend on task, method and model; a resolved recipe states them."""
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
        # The model is frozen for its users; here it is still being made.
        if filled:
            object.__setattr__(self, "train", self.train.model_copy(update=filled))
        if isinstance(self.data, CorpusData) and self.data.validation_size is None:
            object.__setattr__(self, "data", self.data.model_copy(update={"validation_size": self.task.held_out}))
        return self
