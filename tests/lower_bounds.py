"""Print the lowest versions that pyproject.toml allows, as constraints for pip; `make test-oldest` installs them.

Usage: python tests/lower_bounds.py [NAME ...]    # names to leave out

Runs before anything is installed, so it uses the standard library only.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*>=\s*(?P<lower>[0-9][0-9.]*)\s*(,.*)?")


def lower_bounds(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """The lowest version of each dependency, those of the extras included."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements.extend(entry for entry in extra if not entry.startswith(f"{project['name']}["))
    bounds: dict[str, str] = {}
    for requirement in requirements:
        found = REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise SystemExit(f"{pyproject.name}: expected NAME>=VERSION, found {requirement!r}: give it a lower bound")
        name, lower = found["name"], found["lower"]
        if bounds.setdefault(name, lower) != lower:
            raise SystemExit(f"{pyproject.name}: {name} has two lower bounds, {bounds[name]} and {lower}")
    return bounds


if __name__ == "__main__":
    left_out = set(sys.argv[1:])
    for name, lower in lower_bounds().items():
        if name not in left_out:
            print(f"{name}=={lower}")
