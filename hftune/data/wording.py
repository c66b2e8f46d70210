"""The words of the data errors: quoting, lists that stay short, did-you-mean. Used all over ``hftune.data``.

Names and values come out of strangers' files, so they are shown through ``repr``: control characters can't
reach a terminal from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hftune import suggest

SHOWN = 12
"""How many names a list shows before it says how many more there are."""


def quote(value: object, limit: int = 60) -> str:
    """A value as it is named in a message: escaped, and cut where it is long."""
    return repr(value) if len(str(value)) <= limit else repr(str(value)[:limit]) + "…"


def listing(values: Iterable[object]) -> str:
    """Quoted values, separated by commas, the first few of them."""
    known = list(values)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(quote(value) for value in known[:SHOWN]) + more


def closest(value: str, choices: Sequence[str]) -> str:
    """``did you mean 'x'? `` with its trailing space, or nothing where no choice is near."""
    match = suggest.closest(value[:100], choices)
    return f"did you mean {quote(match)}? " if match not in (None, value) else ""


def count(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
