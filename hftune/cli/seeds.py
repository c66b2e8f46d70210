"""The seeds of ``--seeds``, from what was typed. Used by ``hftune.cli.train`` and ``sweep``."""

from __future__ import annotations

import re

from hftune.errors import HftuneError

MOST_SEEDS = 100


def seed_list(seeds: str | None) -> tuple[int, ...]:
    """The seeds of ``--seeds``: ``1,2,3``, ``1-5`` or both; empty where not given."""
    found: list[int] = []
    for part in [] if seeds is None else seeds.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part)
        if match is None:
            raise _bad_seeds(f"whole numbers, got {part.strip()!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MOST_SEEDS:
            raise _bad_seeds(f"a range of 1 to {MOST_SEEDS} seeds, got {part.strip()!r}")
        found.extend(range(first, last + 1))
    if len(set(found)) < len(found):
        raise _bad_seeds(f"each seed once, got {seeds!r}")
    return tuple(found)


def _bad_seeds(expectation: str) -> HftuneError:
    return HftuneError(f"--seeds expects {expectation}", hint="Write --seeds 1,2,3 or --seeds 1-5.")
