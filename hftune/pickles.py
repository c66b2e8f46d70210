"""Read pickles with ``torch.load(weights_only=True)``, which runs no code from the file, or refuse them.

transformers and peft load .bin weights that way themselves, but their errors suggest ``weights_only=False``. Files are
therefore inspected here first, and the user gets an error that names the file and what is wrong with it.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError

FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch reads it in every ``torch.load``; it takes precedence over ``weights_only=False`` of the caller."""
FORCE_NOT = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""The opposite; torch refuses to load anything if both are set."""
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_DEEPSPEED = (
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
)
"""Plain classes that DeepSpeed's checkpoints contain."""
_METADATA = "torch.distributed.checkpoint.metadata"
_DISTRIBUTED = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorStorageMetadata", "BytesStorageMetadata")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
}
"""All classes that the index of a sharded checkpoint (``.metadata``) contains, apart from dtypes."""


def fault(path: Path) -> str | None:
    """Why a file can't be read with ``weights_only=True``; None if it can. Runs no code and reads no tensor data."""
    import torch
    from transformers.trainer_pt_utils import safe_globals

    try:
        with safe_globals():  # arrays of numbers, as in rng_state.pth
            torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:  # torch, zipfile and the unpickler each have their own for a file that is not theirs
        found = _GLOBAL.search(str(error))
        return f"it contains {found[1]}, which is not a tensor" if found else "torch.save did not write it"
    return None


def metadata_fault(path: Path) -> str | None:
    """The same for the ``.metadata`` of a sharded checkpoint."""
    # torch.distributed.checkpoint reads it with pickle.load and without restrictions, so it is unpickled here first
    # with an allowlist: find_class is the only way for a pickle to name a function to call.
    try:
        with path.open("rb") as file:
            _MetadataUnpickler(file).load()
    except Exception as error:  # an unpickler raises almost anything over a file that is damaged
        return str(error) if isinstance(error, _Refused) else "it is damaged"
    return None


class _Refused(pickle.UnpicklingError):
    """A class that a file may not name."""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _DISTRIBUTED:
            raise _Refused(f"it contains {module}.{name}, which is not allowed in it")
        return super().find_class(module, name)


def refused(path: Path, reason: str, *, hint: str) -> HftuneError:
    """The error for a pickle that is not read."""
    return HftuneError(
        f"{path} can't be loaded safely: {reason}. hftune loads pickles only with torch.load(weights_only=True), "
        "which runs no code from the file",
        hint=hint,
    )


@contextmanager
def weights_only() -> Iterator[None]:
    """Make every ``torch.load`` in the block safe: DeepSpeed and torch's sharded reader pass weights_only=False."""
    from torch.serialization import safe_globals

    before = {name: os.environ.pop(name, None) for name in (FORCE, FORCE_NOT)}
    os.environ[FORCE] = "1"
    try:
        with safe_globals(_deepspeed_classes()):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _deepspeed_classes() -> list[Any]:
    """The classes of a DeepSpeed that this process uses; a checkpoint of it is read only then."""
    known = [(sys.modules.get(module), name) for module, name in _DEEPSPEED]
    return [getattr(module, name) for module, name in known if module is not None and name in vars(module)]
