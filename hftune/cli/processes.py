"""Several processes at one command line: who may run, and who speaks. Imports nothing heavy.

Under ``accelerate launch`` every process is a whole command line of its own. Used by ``hftune.cli``.
"""

from __future__ import annotations

import os
from pathlib import Path

from hftune.errors import HftuneError


def refuse_several(command: str) -> None:
    """Refuse a command that one process carries out alone.

    Raises:
        HftuneError: A launcher has started several.
    """
    count = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
    if count > 1:
        raise HftuneError(
            f"{command} is carried out by one process, but a launcher has started {count}",
            hint=f"leave the launcher out: hftune {command} …",
        )


def is_first() -> bool:
    """Whether this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


def first_to_fail() -> bool:
    """Whether no other process of this launch, on this machine, has shown an error yet.

    What one process could not do, the others could not do either, or they fail because it has gone: the first message
    is the one that matters. torchrun gives each process a file below a folder that they share.
    """
    mine = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not mine:
        return True
    try:
        os.close(os.open(Path(mine).parent.parent / "hftune-error", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:
        return True  # better twice than not at all
    return True
