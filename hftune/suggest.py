"""“Did you mean …?” for everything a user can misspell: keys, kinds, columns, names, commands."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice that looks most like the word, or None where nothing does. ``max-length`` is ``max_length``."""
    by_lower = {choice.lower().replace("-", "_"): choice for choice in choices}
    matches = get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The question, ready to print, or an empty string."""
    match = closest(word, choices)
    return f"did you mean {match!r}?" if match else ""
