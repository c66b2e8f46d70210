"""Words of a text, found without any tokenizer, so that models with different tokenizers can be compared word by word.

A word is a run of letters, digits and underscores, with the marks and the invisible characters inside it; a character
of a script that is written without spaces; or any other single character that is not white space.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SURROGATES = re.compile("[\ud800-\udfff]")
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese: each character is a word of its own."""


def _class_of(*categories: str) -> str:
    """The characters of some Unicode categories, as ranges of a regular expression."""
    numbers = (n for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n)) in categories)
    ranges = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        ranges.append(f"{re.escape(chr(found[0]))}-{re.escape(chr(found[-1]))}")
    return "".join(ranges)


@cache
def _word() -> re.Pattern[str]:
    # Marks (accents, vowel signs) and invisible characters (joiners, soft hyphens) belong to the letter before them:
    # some tokenizers strip them, and a word would otherwise be cut in two where one tokenizer sees one word.
    inside = _class_of("Mn", "Mc", "Me", "Cf")
    return re.compile(rf"[{UNSPACED}][{inside}]*|\w(?:(?![{UNSPACED}])[\w{inside}])*|\S")


def clean(text: str) -> str:
    """The text with half surrogates replaced, which no tokenizer reads."""
    return SURROGATES.sub(REPLACEMENT, text)


def word_spans(text: str) -> NDArray[np.int32]:
    """Where each word begins and ends in the text, [W, 2]."""
    found = [match.span() for match in _word().finditer(text)]
    return np.array(found, dtype=np.int32).reshape(-1, 2)


def chunks(texts: Iterable[str], max_words: int) -> Iterator[str]:
    """The texts, long ones cut between words into chunks of nearly equal length; texts without a word are left out."""
    for raw in texts:
        text = clean(raw)
        spans = word_spans(text)
        count = -(-len(spans) // max_words)
        cuts = [round(number * len(spans) / count) for number in range(count + 1)] if count else []
        for first, last in pairwise(cuts):
            yield text[spans[first, 0] : spans[last - 1, 1]]
