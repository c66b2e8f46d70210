"""What of a model folder is published: files on a list of names, and nothing else. Called by ``hftune.hub.publish``
and ``hftune.hub.worker``.

A pickle is refused, not left out: it has no business in model/, and whoever put it there should know.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from hftune.errors import HftuneError

CARD = "README.md"
MARK = "hftune.json"
"""The file by which a repository is known as one of ours."""

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "adapter_model.safetensors")
PUBLISHED = (
    *WEIGHTS,
    *("model.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("chat_template.jinja", "*.py", MARK, CARD),
    # The base of an adapter that nobody could get by its name.
    *("base/config.json", "base/model.safetensors", "base/model-*-of-*.safetensors"),
    "base/model.safetensors.index.json",
    # The masked language model that was trained beside a classifier.
    *("mlm/config.json", "mlm/model.safetensors", "mlm/model-*-of-*.safetensors", "mlm/model.safetensors.index.json"),
    *("mlm/tokenizer.json", "mlm/tokenizer_config.json", "mlm/special_tokens_map.json", "mlm/vocab.txt"),
    *("mlm/vocab.json", "mlm/merges.txt", "mlm/sentencepiece.bpe.model"),
)
"""Names that may be published; *.py is the code of a model that transformers does not have."""

PICKLES = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib", "*.dill", "*.npy", "*.npz"),
    *("*.h5", "*.hdf5", "*.keras", "*.msgpack", "*.mar"),
)


def is_published(name: str) -> bool:
    """Whether a file of this name belongs to what hftune publishes."""
    return any(fnmatch(name, pattern) for pattern in PUBLISHED)


def published_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The files to publish by name, and the names that are left out.

    Raises:
        HftuneError: The folder holds a pickle or a link, or lacks weights or a configuration.
    """
    entries = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = {path.relative_to(folder).as_posix(): path for path in entries}
    links = [name for name, path in names.items() if path.is_symlink()]
    if folder.is_symlink() or links:
        raise HftuneError(
            f"{folder} holds a link ({links[0] if links else folder.name}): where it leads may not be meant for others",
            hint="put the file itself there, or take the link away",
        )
    pickles = [name for name in names if any(fnmatch(name.lower(), pattern) for pattern in PICKLES)]
    if pickles:
        raise HftuneError(
            f"{folder} holds what can run code when it is read, or carry secrets: {', '.join(pickles)}",
            hint="only safetensors weights are published; move those files out of the folder",
        )
    chosen = {name: path for name, path in names.items() if is_published(name)}
    has_weights = any(fnmatch(name, pattern) for name in chosen for pattern in WEIGHTS)
    if not has_weights or not {"config.json", "adapter_config.json"} & chosen.keys():
        raise HftuneError(
            f"{folder} holds no model: weights (.safetensors) and a configuration are expected",
            hint="publish a run that has finished; `hftune classify --output RUN --resume` finishes one",
        )
    return chosen, [name for name in names if name not in chosen]


def refuse_secret(files: Mapping[str, Path], token: str) -> None:
    """Nothing goes out that holds the token, however it got there."""
    found = [name for name, path in files.items() if _holds(path, token.encode())]
    if found:
        raise HftuneError(
            f"your Hub token stands in {', '.join(found)}, which would be published",
            hint="take it out of there, and make a new token: this one has been written to disk",
        )


def _holds(path: Path, needle: bytes) -> bool:
    """Whether a file holds these bytes; one of many gigabytes is not read into memory."""
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(needle) >= 0
