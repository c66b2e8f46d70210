"""The errors of hftune: a message with what was expected and what was found, and a hint with what to do.

Names and values in messages come out of files of unknown origin. ``quote`` and ``listing`` show them through ``repr``,
so that control characters can't reach a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from hftune.sanitize import redacted


class HftuneError(Exception):
    """A request that can't be carried out: a wrong recipe, bad data, an unknown model.

    Examples:
        >>> try:
        ...     hftune.train(data=[], progress=False)
        ... except hftune.HftuneError as error:
        ...     print(error.message)
        data is an empty list
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str) -> None:
        """Message and hint are kept apart, because the command line formats them differently."""
        # A message may quote what the user typed. Tokens and passwords are removed here, in the one place that every
        # message passes on its way to a terminal, a log or failures.jsonl.
        self.message, self.hint = redacted(message), redacted(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        """Message and hint, for logs and for Python callers who see only the traceback."""
        return f"{self.message}\n  → {self.hint}"


class RunFailed(HftuneError):
    """The request was valid and the work began, but it failed."""

    exit_code = 1


class Interrupted(HftuneError):
    """A signal stopped the run; it saved a checkpoint and can be resumed."""

    def __init__(self, message: str, *, hint: str, signal_number: int) -> None:
        """The exit code follows the shell's convention: 128 plus the signal's number."""
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signal_number


SHOWN = 12
"""The most names that a list shows."""
LONGEST_PATH = 1000
"""A path is shown whole, so that it can be copied."""


def quote(value: object, limit: int = 60) -> str:
    """A value for a message: escaped, and shortened if it is long."""
    return repr(value) if len(str(value)) <= limit else repr(str(value)[:limit]) + "…"


def listing(values: Iterable[object], limit: int = 60) -> str:
    """Quoted values, separated by commas, the first few of them."""
    known = list(values)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(quote(value, limit) for value in known[:SHOWN]) + more


def count(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def closest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice most similar to a word, or None; upper case and dashes do not count as differences."""
    by_lower = {choice.lower().replace("-", "_"): choice for choice in choices}
    matches = get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, choices: Iterable[str], rest: str = "") -> str:
    """``did you mean 'x'?`` before the rest of a hint; the rest alone if no choice is similar."""
    match = closest(word[:100], choices)  # the comparison takes long for long words
    return rest if match in (None, word) else f"did you mean {quote(match)}? {rest}".rstrip()


def nearby_path(path: Path, known: Iterable[Path], *, similar_only: bool = False) -> str:
    """Which of the paths a missing one can mean: those with a similar last part, else the first few; empty for none.

    The folders above are not compared: two runs would be similar because both are below ``runs/``.
    """
    found = list(known)
    similar = get_close_matches(path.name[:100], [one.name for one in found], n=3, cutoff=0.6)
    if similar:
        meant = dict.fromkeys(str(one) for name in similar for one in found if one.name == name)
        return f"did you mean {' or '.join(quote(one, LONGEST_PATH) for one in meant)}?"
    others = f"nothing has a similar name; there are {listing(map(str, found), LONGEST_PATH)}"
    return others if found and not similar_only else ""
