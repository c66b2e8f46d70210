"""The weights that move, by name, as safetensors: what checkpoints hold and what best-restoration reads.

Every parameter with ``requires_grad`` and every buffer is kept under its own name, which is exact for each tuning
method; Trainer's own way through adapters is not (p-tuning, projected prefixes). Frozen weights come from where they
came before and are only fingerprinted. Weights that lie in shards are gathered one by one, so that the file is the same
for every launch. Called by ``hftune.training.sharded``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from hftune.errors import HftuneError

WEIGHTS = "trainable.safetensors"


WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""What accelerate's wrappers (activation checkpointing, torch.compile) put into names."""


def moving(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters and buffers by name; tied ones under their first name."""
    tensors = {name: value for name, value in model.named_parameters() if value.requires_grad}
    named = {**tensors, **dict(model.named_buffers())}
    return {_plain(name): value for name, value in named.items()}


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def save(model: nn.Module, folder: Path, *, write: bool = True) -> None:
    """Write the moving weights.

    Args:
        model: All processes call this where it lies in shards.
        folder: Where to.
        write: Whether this is the process that writes; the others only give their shards.
    """
    tensors = {}
    for name, value in moving(model).items():
        with whole(value) as gathered:
            if write:
                # Cloned, since buffers may be views of one another, which safetensors refuses.
                tensors[name] = gathered.detach().to("cpu", copy=True).contiguous()
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@contextmanager
def whole(value: Tensor) -> Iterator[Tensor]:
    """A weight as one tensor, gathered where each process holds a part; all processes ask together."""
    if isinstance(value, DTensor):
        yield value.full_tensor()
    elif "ds_id" in vars(value):  # DeepSpeed's ZeRO-3 marks what it has taken apart
        from deepspeed.zero import GatheredParameters

        with GatheredParameters([value]):
            yield value
    else:
        yield value


def load(model: nn.Module, folder: Path) -> None:
    """Put the moving weights back in place, bit for bit.

    Raises:
        HftuneError: The checkpoint is of another model.
    """
    saved, here = load_file(folder / WEIGHTS), moving(model)
    strange = sorted(saved.keys() ^ here.keys()) or [n for n in saved if saved[n].shape != here[n].shape]
    if strange:
        raise HftuneError(
            f"{folder} was saved from another model: {len(strange)} of {len(here)} weights differ in name or shape, "
            f"first {strange[0]}",
            hint="resume with the model and method that the run began with",
        )
    with torch.no_grad():
        for name, value in here.items():
            if isinstance(value, DTensor):
                # Every process has the file, so each takes its own part of it and nothing is sent.
                given = saved[name].to(value.device_mesh.device_type)
                value.copy_(distribute_tensor(given, value.device_mesh, value.placements, src_data_rank=None))
            else:
                value.copy_(saved[name])


def frozen_fingerprint(model: nn.Module) -> str:
    """Hash of all parameters that do not move: resuming over other frozen weights must be refused."""
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        if not value.requires_grad:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
