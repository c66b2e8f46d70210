"""Generated reviews of shops, restaurants and the like with one to five stars, in the format of yelp_small.

Called by `hftune data make reviews` through the table GENERATORS. A review is a few statements, each worth -2 to 2; the
stars are three plus their mean. The worth of a statement depends on the order of its words (what was expected and what
came, what others said and whether they were wrong, what follows "but"), so counting words is not enough.
"""

import csv
from pathlib import Path
from random import Random

from .reviews_words import BUSINESSES, COLORS, DAYS, FACTS, HOLIDAYS, LANDMARKS, LEVELS, WHO

SIZES = {"train": 4000, "dev": 500, "test": 500}
UNLABELED = 5000
NOISE = 0.08
"""The share of reviews whose stars are one off, as real reviewers' stars are."""

# {x} is the word that counts, {o} one of the other sign; {n} the thing, {was} agrees with it.
PLAIN = (
    "the {n} {was} {x}|the {n} {was} {very} {x}|I found the {n} {x}|we thought the {n} {was} {x}|"
    "the {n} {was} simply {x}"
)
PAIRS = (
    "the {n} {was} {x} and {x2}|the {n} {was} {very} {x} and {x2}|we found the {n} {x} and {x2}|"
    "the {n} {was} {x}, even {x2}"
)
# Worth one point against the sign of {o}, whatever its strength.
DENIED = (
    "the {n} {was} not {o}|the {n} {was} hardly {o}|the {n} {was} never {o}|I would not call the {n} {o}|"
    "the {n} {was} anything but {o}|the {n} {was} far from {o}|nobody could call the {n} {o}|"
    "the {n} {was} not at all {o}"
)
WISHED = "I wish the {n} had been {o}|the {n} would have been {o} with more care|if only the {n} had been {o}"
FEARED = (
    "I feared in vain that the {n} would be {o}|I was wrong to worry about the {n} being {o}|nothing {o} about the {n}"
)
# {b} counts and {a} does not: the same words in two orders.
SECOND = (
    "although {a}, {b}|even though {a}, {b}|{a}, but {b}|{a}, yet {b}|last year {a}, this year {b}|"
    "{a}. Still, {b}|{who} had told us that {a}. In truth {b}|on paper {a}, in reality {b}|"
    "we had heard that {a}, then {b}|for {who} {a}, for me {b}|when it opened {a}, today {b}|"
    "so {who} says that {a}? Well, {b}|it is true that {a}, however {b}"
)
FIRST = (
    "{b}, although {a}|{b}, even though {a}|this year {b}, last year {a}|"
    "in truth {b}. {who} had told us that {a}|in reality {b}, on paper {a}|then {b}, we had heard that {a}|"
    "for me {b}, for {who} {a}|today {b}, when it opened {a}"
)
# The last words say whether {a} holds or its opposite.
HEARSAY = (
    "{who} says that {a}, and that is {truth}|people claim that {a}, which is {truth}|{who} wrote that {a}: {truth}"
)
TRUTHS = {True: "true|right|correct", False: "wrong|nonsense|a lie"}
VERDICTS = {
    2: "we will come back every week|I can not wait to come back|everyone should go there|I am in love with this place",
    1: "we would come back|I would recommend it|it was worth the trip|we left happy",
    0: "it was neither here nor there|you could do better or worse|I have no strong feelings about it",
    -1: "I doubt that we will come back|once was enough|it was not worth the trip|we left early",
    -2: "we will never come back|I want my money back|nobody should go there|this place should be closed down",
}
VERY = "very|really|so|truly|just|quite|rather|absolutely"
VISITS = (
    "We came to this {business} {day}.|I visited this {business} {day}.|Stopped by {day}.|"
    "My first visit to this {business}.|I have lived near this {business} for {num} years.|"
    "{who} sent me to this {business}.|We tried this {business} {day}.|It is the oldest {business} in town.|"
    "Went there {day}."
)
BREAKS = (" ", " ", " ", " ", " ", "\\n", "\\n\\n")


