"""``make bench``: every benchmark in this folder, one after the other, each a ratio or a slope measured in one run."""

from __future__ import annotations

import runpy
from pathlib import Path


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        print(f"\n== {path.stem} ==", flush=True)
        runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
