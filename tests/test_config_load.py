"""Recipes from files, flags and --set: what wins, what a change of kind leaves out, and every error at once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from facts import facts, hftune_error, mentions
from pydantic import Field

import hftune
from hftune import recipe as recipes
from hftune.config.document import RecipeError
from hftune.config.section import Section, kinds, schema, setting_rows
from hftune.data.settings import CorpusData, LabeledData, QuestionData
from hftune.errors import HftuneError
from hftune.methods.full import FullMethod
from hftune.recipe import Recipe, load_recipe, recipe_yaml
from hftune.tasks.settings import ClassifyTask, SpanTask, TaskSettings


class LoraMethod(Section):
    """A second method, so that there is a union to choose from."""

    kind: Literal["lora"] = "lora"
    r: int = Field(default=8, ge=1)
    """Rank of the update."""
    pretrained_learning_rate: ClassVar[float] = 3e-4
    scratch_learning_rate: ClassVar[float] = 1e-3


class PrefixMethod(Section):
    """A third one."""

    kind: Literal["prefix"] = "prefix"
    length: int = 20
    """Virtual tokens."""
    pretrained_learning_rate: ClassVar[float] = 1e-2
    scratch_learning_rate: ClassVar[float] = 1e-2


class ThreeMethods(Recipe):
    """A recipe whose method is a discriminated union."""

    method: Annotated[FullMethod | LoraMethod | PrefixMethod, Field(discriminator="kind")] = Field(
        default_factory=FullMethod
    )
    """Which weights move."""


@pytest.fixture
def three_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "Recipe", ThreeMethods)


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(*args: object, **kwargs: object) -> dict[str, str]:
    """Path → message, source and hint of everything that is wrong."""
    with pytest.raises(RecipeError) as caught:
        load_recipe(*args, **kwargs)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_later_layers_win(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {seed: 2, per_device_train_batch_size: 2, num_train_epochs: 2}\n")
    recipe = load_recipe(
        path, {"train.seed": 3, "train.per_device_train_batch_size": 3, "train.logging_steps": None}, ["train.seed=4"]
    )
    assert (recipe.train.seed, recipe.train.per_device_train_batch_size, recipe.train.num_train_epochs) == (4, 3, 2.0)
    assert recipe.train.logging_steps == Recipe().train.logging_steps


def test_defaults_are_the_schema_and_no_more() -> None:
    assert load_recipe() == Recipe()
    assert hftune.load_recipe is load_recipe


def test_what_depends_on_other_sections_is_filled_in() -> None:
    assert load_recipe(overrides={"model.model_name_or_path": "bert-base-cased"}).train.learning_rate == 5e-5
    assert load_recipe(sets=["model.model_name_or_path=scratch:bert-tiny"]).train.learning_rate == 5e-4
    assert load_recipe(sets=["train.learning_rate=1e-5"]).train.learning_rate == 1e-5


def test_values_of_set_are_yaml() -> None:
    recipe = load_recipe(
        sets=[
            "train.adam_beta2=1e-3",
            "train.run_name=a=b",
            "train.full_determinism=true",
            "task.class_weights={yes: 2, no: 1, 5: 3}",
            "task.metrics=[f1]",
            "data.max_train_samples=null",
            "train={dataloader_num_workers: 1}",
            "train.torch_compile=true",
        ]
    )
    assert recipe.train.adam_beta2 == 0.001
    assert recipe.train.passed_on == {"full_determinism": True, "run_name": "a=b"}
    assert recipe.task.class_weights == {"yes": 2.0, "no": 1.0, "5": 3.0}
    assert (recipe.task.metrics, recipe.train.dataloader_num_workers, recipe.train.torch_compile) == (("f1",), 1, True)


def test_set_reaches_into_a_mapping_or_replaces_it(tmp_path: Path) -> None:
    path = write(tmp_path, "train: {lr_scheduler_kwargs: {num_cycles: 2, power: 0.9}, full_determinism: true}\n")
    train = load_recipe(path, sets=["train.lr_scheduler_kwargs.power=0.5"]).train
    assert train.lr_scheduler_kwargs == {"num_cycles": 2, "power": 0.5}
    assert train.passed_on == {"full_determinism": True}
    train = load_recipe(path, sets=["train.lr_scheduler_kwargs={min_lr: 1e-6}", "train.full_determinism=false"]).train
    assert train.lr_scheduler_kwargs == {"min_lr": 1e-6}
    assert train.passed_on == {"full_determinism": False}


def test_every_error_at_once(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
tsk: {}
learning_rate: 3
task: {kind: clasify}
data:
  dataset_nmae: x
  max_seq_length: 0
  batch_size: 4
method: full
train:
  num_train_epochs: many
  per_device_train_batch_size: true
  lr_scheduler_type: linaer
  num_train_epoch: 3
  warmup_ratio: 0.1
  fsdp: full_shard
  adam_betas: 3
  neftune_noise_alpha: high
  report_to: 5
model: {model_name_or_path: 5, dropout: 1.5}
""",
    )
    found = problems(path, {"train.seed": -1}, ["nonsense", "hub.privat=true", "data.truncation=["])
    expected = {
        "": ["expected KEY=VALUE, got 'nonsense'", "--set"],
        "tsk": ["unknown section", "mine.yaml:2", "Did you mean task?"],
        "learning_rate": ["Did you mean train.learning_rate?"],
        "task.kind": ["classify", "got 'clasify'", "mine.yaml:4", "Did you mean classify?"],
        "data.dataset_nmae": ["unknown key", "mine.yaml:6", "Did you mean data.dataset_name?"],
        "data.max_seq_length": ["expected a whole number ≥ 2; got 0", "mine.yaml:7"],
        "data.batch_size": ["Did you mean train.per_device_train_batch_size?"],
        "method": ["expected settings below this key, got 'full'", "Did you mean method.kind: full?"],
        "train.num_train_epochs": ["expected a number > 0.0, or null; got 'many'"],
        "train.per_device_train_batch_size": ["expected a whole number ≥ 1; got true"],
        "train.lr_scheduler_type": ["linear, cosine, ", "constant_with_warmup", "got 'linaer'", "did you mean linear?"],
        "train.num_train_epoch": ["Did you mean train.num_train_epochs?"],
        "train.warmup_ratio": ["removed from transformers", "warmup_steps", "mine.yaml:15"],
        "train.fsdp": ["can't be set in a recipe", "accelerate launch"],
        "train.adam_betas": ["not a field of TrainingArguments", "Did you mean train.adam_beta"],
        "train.neftune_noise_alpha": ["valid number", "got 'high'"],
        "train.report_to": ["expected a list"],
        "train.seed": ["got -1", "override"],
        "model.model_name_or_path": ["expected text; got 5", "quotes"],
        "model.dropout": ["≥ 0.0 and < 1.0, or null; got 1.5"],
        "hub.privat": ["--set", "Did you mean hub.hub_private_repo?"],
        "data.truncation": ["expected YAML", "--set"],
    }
    assert set(found) == set(expected)
    for key, parts in expected.items():
        for part in parts:
            assert part in found[key], found[key]


