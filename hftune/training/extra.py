"""Checks ``train.extra``: any TrainingArguments field by its own name, unless a recipe key already says it or hftune
must decide it. Called by ``hftune.training.arguments``.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from transformers import TrainingArguments

from hftune.errors import HftuneError
from hftune.suggest import did_you_mean

RECIPE_KEYS = {
    "num_train_epochs": "train.epochs",
    "max_steps": "train.max_steps",
    "per_device_train_batch_size": "train.batch_size",
    "gradient_accumulation_steps": "train.accumulation",
    "per_device_eval_batch_size": "train.eval_batch_size",
    "learning_rate": "train.learning_rate",
    "optim": "train.optimizer",
    "lr_scheduler_type": "train.schedule",
    "warmup_steps": "train.warmup",
    "weight_decay": "train.weight_decay",
    "max_grad_norm": "train.max_grad_norm",
    "eval_strategy": "train.eval_steps",
    "eval_steps": "train.eval_steps",
    "save_strategy": "train.eval_steps",
    "save_steps": "train.eval_steps",
    "logging_strategy": "train.log_steps",
    "logging_steps": "train.log_steps",
    "save_total_limit": "train.keep_checkpoints",
    "train_sampling_strategy": "train.bucket_by_length",
    "length_column_name": "train.bucket_by_length",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "torch_compile": "train.compile",
    "gradient_checkpointing": "train.gradient_checkpointing",
    "use_cpu": "train.device",
    "dataloader_num_workers": "train.workers",
    "seed": "train.seed",
    "data_seed": "train.seed",
    "report_to": "train.report_to",
    "metric_for_best_model": "task.select_by",
    "greater_is_better": "task.select_mode",
    "label_smoothing_factor": "task.label_smoothing",
    "push_to_hub": "hub.push_to",
    "hub_model_id": "hub.push_to",
    "hub_private_repo": "hub.private",
    "hub_revision": "hub.revision",
}
OURS = {
    "hub_token": "the token comes from HF_TOKEN or `hf auth login`: here it would end up in files",
    "hub_strategy": "hftune publishes by itself and says what came of it: see hub.push_to and hub.push_each_best",
    "hub_always_push": "hftune publishes by itself and says what came of it: see hub.push_to",
    "output_dir": "the run directory is named with --output",
    "resume_from_checkpoint": "a run goes on with --resume",
    "ignore_data_skip": "a resumed run must see the rows that are left",
    "restore_callback_states_from_checkpoint": "a resumed run must remember how long early stopping has waited",
    "load_best_model_at_end": "the best checkpoint on validation is always restored",
    "save_only_model": "a checkpoint without its optimizer does not resume",
    "save_on_each_node": "one process writes checkpoints",
    "enable_jit_checkpoint": "hftune saves on SIGTERM, SIGINT, SIGHUP and SIGUSR1 itself",
    "logging_nan_inf_filter": "a non-finite loss always stops the run",
    "auto_find_batch_size": "it changes what an update is made of; train.auto_batch keeps the rows of each",
    "dataloader_drop_last": "every training row counts",
    "bf16_full_eval": "the saved model is scored in fp32, so that scores do not depend on the device",
    "fp16_full_eval": "the saved model is scored in fp32, so that scores do not depend on the device",
    "batch_eval_metrics": "scores are computed over the whole split",
    "prediction_loss_only": "scores need predictions",
    "eval_do_concat_batches": "scores are computed over the whole split",
    "disable_tqdm": "the command line draws the progress",
    "remove_unused_columns": "the task knows which columns its collator reads",
    "label_names": "the task knows which of its columns are labels",
    "do_train": "what is done is what the command says",
    "do_eval": "what is done is what the command says",
    "do_predict": "what is done is what the command says",
    "local_rank": "the launcher sets it",
    "fsdp": "the launcher shards: accelerate launch --config_file recipes/accelerate/fsdp.yaml -m hftune …",
    "fsdp_config": "the launcher shards: accelerate launch --config_file recipes/accelerate/fsdp.yaml -m hftune …",
    "deepspeed": "the launcher shards: accelerate launch --config_file recipes/accelerate/deepspeed-zero2.yaml …",
    "parallelism_config": "hftune trains with whole copies, FSDP or DeepSpeed; the launcher says which",
    "ddp_backend": "the device decides: nccl on GPUs, gloo on CPUs",
    "ddp_timeout": "processes wait half an hour for each other in training, and as long as it takes elsewhere",
}


def checked_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """``train.extra``, each name known to the installed class and each value of its type.

    Raises:
        HftuneError: At the first that is not; the hint says what to write instead.
    """
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    for name, value in extra.items():
        if name in RECIPE_KEYS:
            key = RECIPE_KEYS[name]
            raise HftuneError(f"train.extra.{name} is what {key} already says", hint=f"set {key} instead")
        if name in OURS:
            raise HftuneError(f"train.extra.{name} can't be set", hint=OURS[name])
        if name not in known:
            free = known - RECIPE_KEYS.keys() - OURS.keys()
            raise HftuneError(
                f"train.extra.{name} is not a field of TrainingArguments in the installed transformers",
                hint=did_you_mean(name, free) or "see the TrainingArguments page of transformers for the names",
            )
        _check_type(name, value)
    return dict(extra)


def _check_type(name: str, value: Any) -> None:
    """A dataclass takes anything; a wrong type would come out as a traceback in the middle of training."""
    expected = typing.get_type_hints(TrainingArguments)[name]
    try:
        adapter = TypeAdapter(expected, config=ConfigDict(strict=True))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return  # a type of transformers' own: its constructor checks it
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        raise HftuneError(
            f"train.extra.{name} is {value!r}: {error.errors()[0]['msg'].lower()}",
            hint="give the value as the TrainingArguments page of transformers describes it",
        ) from error
