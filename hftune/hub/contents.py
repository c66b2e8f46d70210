"""Which files of a model folder are published: those on a list of names.

A pickle is refused and not skipped: it does not belong in model/, and its author should know that it is there.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from hftune.errors import HftuneError
from hftune.files import entries, sha256
from hftune.portability import is_link

CARD = "README.md"
MARK = "hftune.json"  # identifies a repository that hftune published

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "adapter_model.safetensors")
PUBLISHED = (
    *WEIGHTS,
    *("model.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("chat_template.jinja", MARK, CARD),
    # The base model of an adapter that is not on the Hub.
    *("base/config.json", "base/model.safetensors", "base/model-*-of-*.safetensors"),
    "base/model.safetensors.index.json",
    # The masked language model of joint training.
    *("mlm/config.json", "mlm/model.safetensors", "mlm/model-*-of-*.safetensors", "mlm/model.safetensors.index.json"),
    *("mlm/tokenizer.json", "mlm/tokenizer_config.json", "mlm/special_tokens_map.json", "mlm/vocab.txt"),
    *("mlm/vocab.json", "mlm/merges.txt", "mlm/sentencepiece.bpe.model"),
)

# The code of hftune's own models, which is not in transformers: the only code that is published.
OWN_CODE = {
    path.name: path
    for folder in ("mingpt", "pooled")
    for path in (Path(__file__).parent.parent / "models" / folder).glob("*.py")
    if path.name != "__init__.py"
}

BASE = "base/"
"""Folder of the base of an adapter, which may be one of them."""

ESCAPE = re.compile(
    rb"\\+(?:u00|U000000|x|u\{0*)(?P<code>[0-7][0-9a-fA-F])\}?"  # JSON, YAML, Python, JavaScript
    rb"|\\+(?P<plain>[/_-])"
    rb"|%(?P<url>[0-7][0-9a-fA-F])|&#x0*(?P<html_hex>[0-7][0-9a-fA-F]);|&#0*(?P<html>[0-9]{2,3});"
)
LAYERS = 3  # how often escapes are undone: JSON within JSON escapes twice

PICKLES = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib", "*.dill", "*.npy", "*.npz"),
    *("*.h5", "*.hdf5", "*.keras", "*.msgpack", "*.mar"),
)


def is_published(name: str) -> bool:
    """Whether hftune publishes files with this name."""
    if name.removeprefix(BASE) in OWN_CODE:
        return True
    # In fnmatch, * also matches a separator.
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in PUBLISHED)


def published_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The files to publish by name, and the names of those that are skipped.

    Raises:
        HftuneError: The folder holds a pickle, a link or code that is not hftune's, or no weights or configuration.
    """
    found = sorted(path for path in entries(folder) if is_link(path) or not path.is_dir())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    links = [name for name, path in names.items() if is_link(path)]
    if is_link(folder) or links:
        raise HftuneError(
            f"{folder} holds a link ({links[0] if links else folder.name}), which may lead to private files",
            hint="replace the link with the file, or remove it",
        )
    pickles = [name for name in names if any(fnmatch(name.lower(), pattern) for pattern in PICKLES)]
    if pickles:
        raise HftuneError(
            f"{folder} holds files that can run code when they are loaded, or contain secrets: {', '.join(pickles)}",
            hint="only safetensors weights are published; move those files out of the folder",
        )
    chosen = {name: path for name, path in names.items() if is_published(name)}
    has_weights = any(fnmatch(name, pattern) for name in chosen for pattern in WEIGHTS)
    if not has_weights or not {"config.json", "adapter_config.json"} & chosen.keys():
        raise HftuneError(
            f"{folder} has no model: weights (.safetensors) and a configuration are expected",
            hint="publish a finished run; `hftune classify --output RUN --resume` finishes one",
        )
    left_out = [name for name in names if name not in chosen]
    _refuse_other_code(folder, chosen, left_out)
    return chosen, left_out


def _refuse_other_code(folder: Path, chosen: Mapping[str, Path], left_out: Sequence[str]) -> None:
    """Refuse changed copies of hftune's code, and models that need other code, which would not load without it."""
    changed = [
        name
        for name, path in chosen.items()
        if (own := OWN_CODE.get(name.removeprefix(BASE))) is not None and sha256(path) != sha256(own)
    ]
    if changed:
        raise HftuneError(
            f"{folder / changed[0]} differs from the file of that name in this version of hftune",
            hint="save the model again with this version: `--output RUN --resume` of its last step, or a new run",
        )
    named = "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for name, path in chosen.items()
        if name in ("config.json", "tokenizer_config.json")
    )
    needed = [name for name in left_out if name.endswith(".py") and f'"{name.removesuffix(".py")}.' in named]
    if needed:
        raise HftuneError(
            f"the model needs the code {', '.join(needed)}, which is not hftune's, and only hftune's code is published",
            hint="publish this model with its authors' tools after you have read the code",
        )


def refuse_secret(files: Mapping[str, Path], token: str) -> None:
    """Refuse files that contain the token, also in escaped form."""
    found = [name for name, path in files.items() if _holds(path, token.encode())]
    if found:
        raise HftuneError(
            f"your Hub token is in {', '.join(found)}, which would be published",
            hint="remove it and create a new token: this one was written to disk",
        )


def _holds(path: Path, needle: bytes) -> bool:
    """Whether a file contains these bytes; large files are memory-mapped."""
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(needle) >= 0:
            return True
        # safetensors: the length of the JSON header, the header, then numbers.
        is_weights = path.suffix == ".safetensors"
        text = content[: 8 + int.from_bytes(content[:8], "little")] if is_weights else content[:]
    for _ in range(LAYERS):
        plain = ESCAPE.sub(_unescaped, text)
        if needle in plain:
            return True
        if plain == text:
            return False
        text = plain
    return False


def _unescaped(match: re.Match[bytes]) -> bytes:
    """The character that an escape of JSON, Python, YAML, a URL or HTML encodes, if a token can contain it."""
    digits = match["code"] or match["url"] or match["html_hex"]
    code = int(digits, 16) if digits else int(match["html"]) if match["html"] else ord(match["plain"])
    return bytes([code]) if code < 128 else match[0]