class _Reviewer:
    """Writes the statements of one review about one business."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.things = BUSINESSES[rng.choice(sorted(BUSINESSES))]
        self.unused = [
            (kind, noun) for kind in ("food", "person", "place", "work") for noun in self.things[kind].split("|")
        ]
        rng.shuffle(self.unused)

    def _pick(self, options: str) -> str:
        return self.rng.choice(options.split("|"))

    def _words(self, kind: str, worth: int) -> list[str]:
        """Two different words of that worth for that kind of thing."""
        return self.rng.sample(sorted(set(f"{LEVELS['any'][worth]}|{LEVELS[kind][worth]}".split("|"))), 2)

    def _fill(self, frames: str, worth: int, other: int) -> str:
        """Fill a frame with a thing, words of the given worth and one of another."""
        kind, noun = self.unused.pop()
        first, second = self._words(kind, worth)
        return self._pick(frames).format(
            n=noun.rstrip("*"),
            was="were" if noun.endswith("*") else "was",
            x=first,
            x2=second,
            o=self._words(kind, other)[0],
            very=self._pick(VERY),
        )

    def part(self, worth: int) -> str:
        """One side of a statement: one or two words of that worth, or one against it that is denied."""
        draw = self.rng.random()
        if draw < 0.1:
            return self._pick(VERDICTS[worth])
        if draw < 0.35 and abs(worth) == 1:
            frames = DENIED if self.rng.random() < 0.6 else FEARED if worth > 0 else WISHED
            return self._fill(frames, worth, -worth * self.rng.choice((1, 2)))
        return self._fill(PAIRS if self.rng.random() < 0.8 else PLAIN, worth, worth)

    def statement(self, worth: int) -> str:
        """Two opposed parts of which one, told by the words and their order, has the given worth; or hearsay."""
        who = self._pick(WHO)
        if self.rng.random() < 0.06:
            truth = self.rng.random() < 0.5
            part = self._fill(PLAIN, worth if truth else -worth, worth)
            return self._pick(HEARSAY).format(a=part, who=who, truth=self._pick(TRUTHS[truth]))
        other = self.rng.choice([level for level in range(-2, 3) if level != worth])
        frames = SECOND if self.rng.random() < 0.8 else FIRST
        return self._pick(frames).format(a=self.part(other), b=self.part(worth), who=who)

    def fact(self, frame: str) -> str:
        """A sentence that says nothing about the quality."""
        return frame.format(
            num=self.rng.randint(2, 60),
            hour=self.rng.randint(6, 12),
            who=self._pick(WHO),
            who2=self._pick(WHO),
            landmark=self._pick(LANDMARKS),
            holiday=self._pick(HOLIDAYS),
            color=self._pick(COLORS),
            color2=self._pick(COLORS),
            business=self._pick(self.things["names"]),
            day=self._pick(DAYS),
        )


def _sentence(text: str) -> str:
    end = "" if text[-1] in ".:!?" else "."
    return text[0].upper() + text[1:] + end


def write_review(rng: Random) -> tuple[int, str]:
    """One review: its stars, with noise, and its text with line breaks spelled as backslash and n."""
    target = rng.randint(-2, 2)
    reviewer = _Reviewer(rng)
    parts = [reviewer.statement(target)]
    asides = [*rng.sample(FACTS.split("|"), 2), *rng.sample(VISITS.split("|"), 1)]
    rng.shuffle(asides)
    parts += [reviewer.fact(frame) for frame in asides[: rng.choice((0, 1, 1, 2))]]
    text = _sentence(parts[0])
    for part in parts[1:]:
        text += rng.choice(BREAKS) + _sentence(part)
    stars = target + 3
    if rng.random() < NOISE:
        stars += rng.choice((-1, 1)) if 1 < stars < 5 else (1 if stars == 1 else -1)
    return stars, text


def make_reviews(folder: Path, seed: int) -> None:
    """Write train.csv, dev.csv, test.csv and unlabeled.txt; no text occurs twice.

    Args:
        folder: where the files go; it is made if need be.
        seed: the same seed gives the same bytes on every platform.
    """
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()

    def draw(count: int) -> list[tuple[int, str]]:
        rows: list[tuple[int, str]] = []
        while len(rows) < count:
            stars, text = write_review(rng)
            if text not in seen:
                seen.add(text)
                rows.append((stars, text))
        return rows

    for split, size in SIZES.items():
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(draw(size))
    lines = "".join(text + "\n" for _, text in draw(UNLABELED))
    (folder / "unlabeled.txt").write_text(lines, encoding="utf-8", newline="\n")
