"""The ``train`` section: the fields of TrainingArguments by their own names, and a few settings that it has not.

The fields that people set daily are declared, with a help text and a check. Every other field of the installed
TrainingArguments is accepted, checked and passed on, unless hftune must decide it: ``REFUSED`` says why.
``hftune.training.arguments`` makes TrainingArguments of this section.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator, model_validator

from hftune.config.section import Flag, Section
from hftune.config.training_arguments import argument_fields
from hftune.suggest import closest

TRAINING = "Training"
DEFAULT_OPTIM = "adamw_torch_fused"
MUON = "muon"
CONSTANT = "constant"
STABLE_DECAY = "warmup_stable_decay"
DECAY_RATIO = 0.6
"""How much of the run ``warmup_stable_decay`` spends on its decay by default."""

LOWER_IS_BETTER = frozenset(
    {
        "loss",
        "span_loss",
        "ece",
        "aurc",
        "perplexity",
        "word_perplexity",
        "mean_absolute_error",
        "bits_per_byte",
        "bits_per_character",
    }
)
"""Scores of which less is better."""

_LAUNCHER = "the launcher shards the model: accelerate launch --config_file recipes/accelerate/{}.yaml -m hftune …"
_PUBLISH = "publishing has a section of its own: set hub.{} (--{})"
_COMMAND = "the command line decides what is done: use the flag --{}"
REFUSED: dict[str, str] = {
    "overwrite_output_dir": "replacing a run is not part of a recipe: use --overwrite, which moves the old one aside",
    "save_safetensors": "removed from transformers, which always saves safetensors: leave it out",
    "logging_dir": "removed from transformers: TensorBoard's files are in the run directory, so leave it out",
    "output_dir": "the run directory is not part of a recipe: use --output-dir",
    "resume_from_checkpoint": "resuming is not part of a recipe: use --resume with --output-dir",
    "do_train": _COMMAND.format("do_train"),
    "do_eval": _COMMAND.format("do_eval"),
    "do_predict": _COMMAND.format("do_predict"),
    "push_to_hub": _PUBLISH.format("push_to_hub", "push_to_hub"),
    "hub_model_id": _PUBLISH.format("hub_model_id", "hub_model_id"),
    "hub_strategy": _PUBLISH.format("hub_strategy", "hub_strategy"),
    "hub_private_repo": _PUBLISH.format("hub_private_repo", "hub_private_repo"),
    "hub_revision": _PUBLISH.format("hub_revision", "hub_revision"),
    "hub_token": "a token would be stored in the recipe and in every checkpoint: use HF_TOKEN or `hf auth login`",
    "hub_always_push": "uploads never overlap here, and each reports its result: leave it out",
    "ignore_data_skip": "a resumed run must continue with the examples it has not seen yet: leave it out",
    "restore_callback_states_from_checkpoint": "a resumed run always restores early stopping: leave it out",
    "load_best_model_at_end": "the best checkpoint on validation is always restored: leave it out",
    "save_only_model": "a checkpoint without its optimizer can't be resumed: leave it out",
    "save_on_each_node": "one process writes the checkpoints, to a disk that all machines share: leave it out",
    "enable_jit_checkpoint": "hftune saves a checkpoint on SIGTERM, SIGINT, SIGHUP and SIGUSR1 already: leave it out",
    "logging_nan_inf_filter": "a loss that is not finite always stops the run: leave it out",
    "dataloader_drop_last": "every training example counts: leave it out",
    "bf16_full_eval": "saved models are scored in fp32, so that scores do not depend on the device: leave it out",
    "fp16_full_eval": "saved models are scored in fp32, so that scores do not depend on the device: leave it out",
    "batch_eval_metrics": "metrics are computed over the whole split: leave it out",
    "prediction_loss_only": "metrics need predictions; set metric_for_best_model: loss to select by loss",
    "eval_do_concat_batches": "metrics are computed over the whole split: leave it out",
    "disable_tqdm": "the command line draws its own progress bar; redirect standard error to hide it",
    "remove_unused_columns": "the task knows which columns its collator reads: leave it out",
    "label_names": "the task knows which columns are labels: leave it out",
    "length_column_name": "the length of every example is known: leave it out",
    "local_rank": "the launcher sets it: use accelerate launch or torchrun",
    "fsdp": _LAUNCHER.format("fsdp"),
    "fsdp_config": _LAUNCHER.format("fsdp"),
    "deepspeed": _LAUNCHER.format("deepspeed-zero2"),
    "parallelism_config": "hftune trains with data parallelism, FSDP or DeepSpeed: choose one in the launch config",
    "ddp_backend": "the device decides: nccl on GPUs, gloo on CPUs: leave it out",
    "ddp_timeout": "a closed connection is noticed at once, and processes wait as long as scoring takes: leave it out",
}
"""Fields of TrainingArguments, today's and removed ones, that can't be set in a recipe, each with its reason."""


class Removed(NamedTuple):
    """A name that transformers has removed, and what it is today."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value
    note: str = ""
    """What to know about today's spelling."""


