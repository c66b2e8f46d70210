"""The ``train`` section: the fields of TrainingArguments by their own names, and a few other settings.

The fields that people set daily are declared, with a help text and a check. Every other field of the installed
TrainingArguments is accepted, checked and passed on, unless hftune must decide it: ``REFUSED`` has the reasons.
``hftune.training.arguments`` makes TrainingArguments of this section.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator, model_validator

from hftune.config.section import TRAINING, Flag, Section
from hftune.config.training_arguments import argument_fields
from hftune.errors import closest
from hftune.evaluation.scores import LOWER_IS_BETTER

DEFAULT_OPTIM = "adamw_torch_fused"
MUON = "muon"
CONSTANT = "constant"
STABLE_DECAY = "warmup_stable_decay"
WITHOUT_WARMUP = (CONSTANT, "reduce_lr_on_plateau", "greedy")
"""Schedulers of transformers that never warm up."""
OPTIM_ARGS: dict[str, tuple[str, ...]] = {
    "adamw_torch": (),
    DEFAULT_OPTIM: (),
    "adafactor": (),
    "sgd": ("momentum", "dampening", "nesterov"),
    "adagrad": ("lr_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "centered"),
    MUON: ("momentum",),
}
"""The optim_args that each optimizer reads; transformers ignores others. Optimizers of other packages check theirs."""
ADAM = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
WITHOUT_BETAS = ("adafactor", "sgd", "adagrad", "rmsprop")
SAVE_STEPS = 500
"""The save_steps of TrainingArguments."""
DECAY_RATIO = 0.6
"""Default ratio of the steps that ``warmup_stable_decay`` decays for."""


class Refused(NamedTuple):
    """Why a field of TrainingArguments can't be set."""

    reason: str
    used: Any = None
    """The value that hftune uses, which is accepted."""

    def refuses(self, value: Any) -> bool:
        """Whether a value is not the one that is used."""
        return self.used is None or value != self.used


