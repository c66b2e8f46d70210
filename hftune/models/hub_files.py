"""The files of a checkpoint, in a folder or on the Hub: weights in a format that can be loaded, and hftune.json.

Weights are read from safetensors, else from pytorch_model.bin; other formats are refused. hftune.json has what is
neither in the weights nor in the tokenizer: the task, the label names, the longest input.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hftune import pickles
from hftune.errors import HftuneError, nearby_path
from hftune.files import Damaged, read_json, write_json
from hftune.portability import is_link

logger = logging.getLogger(__name__)

SAFE = ("model.safetensors", "model.safetensors.index.json")
BIN = ("pytorch_model.bin", "pytorch_model.bin.index.json")
CONFIG, ADAPTER, METADATA = "config.json", "adapter_config.json", "hftune.json"
ONNX = "model.onnx"
OTHER_FORMATS = {
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
METADATA_VERSION = 1
NEXT_TOKEN_TASKS = ("span", "clm", "answer")
"""The tasks whose saved models predict the next token."""
MOST_NEAR = 200
"""Folders that are searched for a model with a similar name."""
"""Version of hftune.json."""
TIMEOUT = 10.0
"""Seconds that the Hub has for its first answer."""
REQUIRED: Any = None
"""The default of a key that may be absent but not null."""


class Purpose(NamedTuple):
    """What a checkpoint is loaded for, for the messages."""

    what: str
    offline: str
    """What to do without a network."""
    causal: bool | None = None
    """Whether only models that predict the next token serve, or only others; None means both."""


_OFFLINE = "use --model scratch:{} (trained from scratch, no network), or a folder that has the checkpoint"
TRAINING = Purpose("model", _OFFLINE.format("bert-tiny"), causal=False)
TRAINING_CAUSAL = Purpose("model", _OFFLINE.format("mingpt"), causal=True)
INFERENCE = Purpose("model", "name a run, or a folder that has the model")
TOKENIZER = Purpose("tokenizer", "name a run, or a folder that has the tokenizer")


class _Metadata(BaseModel):
    """The entries of hftune.json that are read here; there may be others."""

    model_config = ConfigDict(extra="allow", strict=True)

    version: int = REQUIRED
    task: str = REQUIRED
    labels: Annotated[list[str], Field(min_length=1)] = REQUIRED
    max_length: Annotated[int, Field(ge=1, lt=2**31)] = REQUIRED
    truncation: Literal["longest_first", "only_first", "only_second"] = REQUIRED
    pairs: bool | None = None
    pooling: Literal["cls", "mean", "max"] | None = None
    longest_answer: Annotated[int, Field(ge=1, lt=2**31)] = REQUIRED
    document_start: bool = REQUIRED


class HubState(NamedTuple):
    """A Hub repository at a revision."""

    commit: str
    files: tuple[str, ...]


class ModelFiles:
    """The files of a model: in a folder, or in a repository on the Hub at a revision.

    The Hub is asked once which files there are, with a short timeout: the loaders would retry for a long time. Without
    an answer, only the files that were downloaded before are there, as for the loaders.
    """

    def __init__(self, location: str, revision: str | None = None) -> None:
        self.location, self.revision = location, revision
        self.folder = Path(location) if Path(location).is_dir() else None

    @cached_property
    def answer(self) -> HubState | Exception | None:
        """The answer of the Hub; None without a request."""
        if self.folder or constants.HF_HUB_OFFLINE:
            return None
        try:
            info = HfApi().model_info(self.location, revision=self.revision, timeout=TIMEOUT)
        except Exception as error:
            logger.debug("no file list of %s: %s", self.location, error)
            return error
        assert info.sha is not None, "the Hub names the commit of every revision"
        return HubState(info.sha, tuple(file.rfilename for file in info.siblings or ()))

    def local(self, name: str) -> Path | None:
        """A file that is on this machine."""
        if self.folder is not None:
            path = self.folder / name
            return path if path.is_file() else None
        try:
            found = try_to_load_from_cache(self.location, name, revision=self.revision)
        except ValueError:  # not a valid name of a repository
            return None
        return Path(found) if isinstance(found, str) else None

    def path(self, name: str) -> Path | None:
        """A file, downloaded if needed; None if there is none. Raises what huggingface_hub raises."""
        state = self.answer
        if not isinstance(state, HubState):
            return self.local(name)
        # At a commit: what was downloaded before is not requested again.
        return Path(hf_hub_download(self.location, name, revision=state.commit)) if name in state.files else None

    def names(self) -> Collection[str] | None:
        """All files, those of a folder without its subfolders; None if neither the Hub nor the cache has an answer."""
        if self.folder is not None:
            return {path.name for path in self.folder.iterdir()}
        if isinstance(self.answer, HubState):
            return self.answer.files
        cached = [name for name in (*SAFE, *BIN) if self.local(name)]
        return [CONFIG, *cached] if cached else None

    def values(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None if it can't be read, which loading the model will explain."""
        try:
            values = read_lenient(self.path(name))
        except (OSError, ValueError):  # no such repository, not a valid name
            return None
        return values if isinstance(values, dict) else None

    def bin_files(self) -> Iterator[Path]:
        """The .bin files on this machine that would be loaded, with shards; none if there are safetensors weights."""
        if any(self.local(name) for name in SAFE):
            return
        whole, index = self.local(BIN[0]), self.local(BIN[1])
        if whole is not None:
            yield whole
        elif index is not None:
            try:
                shards = set(read_lenient(index)["weight_map"].values())
            except (LookupError, AttributeError, TypeError):  # no index, which loading the model will explain
                return
            for shard in sorted(map(str, shards)):
                if path := self.local(shard):
                    yield path


