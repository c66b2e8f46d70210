"""The generators of the embedded datasets: what they share, and `generate`, which `hftune data make NAME` calls.

A generator is a module with a function ``write_files`` and a toml file with its words. It uses the standard library
only, so that one seed gives the same bytes on every platform; the files under data/ were made with DEFAULT_SEED.
"""

import tomllib
from collections.abc import Callable, Hashable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

DEFAULT_SEED = 2024
"""The seed the embedded files were made with."""
GENERATORS = ("births", "boolq-mini", "prose", "reviews")
"""The names of the datasets; a hyphen is an underscore in the name of the module."""

Row = TypeVar("Row")


def generate(name: str, folder: Path, seed: int) -> None:
    """Write the files of one dataset.

    Args:
        name: One of GENERATORS.
        folder: Where the files go; it is created if it does not exist.
        seed: The same seed gives the same bytes on every platform.
    """
    folder.mkdir(parents=True, exist_ok=True)
    import_module(f"{__name__}.{name.replace('-', '_')}").write_files(folder, seed)


def words_of(module: str) -> SimpleNamespace:
    """The word lists of the toml file next to a generator, as attributes."""
    return SimpleNamespace(**tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8")))


def distinct(draw: Callable[[], Row], key: Callable[[Row], Hashable]) -> Iterator[Row]:
    """An endless iterator of rows; one whose key occurred before is skipped, so that no text is in two splits."""
    seen: set[Hashable] = set()
    while True:
        row = draw()
        if key(row) not in seen:
            seen.add(key(row))
            yield row


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file whose lines end in a line feed, also on Windows."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
