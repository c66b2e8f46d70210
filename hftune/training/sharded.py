"""Weights in checkpoints, whole or in shards: the layer of the trainer that saves them and brings them back.

Under FSDP or DeepSpeed no process holds all weights. The main process then keeps the model as it was and trains a copy
that is taken apart; checkpoints hold gathered weights, the same file as always; at the end the best of them go into the
model that was kept, which is saved, scored and verified like any other. ``hftune.training.fitting`` calls
``take_apart`` and ``put_together``; ``hftune.training.trainer`` is the next layer.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, save_fsdp_optimizer
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.trainer import SCHEDULER_NAME

from hftune.config.train import MUON, TrainSection
from hftune.errors import HftuneError
from hftune.training import weights
from hftune.training.launch import is_main_process
from hftune.training.matrices import blocks
from hftune.training.parts import PartsTrainer

NOT_OURS = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}
"""Ways to take a model apart that a launcher may ask for, and that have no weights by name."""


def refuse_what_breaks(section: TrainSection) -> None:
    """Refuse launches that can't be trained or saved so.

    Raises:
        HftuneError: Says which, and what to write in its place.
    """
    for variable, name in NOT_OURS.items():
        if _told(variable):
            raise HftuneError(
                f"the launch asks for {name}, which hftune does not train with",
                hint="use FSDP or DeepSpeed: recipes/accelerate holds config files",
            )
    asked = checkpoint_kind()
    if asked is None:
        return
    by_fsdp = _told("ACCELERATE_USE_FSDP")
    if by_fsdp and os.environ.get("FSDP_VERSION", "1") != "2":
        raise HftuneError(
            "the launch asks for version 1 of FSDP, which flattens weights so that they have no names",
            hint="write fsdp_version: 2 in the launch config's fsdp_config, or pass --fsdp_version 2",
        )
    if by_fsdp and section.gradient_checkpointing and _told("FSDP_ACTIVATION_CHECKPOINTING"):
        raise HftuneError(
            "train.gradient_checkpointing and the launch config's fsdp_activation_checkpointing do the same",
            hint="set train.gradient_checkpointing=false",
        )
    if section.optim == MUON:
        raise HftuneError(
            f"train.optim is muon, which needs whole matrices, but {asked.split()[0]} takes them apart",
            hint="set train.optim=adamw_torch_fused, or launch without sharding",
        )


def refuse_whole_copies(arguments: TrainingArguments) -> None:
    """Refuse to train whole copies where FSDP was asked for; accelerate would on CPUs, and say nothing.

    Raises:
        HftuneError: There is nothing to shard on.
    """
    found = arguments.distributed_state.distributed_type
    if _told("ACCELERATE_USE_FSDP") and found in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise HftuneError(
            f"the launch asks for FSDP, but on {arguments.device.type} accelerate shards nothing",
            hint="launch without it: accelerate launch --multi_gpu --num_processes N -m hftune …",
        )


def checkpoint_kind() -> str | None:
    """How a checkpoint of this launch holds the optimizer's state; None for the plain file that one process writes."""
    if _told("ACCELERATE_USE_FSDP"):
        return f"FSDP {os.environ.get('FSDP_STATE_DICT_TYPE', 'SHARDED_STATE_DICT')}"
    if _told("ACCELERATE_USE_DEEPSPEED"):
        return f"DeepSpeed ZeRO-{os.environ.get('ACCELERATE_DEEPSPEED_ZERO_STAGE', '2')}"
    return None


def _told(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() == "true"


class ShardedTrainer(PartsTrainer):
    """Trainer whose checkpoints hold every weight that moves, by name, however many processes share them."""

    model: Any
    model_wrapped: Any

    def __init__(self, **kwargs: Any) -> None:
        """Everything is the next layer's."""
        self._kept: nn.Module | None = None
        super().__init__(**kwargs)

    @property
    def sharding(self) -> str | None:
        """How the weights are shared out among the processes; None where each has all of them."""
        if self.is_fsdp_enabled:
            return f"FSDP{self.accelerator.state.fsdp_plugin.fsdp_version}"
        if self.is_deepspeed_enabled:
            return f"DeepSpeed ZeRO-{self.accelerator.state.deepspeed_plugin.zero_stage}"
        return None

    def take_apart(self) -> None:
        """Leave the model as it is and train a copy of it, where that will be taken apart."""
        if not self.sharding:
            return
        if is_main_process():
            self._kept = self.model
            self.model = self.model_wrapped = copy.deepcopy(self.model)
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin is not None and plugin.transformer_cls_names_to_wrap is None:
            # transformers also names BERT's embeddings, and accelerate then shards the words' twice, which fails.
            plugin.transformer_cls_names_to_wrap = sorted({type(block).__name__ for _, block in blocks(self.model)})

    def put_together(self) -> None:
        """Let the copy go, and put the best weights into the model that was kept."""
        if self.is_deepspeed_enabled:
            unset_hf_deepspeed_config()  # models that are loaded from here on stay whole
        if self._kept is None:
            return
        self.model = self.model_wrapped = self._kept
        self._kept = None
        if self.state.best_model_checkpoint:
            weights.load(self.model, Path(self.state.best_model_checkpoint))

    # ---- what Trainer calls ----

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate. With no backward pass after it FSDP leaves weights gathered, and they are not the optimizer's."""
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        for part in self.model.modules() if self.is_fsdp_enabled else ():
            if isinstance(part, FSDPModule):
                part.reshard()
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """A checkpoint holds the weights that move; the artifact is written elsewhere, by the task."""
        if not _internal_call:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save or self.sharding:
            assert output_dir is not None, "checkpoints have a place"
            weights.save(self.model, Path(output_dir), write=self.args.should_save)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        weights.load(self.model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        if not self.sharding:  # put_together does it otherwise
            weights.load(self.model, Path(self.state.best_model_checkpoint))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Under FSDP Trainer would write all weights a second time, as a pickle."""
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        plugin = self.accelerator.state.fsdp_plugin
        save_fsdp_optimizer(plugin, self.accelerator, self.optimizer, self.model, output_dir)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm over all shards, as a plain number."""
        norm = super()._get_grad_norm(model, grad_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm
