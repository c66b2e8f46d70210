"""Keeps vocabularies that were learned from a text, so that the next run on it need not learn its own again.

One is found again by a hash of the texts, its size, and the version of the library that learned it; ``hftune.cache``
says where it lies. Called by ``hftune.models.presets``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import tokenizers

from hftune.cache import cache_folder, make_room, use
from hftune.files import read_json, write_json

logger = logging.getLogger(__name__)

WORTH = 2_000
"""Texts from which on looking a vocabulary up is quicker than learning it."""


def learned(texts: Sequence[str], size: int, learn: Callable[[], dict[str, int]]) -> dict[str, int]:
    """The WordPiece vocabulary of these texts from disk, or learned now and put there.

    Args:
        texts: What it is learned from.
        size: How many pieces it may have.
        learn: Does so; the same texts must give the same vocabulary.
    """
    if len(texts) < WORTH:
        return learn()
    digest = hashlib.sha256(f"{size} {tokenizers.__version__} {len(texts)}".encode())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    path = cache_folder("vocabularies") / f"{digest.hexdigest()[:32]}.json"
    found = _read(path)
    if found is not None:
        return found
    made = learn()
    try:
        write_json(path, {"vocabulary": made})
    except OSError as error:
        logger.warning("the vocabulary is not kept: %s can't be written (%s)", path, error)
    make_room()
    return made


def _read(path: Path) -> dict[str, int] | None:
    if not path.is_file():
        return None
    try:
        found = {str(piece): int(number) for piece, number in read_json(path)["vocabulary"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s can't be read (%s): the vocabulary is learned again", path, error)
        return None
    use(path)
    return found