def test_every_setting_is_found_again_when_a_letter_is_missing() -> None:
    for path in Recipe.all_settings():
        section, _, key = path.rpartition(".")
        if len(key) < 5 or "." in section:
            continue
        typo = f"{section}.{key[:2]}{key[3:]}"
        if typo in Recipe.all_settings():
            continue
        (message,) = [text for where, text in problems(sets=[f"{typo}=1"]).items() if where == typo]
        assert mentions(message, path)


def test_a_setting_that_takes_two_types_is_reported_once() -> None:
    found = problems(sets=["task.class_weights={good: many}"])
    assert list(found) == ["task.class_weights"]
    assert mentions(found["task.class_weights"], "auto", "mapping", "null")
    assert "{'good': 'many'}" in found["task.class_weights"]


def test_nan_and_infinity_are_no_numbers() -> None:
    assert "got nan" in problems(sets=["train.learning_rate=.nan"])["train.learning_rate"]
    assert "got inf" in problems(overrides={"train.weight_decay": float("inf")})["train.weight_decay"]


def test_only_what_yaml_can_hold_is_taken_from_python(tmp_path: Path) -> None:
    assert "got object" in problems(overrides={"data.dataset_name": object()})["data.dataset_name"]
    assert load_recipe(overrides={"data.dataset_name": tmp_path}).data.dataset_name == str(tmp_path)


@pytest.mark.usefixtures("three_methods")
def test_a_change_of_kind_leaves_the_old_settings_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "method: {kind: lora, r: 4}\n")
    assert load_recipe(path).method == LoraMethod(r=4)
    assert load_recipe(path, {"method.kind": "lora"}).method == LoraMethod(r=4)
    with caplog.at_level(logging.INFO, logger="hftune"):
        changed = load_recipe(path, {"method.kind": "prefix"}, ["method.length=5"])
    assert changed.method == PrefixMethod(length=5)
    assert changed.train.learning_rate == 1e-2
    assert mentions(caplog.text, "method.kind", "prefix", "r for lora")


@pytest.mark.usefixtures("three_methods")
def test_a_missing_kind_is_the_default_kind(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "method: {}\n")).method == FullMethod()
    assert load_recipe(write(tmp_path, "method:\n"), {"method.kind": "lora"}).method == LoraMethod()
    assert mentions(problems(sets=["method.r=3"])["method.r"], "kind lora", "method.kind")


