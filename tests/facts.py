"""Messages are checked by their facts: names, numbers, files and flags. How a sentence puts them may change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from hftune.errors import HftuneError


def mentions(text: str | Iterable[str], *expected: str | int) -> bool:
    """Whether a text, or one of several, has each of these facts, in any order."""
    return any(re.search(facts(*expected), one) for one in ([text] if isinstance(text, str) else text))


def facts(*expected: str | int) -> str:
    """The same as a pattern, for ``pytest.raises(..., match=)``: whole numbers, upper or lower case."""
    return "(?is)" + "".join(f"(?=.*{_pattern(str(fact))})" for fact in expected)


def _pattern(fact: str) -> str:
    """A fact as it may be written: 1000 is also 1,000, a line may break at a space, and 3 is not part of 30 or 0.3."""
    written = re.escape(fact).replace(r"\ ", r"\s+")
    written = re.sub(r"[1-9]\d{3,}", lambda number: f"{int(number[0]):,}".replace(",", ",?"), written)
    before = r"(?<![\d.,])" if fact[:1].isdigit() else ""
    after = r"(?!\d|[.,]\d)" if fact[-1:].isdigit() else ""
    return before + written + after


@contextmanager
def hftune_error(*expected: str | int, code: int = 2) -> Iterator[pytest.ExceptionInfo[HftuneError]]:
    """Expect an error of this exit code (2: a bad request, 1: a failed run) with these facts and a hint what to do."""
    with pytest.raises(HftuneError) as caught:
        yield caught
    error = caught.value
    assert error.exit_code == code, error
    assert error.hint, "an error says what to do"
    assert mentions(str(error), *expected), (expected, str(error))
