"""Mutations of real files, for the tests that feed them to everything that reads: edits of bytes and of values.

The same thousands of examples on every machine; HFTUNE_SOAK=20 takes twenty times as many, drawn anew each time.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from hftune.errors import HftuneError

ESCAPE = "\x1b]0;owned\x07\x1b[31m"
SCRIPT = "<script>alert(1)</script>"
FORMULA = '=HYPERLINK("http://x","y")'

# What breaks readers: ends and beginnings of other syntaxes, numbers at their limits, bytes that are no text.
SNIPPETS: tuple[bytes, ...] = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xc3",
        b"\x80",
        b"\r",
        b"\r\n",
        b"\n",
        b"\n\n\n",
        b"\t",
    ),
    *(
        b'"',
        b"'",
        b'""',
        b",",
        b",,,",
        b":",
        b": ",
        b"- ",
        b"  ",
        b"#",
        b"|",
        b">",
        b"%",
        b"@",
        b"`",
        b"\\",
        b"\\n",
        b"\\u",
    ),
    *(b"[", b"]", b"{", b"}", b"[[[[[[", b"{}", b"[]", b"null", b"true", b"no", b"~", b"NaN", b"-Infinity", b"1e999"),
    *(
        b"-1",
        b"0",
        b"0.0",
        b"1e-5",
        b"9" * 30,
        b"9" * 5000,
        b"0x1f",
        b"1_0",
        b".",
        b"..",
        b"../../etc/passwd",
        b"/dev/null",
    ),
    *(
        b"&a [*a]",
        b"*a",
        b"<<: *a",
        b"!!python/object/apply:os.system [true]",
        b"!x",
        b"---\n",
        b"...\n",
        b"? ",
        b"a: b: c",
    ),
    *(
        b"__label__",
        b"__label__x __label__y ",
        b"label",
        b"text",
        b"kind",
        b"name: ",
        b"scratch:",
        b"hf_",
        b'"label": 1',
    ),
    *(ESCAPE.encode(), SCRIPT.encode(), FORMULA.encode(), "\u202e\u2028\u200b".encode(), "é漢😀".encode(), b"x" * 3000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**40, 0.0, -0.5, 1.5, 1e-320, 1e308),
    *("", " ", "x", "yes", "-1", "1e999", "nan", "..", "/", "../../etc/passwd", "scratch:", "scratch:mingpt", "run:x"),
    *(ESCAPE, SCRIPT, FORMULA, "\u202e", "\ud800", "x" * 3000, "{}", "{0}", "%s", "$x", "a\nb", "a\x00b", "~nobody/x"),
    *([], [None], ["x"], [[]], [1, "x"], {}, {"x": 1}, {"": None}, {"kind": "x"}, {"low": 1, "high": 0}),
)

Edit = tuple[str, float, bytes]
edits: st.SearchStrategy[list[Edit]] = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "delete", "repeat", "cut"]),
        st.floats(0, 1),
        st.sampled_from(SNIPPETS),
    ),
    min_size=1,
    max_size=4,
)
"""Changes of a file's bytes."""

turns: st.SearchStrategy[list[tuple[float, Any]]] = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["drop", *VALUES])), min_size=1, max_size=3
)
"""Changes of a document's values: where, and the new value."""


def examples(count: int) -> settings:
    """Half of the count, the same ones each time; HFTUNE_SOAK times the count, new ones each time."""
    soak = int(os.environ.get("HFTUNE_SOAK", "0"))
    return settings(
        max_examples=count * soak or count // 2,
        derandomize=not soak,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def edited(content: bytes, changes: list[Edit]) -> bytes:
    """The content with the changes made to it, one after the other."""
    for kind, place, snippet in changes:
        at = round(place * len(content))
        end = min(len(content), at + len(snippet))
        if kind == "insert":
            content = content[:at] + snippet + content[at:]
        elif kind == "replace":
            content = content[:at] + snippet + content[end:]
        elif kind == "delete":
            content = content[:at] + content[end:]
        elif kind == "repeat":
            content = content[:at] + content[max(0, at - 40) : at] * 3 + content[at:]
        else:
            content = content[:at]
    return content


def turned(document: Any, changes: list[tuple[float, Any]]) -> Any:
    """A document in which some values, chosen by their place among all of them, are others or gone."""
    document = copy.deepcopy(document)
    for place, value in changes:
        spots = list(_spots(document))
        if not spots:
            return document
        holder, key = spots[min(len(spots) - 1, int(place * len(spots)))]
        if isinstance(value, str) and value == "drop":
            del holder[key]
        else:
            holder[key] = copy.deepcopy(value)
    return document


def _spots(document: Any) -> Any:
    """Every place that has a value: its list or object, and its key."""
    inside = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in list(inside):
        yield document, key
        yield from _spots(value)


def survives(action: Callable[[], Any]) -> Any:
    """What the action gives, or None where it ends in an error of ours; any other exception is the test's failure."""
    try:
        return action()
    except HftuneError as error:
        assert error.message and error.hint, "an error says what is wrong and what to do"
        return None