@pytest.mark.usefixtures("three_methods")
def test_a_union_round_trips_and_has_a_schema() -> None:
    recipe = load_recipe(sets=["method.kind=lora", "method.r=3"])
    assert "  r: 3" in recipe_yaml(recipe)
    assert list(recipes.Recipe.section_kinds("method")) == ["full", "lora", "prefix"]
    assert {row.kind for row in setting_rows(recipes.Recipe, "method")} == {"lora", "prefix"}


def test_kinds_of_a_class_and_of_a_union() -> None:
    assert kinds(LoraMethod) == {"lora": LoraMethod}
    union = Annotated[LoraMethod | PrefixMethod, Field(discriminator="kind")]
    assert kinds(union) == {"lora": LoraMethod, "prefix": PrefixMethod}
    assert kinds(Recipe.model_fields["train"].annotation) == {}


def test_a_command_takes_only_recipes_of_its_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class JointTask(TaskSettings):
        data_kind: ClassVar[str] = "labeled"
        command: ClassVar[str] = "joint"
        kind: Literal["joint"] = "joint"
        default_metric: ClassVar[str] = "accuracy"

    class TwoTasks(Recipe):
        task: Annotated[type(Recipe().task) | JointTask, Field(discriminator="kind")] = Field(  # type: ignore[valid-type]
            default_factory=type(Recipe().task)
        )

    monkeypatch.setattr(recipes, "Recipe", TwoTasks)
    assert load_recipe(task="joint").task == JointTask()
    path = write(tmp_path, "task: {kind: joint}\n")
    assert load_recipe(path, task="joint").task == JointTask()
    found = problems(path, task="classify")["task.kind"]
    assert mentions(found, "classify", "joint")
    assert "hftune joint" in found


def test_data_are_of_the_kind_that_the_task_reads(tmp_path: Path) -> None:
    assert load_recipe(task="span").data == Recipe(task=SpanTask()).data == CorpusData(validation_size=0.0)
    assert load_recipe(sets=["task.kind=answer", "data.dataset_name=mine"]).data == QuestionData(dataset_name="mine")
    assert load_recipe().data == Recipe(task=ClassifyTask()).data == LabeledData()
    path = write(tmp_path, "data: {dataset_name: mine.txt, documents: paragraphs}\n")
    assert load_recipe(path, sets=["data.kind=corpus"], task="span").data.dataset_name == "mine.txt", (
        "the kind it had anyway"
    )
    assert mentions(problems(path)["data.documents"], "kind corpus", "data.kind")


def test_data_that_do_not_suit_the_task_are_refused() -> None:
    found = problems(sets=["task.kind=span", "data.kind=labeled"])["data.kind"]
    assert mentions(found, "task.kind span", "corpus", "labeled")
    assert "set task.kind to classify" in found
    with pytest.raises(ValueError, match=facts("corpus", "labeled")):
        Recipe(task=SpanTask(), data=LabeledData())


def test_a_change_of_task_leaves_out_data_of_another_kind(tmp_path: Path) -> None:
    path = write(tmp_path, "data: {dataset_name: mine, max_seq_length: 32}\n")
    assert load_recipe(path, sets=["task.kind=span"]).data.dataset_name == CorpusData().dataset_name
    assert load_recipe(path, sets=["task.kind=span", "data.dataset_name=other"]).data.dataset_name == "other"


def test_schema_describes_every_setting() -> None:
    whole = schema(Recipe)
    for name, definition in whole["$defs"].items():
        for key, value in definition["properties"].items():
            assert key == "kind" or value.get("description"), f"{name}.{key} has no sentence under it"
    assert set(whole["properties"]) == {"task", "data", "model", "method", "train", "hub", "by_method"}
    assert list(schema(Recipe, "hub")["$defs"]) == ["HubSection"]
    assert {row.path for row in setting_rows(Recipe, "hub")} == {
        "hub.hub_model_id",
        "hub.hub_private_repo",
        "hub.hub_revision",
        "hub.hub_strategy",
        "hub.push_to_hub",
    }
    with pytest.raises(HftuneError) as caught:
        schema(Recipe, "trian")
    assert mentions(caught.value.hint, "mean train")


def test_another_method_leaves_the_recipes_muon_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "train: {optim: muon, learning_rate: 4.0e-3, num_train_epochs: 2}\n")
    with caplog.at_level(logging.INFO, logger="hftune"):
        changed = load_recipe(path, {"method.kind": "bitfit"}).train
    assert changed.optim == "adamw_torch_fused" and changed.learning_rate != 4e-3 and changed.num_train_epochs == 2
    assert mentions(caplog.text, "method.kind", "bitfit", "learning_rate, optim")
    assert load_recipe(path, {"method.kind": "full"}).train.optim == "muon"
    with hftune_error("muon", "method.kind full"):
        load_recipe(path, {"method.kind": "bitfit", "train.optim": "muon"})
