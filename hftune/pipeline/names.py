"""Settings by name alone: the dotted keys of flags and Python keywords.

``learning_rate``, ``lr`` and ``train.learning_rate`` are one setting. Names come from the section classes and from
TrainingArguments; the few that are no setting of their own are here.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from hftune.config.document import RecipeError, parse
from hftune.config.section import members
from hftune.config.training_arguments import argument_fields
from hftune.data.settings import data_of
from hftune.errors import HftuneError, closest
from hftune.recipe import Recipe
from hftune.training.settings import REFUSED, REMOVED

USE_PEFT = "use_peft"
NOT_PEFT = ("full", "head", "bitfit")
"""Methods that train parameters of the model itself."""
TASK_NAME, DATA_DIR = "task_name", "data_dir"
COMPOSED = (USE_PEFT, TASK_NAME, DATA_DIR)
"""Names for several settings, or for one setting with a certain value."""
SWITCHES = {USE_PEFT, "group_by_length", "evaluate_during_training", "no_cuda"}
"""Names that are no settings and take true or false; the other ones of ``COMPOSED`` take text."""

_DTYPE = "--bf16 and --fp16 train in mixed precision; weights are loaded, trained and saved in fp32"
_ROWS = "give the rows as data={'train': …, 'validation': …, 'test': …}"
_TRAINER = "hftune.prepare returns a transformers.Trainer that you can change before it trains"
_LABELS = "the number of labels and their names are those of the data"
_ATTENTION = "transformers chooses it (sdpa where the model has it): leave it out; --attention is that of a minGPT"
_GPU = "the GPU is used if there is one: leave it out; --use-cpu trains on the CPU"
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
ELSEWHERE: dict[str, str] = {
    "precision": _DTYPE,
    "mixed_precision": _DTYPE,
    "dtype": _DTYPE,
    "torch_dtype": _DTYPE,
    "fp16_opt_level": _DTYPE,
    "load_in_4bit": "quantized weights can't be trained here; --method lora saves memory",
    "load_in_8bit": "quantized weights can't be trained here; --method lora saves memory",
    "quantization": "quantized weights can't be trained here; --method lora saves memory",
    "quantize": "quantized weights can't be trained here; --method lora saves memory",
    "checkpoint_dir": "a model is --model; a run to continue is --output RUN --resume",
    "out_dir": "did you mean --output-dir?",
    "project_name": "the run directory is --output-dir; --project is the project of a tracker",
    "repo_id": "did you mean --hub-model-id?",
    "username": "the account is part of --hub-model-id USER/NAME",
    "token": _LOGIN,
    "use_auth_token": _LOGIN,
    "cache_dir": "set HF_HOME for models and datasets of the Hub",
    "train": "hftune trains unless --do-train is False: leave it out",
    "global_batch_size": "it is --per-device-train-batch-size × --gradient-accumulation-steps × processes",
    "micro_batch_size": "did you mean --per-device-train-batch-size?",
    "lr_warmup_steps": "did you mean --warmup-steps?",
    "devices": "start several processes with `accelerate launch --num_processes N -m hftune …`",
    "attn_implementation": _ATTENTION,
    "use_flash_attention_2": _ATTENTION,
    "cuda": _GPU,
    "gpu": _GPU,
    "cpu": "did you mean --use-cpu?",
    "device": _GPU,
    "dataset_text_field": "did you mean --text-column-name?",
    "dataset_train_split": "did you mean --train-split-name?",
    "dataset_test_split": "did you mean --validation-split-name?",
    "train_split": "did you mean --train-split-name?",
    "valid_split": "did you mean --validation-split-name?",
    "use_dora": "write --method dora",
    "peft": "write --method lora, or another method",
    "lora": "write --method lora",
    "merge_adapter": "did you mean --merge?",
    "lora_task_type": "the task decides it: leave it out",
    "lora_modules_to_save": "the head is trained and saved with every method: leave it out",
    "modules_to_save": "the head is trained and saved with every method: leave it out",
    "rank": "write --method lora --r N",
    "num_labels": _LABELS,
    "id2label": _LABELS,
    "label2id": _LABELS,
    "ignore_mismatched_sizes": "a head for other labels is initialized anew: leave it out",
    "pad_to_max_length": "batches are padded to their longest example: leave it out",
    "patience": "did you mean --early-stopping-patience?",
    "wandb": "write --report-to wandb",
    "seed_everything": "did you mean --seed?",
    "freeze_encoder": "write --method head",
}
"""Hints for flags of Hugging Face's example scripts, trl, AutoTrain, accelerate and litgpt that are no settings, and
whose nearest name means something else."""
TRAINER_ARGUMENTS: dict[str, str] = {
    "args": "give every field of TrainingArguments as a keyword of its own: learning_rate=1e-4",
    "training_args": "give every field of TrainingArguments as a keyword of its own: learning_rate=1e-4",
    "train_dataset": _ROWS,
    "eval_dataset": _ROWS,
    "test_dataset": _ROWS,
    "dataset": "did you mean --data?",
    "peft_config": "give the method and its fields as keywords: method='lora', r=16",
    "lora_config": "give the method and its fields as keywords: method='lora', r=16",
    "processing_class": "did you mean --tokenizer-name?",
    "compute_metrics": "metrics names further ones; accuracy, macro-F1 and MCC are always there",
    "callbacks": _TRAINER,
    "data_collator": _TRAINER,
    "optimizers": _TRAINER,
    "model_init": _TRAINER,
}
"""The same for keywords that Trainer and SFTTrainer take."""


@dataclass(frozen=True)
class Named:
    """Settings that were given by name."""

    overrides: dict[str, Any]
    """Dotted keys and values, ready for ``load_recipe``."""
    notices: tuple[str, ...]
    """Notices with the current spelling of removed names."""


def known_names(task: str | None) -> list[str]:
    """Every name that ``from_names`` takes."""
    return [*Recipe.spellings(task), *REMOVED, *COMPOSED, *REFUSED]


def _tasks_with(name: str) -> list[str]:
    from hftune.tasks import TASKS

    return [kind for kind in TASKS if name in Recipe.spellings(kind)]


def from_names(given: Mapping[str, Any], task: str | None, *, dashes: bool = False) -> Named:
    """The settings of these names; None means not given.

    Args:
        given: Names, with underscores, and values.
        task: The kind of task; None means all.
        dashes: Whether errors write names as flags.

    Raises:
        HftuneError: A name is unknown or refused, or two spellings of one setting have different values.
    """
    paths = Recipe.spellings(task)
    overrides: dict[str, Any] = {}
    by: dict[str, str] = {}
    notices = []

    def shown(name: str) -> str:
        return f"--{name.replace('_', '-')}" if dashes else name

    def put(path: str, value: Any, name: str) -> None:
        if path in overrides and overrides[path] != value:
            raise HftuneError(
                f"{shown(by[path])} and {shown(name)} are the same setting ({path}) with two values: "
                f"{overrides[path]!r} and {value!r}",
                hint="leave one of them out",
            )
        overrides[path], by[path] = value, name

    stated = {name.replace("-", "_"): value for name, value in given.items() if value is not None}
    for name in stated.keys() & SWITCHES:
        if not isinstance(stated[name], bool):
            raise HftuneError(f"{shown(name)} expects true or false; got {stated[name]!r}", hint="leave the quotes out")
    for name, value in stated.items():
        if name in COMPOSED:
            continue
        if name in REMOVED:
            removed = REMOVED[name]
            if name == "warmup_ratio" and isinstance(value, int | float) and value >= 1:
                raise HftuneError(f"{shown(name)} expects a ratio below 1; got {value}", hint="steps are warmup_steps")
            notices.append(
                f"{shown(name)} was removed from transformers: it is now {shown(removed.field)}{removed.noted(value)}"
            )
            if (converted := removed.convert(value)) is not None:
                put(f"train.{removed.field}", converted, name)
        # The hub_* fields of TrainingArguments are refused in the train section, because the hub section has them.
        elif name in REFUSED and not paths.get(name, "train.").startswith("hub."):
            if REFUSED[name].refuses(value):
                raise HftuneError(f"{shown(name)} can't be set: {REFUSED[name].reason}", hint="leave it out")
        elif name in paths:
            put(paths[name], value, name)
        elif name in Recipe.spellings(None):
            raise HftuneError(
                f"{shown(name)} is not a setting of task {task}",
                hint=f"leave it out: {Recipe.spellings(None)[name]} is a setting of {', '.join(_tasks_with(name))}",
            )
        else:
            raise unknown(name, known_names(task), shown(name))
    _refuse_peft_type(overrides.get("method.kind"), shown("method"))
    if stated.get(USE_PEFT):
        kind = overrides.get("method.kind", "lora")
        if kind in NOT_PEFT:
            raise HftuneError(f"{shown(USE_PEFT)} trains an adapter, and method {kind} is none", hint="leave it out")
        put("method.kind", kind, USE_PEFT)
    if (
        "data.train_file" in overrides
        and "data.dataset_name" not in overrides
        and not stated.keys() & {TASK_NAME, DATA_DIR}
    ):
        # As in Hugging Face's scripts: a training file is the dataset, and the others are next to it or paths.
        overrides["data.dataset_name"] = overrides.pop("data.train_file")
    for path, value in _composed_data(stated).items():
        if path not in overrides or path == "data.dataset_name":  # a named column takes precedence
            put(path, value, TASK_NAME)
    return Named(overrides, tuple(notices))


def _refuse_peft_type(method: Any, name: str) -> None:
    """Refuse a type of peft as the method, with the settings that select it."""
    if not isinstance(method, str) or method.lower() in Recipe.section_kinds("method"):
        return
    from hftune.methods.peft import trainable_types

    if method.upper() in trainable_types():
        hint = f"set method to peft and peft_type to {method.upper()}"
        raise HftuneError(f"{name} {method} is a type of peft", hint=hint)


def _composed_data(stated: Mapping[str, Any]) -> dict[str, Any]:
    if TASK_NAME in stated:
        return data_of(str(stated[TASK_NAME]), stated.get(DATA_DIR))
    return {"data.dataset_name": stated[DATA_DIR]} if DATA_DIR in stated else {}


def unknown(name: str, known: Iterable[str], shown: str | None = None) -> HftuneError:
    """The error for an unknown name, with the nearest ones."""
    shown = shown or name
    # litgpt groups its flags: --train.global_batch_size, --optimizer.lr.
    plain, known = name.replace("-", "_").rpartition(".")[2], list(known)
    hints = ELSEWHERE if shown.startswith("--") else {**TRAINER_ARGUMENTS, **ELSEWHERE}
    if plain in hints:
        return HftuneError(f"no setting has the name {shown}", hint=hints[plain])
    found = plain if plain in known else closest(name, [one for one in known if one not in REFUSED], cutoff=0.6)
    dashed = shown.startswith("--") and found is not None
    near = f"--{found.replace('_', '-')}" if dashed and found else found
    return HftuneError(
        f"no setting has the name {shown}",
        hint=f"did you mean {near}?" if near else "`hftune recipes schema` lists every setting",
    )


def value_types(name: str, task: str | None) -> tuple[Any, ...]:
    """The alternatives of a setting's type, by the name of the setting."""
    name = name.replace("-", "_")
    if name in SWITCHES:
        return (bool,)
    if name in COMPOSED:
        return (str,)
    if name in REMOVED:
        return value_types(REMOVED[name].field, task)
    if name in REFUSED and name not in Recipe.spellings(None):
        return (bool,) if isinstance(REFUSED[name].used, bool) else (str,)
    if name not in Recipe.spellings(task):
        task = None  # of another task: reported by from_names
    section, _, field = Recipe.spellings(task)[name].partition(".")
    found = [
        option
        for owner, section_type in Recipe.owners(task)
        if owner == section and field in section_type.model_fields
        for option in members(section_type.model_fields[field].annotation)
    ]
    if not found and field in argument_fields():
        found = list(members(argument_fields()[field].annotation))
    return tuple(dict.fromkeys(option for option in found if option is not types.NoneType)) or (str,)


