"""The ``hftune`` command.

``main`` prints help from a cache if it was printed before: importing Typer and the settings takes ten times as long as
Python's own start. This file imports next to nothing for the same reason; the commands are in ``hftune.cli.commands``.
"""

import os
import sys

from hftune import __version__

TYPE_CHECKING = False  # without importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = ("-h", "--help")
WIDEST = 80
"""Maximum width of the help text, in columns."""


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Run the command line; ends the process with the command's exit code.

    Args:
        arguments: The arguments after ``hftune``; those of the process by default.
    """
    typed = sys.argv[1:] if arguments is None else list(arguments)
    file = help_file(typed)
    text = None if file is None else read_help(file)
    from_cache = text is not None and sys.stdout.encoding.lower() == "utf-8"
    if text is not None and from_cache:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            from hftune.cli.commands import drop_output

            sys.exit(drop_output())
        sys.exit(0)
    from hftune.cli.commands import run, run_and_cache

    if file is None or from_cache:
        run(arguments)
    else:
        run_and_cache(arguments, lambda shown: write_help(file, shown, typed))


def help_file(arguments: "Sequence[str]") -> str | None:
    """The cache file of a command line that requests the help of a command; None for any other."""
    *words, last = arguments or [""]
    plain = all(word.isascii() and word.isalpha() and word.islower() for word in words)
    if last not in HELP or len(words) > 2 or not plain or "LOCAL_RANK" in os.environ:
        return None
    home = os.environ.get("HFTUNE_CACHE") or os.path.expanduser("~/.cache/hftune")  # noqa: PTH111
    return None if home.startswith("~") else os.path.join(home, "help", "-".join(["hftune", *words]))  # noqa: PTH118


def read_help(file: str) -> str | None:
    """The text in a cache file, if this version of hftune wrote it for a terminal of this width."""
    try:
        with open(file, encoding="utf-8") as stored:  # noqa: PTH123
            return stored.read() if stored.readline() == _state() else None
    except (OSError, ValueError):
        return None


def write_help(file: str, text: str, arguments: "Sequence[str]") -> None:
    """Cache the help of a command. A cache that can't be written is not an error."""
    if not text.startswith(" ".join(["Usage: hftune", *arguments[:-1], ""])):
        return
    part = f"{file}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        with open(part, "w", encoding="utf-8", newline="\n") as new:  # noqa: PTH123
            new.write(_state() + text)
        os.replace(part, file)  # noqa: PTH105
    except (OSError, ValueError):
        pass


def _state() -> str:
    """A line that changes with everything that the help depends on: the code, Python, and the width of the terminal."""
    newest, size, count = 0, 0, 0
    folders = [os.path.dirname(os.path.dirname(__file__))]  # noqa: PTH120
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    about = entry.stat()
                    newest, size, count = max(newest, about.st_mtime_ns), size + about.st_size, count + 1
                elif entry.is_dir() and entry.name != "__pycache__":
                    folders.append(entry.path)
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (ValueError, OSError):
        columns = WIDEST
    return f"{__version__} {sys.version_info[:2]} {newest} {size} {count} {min(columns, WIDEST)}\n"