_LAUNCHER = "the launcher shards the model: accelerate launch --config_file recipes/accelerate/{}.yaml -m hftune …"
_COMMAND = "a recipe does not select what is run: use the flag --{0}, or the argument {0} of hftune.train"
_GATHERED = "metrics are computed over the whole split, in the order of its examples"
_FP32 = "the saved model is scored in fp32, so that scores do not depend on the device"
_TRACKIO_SPACE = (
    "what is published is decided in the hub section; a Space of trackio is public unless made private there"
)
REFUSED: dict[str, Refused] = {
    # ---- flags of a command, and settings of another section ----
    "output_dir": Refused("the run directory is not part of a recipe: use --output-dir"),
    "overwrite_output_dir": Refused("not part of a recipe: use --overwrite, which moves the old run aside"),
    "resume_from_checkpoint": Refused("resuming is not part of a recipe: use --resume with --output-dir"),
    "do_train": Refused(_COMMAND.format("do_train")),
    "do_eval": Refused(_COMMAND.format("do_eval")),
    "do_predict": Refused(_COMMAND.format("do_predict")),
    **{
        name: Refused(f"publishing has a section of its own: set hub.{name}")
        for name in ("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_revision")
    },
    "hub_token": Refused("a token would be saved with every checkpoint: use HF_TOKEN or `hf auth login`"),
    "hub_always_push": Refused("uploads never overlap here, and each reports its result", False),
    # ---- what checkpoints and resuming rely on ----
    "load_best_model_at_end": Refused("the best checkpoint on validation is always restored", True),
    "ignore_data_skip": Refused("a resumed run must continue with the examples it has not seen yet", False),
    "restore_callback_states_from_checkpoint": Refused("a resumed run always restores early stopping", True),
    "save_only_model": Refused(
        "a checkpoint without its optimizer can't be resumed; save_total_limit saves disk", False
    ),
    "save_on_each_node": Refused("one process writes the checkpoints, to a disk that all machines share", False),
    "enable_jit_checkpoint": Refused("a checkpoint is saved on SIGTERM, SIGINT, SIGHUP and SIGUSR1 already", False),
    "dataloader_persistent_workers": Refused(
        "persistent workers would draw other random numbers after a resume", False
    ),
    "dataloader_in_order": Refused("batches must come in order, or a resumed run would get others", True),
    "dataloader_drop_last": Refused("every training example counts", False),
    "accelerator_config": Refused("batches are distributed by hftune; use the batch sizes of this section"),
    "average_tokens_across_devices": Refused("a token counts the same on any number of processes", True),
    # ---- what scores rely on ----
    "logging_nan_inf_filter": Refused("a loss that is not finite always stops the run", False),
    "debug": Refused("a loss or gradient that is not finite stops the run and names its examples", ""),
    "bf16_full_eval": Refused(_FP32, False),
    "fp16_full_eval": Refused(_FP32, False),
    "prediction_loss_only": Refused("metrics need predictions; metric_for_best_model: loss selects by loss", False),
    "batch_eval_metrics": Refused(f"{_GATHERED}; eval_accumulation_steps saves memory", False),
    "eval_do_concat_batches": Refused(_GATHERED, True),
    "eval_use_gather_object": Refused("with it, transformers loses examples of the evaluation", False),
    "include_for_metrics": Refused("metrics read predictions and labels only"),
    # ---- what the task or the launcher knows ----
    "remove_unused_columns": Refused("the task knows which columns its collator reads"),
    "label_names": Refused("the task knows which columns are labels"),
    "length_column_name": Refused("the length of every example is known"),
    "local_rank": Refused("the launcher sets it: use accelerate launch or torchrun", -1),
    "fsdp": Refused(_LAUNCHER.format("fsdp")),
    "fsdp_config": Refused(_LAUNCHER.format("fsdp")),
    "deepspeed": Refused(_LAUNCHER.format("deepspeed-zero2")),
    "parallelism_config": Refused("the launcher chooses between data parallelism, FSDP and DeepSpeed"),
    "ddp_backend": Refused("the device decides: nccl on GPUs, gloo on CPUs"),
    # ---- what would have no effect ----
    "disable_tqdm": Refused("the command line draws its own progress bar; redirect standard error to hide it", True),
    "log_level": Refused("the command line has its own log; --debug shows that of transformers", "passive"),
    "log_level_replica": Refused("only the main process writes to the terminal", "warning"),
    "log_on_each_node": Refused("only the main process writes to the terminal"),
    "skip_memory_metrics": Refused("peak memory is always in metrics.json", True),
    "use_liger_kernel": Refused("there are no Liger kernels for encoders and minGPT; try torch_compile", False),
    "liger_kernel_config": Refused("there are no Liger kernels for encoders and minGPT; try torch_compile"),
    "trackio_space_id": Refused(_TRACKIO_SPACE),
    "trackio_bucket_id": Refused(_TRACKIO_SPACE),
    "trackio_static_space_id": Refused(_TRACKIO_SPACE),
    "save_safetensors": Refused("removed from transformers, which always saves safetensors", True),
    "logging_dir": Refused("removed from transformers: TensorBoard's files are in the run directory"),
}
"""Fields of TrainingArguments, today's and removed ones, that hftune decides, each with its reason."""


