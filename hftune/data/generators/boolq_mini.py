"""Generated yes/no questions over short passages, in the jsonl format of BoolQ (question, title, passage, answer).

The question and its answer are drawn before the passage is written to fit them, so the question alone gives no hint.
The words of the question can occur in the passage and the answer still be no: the fact is denied, true of the past, or
about another place.
"""

import json
from itertools import islice
from pathlib import Path
from random import Random

from . import distinct, words_of, write_lines

SIZES = {"train": 4000, "dev": 800}
YES = 0.62
"""The share of yes, as in BoolQ."""
USUAL = 0.85
"""The share of questions about the first word of a pair."""
RIVAL = 0.35
"""The share of passages with the same kind of fact about another thing."""

words = words_of(__file__)


def _opposite(value: str) -> str:
    pairs: list[str] = words.PAIRS
    first, second = next(pair.split() for pair in pairs if value in pair.split())
    return second if value == first else first


def _say(frame: str, noun: str, value: str, **names: str) -> str:
    """Fill a frame with a thing and a word for it; {w} becomes the opposite word, {a} the word with its article."""
    article = "an" if value[0] in "aeiou" else "a"
    return frame.format(n=noun, v=value, w=_opposite(value), a=f"{article} {value}", **names)


def _facts(rng: Random, noun: str, truth: str, other_nouns: list[str], other_place: str) -> list[str]:
    """The facts about the thing in the question, and those that could be mistaken for them."""
    draw = rng.random()
    frames = words.FACTS if draw < 0.75 else words.DENIALS if draw < 0.9 else words.CHANGES
    facts = [_say(rng.choice(frames), noun, truth)]
    if rng.random() < RIVAL:
        facts.append(_say(rng.choice(words.FACTS), other_nouns.pop(), rng.choice((truth, _opposite(truth)))))
    if rng.random() < 0.1:
        facts.append(_say(rng.choice(words.ELSEWHERE), noun, _opposite(truth), o=other_place))
    return facts


def write_example(rng: Random) -> dict[str, str | bool]:
    """One row: the question first, then the answer, then a passage for both."""
    noun, *other_nouns = rng.sample(words.NOUNS, 4)
    asked, *other_pairs = rng.sample(words.PAIRS, rng.choice((2, 3)))
    value = asked.split()[rng.random() >= USUAL]
    answer = rng.random() < YES
    title, place, region = rng.sample(words.NAMES, 3)

    facts = _facts(rng, noun, value if answer else _opposite(value), other_nouns, place)
    for pair in other_pairs:
        facts.append(_say(rng.choice(words.FACTS), other_nouns.pop(), rng.choice(pair.split())))
    names = {"t": title, "o": place, "r": region, "k": rng.choice(words.KINDS), "j": rng.choice(words.JOBS)}
    if rng.random() < 0.3:
        facts.append(rng.choice(words.ASIDES).format(**names))
    rng.shuffle(facts)
    opening = rng.choice(words.OPENINGS).format(**names)
    question = _say(rng.choice(words.QUESTIONS), noun, value, t=title).lower()
    return {"question": question, "title": title, "passage": " ".join([opening, *facts]), "answer": answer}


def write_files(folder: Path, seed: int) -> None:
    """Write train.jsonl and dev.jsonl; no passage occurs twice."""
    rng = Random(seed)
    rows = distinct(lambda: write_example(rng), key=lambda row: row["passage"])
    for split, size in SIZES.items():
        write_lines(folder / f"{split}.jsonl", map(json.dumps, islice(rows, size)))
