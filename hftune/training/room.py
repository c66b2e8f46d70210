"""How much more memory this process may take: what the machine has free, within the limits that were set for it.

A CPU gives out more memory than it has, and ends the process that uses it: who asks must know beforehand. A container
or a batch system sets limits that the machine's own figures do not show. Used by ``hftune.training.autobatch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from hftune.portability import memory_limits

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Folder of a hierarchy (version 2 has one for all) → limit, use, and the part of the use that is cached files."""


def free_memory() -> int:
    """Bytes that can be taken before this machine, its container or a limit of this process has none left."""
    return max(0, min([int(psutil.virtual_memory().available), *_within_limits(), *_within_groups()]))


def _within_limits() -> Iterator[int]:
    """What ``ulimit`` leaves: -v counts every address, -d what can be written to."""
    held = psutil.Process().memory_info()._asdict()
    used = {"address_space": held["vms"], "data": held.get("data", held["rss"])}
    for name, limit in memory_limits().items():
        yield limit - used[name]


def _within_groups() -> Iterator[int]:
    """What the control groups of this process leave, its own and those above it (Docker, Kubernetes, Slurm)."""
    lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines() if MEMBERSHIP.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        name = "memory" if "memory" in controllers.split(",") else controllers
        if name not in FILES:
            continue
        root = CGROUPS / name
        own = root / path.lstrip("/")
        # In a container the path may be that of the host, while the container's own group is mounted as the root.
        for folder in (own, *own.parents):
            if root in (folder, *folder.parents):
                yield from _within_group(folder, *FILES[name])


def _within_group(folder: Path, limit: str, use: str, cached: str) -> Iterator[int]:
    try:
        most, used = _text(folder / limit).strip(), int(_text(folder / use))
        counts = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    except (OSError, ValueError):
        return  # the root has no limit, and not every system shows every group
    if most.isdigit():
        # Files that were read stay in memory as long as there is room, and go as soon as there is not.
        yield int(most) - used + int(counts.get(cached, 0))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
