"""Where a run was made: versions, machine, code and command line. ``hftune.pipeline`` keeps it.

What goes in can be published: no environment variable, no user name, no host name, no token.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import hftune

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
REDACTED = "[redacted]"
# Hub, GitHub, OpenAI, Weights & Biases and plain 40-digit keys, wherever they stand in an argument.
_SECRET = re.compile(
    r"hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|sk-[\w-]{16,}"
    r"|\b[0-9a-fA-F]{40}\b|(?<=://)[^/@\s]+(?=@)"
)
_SECRET_NAME = re.compile(r"(token|secret|password|passwd|api[-_]?key|credential)s?$", re.IGNORECASE)


def describe(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything about this machine and process that may explain a number.

    Args:
        arguments: The command line; this process's own where not given.
    """
    return {
        "hftune": hftune.__version__,
        "python": platform.python_version(),
        "libraries": versions(),
        "platform": _platform(),
        "cpu": cpu_model(),
        "cores": _cores(),
        "memory_gb": _memory_gb(),
        "devices": devices(),
        "git": git_state(Path.cwd()),
        "command": command_line(sys.argv if arguments is None else arguments),
    }


def versions() -> dict[str, str]:
    """Versions of the libraries that decide a result; one that is not installed is left out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


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
    """Commit of the checkout around a folder, whether tracked files differ from it; None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changes)}


def command_line(arguments: Sequence[str]) -> str:
    """The command as one can paste it into a shell, without anything that looks like a secret."""
    if not arguments or arguments[0] in ("", "-c"):
        return ""  # an interpreter's own session: there is no command to give again
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
    names = [flag, *argument.split("=")[:-1]]
    for position, name in enumerate(names):
        if _SECRET_NAME.search(name):
            return "=".join([*names[1 : position + 1], REDACTED])
    # A commit of a model or dataset looks like a key, is no secret, and is needed to make the run again.
    return argument if names[-1].endswith("revision") else _SECRET.sub(REDACTED, argument)


def _quoted(word: str) -> str:
    """The word for a shell; the home directory, which holds the user's name, stays a variable."""
    home = str(Path.home())
    pieces = word.split(home) if len(home) > 1 else [word]
    return '"$HOME"'.join(shlex.quote(piece) if piece or len(pieces) == 1 else "" for piece in pieces)


def _platform() -> str:
    """System, its release and the kind of machine; ``platform.platform`` would add nothing but length."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _cores() -> dict[str, int]:
    """Cores of the machine and those this process may use, which a container or a batch system can limit."""
    total = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else total
    return {"total": total, "usable": usable}


def _memory_gb() -> float:
    import psutil

    total: int = psutil.virtual_memory().total
    return round(total / 2**30, 1)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
