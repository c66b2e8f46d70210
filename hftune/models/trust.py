"""Checks of a checkpoint: no Python code without consent to a fixed commit, no file outside its folder.

Files are named by links, by config.json, by an index of shards and by the configuration of a tokenizer. transformers
and peft would follow them anywhere, and what they read is saved with the next model and published with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedTokenizerBase

from hftune.errors import HftuneError
from hftune.files import entries
from hftune.models.hub_files import ADAPTER, BIN, CONFIG, SAFE, ModelFiles, read_lenient
from hftune.models.settings import COMMIT, MINGPT_TYPE, NO_TRUST, POOLED_TYPE, ModelSection
from hftune.portability import is_link

TOKENIZER, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
OWN_CODE = re.compile(r"\w[\w-]*(/\w[\w-]*)?\.\w+")
"""module.Class or folder/module.Class, a file of the same repository: not deeper than links are searched."""
SUBFOLDERS = ("", "base/", "mlm/")
"""Where a model can be in a folder or repository: alone, the base of an adapter, next to a classifier."""
INDEX = ".index.json"
WEIGHTS = (".safetensors", INDEX, ".bin")
"""Suffixes of weight files; transformers accepts no others from ``transformers_weights`` in config.json."""
TOKENS = (
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
)
"""Keys whose values are tokens; one may happen to be the name of a file in the current folder."""
NOT_OPENED = ("tokenizer_file", "special_tokens_map_file", "name_or_path")
"""Paths on the author's machine, which transformers 4 wrote into tokenizer_config.json and transformers 5 ignores."""
HUB_CACHE = "models--"
"""Prefix of a repository's folder in the Hub cache; its snapshots are made of links into it."""


def trusted(files: ModelFiles, section: ModelSection) -> bool:
    """Whether Python code that comes with a checkpoint may run.

    Consent is refused if the code can change after it was read: without a commit, or with code in another repository.
    """
    if not section.trust_remote_code or section.from_scratch:
        return False
    if not files.folder and not COMMIT.fullmatch(section.model_revision or ""):
        at = f"{section.model_revision!r}, which can be moved" if section.model_revision else "no revision"
        raise HftuneError(
            f"trust_remote_code is set for {files.location}, but at {at}: the code can change after it was read",
            hint="set the commit whose code you have read: --set model.model_revision=COMMIT (or --revision COMMIT)",
        )
    elsewhere = sorted(_code_elsewhere(files))
    if elsewhere:
        raise HftuneError(
            f"the code of {files.location} is in another place ({', '.join(elsewhere)}), which no revision pins",
            hint="save model and code in one folder, read the code, and use that folder",
        )
    return True


def base_on_hub(adapter: ModelSection, name: str, revision: str | None) -> ModelSection:
    """The base of an adapter on the Hub, with its own consent.

    The author of the adapter chooses the base, so consent to the adapter's code does not extend to it. ``name`` and
    ``revision`` are those that the adapter names.
    """
    if os.path.lexists(name):
        raise HftuneError(
            f"the base of the adapter {adapter.model_name_or_path} is {name!r} on the Hub, but there is also a path "
            f"with this name ({Path(name).absolute()}), which would be loaded instead",
            hint=f"run the command in another folder, or rename {name}. If that path is the base, copy it to base/ of "
            "the adapter, and set base_model_name_or_path to './base' in its adapter_config.json",
        )
    base = adapter.model_copy(update={"model_name_or_path": name, "model_revision": revision, **NO_TRUST})
    pinned = COMMIT.fullmatch(revision or "") is not None
    consent = adapter.trust_base_code
    repo, _, commit = (consent or "").partition("@")
    if repo == name and (commit == revision or not pinned):
        return base.model_copy(update={"model_revision": commit, "trust_remote_code": True})
    needed = _needs_code(ModelFiles(name, revision))
    if needed is not None:
        given = f"; consent was given to {consent}" if consent else ""
        raise HftuneError(
            f"the base of the adapter {adapter.model_name_or_path} needs its own Python code, that of {name} at the "
            f"commit {needed}{given}",
            hint=f"read that code, then pass --trust-base-code {name}@{needed}",
        )
    return base


def _needs_code(files: ModelFiles) -> str | None:
    """The commit of the code without which a Hub model can't be loaded; None if it can."""
    values = files.values(CONFIG) or {}
    kind = str(values.get("model_type"))
    if not values.get("auto_map") or kind in (MINGPT_TYPE, POOLED_TYPE) or kind in CONFIG_MAPPING:
        return None
    path = files.path(CONFIG)
    return None if path is None else path.parent.name  # a snapshot in the Hub cache has the name of its commit


