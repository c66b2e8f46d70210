r"""Characters that steer a terminal or a reader's eye, made visible. Used wherever foreign text is written.

Text from data, models and recipes is untrusted: what could move a cursor, ring a bell, turn the direction of reading or
end a line where none ends is written as an escape, in a terminal as ``\x1b`` and in JSON as ``\u001b``, which reads
back as what it was. Tokens that were typed into a command are taken out of every message, and cells of csv tables that
a spreadsheet would compute are marked as text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, delete, C1: escapes, bells, carriage returns
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of direction, which make text read as other text
    "\u2028\u2029\ud800-\udfff]"  # other line ends; halves of pairs, which no encoding can write
)


REDACTED = "[redacted]"
SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|sk-[\w-]{16,})"
    r"|(?:(?<=://)|(?<=\w\w:/)(?!/))[^/\s]+(?=@)"  # user and password of an address, also where it became a path
    r"|(?<=[?&;])(?i:[\w-]*(?:token|secret|passw(?:or)?d|key|auth|sig|credential|signature)s?)=[^&;#\s'\"]+"
)
"""Tokens of the Hub, GitHub and OpenAI, and what stands for one in an address."""
_COMPUTED = "=+-@|%"
"""What begins a formula in some spreadsheet."""


def visible(text: str) -> str:
    r"""The text with everything that could steer a terminal made visible, as ``\x1b``."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which only what could steer a terminal is escaped; no nan and no inf, which JSON does not have."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    # json.dumps has escaped what is in strings below U+0020; the newlines that are left are its own.
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def redacted(text: str) -> str:
    """The text without anything that looks like a token or a password."""
    return SECRET.sub(lambda match: f"{match[0].partition('=')[0]}={REDACTED}" if "=" in match[0] else REDACTED, text)


def spreadsheet_cell(text: str) -> str:
    """A text for a csv file, marked as text by ``'`` if a spreadsheet would compute it.

    Spreadsheets skip white space and invisible characters before a formula, and some read the full-width forms of
    Chinese and Japanese keyboards (＝ ＋ － ＠) as the ordinary ones.
    """
    begin = next((one for one in text if unicodedata.category(one) not in ("Cf", "Zs")), "")
    first = unicodedata.normalize("NFKC", begin)[:1]
    marked = bool(first) and (first in _COMPUTED or first in "\t\r\n")
    return f"'{visible(text)}" if marked else visible(text)
