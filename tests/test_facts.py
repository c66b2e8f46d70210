"""How facts are found in messages."""

from __future__ import annotations

import pytest
from facts import hftune_error, mentions

from hftune.errors import HftuneError, RunFailed


@pytest.mark.parametrize(
    ("text", "expected", "found"),
    [
        ("'rows.csv', line 3: expected 2 columns, got 30", ["line 3", "2 columns", 30], True),
        ("'rows.csv', line 3: expected 2 columns, got 30", ["got 3"], False),
        ("expected 12 columns", ["2 columns"], False),
        ("loss 0.3, then 1.5.", [3], False),
        ("loss 0.3, then 1.5.", ["1.5"], True),
        ("5,000 labels of 1,234,567", ["5000 labels", 1234567], True),
        ("5,000 labels", ["5,000 labels"], True),
        ("5,000 labels", [5], False),
        ("set\n  train.learning_rate", ["set train.learning_rate"], True),
        ("The Hub", ["hub"], True),
        (["nothing", "two facts of one line"], ["facts", "two"], True),
        (["two", "facts"], ["facts", "two"], False),
    ],
)
def test_facts_are_found_whole(text: str | list[str], expected: list[str | int], found: bool) -> None:
    assert mentions(text, *expected) is found


def test_an_error_has_its_code_its_hint_and_its_facts() -> None:
    with hftune_error("rows.csv", "look") as caught:
        raise HftuneError("no rows in rows.csv", hint="look there")
    assert caught.value.hint == "look there"
    with hftune_error("step 3", code=1):
        raise RunFailed("the loss became nan at step 3", hint="lower the rate")
    for error in (HftuneError("a", hint="b"), RunFailed("rows.csv", hint="b"), HftuneError("rows.csv", hint="")):
        with pytest.raises(AssertionError), hftune_error("rows.csv"):
            raise error