class Removed(NamedTuple):
    """A name that transformers has removed, and its current name."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value
    note: str = ""
    """A note on the current name."""

    def noted(self, value: Any) -> str:
        """The note on a flag with this value; for a boolean flag, the value of the setting that replaces it."""
        if not self.note.startswith(": "):
            return self.note
        converted = self.convert(value)
        return f": {converted}" if converted else ""


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
"""Accepted as flags, with a notice that names the current one; an error in a recipe."""


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
    """Maximum number of tokens in a batch on one device, padding included; per_device_train_batch_size holds too."""
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
    """When to evaluate and save a checkpoint: every epoch, or every eval_steps; follows eval_steps by default."""
    eval_steps: Annotated[float | None, Flag(group=TRAINING)] = Field(default=None, gt=0.0)
    """Number of steps between two evaluations; a value below 1 is a ratio of all steps."""
    save_strategy: Literal["epoch", "steps", "best"] | None = None
    """When to save a checkpoint: same as eval_strategy by default; best saves only new best checkpoints."""
    save_steps: float | None = Field(default=None, gt=0.0)
    """Number of steps between two checkpoints: eval_steps by default, or a multiple of it. A new best model is always
    saved."""
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
    """Mixed precision in bf16; by default, on if there is a GPU that supports it."""
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
                if REFUSED[key].refuses(value):
                    yield key, f"can't be set in a recipe: {REFUSED[key].reason}", ""
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
            # A refused field with the value that hftune uses anyway is dropped: it changes nothing.
            return {key: value for key, value in given.items() if key not in REFUSED}
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

    @field_validator("optim_args")
    @classmethod
    def _key_value(cls, value: str | None) -> str | None:
        if value and not all("=" in part for part in value.split(",")):
            raise ValueError("expected key=value,key=value, as in momentum=0.9")
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

    @field_validator("eval_strategy", "save_strategy", mode="before")
    @classmethod
    def _refuse_no(cls, value: Any) -> Any:
        if value == "no":
            raise ValueError("the best checkpoint is selected on validation, so evaluation and saving can't be off")
        return value

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> TrainSection:
        """A setting that has no effect next to the others is a mistake in the recipe."""
        if message := next(chain(self._conflicts(), self._without_effect()), None):
            raise ValueError(message)
        if self.lr_scheduler_type in WITHOUT_WARMUP and "warmup_steps" not in self.model_fields_set:
            object.__setattr__(self, "warmup_steps", 0.0)  # frozen for its users; here it is still being made
        return self

    def _conflicts(self) -> Iterator[str]:
        """A message about each pair of settings that exclude each other."""
        if self.bf16 and self.fp16:
            yield "bf16 and fp16 exclude each other; set one of them"
        scheduler = self.lr_scheduler_type
        if scheduler in WITHOUT_WARMUP and "warmup_steps" in self.model_fields_set and self.warmup_steps > 0:
            other = ", or use constant_with_warmup" if scheduler == CONSTANT else ""
            yield f"lr_scheduler_type {scheduler} skips the warmup; set warmup_steps to 0{other}"
        if self.max_tokens_per_batch is not None and self.auto_find_batch_size:
            yield "auto_find_batch_size and max_tokens_per_batch exclude each other; set one of them"
        strategy, save = self.eval_strategy, self.save_strategy
        if strategy is not None and save not in (None, "best", strategy):
            yield (
                f"eval_strategy is {strategy} and save_strategy is {save}: a checkpoint is selected by its evaluation, "
                "so leave save_strategy out"
            )
        every, kept = self.evaluates_every, self.save_steps
        if (self.eval_steps or kept) and "epoch" in (strategy, save):
            steps = "eval_steps" if self.eval_steps else "save_steps"
            yield f"{steps} does nothing with eval_strategy epoch; set eval_strategy to steps, or leave it out"
        if every and kept and ((every < 1) != (kept < 1) or abs(kept / every - round(kept / every)) >= 1e-6):
            yield f"save_steps is {kept:g} and eval_steps is {every:g}: expected a multiple"

    def _without_effect(self) -> Iterator[str]:
        """A message about each setting that would have no effect, or with which a resumed run would differ."""
        given, scheduler = self.passed_on, self.lr_scheduler_type
        if scheduler in (CONSTANT, "constant_with_warmup") and self.lr_scheduler_kwargs:
            yield f"lr_scheduler_type {scheduler} takes no lr_scheduler_kwargs"
        decay = (self.lr_scheduler_kwargs or {}).get("num_decay_steps", 1)
        if isinstance(decay, bool) or not isinstance(decay, int | float) or decay <= 0:
            yield f"num_decay_steps is {decay!r}; expected a number of steps, or a ratio below 1"
        yield from self._ignored_by_optimizer()
        if "gradient_checkpointing_kwargs" in given and not self.gradient_checkpointing:
            yield "gradient_checkpointing_kwargs does nothing without gradient_checkpointing"
        kwargs = given.get("gradient_checkpointing_kwargs")
        if isinstance(kwargs, dict) and not kwargs.keys() <= {"use_reentrant", "every_n_layers"}:
            yield (
                "gradient_checkpointing_kwargs takes use_reentrant and every_n_layers; others change gradients or "
                "resuming"
            )
        logging = given.get("logging_strategy", "steps")
        if logging != "steps" and self.logging_steps != type(self).model_fields["logging_steps"].default:
            yield f"logging_steps does nothing with logging_strategy {logging}; leave one of them out"
        for name in ("torch_compile_backend", "torch_compile_mode"):
            if name in given and not self.torch_compile:
                yield f"{name} does nothing without torch_compile"
        if str(given.get("torch_compile_mode", "")).startswith("max-autotune"):
            yield (
                "torch_compile_mode max-autotune picks kernels by timing, so a resumed run would compute other numbers"
            )
        if given.get("dataloader_prefetch_factor") == 0:
            yield "dataloader_prefetch_factor is 0; expected 1 or more"
        for name in ("dataloader_prefetch_factor", "dataloader_multiprocessing_context"):
            if name in given and not self.dataloader_num_workers:
                yield f"{name} does nothing without dataloader_num_workers"
        if "project" in given and "trackio" not in self.report_to:
            yield "project is for trackio; add it to report_to"
        if given.get("ddp_static_graph") and (self.gradient_accumulation_steps > 1 or self.auto_find_batch_size):
            yield "ddp_static_graph does not work with gradient accumulation"

    def _ignored_by_optimizer(self) -> Iterator[str]:
        known, typed = OPTIM_ARGS.get(self.optim), _pairs(self.optim_args)
        if known is not None:  # optimizers of other packages check theirs
            if words := [key for key, value in typed.items() if not _is_number(value)]:
                yield f"optim_args {', '.join(words)} of {self.optim} must be numbers, or true and false"
            if unknown := [key for key in typed if key not in known]:
                takes = ", ".join(known) or "none"
                yield f"optim {self.optim} ignores optim_args {', '.join(unknown)}; it takes {takes}"
        betas = [name for name in ADAM if name in self.model_fields_set and getattr(self, name) != ADAM[name]]
        if betas and self.optim in WITHOUT_BETAS:
            yield f"optim {self.optim} ignores {', '.join(betas)}"
        if "optim_target_modules" in self.passed_on and not self.optim.startswith(("galore", "apollo")):
            yield "optim_target_modules is for the GaLore and APOLLO optimizers"

    @property
    def evaluates_every(self) -> float | None:
        """Number of steps between two evaluations, or their ratio; None evaluates once an epoch."""
        if self.eval_steps or self.eval_strategy == "steps":
            return self.eval_steps or self.logging_steps  # as in TrainingArguments
        if self.save_strategy == "steps":
            return self.save_steps or SAVE_STEPS
        return self.save_steps

    @property
    def best_metric(self) -> str:
        """``metric_for_best_model``, which is not None in a resolved recipe."""
        assert self.metric_for_best_model is not None, "a recipe fills it in"
        return self.metric_for_best_model

    @property
    def higher_is_better(self) -> bool:
        """``greater_is_better``, or its default for the metric."""
        known = self.metric_for_best_model not in LOWER_IS_BETTER
        return known if self.greater_is_better is None else self.greater_is_better

    def _passed_on(self) -> Collection[str]:
        return argument_fields().keys()

    @property
    def passed_on(self) -> dict[str, Any]:
        """The fields of TrainingArguments that are not declared here, as they were given."""
        return dict(self.model_extra or {})

    @property
    def precision(self) -> str | None:
        """bf16, fp16 or fp32 as ``bf16`` and ``fp16`` request it; None if both are unset and the device decides."""
        if self.bf16 or self.fp16:
            return "bf16" if self.bf16 else "fp16"
        return "fp32" if self.bf16 is False else None

    @property
    def order_seed(self) -> int:
        """``data_seed``, or ``seed`` if it is unset: the seed of the order of the training examples."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def muon_momentum(self) -> float | None:
        """The momentum in optim_args, or None."""
        value = _pairs(self.optim_args).get("momentum") if self.optim == MUON else None
        return None if value is None else float(value)


def _is_number(text: str) -> bool:
    try:
        return bool(float(text) + 1)
    except ValueError:
        return text.lower() in ("true", "false")


def _pairs(text: str | None) -> dict[str, str]:
    """``key=value,key=value``, as TrainingArguments has optim_args."""
    parts = [part.partition("=") for part in (text or "").replace(" ", "").split(",") if part]
    return {key: value for key, _, value in parts}
