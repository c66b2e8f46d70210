"""Generated yes/no questions over short passages, in the jsonl format of BoolQ (question, title, passage, answer).

Called by `hftune data make boolq-mini` through the table GENERATORS. The question and its answer are drawn before the
passage is written to fit them, so the question alone tells nothing. What is asked may stand in the passage and still be
wrong: denied, true of the past, or said of another place.
"""

import json
from pathlib import Path
from random import Random

SIZES = {"train": 4000, "dev": 800}
YES = 0.62
"""The share of yes, as in BoolQ."""
USUAL = 0.85
"""How often the first word of a pair is the one that is asked for."""
RIVAL = 0.35
"""How often the passage says something of the kind that is asked, but about another thing."""

NOUNS = "harbor market church school bridge library garden station theater museum inn hospital"
PAIRS = ("large small", "old new", "open closed", "clean dirty", "quiet noisy", "safe dangerous")
"""Opposite words, any of which can be said of any of the things."""

QUESTIONS = ("is the {n} of {t} {v}", "does {t} have {a} {n}", "is there {a} {n} in {t}", "is the {n} in {t} {v}")
FACTS = ("The {n} is {v}.", "It has {a} {n}.", "Travelers speak of {a} {n}.", "There is {a} {n}.", "Its {n} is {v}.")
DENIALS = ("The {n} is {v}, not {w}.", "It has {a} {n}, although maps say {w}.", "The {n} is not {w} but {v}.")
CHANGES = ("The {n} was {w} once and is {v} now.", "The {n} is {v} now and was {w} before the war.")
ELSEWHERE = ("The {n} of {o} is {v}.", "In {o} the {n} is {v}.", "The {n} in nearby {o} is {v}.")
KINDS = "village town island port valley city hamlet fortress district county settlement parish"
OPENINGS = (
    "{t} is a {k} near {o}.",
    "{t} is a small {k} between {o} and the sea.",
    "{t} is the oldest {k} in {r}.",
    "{t} is a {k} in {r}.",
    "The {k} of {t} belongs to {r}.",
)
ASIDES = (
    "Only a few {j}s live there.",
    "It was founded by a {j}.",
    "A train runs to {o} twice a day.",
    "A {j} from {r} wrote a book about it.",
    "A {j} was born there.",
)
JOBS = "poet painter general composer bishop chemist sailor queen"
# Few names in many combinations: with a name for each passage a model would learn names by heart and not to read.
NAMES = (
    "Velmora Karsund Tamwick Ostford Linstead Marburn Seldale Dunley Fenmouth Galholm Irness Jorgate Kelbrook Lomfield "
    "Morvia Norgrad Pelmar Rosby Silburg Torlow Ulton Varhall Wenford Zelwick"
)


def _opposite(value: str) -> str:
    first, second = next(pair.split() for pair in PAIRS if value in pair.split())
    return second if value == first else first


def _say(frame: str, noun: str, value: str, **names: str) -> str:
    """Fill a frame with a thing and a word for it; {w} becomes the opposite word, {a} the word with its article."""
    article = "an" if value[0] in "aeiou" else "a"
    return frame.format(n=noun, v=value, w=_opposite(value), a=f"{article} {value}", **names)


def _facts(rng: Random, noun: str, truth: str, other_nouns: list[str], other_place: str) -> list[str]:
    """What the passage says of the thing that is asked, and what could be mistaken for it."""
    draw = rng.random()
    frames = FACTS if draw < 0.75 else DENIALS if draw < 0.9 else CHANGES
    facts = [_say(rng.choice(frames), noun, truth)]
    if rng.random() < RIVAL:
        facts.append(_say(rng.choice(FACTS), other_nouns.pop(), rng.choice((truth, _opposite(truth)))))
    if rng.random() < 0.1:
        facts.append(_say(rng.choice(ELSEWHERE), noun, _opposite(truth), o=other_place))
    return facts


def write_example(rng: Random) -> dict[str, str | bool]:
    """One row: the question first, then the answer, then a passage for both."""
    noun, *other_nouns = rng.sample(NOUNS.split(), 4)
    asked, *other_pairs = rng.sample(PAIRS, rng.choice((2, 3)))
    value = asked.split()[rng.random() >= USUAL]
    answer = rng.random() < YES
    title, place, region = rng.sample(NAMES.split(), 3)

    facts = _facts(rng, noun, value if answer else _opposite(value), other_nouns, place)
    for pair in other_pairs:
        facts.append(_say(rng.choice(FACTS), other_nouns.pop(), rng.choice(pair.split())))
    names = {"t": title, "o": place, "r": region, "k": rng.choice(KINDS.split()), "j": rng.choice(JOBS.split())}
    if rng.random() < 0.3:
        facts.append(rng.choice(ASIDES).format(**names))
    rng.shuffle(facts)
    opening = rng.choice(OPENINGS).format(**names)
    question = _say(rng.choice(QUESTIONS), noun, value, t=title).lower()
    return {"question": question, "title": title, "passage": " ".join([opening, *facts]), "answer": answer}


def make_boolq_mini(folder: Path, seed: int) -> None:
    """Write train.jsonl and dev.jsonl; no passage occurs twice.

    Args:
        folder: where the files go; it is made if need be.
        seed: the same seed gives the same bytes on every platform.
    """
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    passages: set[str] = set()
    for split, size in SIZES.items():
        rows: list[str] = []
        while len(rows) < size:
            row = write_example(rng)
            if row["passage"] not in passages:
                passages.add(str(row["passage"]))
                rows.append(json.dumps(row) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8", newline="\n")
