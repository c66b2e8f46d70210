"""How much more memory this process may take: what the machine has free, within the limits that were set for it.

A CPU gives out more memory than it has, and ends the process that uses it: who asks must know beforehand. A container
or a batch system sets limits that the machine's own figures do not show. Used by ``hftune.training.autobatch``.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

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
    for limit, used in ((resource.RLIMIT_AS, held["vms"]), (resource.RLIMIT_DATA, held.get("data", held["rss"]))):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield soft - used


def _within_groups() -> Iterator[int]:
    """What the control groups of this process leave, its own and those above it (Docker, Kubernetes, Slurm)."""
    lines = MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.is_file() else []
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
        most, used = (folder / limit).read_text().strip(), int((folder / use).read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return  # the root has no limit, and not every system shows every group
    if most.isdigit():
        # Files that were read stay in memory as long as there is room, and go as soon as there is not.
        yield int(most) - used + int(counts.get(cached, 0))
