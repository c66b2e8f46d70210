"""Everything that is opened to load a model is inside that model: one check for folders and for Hub repositories.

transformers, tokenizers and peft open files under names that they find in config.json, in an index of shards or in the
configuration of a tokenizer, and follow them anywhere. What they read is saved with the next model, and published with
it. Called by the other files of ``hftune.models`` before they load anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file

from hftune.errors import HftuneError
from hftune.files import entries
from hftune.models.weight_files import ADAPTER, BIN, CONFIG, SAFE, HubState, cached_path, hub_state
from hftune.portability import is_link

PARTS = ("", "base/", "mlm/")
"""Where a model can be in a folder or repository: alone, as the base of an adapter, beside a classifier."""
INDEX = ".index.json"
WEIGHTS = (".safetensors", INDEX, ".bin")
"""How names of weights end; transformers takes no others from ``transformers_weights`` in config.json."""
TOKENIZER, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
TOKENS = (
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
)
"""Keys whose values are tokens; one may happen to be the name of a file in the current folder."""
NOT_OPENED = ("tokenizer_file", "special_tokens_map_file", "name_or_path")
"""What transformers 4 wrote into tokenizer_config.json: paths on the author's machine. transformers 5 ignores them."""
CACHED = "models--"
"""How the folder of a repository in the Hub's cache begins; its snapshots are made of links into it."""


def refuse_leading_out(location: str, revision: str | None = None) -> None:
    """Refuse a model if a path that loading it opens leads out of it.

    Args:
        location: A folder or a Hub id.
        revision: Of the Hub repository.

    Raises:
        HftuneError: Names what leads out, and where to.
    """
    if Path(location).is_file():
        return  # a tokenizer in one file, which names no others
    is_folder = Path(location).is_dir()
    source = _Source(location, revision, is_folder, None if is_folder else hub_state(location, revision))
    for part in PARTS[1:]:
        if source.path(f"{part}{ADAPTER}") is not None:  # transformers would load whatever it names as its base
            raise HftuneError(
                f"{part} of {location} is an adapter ({part}{ADAPTER}); a whole model is expected there",
                hint="merge that adapter into its base, and save the result there",
            )
    for what, path, within in _opened(source):
        _refuse_outside(what, path, within, location)


def refuse_data_outside(graph: Path) -> None:
    """The same for the files that hold the weights of an ONNX graph: ONNX Runtime before 1.24 reads them from anywhere.

    Raises:
        HftuneError: Names what leads out, and where to.
    """
    import onnx

    waiting: list[Any] = [onnx.load(str(graph), load_external_data=False)]
    while waiting:  # tensors are in initializers, in attributes and in graphs inside them
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto):
            for entry in message.external_data:
                if entry.key == "location":
                    what, folder = f"{graph.name} ({entry.value!r})", graph.parent
                    _refuse_outside(what, folder / entry.value, _boundary(folder), str(folder))
        for field, value in message.ListFields():
            if field.message_type is not None:
                waiting += [value] if hasattr(value, "ListFields") else value


def _refuse_outside(what: str, path: Path, within: Path, location: str) -> None:
    try:
        leads_to = path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name that no file can have
        leads_to = path
    if not leads_to.is_relative_to(within):
        folder = "folder " if Path(location).is_dir() else ""
        raise HftuneError(
            f"{what} leads out of the model {folder}{location}, to {leads_to}",
            hint="put the file itself there and name it there; nothing outside a model is read through it",
        )


@dataclass(frozen=True)
class _Source:
    """A model folder, or what is known of a repository on the Hub."""

    location: str
    revision: str | None
    is_folder: bool
    state: HubState | None
    """Of a repository; None if the Hub gives no answer."""

    def path(self, name: str) -> Path | None:
        """A file of the model, downloaded where it has to be; None if there is none."""
        if self.is_folder:
            path = Path(self.location, name)
            return path if path.is_file() else None
        if self.state is None:  # the loaders have no more than the cache, either
            return cached_path(self.location, name, self.revision)
        if name not in self.state.files:
            return None
        # At a commit: what was downloaded before is not requested again.
        return Path(cached_file(self.location, name, revision=self.state.commit))


Opened = Iterator[tuple[str, Path, Path]]
"""What names a path, the path, and the folder that it must be in."""


def _opened(source: _Source) -> Opened:
    """Every path that loading opens, lazily: the content of a file is looked at after its own path was checked."""
    if source.is_folder:
        folder = Path(source.location)
        for path in entries(folder, depth=2):
            if is_link(path):
                yield path.relative_to(folder).as_posix(), path, _boundary(folder)
    for part in PARTS:
        for index in (SAFE[1], BIN[1]):
            yield from _shards(source, part, index)
        yield from _named_weights(source, part)
        yield from _named_by_tokenizer(source, part)


def _named_weights(source: _Source, part: str) -> Opened:
    """Weights that config.json names, under whatever key: ``attribute_map`` can rename ``transformers_weights``."""
    config = source.path(f"{part}{CONFIG}")
    for name in strings(_read(config)):
        if config is None or not name.endswith(WEIGHTS):
            continue
        root = _root(config, f"{part}{CONFIG}")
        yield f"{part}{CONFIG} ({name!r})", root / name, _boundary(root)
        if name.endswith(INDEX):
            for below in PARTS:  # the configuration of a classifier is used for the model in mlm/ too
                yield from _shards(source, below, name)


def _shards(source: _Source, part: str, name: str) -> Opened:
    """The files that an index names; they are looked for below the model, wherever the index is."""
    index = source.path(f"{part}{name}")
    if index is None:
        return
    found = _read(index)
    root = _root(index, f"{part}{name}")
    for shard in sorted(set(strings(found.get("weight_map") if isinstance(found, dict) else None))):
        yield f"{part}{name} ({shard!r})", root / part / shard, _boundary(root)


def _named_by_tokenizer(source: _Source, part: str) -> Opened:
    """Files whose path is a value of a tokenizer's configuration: any of them may be an argument of its class."""
    for name, ignored in ((TOKENIZER, NOT_OPENED), (SPECIAL_TOKENS, ())):
        path = source.path(f"{part}{name}")
        if path is None:
            continue
        root = _root(path, f"{part}{name}")
        for text in strings(_read(path), {*TOKENS, *ignored}):
            # Relative to the model, as other files are, or to the current folder, as open() takes it.
            for named in (root / part / text, Path(text)):
                if _can_be_opened(named):
                    yield f"{part}{name} ({text!r})", named, _boundary(root)


def strings(value: Any, without: Collection[str] = ()) -> Iterator[str]:
    """Every string in a JSON value, at any depth; ``without`` names keys of the value itself."""
    waiting = [value]
    if isinstance(value, dict):
        waiting = [inner for key, inner in value.items() if key not in without]
    while waiting:  # no recursion: nested deeply, JSON would end it
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one


def _read(path: Path | None) -> Any:
    """Content of a JSON file; what can't be read names nothing, and fails where it is used."""
    try:
        return None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _can_be_opened(path: Path) -> bool:
    """Whether this is a file, or a device or pipe; not every text is the name of one."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False


def _root(path: Path, name: str) -> Path:
    """The folder of the model, from the path of a file in it."""
    return path.parents[len(PurePosixPath(name).parts) - 1]


def _boundary(root: Path) -> Path:
    """What a model's files must be in: its folder, or the folder of its repository in the Hub's cache."""
    real = root.resolve()
    return next((parent for parent in real.parents if parent.name.startswith(CACHED)), real)
