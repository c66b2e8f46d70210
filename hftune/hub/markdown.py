"""Foreign text inside a model card: shown as it is, changing nothing around it. Used by ``hftune.hub.card``."""

from __future__ import annotations

import re

from hftune.cache import home_folder
from hftune.runs.wording import visible

LONGEST = 200
# What begins a construct in the Markdown and HTML that the Hub renders: markup, entities, formulas, mentions, bare
# addresses; at the start of a text also headings, lists, rules and numbers.
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&@]|:(?=//)|(?<=www)\.|^[-+#=]|(?<=^\d)[.)]", re.IGNORECASE)


def plain(text: str) -> str:
    """One line of a bearable length, without control characters; for the header, where YAML quotes the rest."""
    line = " ".join(visible(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def inline(text: object) -> str:
    """Text for a sentence or a table cell: no character in it is taken for Markdown or HTML."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", plain(str(text)))


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text).rstrip()}\n{fence}"


def without_home(text: str) -> str:
    """The home directory, which holds the user's name, as ~."""
    home = str(home_folder() or "")
    return text.replace(home, "~") if len(home) > 1 else text