def read_lenient(path: Path | None) -> Any:
    """The content of a JSON file; None if it can't be read, which loading the model will explain."""
    try:
        return None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def locate(name: str, purpose: Purpose = TRAINING) -> str:
    """The name for ``from_pretrained``: the model folder of a run, or else the name itself."""
    refuse_missing(name, purpose)
    folder = Path(name)
    if (folder / "recipe.yaml").is_file() and (folder / "model").is_dir():
        if is_link(folder / "model"):
            raise HftuneError(
                f"{folder / 'model'} is a link, which leads out of the run {folder}",
                hint="put the files themselves there; nothing outside a run is read through it",
            )
        return str(folder / "model")
    seeds = sorted(str(run.parent) for run in folder.glob("seed-*/recipe.yaml")) if folder.is_dir() else []
    if seeds:
        many = f"{len(seeds)} runs" if len(seeds) > 1 else "one run"
        raise HftuneError(f"{name} is a group of seeds ({many}), not a run", hint=f"name a run in it: {seeds[0]}")
    if folder.is_file():
        raise HftuneError(
            f"{name} is a file, not a {purpose.what}",
            hint="name a run or a folder with a model; a file of data is what a model is trained or scored on",
        )
    if folder.is_dir() and not (folder / CONFIG).is_file() and not (folder / ADAPTER).is_file():
        raise HftuneError(
            f"the folder {name} has no model: there is no config.json in it",
            hint="give the folder that save_pretrained wrote, or an hftune run that has finished",
        )
    return name


def refuse_missing(name: str, purpose: Purpose = INFERENCE) -> None:
    """Refuse a path that does not exist. What could be a name on the Hub passes."""
    folder = Path(name)
    try:
        exists = folder.exists()
    except OSError as error:  # such as a name that is too long
        raise HftuneError(
            f"{name[:100]!r}… is not a possible name of a folder or of a model on the Hub", hint=purpose.offline
        ) from error
    beside_runs = name.count("/") == 1 and any(folder.parent.glob("*/recipe.yaml"))
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or beside_runs
    if looks_like_path and not exists:
        near = nearby_path(folder, models_near(name, causal=purpose.causal))
        raise HftuneError(
            f"there is no folder {name}",
            hint=near or f"check the path (a Hub id has the form user/name), or {purpose.offline}",
        )