REMOVED: dict[str, Removed] = {
    "evaluation_strategy": Removed("eval_strategy"),
    "evaluate_during_training": Removed("eval_strategy", lambda on: "steps" if on else None, ": steps"),
    "warmup_ratio": Removed("warmup_steps", note=", where a value below 1 is a ratio"),
    "no_cuda": Removed("use_cpu"),
    "per_gpu_train_batch_size": Removed("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": Removed("per_device_eval_batch_size"),
    "group_by_length": Removed(
        "train_sampling_strategy", lambda on: "group_by_length" if on else "random", ": group_by_length"
    ),
}
"""Accepted as flags, with a line that names today's spelling; an error in a recipe."""


class TrainSection(Section):
    """Optimization, evaluation, precision and seeds: the fields of TrainingArguments."""

    model_config = ConfigDict(extra="allow")

    num_train_epochs: Annotated[float | None, Flag("epochs", "num-epochs", group=TRAINING)] = Field(
        default=None, gt=0.0
    )
    """Number of epochs; 3 by default for pretrained weights, 8 from scratch."""
    max_steps: Annotated[int, Flag(group=TRAINING)] = Field(default=-1, ge=-1)
    """Number of optimizer steps, which overrides num_train_epochs; -1 trains for num_train_epochs."""
    per_device_train_batch_size: Annotated[int, Flag("batch-size", group=TRAINING)] = Field(default=32, ge=1)
    """Training batch size per device."""
    per_device_eval_batch_size: Annotated[int, Flag("eval-batch-size")] = Field(default=64, ge=1)
    """Evaluation batch size per device."""
    gradient_accumulation_steps: Annotated[int, Flag(group=TRAINING)] = Field(default=1, ge=1)
    """Number of batches whose gradients are accumulated into one optimizer step."""
    auto_find_batch_size: bool = False
    """Before training, lower per_device_train_batch_size until the longest batch fits into memory;
    gradient_accumulation_steps rises with it, so that the effective batch size stays the same."""
    max_tokens_per_batch: int | None = Field(default=None, ge=1)
    """Maximum number of tokens in a batch on one device, padding included, beside per_device_train_batch_size."""
    learning_rate: Annotated[float | None, Flag("lr", group=TRAINING)] = Field(default=None, gt=0.0)
    """Peak learning rate; the default depends on the method and on whether the weights are pretrained."""
    lr_scheduler_type: str = "linear"
    """Learning rate scheduler after the warmup: linear, cosine, constant_with_warmup, warmup_stable_decay …"""
    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Arguments of the scheduler. For warmup_stable_decay, a num_decay_steps below 1 is a ratio of all steps; it is
    0.6 by default, with decay_type linear."""
    warmup_steps: float = Field(default=0.1, ge=0.0)
    """Number of warmup steps; a value below 1 is a ratio of all steps."""
    optim: str = DEFAULT_OPTIM
    """Optimizer: a name that TrainingArguments knows, or muon (Muon for the matrices of the blocks, AdamW for the
    rest)."""
    optim_args: str | None = None
    """Arguments of the optimizer, as in momentum=0.9 for muon."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Weight decay; biases and norms are excluded, and embeddings too for language models and under muon."""
    adam_beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Beta1 of AdamW."""
    adam_beta2: float = Field(default=0.999, ge=0.0, lt=1.0)
    """Beta2 of AdamW."""
    adam_epsilon: float = Field(default=1e-8, gt=0.0)
    """Epsilon of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Maximum gradient norm, for clipping; 0 does not clip."""
    label_smoothing_factor: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Label smoothing of a classifier."""
    eval_strategy: Literal["epoch", "steps"] | None = None
    """When to evaluate and save a checkpoint: every epoch (the default), or every eval_steps (the default where
    eval_steps is set)."""
    eval_steps: Annotated[float | None, Flag(group=TRAINING)] = Field(default=None, gt=0.0)
    """Number of steps between two evaluations; a value below 1 is a ratio of all steps."""
    save_strategy: Literal["epoch", "steps"] | None = None
    """Same as eval_strategy, so that every evaluated model has its checkpoint."""
    save_steps: float | None = Field(default=None, gt=0.0)
    """Same as eval_steps, so that every evaluated model has its checkpoint."""
    save_total_limit: int | None = Field(default=2, ge=1)
    """Number of checkpoints to keep, the best one always among them; null keeps all."""
    logging_steps: float = Field(default=10, gt=0.0)
    """Number of steps between two logged training losses; a value below 1 is a ratio of all steps."""
    metric_for_best_model: Annotated[str | None, Flag(group=TRAINING)] = None
    """Validation metric that selects the best checkpoint; the default depends on the task."""
    greater_is_better: bool | None = None
    """Whether a higher metric_for_best_model is better; known for the built-in metrics."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations without a better metric_for_best_model."""
    train_sampling_strategy: Literal["group_by_length", "random", "sequential"] = "group_by_length"
    """Order of the training examples: batches of similar length (less padding), random, or as in the file."""
    seed: Annotated[int, Flag(group=TRAINING)] = Field(default=1, ge=0, lt=2**32)
    """Seed of the initial weights, the order of the examples, dropout and masking."""
    data_seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Seed of the order of the training examples; the same as seed by default."""
    bf16: Annotated[bool | None, Flag(group=TRAINING)] = None
    """Mixed precision in bf16; unset uses it on a GPU that has it."""
    fp16: bool | None = None
    """Mixed precision in fp16, on a GPU."""
    torch_compile: bool = False
    """Compile the model with torch.compile."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing: less memory, more compute."""
    use_cpu: bool = False
    """Train on the CPU even if there is a GPU."""
    dataloader_num_workers: int = Field(default=0, ge=0)
    """Number of processes that prepare batches; 0 prepares them in the main process."""
    report_to: tuple[str, ...] = ()
    """Experiment trackers besides history.jsonl: tensorboard, trackio, wandb …"""
    fast_dropout: bool = True
    """On a CPU, draw dropout masks with a faster random number generator."""
    cls_only_last_layer: bool = True
    """In the last layer of a classifier, compute only the token that the head reads; the results are the same."""

    @classmethod
    def undeclared(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """Unknown, removed and refused names, and passed-on fields of the wrong type."""
        for key, value in given.items():
            if key in cls.model_fields:
                continue
            if key in REMOVED:
                yield key, "removed from transformers", f"Use {REMOVED[key].field}{REMOVED[key].note}."
            elif key in REFUSED:
                yield key, f"can't be set in a recipe: {REFUSED[key]}", ""
            elif key not in argument_fields():
                near = closest(key, [*cls.model_fields, *argument_fields()], cutoff=0.7)
                hint = f"Did you mean train.{near}?" if near else ""
                yield key, "not a field of TrainingArguments in the installed transformers", hint
            elif problem := argument_fields()[key].problem(value):
                yield key, f"{problem[:1].lower()}{problem[1:]}; got {value!r}", argument_fields()[key].help

    @model_validator(mode="before")
    @classmethod
    def _check_undeclared(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            problems = [f"{key}: {message}. {hint}".strip() for key, message, hint in cls.undeclared(given)]
            if problems:
                raise ValueError("; ".join(problems))
        return given

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_tracker(cls, value: Any) -> Any:
        """TrainingArguments takes one name or a list; none is an empty list."""
        names = [value] if isinstance(value, str) else value
        return () if names in (None, ["none"], ("none",)) else names

    @field_validator("lr_scheduler_kwargs", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        """TrainingArguments takes a dict or its JSON text."""
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"expected a mapping, or its JSON text: {error}") from error

    @field_validator("optim", "lr_scheduler_type")
    @classmethod
    def _known_name(cls, value: str, info: Any) -> str:
        if value in (DEFAULT_OPTIM, MUON, "linear", STABLE_DECAY, "constant_with_warmup", "cosine"):
            return value  # without reading the source of transformers
        known = argument_fields()[info.field_name].choices + ((MUON,) if info.field_name == "optim" else ())
        if value not in known:
            near = DEFAULT_OPTIM if value in ("adam", "adamw") else closest(value, known)
            raise ValueError(f"expected one of {', '.join(known)}" + (f" (did you mean {near}?)" if near else ""))
        return value

    @field_validator("metric_for_best_model")
    @classmethod
    def _without_prefix(cls, value: str | None) -> str | None:
        """Trainer takes eval_loss for loss."""
        return value if value is None else value.removeprefix("eval_")

    @field_validator("max_steps")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if value == 0:
            raise ValueError("expected at least 1 step, or -1 to train for num_train_epochs")
        return value

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> TrainSection:
        """A setting that has no effect next to the others is a mistake in the recipe."""
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 exclude each other; set one of them")
        if self.lr_scheduler_type == CONSTANT and self.warmup_steps > 0:
            raise ValueError(
                "lr_scheduler_type constant skips the warmup; use constant_with_warmup, or set warmup_steps to 0"
            )
        if self.max_tokens_per_batch is not None and self.auto_find_batch_size:
            raise ValueError("auto_find_batch_size and max_tokens_per_batch exclude each other; set one of them")
        if self.optim == MUON and (self.optim_args or "").partition("=")[0] not in ("", "momentum"):
            raise ValueError(f"optim_args of muon is momentum=X; got {self.optim_args!r}")
        return self

    @model_validator(mode="after")
    def _evaluate_and_save_together(self) -> TrainSection:
        """Refuse an evaluation without its checkpoint."""
        given = {name: getattr(self, name) for name in ("eval_strategy", "save_strategy") if getattr(self, name)}
        if len(set(given.values())) > 1:
            raise ValueError(
                f"eval_strategy is {self.eval_strategy} and save_strategy is {self.save_strategy}: every evaluated "
                "model has its checkpoint, so leave save_strategy out"
            )
        steps = {name: getattr(self, name) for name in ("eval_steps", "save_steps") if getattr(self, name)}
        if len(set(steps.values())) > 1:
            raise ValueError(
                f"eval_steps is {self.eval_steps:g} and save_steps is {self.save_steps:g}: every evaluated model has "
                "its checkpoint, so leave save_steps out"
            )
        if steps and "epoch" in given.values():
            raise ValueError(
                f"{next(iter(steps))} does nothing with {next(iter(given))} epoch; set eval_strategy to steps, or "
                "leave it out"
            )
        return self

    @property
    def evaluates_every(self) -> float | None:
        """Number of steps between two evaluations, or their ratio; None evaluates once an epoch."""
        steps = self.eval_steps or self.save_steps
        if steps is None and "steps" in (self.eval_strategy, self.save_strategy):
            return self.logging_steps  # as in TrainingArguments
        return steps

    @property
    def best_metric(self) -> str:
        """The metric that selects the best checkpoint; a recipe states it."""
        assert self.metric_for_best_model is not None, "a recipe fills it in"
        return self.metric_for_best_model

    @property
    def prefers_higher(self) -> bool:
        """Whether a higher metric_for_best_model is better."""
        known = self.metric_for_best_model not in LOWER_IS_BETTER
        return known if self.greater_is_better is None else self.greater_is_better

    @property
    def passed_on(self) -> dict[str, Any]:
        """The fields of TrainingArguments that are not declared here, as they were given."""
        return dict(self.model_extra or {})

    @property
    def precision(self) -> str | None:
        """bf16, fp16 or fp32 where both switches say so; None leaves the choice to the machine."""
        if self.bf16 or self.fp16:
            return "bf16" if self.bf16 else "fp16"
        return "fp32" if self.bf16 is False else None

    @property
    def order_seed(self) -> int:
        """The seed of the order of the training examples."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def muon_momentum(self) -> float | None:
        """The momentum among optim_args, where there is one."""
        _, _, value = (self.optim_args or "").partition("=")
        return float(value) if self.optim == MUON and value else None
