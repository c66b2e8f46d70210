r"""Characters that steer a terminal or a reader's eye, made visible. Used wherever foreign text is written.

Text from data, models and recipes is untrusted: what could move a cursor, ring a bell, turn the direction of reading or
end a line where none ends is written as an escape, in a terminal as ``\x1b`` and in JSON as ``\u001b``, which reads
back as what it was.
"""

from __future__ import annotations

import json
import re
from typing import Any

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, delete, C1: escapes, bells, carriage returns
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of direction, which make text read as other text
    "\u2028\u2029\ud800-\udfff]"  # other line ends; halves of pairs, which no encoding can write
)


def visible(text: str) -> str:
    r"""The text with everything that could steer a terminal made visible, as ``\x1b``."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which only what could steer a terminal is escaped; no nan and no inf, which JSON does not have."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    # json.dumps has escaped what is in strings below U+0020; the newlines that are left are its own.
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