def is_switch(name: str, task: str | None) -> bool:
    """Whether a name can be given without a value: its values are true and false."""
    return value_types(name, task)[0] is bool


def takes_many(name: str, task: str | None) -> bool:
    """Whether a name takes a list of values."""
    return any(option in (list, tuple) or get_origin(option) in (list, tuple) for option in value_types(name, task))


def read_value(name: str, text: str, task: str | None) -> Any:
    """Convert typed text to the type of a setting: text stays text, the rest is read as YAML.

    Raises:
        HftuneError: It is not YAML.
    """
    options = value_types(name, task)
    if all(option is str or (get_origin(option) is Literal and _words(option)) for option in options):
        return text
    shown = f"--{name.replace('_', '-')}"
    try:
        value = parse(text, shown)[0]
    except RecipeError as error:
        raise HftuneError(
            f"{shown} {text!r}: {error.problems[0].message}", hint=error.problems[0].hint or "quote it"
        ) from error
    # A list can be typed as YAML, [a, b], or as people type it: a,b.
    if takes_many(name, task) and not isinstance(value, list):
        return [part.strip() for part in text.split(",")]
    # YAML 1.2 reads yes and no as text, so that a label can have these names; HfArgumentParser takes them as booleans.
    if isinstance(value, str) and bool in options and value.lower() in ("yes", "no"):
        return value.lower() == "yes"
    # 2024 for a setting that takes text is text, unless it takes numbers too.
    plain = str in options and not isinstance(value, dict | list | bool | types.NoneType)
    return text if plain and not any(option in (int, float) for option in options) else value


def _words(option: Any) -> bool:
    return all(isinstance(value, str) for value in get_args(option))
