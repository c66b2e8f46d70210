"""The environment of a run: versions, machine, code and command line.

It can be published: it has no environment variables, no user name, no host name and no token.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import hftune
from hftune.cache import home_folder
from hftune.portability import cpu_model, usable_cores
from hftune.runs.git import Unknown, find_checkout
from hftune.sanitize import REDACTED, redacted

LIBRARIES = (
    "torch",
    "transformers",
    "datasets",
    "tokenizers",
    "peft",
    "accelerate",
    "evaluate",
    "huggingface_hub",
    "safetensors",
    "numpy",
    "scikit-learn",
    "scipy",
)
# Weights & Biases has plain keys of 40 digits.
_KEY = re.compile(r"\b[0-9a-fA-F]{40}\b")
_SECRET_NAME = re.compile(r"(token|secret|password|passwd|api[-_]?key|credential)s?$", re.IGNORECASE)


def describe(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything about this machine and process that may explain a result, by default with its command line."""
    import psutil

    return {
        "hftune": hftune.__version__,
        "python": platform.python_version(),
        "libraries": versions(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        # A container or a batch system can limit the cores that this process may use.
        "cores": {"total": os.cpu_count() or 1, "usable": usable_cores()},
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "devices": devices(),
        "git": git_state(Path.cwd()),
        "command": command_line(sys.argv if arguments is None else arguments),
    }


def versions() -> dict[str, str]:
    """Versions of the libraries that can change a result; one that is not installed is left out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def devices() -> list[dict[str, Any]]:
    """The accelerators torch sees, with their memory; empty on a machine that has only its processor."""
    import torch

    if torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [{"name": one.name, "memory_gb": round(one.total_memory / 2**30, 1)} for one in found]
    if torch.backends.mps.is_available():
        return [{"name": "Apple GPU (mps)", "memory_gb": None}]
    return []


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout around a folder, and whether tracked files differ from it; None outside of a checkout.

    ``changed`` is None if that is not known, as in a very large repository. The program git is never started, see
    ``hftune.runs.git``.
    """
    checkout = find_checkout(folder)
    if checkout is None:
        return None
    try:
        commit = checkout.commit()
    except (OSError, Unknown):
        return None
    try:
        return {"commit": commit, "changed": checkout.changed(commit)}
    except (OSError, Unknown):
        return {"commit": commit, "changed": None}


def command_line(arguments: Sequence[str]) -> str:
    """The command as one can paste it into a shell, without anything that looks like a secret."""
    if not arguments or arguments[0] in ("", "-c"):
        return ""  # an interactive interpreter: there is no command to repeat
    program = Path(arguments[0]).name
    words = ["python", "-m", "hftune"] if program == "__main__.py" else [program]
    flag = ""
    for argument in arguments[1:]:
        is_flag = argument.startswith("-")
        words.append(_redacted("" if is_flag else flag, argument))
        flag = argument if is_flag and "=" not in argument else ""
    return " ".join(_quoted(word) for word in words)


def _redacted(flag: str, argument: str) -> str:
    """One argument without its secret; flag is the word before it, where that was a flag without a value."""
    # "--token X", "--token=X" and "--set hub.token=X": the value follows a flag or any of the names before a "=".
    names = [flag, *argument.split("=")[:-1]]
    for position, name in enumerate(names):
        if _SECRET_NAME.search(name):
            return "=".join([*names[1 : position + 1], REDACTED])
    # A commit of a model or dataset looks like a key, is not a secret, and is needed to repeat the run.
    return argument if names[-1].endswith("revision") else _KEY.sub(REDACTED, redacted(argument))


def _quoted(word: str) -> str:
    """The word for a shell; the home directory, which holds the user's name, stays a variable."""
    home = str(home_folder() or "")
    parts = word.split(home) if len(home) > 1 else [word]
    return '"$HOME"'.join(shlex.quote(part) if part or len(parts) == 1 else "" for part in parts)
