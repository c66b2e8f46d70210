r"""Make untrusted text safe to show: control characters, secrets, and formulas in csv files.

Text from data, models and recipes can move the cursor of a terminal, ring its bell, reverse the reading direction or
fake a line end. Such characters are written as escapes: ``\x1b`` in a terminal, and ``\u001b`` in JSON, which parses
back to the original. Tokens and passwords are removed from messages, and csv cells that a spreadsheet would compute are
marked as text.
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
# Zero-width characters hide differences from a reader; the two joiners stay, which emoji and some scripts need.
INVISIBLE = re.compile(f"{UNSAFE.pattern[:-1]}\u200b\u2060-\u2065\ufeff]")

REDACTED = "[redacted]"
SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|sk-[\w-]{16,})"
    r"|(?:(?<=://)|(?<=\w\w:/)(?!/))[^/\s]+(?=@)"  # user and password of an address, also where it became a path
    r"|(?<=[?&;])(?i:[\w-]*(?:token|secret|passw(?:or)?d|key|auth|sig|credential|signature)s?)=[^&;#\s'\"]+"
)
"""Tokens of the Hub, GitHub and OpenAI, and credentials in a URL."""
_COMPUTED = "=+-@|%"
"""Characters with which a formula begins in some spreadsheet."""


def visible(text: str) -> str:
    r"""The text with every character that could control a terminal or hide from a reader escaped, as ``\x1b``."""
    return INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def json_text(value: Any, indent: int | None = None) -> str:
    """Readable JSON that is safe to print; nan and inf, which JSON does not have, raise a ValueError."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    # json.dumps has already escaped everything below U+0020 in strings; the remaining newlines are its own layout.
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
