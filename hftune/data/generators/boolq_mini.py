"""Generated yes/no questions over short passages, in the jsonl format of BoolQ (question, title, passage, answer).

Called by `hftune data make boolq-mini` through the table GENERATORS. The question and its answer are drawn before the
passage is written to fit them, so the question alone tells nothing. What is asked may stand in the passage and still be
wrong: denied, true of the past, or said of another place.
"""

import json
from pathlib import Path
from random import Random

SIZES = {"train": 3000, "dev": 600}
YES = 0.62
"""The share of yes, as in BoolQ."""
USUAL = 0.8
"""How often the first word of a pair is the one that is asked for."""

# The thing, with a star where it is plural, and two opposite words for it.
PAIRS = (
    "water fresh salty|roads* paved muddy|winters* mild harsh|harbor deep shallow|bread dark white|"
    "houses* tall low|walls* thick thin|soil fertile barren|market large small|tower round square|"
    "bridge open closed|beer strong weak|streets* quiet noisy|hills* green bare|church old new|ferry fast slow"
)
UNCOUNTED = ("water", "bread", "soil", "beer")
QUESTIONS = ("{is_} the {n} of {t} {v}", "does {t} have {a}{v} {n}", "{is_} the {n} in {t} {v}")
FACTS = (
    "The {n} {is_} {v}.",
    "It has {a}{v} {n}.",
    "Travelers speak of the {v} {n}.",
    "There {is_} {a}{v} {n}.",
    "Its {n} {is_} {v}.",
)
DENIALS = ("The {n} {is_} {v}, not {w}.", "It has {a}{v} {n}, although maps say {w}.", "The {n} {is_} not {w} but {v}.")
CHANGES = ("The {n} {was} {w} once and {is_} {v} now.", "The {n} {is_} {v} now and {was} {w} before the war.")
ELSEWHERE = ("The {n} of {o} {is_} {v}.", "In {o} the {n} {is_} {v}.", "The {n} in nearby {o} {is_} {v}.")
KINDS = "village town island port valley city hamlet fortress district county settlement parish"
OPENINGS = (
    "{t} is a {k} near {o}.",
    "{t} is a small {k} between {o} and the sea.",
    "{t} is the oldest {k} in {r}.",
    "{t} is a {k} in {r}.",
    "The {k} of {t} belongs to {r}.",
)
ASIDES = (
    "About {c} people live there.",
    "It was founded in {y}.",
    "A train runs to {o} twice a day.",
    "A {j} from {r} wrote a book about it.",
    "In {y} a {j} was born there.",
)
JOBS = "poet painter general composer bishop chemist sailor queen"
STARTS = "Vel Kar Tam Bro Ost Lin Mar Sel Dun Fen Gal Hal Ir Jor Kel Lom Mor Nor Pel Ros Sil Tor Ul Var Wen Yar Zel"
MIDDLES = "a e o i an en or el ar u in al ak"
ENDS = "mora sund dale wick ford stead ton grad burg ley mar by ness gate field brook mouth holm low via"


class _Pair:
    """A thing and two opposite words for it."""

    def __init__(self, entry: str) -> None:
        noun, *words = entry.split()
        self.noun, self.plural, self.words = noun.rstrip("*"), noun.endswith("*"), words

    def say(self, frame: str, value: str, **names: str) -> str:
        """Fill a frame with a value for this thing; {w} becomes the opposite value."""
        article = "an " if value[0] in "aeiou" else "a "
        if self.plural or self.noun in UNCOUNTED:
            article = ""
        other = self.words[1 - self.words.index(value)]
        is_, was = ("are", "were") if self.plural else ("is", "was")
        return frame.format(n=self.noun, v=value, w=other, a=article, is_=is_, was=was, **names)


def _name(rng: Random) -> str:
    return rng.choice(STARTS.split()) + rng.choice(MIDDLES.split()) + rng.choice(ENDS.split())


def _facts(rng: Random, asked: _Pair, truth: str, other_place: str) -> list[str]:
    """What the passage says of the thing that is asked."""
    draw = rng.random()
    frames = FACTS if draw < 0.75 else DENIALS if draw < 0.9 else CHANGES
    facts = [asked.say(rng.choice(frames), truth)]
    if rng.random() < 0.15:
        opposite = asked.words[1 - asked.words.index(truth)]
        facts.append(asked.say(rng.choice(ELSEWHERE), opposite, o=other_place))
    return facts


def write_example(rng: Random) -> dict[str, str | bool]:
    """One row: the question first, then the answer, then a passage for both."""
    asked, *others = rng.sample([_Pair(entry) for entry in PAIRS.split("|")], rng.choice((2, 3, 3)))
    value = asked.words[rng.random() >= USUAL]
    answer = rng.random() < YES
    truth = value if answer else asked.words[1 - asked.words.index(value)]
    title, place, region = _name(rng), _name(rng), _name(rng)

    facts = _facts(rng, asked, truth, place)
    facts += [pair.say(rng.choice(FACTS), pair.words[rng.random() >= YES]) for pair in others]
    names = {"t": title, "o": place, "r": region, "k": rng.choice(KINDS.split()), "j": rng.choice(JOBS.split())}
    if rng.random() < 0.5:
        facts.append(rng.choice(ASIDES).format(c=rng.randint(2, 900) * 100, y=rng.randint(1100, 1950), **names))
    rng.shuffle(facts)
    opening = rng.choice(OPENINGS).format(**names)
    question = asked.say(rng.choice(QUESTIONS), value, t=title).lower()
    return {"question": question, "title": title, "passage": " ".join([opening, *facts]), "answer": answer}


def make_boolq_mini(folder: Path, seed: int) -> None:
    """Write train.jsonl and dev.jsonl; no passage and no title occurs twice.

    Args:
        folder: where the files go; it is made if need be.
        seed: the same seed gives the same bytes on every platform.
    """
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    titles: set[str] = set()
    for split, size in SIZES.items():
        rows: list[str] = []
        while len(rows) < size:
            row = write_example(rng)
            if row["title"] not in titles:
                titles.add(str(row["title"]))
                rows.append(json.dumps(row) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8", newline="\n")