def models_near(name: str, *, causal: bool | None = None) -> list[Path]:
    """Runs and model folders next to a path that does not exist, or below runs/.

    Args:
        name: The missing path.
        causal: Only models that predict the next token, or only those that do not; None means both.
    """
    folders = dict.fromkeys([Path(name).expanduser().parent, Path("runs")])
    try:
        found = [entry for folder in folders if folder.is_dir() for entry in sorted(folder.iterdir())[:MOST_NEAR]]
    except OSError:
        return []
    return [path for path in found if (kind := _predicts_next(path)) is not None and causal in (None, kind)]


def _predicts_next(path: Path) -> bool | None:
    """Whether a run or a folder has a model that predicts the next token; None if it has no model."""
    folder = path / "model" if (path / "recipe.yaml").is_file() else path
    metadata, config = (read_lenient(folder / file) for file in (METADATA, CONFIG))
    if isinstance(metadata, dict) and "task" in metadata:
        return metadata["task"] in NEXT_TOKEN_TASKS
    return None if config is None else bool(re.search(r"ForCausalLM|LMHeadModel", str(config)))


def load_metadata(files: ModelFiles) -> dict[str, Any]:
    """The content of hftune.json; empty for a model that hftune did not save.

    Raises:
        Damaged: It has another format.
        HftuneError: Another version of hftune wrote it.
    """
    path = files.path(METADATA)
    if path is None:
        return {}
    metadata = read_json(path)
    try:
        _Metadata.model_validate(metadata)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if (version := metadata.get("version")) != METADATA_VERSION:
        raise HftuneError(
            f"{files.location} was saved by another version of hftune: its {METADATA} has "
            f"{f'version {version}' if version else 'no version'}, this hftune reads version {METADATA_VERSION}",
            hint="train it again with this hftune, or use the one that saved it",
        )
    return metadata


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write hftune.json."""
    write_json(folder / METADATA, {"version": METADATA_VERSION, **metadata})


def check_weights(name: str, files: ModelFiles) -> None:
    """Refuse a checkpoint without weights that can be loaded; ``name`` is what the user gave."""
    names = files.names()
    if names is None or {*SAFE, *BIN, ADAPTER} & set(names):
        return
    if ONNX in names and files.folder:
        return  # written by hftune export
    found = [f"{file} ({kind})" for file in sorted(names) if "/" not in file and (kind := _format(file))]
    raise HftuneError(
        f"{name} has no weights that can be loaded: expected model.safetensors or pytorch_model.bin, found "
        f"{', '.join(found) or 'no weights'}",
        hint="choose a checkpoint with PyTorch weights; TensorFlow and Flax weights can be converted once with "
        "transformers 4 (from_pretrained(…, from_tf=True) or from_flax=True, then save_pretrained)",
    )


def _format(file: str) -> str | None:
    return next((kind for pattern, kind in OTHER_FORMATS.items() if fnmatch(file, pattern)), None)


def is_onnx(folder: Path) -> bool:
    """Whether a folder has a graph in place of weights, as ``hftune export`` writes it.

    Weights come first: a graph next to them may compute something else, and a user would not expect it to be used.
    """
    if not (folder / ONNX).is_file():
        return False
    weights = next((name for name in (*SAFE, *BIN, ADAPTER) if (folder / name).is_file()), None)
    if weights is not None:
        logger.info("Ignoring %s in %s: its weights are in %s", ONNX, folder, weights)
    return weights is None


def log_bin(name: str, files: ModelFiles) -> None:
    """Log that weights are loaded from a .bin file, if they are."""
    names = files.names() or ()
    if set(SAFE) & set(names):
        return
    if BIN[0] in names:
        log_bin_file(BIN[0], name)
    elif BIN[1] in names:
        log_bin_file("pytorch_model-*.bin", name)


def log_bin_file(file: str, name: str) -> None:
    """The same for a known file."""
    logger.info("Loading %s with torch.load(weights_only=True): %s has no safetensors weights", file, name)


def refuse_unsafe(path: Path) -> None:
    """Refuse a .bin file that has more than tensors."""
    if reason := pickles.fault(path):
        raise pickles.refused(
            path,
            reason,
            hint="don't use this file: get the model from its author again, or choose one with .safetensors weights",
        )
