"""Keeps what a tokenizer made of a split, so that the next run on the same text starts at once. Used by classification.

Rows are found again by a fingerprint of text, tokenizer, lengths and the libraries' versions: whatever could change a
token gives another file. ``hftune.cache`` says where it lies and for how long. What is read is mapped, not loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers
from transformers import PreTrainedTokenizerBase

from hftune.cache import cache_folder, make_room, use
from hftune.files import read_json, write_bytes, write_json
from hftune.tasks.packing import tokenizer_fingerprint
from hftune.tasks.rows import Encoded
from hftune.training.launch import is_main_process, main_first

logger = logging.getLogger(__name__)

FORMAT = 1
"""Changes when what is written changes."""
WORTH = 2_000
"""Rows from which on looking them up is quicker than tokenizing them."""
ENDS = "ends"


def kept(
    text: str, rows: int, tokenizer: PreTrainedTokenizerBase, how: dict[str, Any], make: Callable[[], Encoded]
) -> Encoded:
    """The rows of a split from disk, or made now and put there; of several processes the main one goes first.

    Args:
        text: A hash of the texts in their order.
        rows: How many there are.
        tokenizer: What makes tokens of them.
        how: Whatever else decides which tokens they become.
        make: Tokenizes.
    """
    if rows < WORTH or not tokenizer.is_fast:
        return make()
    versions = [tokenizers.__version__, transformers.__version__]
    key = json.dumps([FORMAT, text, tokenizer_fingerprint(tokenizer), how, versions], sort_keys=True)
    path = cache_folder("tokens") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.bin"
    with main_first():
        found = _read(path, rows)
        if found is None:
            found = make()
            if is_main_process():
                _write(path, found)
    return found


def _read(path: Path, rows: int) -> Encoded | None:
    """Arrays one after the other in one file, with a note on where each begins."""
    note = path.with_suffix(".json")
    if not path.is_file() or not note.is_file():
        return None
    try:
        told = read_json(note)
        arrays = {
            name: np.memmap(path, dtype=part["type"], mode="r", offset=part["at"], shape=(part["length"],))
            for name, part in told["arrays"].items()
        }
        ends, masked = np.array(arrays.pop(ENDS)), bool(told["masked"])
        if len(ends) != rows or any(len(values) != ends[-1] for values in arrays.values()):
            raise ValueError("its parts do not fit together")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        logger.warning("%s can't be read (%s): its rows are tokenized again", path, error)
        return None
    use(path)
    return Encoded(arrays, ends, masked)


def _write(path: Path, encoded: Encoded) -> None:
    """Whole or not at all; a disk that takes nothing costs the next run time, and this one nothing."""
    arrays, place = {}, 0
    for name, values in {ENDS: encoded.ends, **encoded.columns}.items():
        arrays[name] = {"type": values.dtype.str, "at": place, "length": len(values)}
        place += values.nbytes
    try:
        write_bytes(path, b"".join(values.tobytes() for values in (encoded.ends, *encoded.columns.values())))
        write_json(path.with_suffix(".json"), {"arrays": arrays, "masked": encoded.masked})
    except OSError as error:
        logger.warning("tokens are not kept: %s can't be written (%s)", path, error)
    make_room()
