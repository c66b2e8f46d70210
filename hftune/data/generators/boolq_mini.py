"""Generated yes/no questions over short passages, in the jsonl format of BoolQ (question, title, passage, answer).

A passage states two or three facts about one invented thing, and the question asks about one of them, usually in other
words than the passage: the answer follows for those who know what the words mean. The opposite can be in the passage
too, denied or outdated. Some questions are answered with yes more often than others. The words are in boolq_mini.toml.
"""

import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from . import distinct, words_of, write_lines

SIZES = {"train": 4000, "dev": 800}
CLAIMED = 0.2
"""The share of facts that are stated together with a wrong claim of the opposite."""
NOISE = 0.05
"""The share of answers that are wrong."""

FACTS = (2, 2, 2, 3)
"""How many facts a passage states."""

words = words_of(__file__)


def _name(rng: Random) -> str:
    root, ending = rng.choice(words.ROOTS), rng.choice(words.ENDINGS)
    return f"{root}{ending[1:] if root[-1] == ending[0] else ending}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text[-1] == "." else ".")


def _state(rng: Random, fact: dict[str, Any], answer: bool, slots: dict[str, str]) -> str:
    """The part of the passage about a fact, in one sentence or with the opposite as a wrong claim."""
    truth, opposite = (rng.choice(fact["yes" if side else "no"]) for side in (answer, not answer))
    slots = slots | {"y": str(rng.randint(1790, 2009)), "c": str(rng.randint(3, 90))}
    if rng.random() >= CLAIMED:
        return _sentence(truth.format(**slots))
    return _sentence(rng.choice(words.CLAIMS).format(f=opposite, g=truth, y=slots["y"]).format(**slots))


def write_example(rng: Random) -> dict[str, str | bool]:
    """One row: a thing, facts about it, and a question about one of them."""
    domain = rng.choice(words.DOMAINS)
    kind, name, place = rng.choice(domain["kinds"]), _name(rng), _name(rng)
    title = f"{name} {kind}"
    slots = {"s": f"the {title}", "t": title, "o": place, "k": kind}
    numbers = {"y": str(rng.randint(1790, 2009)), "c": str(rng.randint(3, 90))}
    asked, *others = rng.sample(domain["facts"], rng.choice(FACTS))
    answer = rng.random() < asked["share"]
    facts = [_state(rng, asked, answer, slots)]
    facts += [_state(rng, fact, rng.random() < fact["share"], slots) for fact in others]
    if rng.random() < 0.6:
        facts.append(_sentence(rng.choice(words.ASIDES).format(**slots, **numbers)))
    rng.shuffle(facts)
    opening = _sentence(rng.choice(domain["openings"]).format(**slots, **numbers))
    question = rng.choice(asked["ask"]).format(**slots).lower()
    return {
        "question": question,
        "title": title,
        "passage": " ".join([opening, *facts]),
        "answer": answer != (rng.random() < NOISE),
    }


def write_files(folder: Path, seed: int) -> None:
    """Write train.jsonl and dev.jsonl; no passage occurs twice."""
    rng = Random(seed)
    rows = distinct(lambda: write_example(rng), key=lambda row: row["passage"])
    for split, size in SIZES.items():
        write_lines(folder / f"{split}.jsonl", map(json.dumps, islice(rows, size)))
