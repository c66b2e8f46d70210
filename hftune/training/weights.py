"""The weights that move, by name, as safetensors: what checkpoints hold and what best-restoration reads.

Every parameter with ``requires_grad`` and every buffer is kept under its own name, which is exact for each tuning
method; Trainer's own way through adapters is not (p-tuning, projected prefixes). Frozen weights come from where they
came before and are only fingerprinted. Called by ``hftune.training.trainer``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hftune.errors import HftuneError

WEIGHTS = "trainable.safetensors"


def moving(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters and buffers by name; tied ones under their first name."""
    tensors = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return {**tensors, **dict(model.named_buffers())}


def save(model: nn.Module, folder: Path) -> None:
    """Write the moving weights."""
    folder.mkdir(parents=True, exist_ok=True)
    # Cloned, since buffers may be views of one another, which safetensors refuses.
    tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in moving(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


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
            value.copy_(saved[name])


def frozen_fingerprint(model: nn.Module) -> str:
    """Hash of all parameters that do not move: resuming over other frozen weights must be refused."""
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        if not value.requires_grad:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
