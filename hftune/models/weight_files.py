"""Which file of a checkpoint holds the weights: safetensors, else pytorch_model.bin; other formats are refused.

Also switches off the thread in which transformers asks the Hub to convert a repository that has only .bin weights: it
would open a pull request in somebody else's repository. Used by ``hftune.models.checkpoint``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import HfApi, constants, try_to_load_from_cache

from hftune import pickles
from hftune.errors import HftuneError

logger = logging.getLogger(__name__)

SAFE = ("model.safetensors", "model.safetensors.index.json")
BIN = ("pytorch_model.bin", "pytorch_model.bin.index.json")
CONFIG, ADAPTER = "config.json", "adapter_config.json"
ONNX = "model.onnx"
FORMATS = {
    "*.h5": "TensorFlow",
    "*.msgpack": "Flax",
    "*.ckpt": "a TensorFlow or Lightning checkpoint",
    "*.ckpt.*": "a TensorFlow checkpoint",
    "*.ot": "Rust",
    "*.gguf": "GGUF",
    "*.onnx": "ONNX",
    "*.mlmodel": "Core ML",
    "*.safetensors": "another name than model.safetensors",
    "*.bin": "another name than pytorch_model.bin",
    "*.pt": "a PyTorch file of its own layout",
    "*.pth": "a PyTorch file of its own layout",
}
NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"
"""transformers reads it in every ``from_pretrained``."""
PATIENCE = 10.0
"""Seconds that the Hub has for its first answer."""


class HubState(NamedTuple):
    """A Hub repository at a revision."""

    commit: str
    files: tuple[str, ...]


@lru_cache(maxsize=64)
def ask_hub(repo: str, revision: str | None) -> HubState:
    """The state of a Hub repository, by one request; raises what huggingface_hub raises."""
    info = HfApi().model_info(repo, revision=revision, timeout=PATIENCE)
    assert info.sha is not None, "the Hub names the commit of every revision"
    return HubState(info.sha, tuple(file.rfilename for file in info.siblings or ()))


def hub_state(repo: str, revision: str | None) -> HubState | None:
    """The same; None without an answer: the loaders that come next look into the cache, and explain what is missing."""
    if constants.HF_HUB_OFFLINE:
        return None
    try:
        return ask_hub(repo, revision)
    except Exception as error:
        logger.debug("no file list of %s: %s", repo, error)
        return None


def file_names(location: str, revision: str | None) -> Collection[str] | None:
    """The files of a checkpoint, in a folder or on the Hub; None if neither Hub nor cache tells."""
    folder = Path(location)
    if folder.is_dir():
        return {path.name for path in folder.iterdir()}
    state = hub_state(location, revision)
    if state is not None:
        return state.files
    cached = [name for name in (*SAFE, *BIN) if cached_path(location, name, revision)]
    return [CONFIG, *cached] if cached else None


def check_weights(name: str, location: str, revision: str | None) -> None:
    """Refuse a checkpoint without weights that can be loaded here.

    Args:
        name: What the user named.
        location: The folder or Hub id that is loaded.
        revision: Of the Hub repository.

    Raises:
        HftuneError: It has weights in other formats only, or none.
    """
    names = file_names(location, revision)
    if names is None or {*SAFE, *BIN, ADAPTER} & set(names):
        return
    if ONNX in names and Path(location).is_dir():
        return  # hftune export wrote it
    found = [f"{file} ({kind})" for file in sorted(names) if "/" not in file and (kind := _format(file))]
    raise HftuneError(
        f"{name} has no weights that can be loaded: expected model.safetensors or pytorch_model.bin, found "
        f"{', '.join(found) or 'no weights'}",
        hint="choose a checkpoint with PyTorch weights; TensorFlow and Flax weights can be converted once with "
        "transformers 4 (from_pretrained(…, from_tf=True) or from_flax=True, then save_pretrained)",
    )


def request_no_conversion() -> None:
    """Call before each ``from_pretrained`` that loads weights."""
    os.environ[NO_CONVERSION] = "1"


def report_bin(name: str, location: str, revision: str | None) -> None:
    """One line for weights that are loaded from a .bin file."""
    names = file_names(location, revision) or ()
    if BIN[0] in names and not set(SAFE) & set(names):
        _report(BIN[0], name)
    elif BIN[1] in names and not set(SAFE) & set(names):
        _report("pytorch_model-*.bin", name)


def report_adapter_bin(name: str) -> None:
    """The same for the weights of an adapter."""
    _report("adapter_model.bin", name)


def refuse_bad_bin(location: str, revision: str | None) -> None:
    """After a load failed: refuse the .bin file that it failed over, if it was one.

    Raises:
        HftuneError: Names the file.
    """
    for path in _bin_files(location, revision):
        if reason := pickles.fault(path):
            raise pickles.refused(
                path,
                reason,
                hint="don't use this file: take the checkpoint from its author again, or choose one with "
                ".safetensors weights",
            )


def _report(file: str, name: str) -> None:
    logger.info("Loading %s with torch.load(weights_only=True): %s has no safetensors weights", file, name)


def _format(file: str) -> str | None:
    return next((kind for pattern, kind in FORMATS.items() if fnmatch(file, pattern)), None)


def cached_path(location: str, name: str, revision: str | None) -> Path | None:
    """A file of a Hub repository that was downloaded before."""
    try:
        found = try_to_load_from_cache(location, name, revision=revision)
    except ValueError:  # a name that no repository can have
        return None
    return Path(found) if isinstance(found, str) else None


def _bin_files(location: str, revision: str | None) -> Iterator[Path]:
    """Files of .bin weights that are on this machine, shards included, unless safetensors weights come first."""
    folder = Path(location)

    def at(name: str) -> Path | None:
        if folder.is_dir():
            return folder / name if (folder / name).is_file() else None
        return cached_path(location, name, revision)

    if any(at(name) for name in SAFE):
        return
    whole, index = at(BIN[0]), at(BIN[1])
    if whole is not None:
        yield whole
    elif index is not None:
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            return
        for shard in sorted(map(str, shards)):
            if path := at(shard):
                yield path
