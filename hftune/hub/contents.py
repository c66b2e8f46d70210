"""What of a model folder is published: files on a list of names, and nothing else. Called by ``hftune.hub.publish``
and ``hftune.hub.worker``.

A pickle is refused, not left out: it has no business in model/, and whoever put it there should know.
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
MARK = "hftune.json"
"""The file by which a repository is known as one of ours."""

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "adapter_model.safetensors")
PUBLISHED = (
    *WEIGHTS,
    *("model.safetensors.index.json", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("chat_template.jinja", MARK, CARD),
    # The base of an adapter that nobody could get by its name.
    *("base/config.json", "base/model.safetensors", "base/model-*-of-*.safetensors"),
    "base/model.safetensors.index.json",
    # The masked language model that was trained beside a classifier.
    *("mlm/config.json", "mlm/model.safetensors", "mlm/model-*-of-*.safetensors", "mlm/model.safetensors.index.json"),
    *("mlm/tokenizer.json", "mlm/tokenizer_config.json", "mlm/special_tokens_map.json", "mlm/vocab.txt"),
    *("mlm/vocab.json", "mlm/merges.txt", "mlm/sentencepiece.bpe.model"),
)
"""Names that may be published, beside OWN_CODE."""

OWN_CODE = {
    path.name: path
    for path in (Path(__file__).parent.parent / "models" / "mingpt").glob("*.py")
    if path.name != "__init__.py"
}
"""The code of our own models, which transformers does not have: the only code that is published."""

ESCAPE = re.compile(
    rb"\\+(?:u00|U000000|x|u\{0*)(?P<code>[0-7][0-9a-fA-F])\}?"  # JSON, YAML, Python, JavaScript
    rb"|\\+(?P<plain>[/_-])"
    rb"|%(?P<url>[0-7][0-9a-fA-F])|&#x0*(?P<html_hex>[0-7][0-9a-fA-F]);|&#0*(?P<html>[0-9]{2,3});"
)
LAYERS = 3
"""How often escapes are undone: JSON within JSON escapes twice."""

PICKLES = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib", "*.dill", "*.npy", "*.npz"),
    *("*.h5", "*.hdf5", "*.keras", "*.msgpack", "*.mar"),
)


def is_published(name: str) -> bool:
    """Whether a file of this name belongs to what hftune publishes."""
    if name in OWN_CODE:
        return True
    # fnmatch lets * stand for a separator too.
    return any(fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in PUBLISHED)


def published_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The files to publish by name, and the names that are left out.

    Raises:
        HftuneError: The folder holds a pickle, a link or code that is not ours, or lacks weights or a configuration.
    """
    found = sorted(path for path in entries(folder) if is_link(path) or not path.is_dir())
    names = {path.relative_to(folder).as_posix(): path for path in found}
    links = [name for name, path in names.items() if is_link(path)]
    if is_link(folder) or links:
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
    left_out = [name for name in names if name not in chosen]
    _refuse_other_code(folder, chosen, left_out)
    return chosen, left_out


def _refuse_other_code(folder: Path, chosen: Mapping[str, Path], left_out: Sequence[str]) -> None:
    """Code under one of our names must be ours; a model that needs other code would not load without it."""
    changed = [name for name, path in chosen.items() if name in OWN_CODE and sha256(path) != sha256(OWN_CODE[name])]
    if changed:
        raise HftuneError(
            f"{folder / changed[0]} is not the code that this version of hftune has under that name",
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
            f"the model needs the code {', '.join(needed)}, which is not hftune's, and only hftune's own is published",
            hint="publish such a model with its authors' tools, after you have read the code",
        )


def refuse_secret(files: Mapping[str, Path], token: str) -> None:
    """Nothing goes out that holds the token, however it got there and however it is written."""
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
        if content.find(needle) >= 0:
            return True
        # Weights are numbers behind a header in JSON, whose length comes first.
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
    """The character behind an escape of JSON, Python, YAML, a URL or HTML, if it is one that a token can have."""
    digits = match["code"] or match["url"] or match["html_hex"]
    code = int(digits, 16) if digits else int(match["html"]) if match["html"] else ord(match["plain"])
    return bytes([code]) if code < 128 else match[0]