def _code_elsewhere(files: ModelFiles) -> set[str]:
    """Code that transformers would load from another repository or folder than this one."""
    found = set()
    for name in (CONFIG, TOKENIZER):
        # "owner/name--module.Class", in whatever shape auto_map has.
        for reference in strings((files.values(name) or {}).get("auto_map")):
            owner, _, code = reference.rpartition("--")
            if owner not in ("", files.location) or not OWN_CODE.fullmatch(code):
                found.add(owner or code)
    return found


def refuse_outside_paths(files: ModelFiles) -> None:
    """Refuse a model if a path that loading opens leads out of it."""
    for part in SUBFOLDERS[1:]:
        if files.path(f"{part}{ADAPTER}") is not None:  # transformers would load whatever it names as its base
            raise HftuneError(
                f"{part} of {files.location} is an adapter ({part}{ADAPTER}); a whole model is expected there",
                hint="merge that adapter into its base, and save the result there",
            )
    for what, path, within in _opened(files):
        _refuse_outside(what, path, within, files.location)


def refuse_outside_data(graph: Path) -> None:
    """The same for the external data of an ONNX graph, which ONNX Runtime before 1.24 reads from anywhere."""
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
        target = path.resolve()
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name that no file can have
        target = path
    if not target.is_relative_to(within):
        folder = "folder " if Path(location).is_dir() else ""
        raise HftuneError(
            f"{what} leads out of the model {folder}{location}, to {target}",
            hint="put the file itself there; nothing outside a model is read through it",
        )


Opened = Iterator[tuple[str, Path, Path]]
"""What names a path, the path, and the folder that it must be in."""


def _opened(files: ModelFiles) -> Opened:
    """Every path that loading opens, lazily: a file is read after its own path was checked."""
    if files.folder is not None:
        for path in entries(files.folder, depth=2):
            if is_link(path):
                yield path.relative_to(files.folder).as_posix(), path, _boundary(files.folder)
    for part in SUBFOLDERS:
        for index in (SAFE[1], BIN[1]):
            yield from _shards(files, part, index)
        yield from _named_weights(files, part)
        yield from _named_by_tokenizer(files, part)


def _named_weights(files: ModelFiles, part: str) -> Opened:
    """Weights that config.json names, under any key: ``attribute_map`` can rename ``transformers_weights``."""
    config = files.path(f"{part}{CONFIG}")
    for name in strings(read_lenient(config)):
        if config is None or not name.endswith(WEIGHTS):
            continue
        root = _root(config, f"{part}{CONFIG}")
        yield f"{part}{CONFIG} ({name!r})", root / name, _boundary(root)
        if name.endswith(INDEX):
            for below in SUBFOLDERS:  # the configuration of a classifier is used for the model in mlm/ too
                yield from _shards(files, below, name)


def _shards(files: ModelFiles, part: str, name: str) -> Opened:
    """The files that an index names; transformers looks for them below the model, wherever the index is."""
    index = files.path(f"{part}{name}")
    if index is None:
        return
    found = read_lenient(index)
    root = _root(index, f"{part}{name}")
    for shard in sorted(set(strings(found.get("weight_map") if isinstance(found, dict) else None))):
        yield f"{part}{name} ({shard!r})", root / part / shard, _boundary(root)


def _named_by_tokenizer(files: ModelFiles, part: str) -> Opened:
    """Files whose path is a value in a tokenizer's configuration: any value may be an argument of its class."""
    for name, ignored in ((TOKENIZER, NOT_OPENED), (SPECIAL_TOKENS, ())):
        path = files.path(f"{part}{name}")
        if path is None:
            continue
        root = _root(path, f"{part}{name}")
        for text in strings(read_lenient(path), {*TOKENS, *ignored}):
            # Relative to the model, as other files are, or to the current folder, as open() does.
            for named in (root / part / text, Path(text)):
                if _can_be_opened(named):
                    yield f"{part}{name} ({text!r})", named, _boundary(root)


def strings(value: Any, without: Collection[str] = ()) -> Iterator[str]:
    """Every string in a JSON value, at any depth, except under the top-level keys ``without``."""
    waiting = [value]
    if isinstance(value, dict):
        waiting = [inner for key, inner in value.items() if key not in without]
    while waiting:  # not recursive: deeply nested JSON would exceed the recursion limit
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one


def _can_be_opened(path: Path) -> bool:
    """Whether this is a file, or a device or pipe; not every text is a possible path."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False


def _root(path: Path, name: str) -> Path:
    """The folder of the model, from the path of a file in it."""
    return path.parents[len(PurePosixPath(name).parts) - 1]


def _boundary(root: Path) -> Path:
    """The folder that a model's files must be in: its own, or that of its repository in the Hub cache."""
    real = root.resolve()
    return next((parent for parent in real.parents if parent.name.startswith(HUB_CACHE)), real)
