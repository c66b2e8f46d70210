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

# {x} is the word that counts, {o} one that does not; {n} the thing with "the", {was} {is_} {it} agree with it.
PLAIN = (
    "the {n} {was} {x}|the {n} {was} {very} {x}|I found the {n} {x}|the {n} {was} {x} and {x2}|we thought the {n} {was} {x}|"
    "the {n} {was} simply {x}|I would call the {n} {x}|once again the {n} {was} {x}|the {n}? {very} {x}"
).split("|")
# Worth one point against the sign of {o}, whatever its strength.
DENIED = (
    "the {n} {was} not {o}|the {n} {was} hardly {o}|the {n} {was} never {o}|I would not call the {n} {o}|"
    "the {n} {was} anything but {o}|at no point {was} the {n} {o}|I can not say the {n} {was} {o}|"
    "nobody could call the {n} {o}|the {n} {was} far from {o}|not once did I find the {n} {o}|"
    "I disagree that the {n} {was} {o}|it is not true that the {n} {was} {o}"
).split("|")
# Two words, one of which counts; which one is told by the words around them, and each side comes first as often.
TURNED = (
    "I expected the {n} to be {o} and {it} turned out {x}|the {n} turned out {x} while I had expected {o}|"
    "the {n} used to be {o}, now {it} {is_} {x}|the {n} {is_} {x} now, {it} used to be {o}|"
    "last year the {n} {was} {o}, this time {it} {was} {x}|this time the {n} {was} {x}, last year {it} {was} {o}|"
    "{who} promised the {n} would be {o} and {it} {was} {x}|the {n} {was} {x} where {who} had promised {o}|"
    "the {n} looked {o} online and {was} {x} in reality|in reality the {n} {was} {x}, online {it} looked {o}|"
    "next door the {n} {was} {o}, here {it} {was} {x}|here the {n} {was} {x}, next door {it} {was} {o}"
).split("|")
CONTRAST = (
    "{a}, but {b}|although {a}, {b}|{b}, although {a}|{b}, even though {a}|even though {a}, {b}|{a}; still, {b}|"
    "while {a}, in the end {b}|in the end {b}, while {a}|{a}, yet {b}|never mind that {a}: {b}|{b}, never mind that {a}"
).split("|")
TRUE = "{who} said the {n} {was} {x} and that is right|{who} told me the {n} {was} {x}, which is true".split("|")
FALSE = (
    "{who} said the {n} {was} {o} and that is wrong|{who} told me the {n} {was} {o}, which is nonsense|"
    "{who} called the {n} {o}, how wrong|do not believe those who call the {n} {o}"
).split("|")
WISHED = (
    "I wish the {n} had been {o}|the {n} would have been {o} with more care|if only the {n} had been {o}|"
    "with some effort the {n} could be {o}"
).split("|")
FEARED = (
    "I feared the {n} would be {o} for no reason|I was wrong to worry that the {n} might be {o}|"
    "I came prepared for {o} and was spared|my fear of the {n} being {o} was unfounded"
).split("|")
VERDICTS = {
    2: "we will come back every week|I can not wait to come back|everyone should go there|I am in love with this place",
    1: "we would come back|I would recommend it|it was worth the trip|we left happy",
    0: "it was neither here nor there|you could do better or worse|I have no strong feelings about it",
    -1: "I doubt that we will come back|once was enough|it was not worth the trip|we left early",
    -2: "we will never come back|I want my money back|nobody should go there|this place should be closed down",
}
VERY = "very|really|so|truly|just|quite|rather|absolutely".split("|")
OPENERS = (
    "We came to this {business} {day}.|I visited this {business} {day}.|Stopped by {day}.|My first visit to this {business}.|"
    "I have lived near this {business} for {num} years.|{who} sent me to this {business}.|We tried this {business} {day}.|"
    "About this {business}:|Went there {day}."
).split("|")
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

    def _word(self, kind: str, worth: int) -> str:
        return self._pick(LEVELS["any" if self.rng.random() < 0.5 else kind][worth])

    def _fill(self, frame: str, worth: int, other: int) -> str:
        """Fill a frame with a thing, a word of the given worth and one of another."""
        kind, noun = self.unused.pop()
        plural = noun.endswith("*")
        return frame.format(
            n=noun.rstrip("*"),
            was="were" if plural else "was",
            is_="are" if plural else "is",
            it="they" if plural else self.rng.choice(("he", "she")) if kind == "person" else "it",
            x=self._word(kind, worth),
            x2=self._word(kind, worth),
            o=self._word(kind, other),
            who=self._pick(WHO),
            very=self.rng.choice(VERY),
        )

    def _against(self, worth: int) -> int:
        """The worth of a word that does not count: mostly of the other sign, so that it misleads who only counts."""
        sign = self.rng.choice((-1, 1)) if worth == 0 else (-1 if worth > 0 else 1)
        return sign * self.rng.choice((1, 2))

    def clause(self, worth: int) -> str:
        """A simple clause of that worth."""
        if self.rng.random() < 0.12:
            return self._pick(VERDICTS[worth])
        return self._fill(self.rng.choice(PLAIN), worth, worth)

    def statement(self, worth: int) -> str:
        """A sentence of that worth, plain or turned by the order of its words."""
        draw = self.rng.random()
        if draw < 0.30:
            return self.clause(worth)
        if draw < 0.50:
            return self.rng.choice(CONTRAST).format(a=self.clause(self._against(worth)), b=self.clause(worth))
        if draw < 0.72 or worth == 0:
            return self._fill(self.rng.choice(TURNED), worth, self._against(worth))
        if draw < 0.84 or abs(worth) == 2:
            if self.rng.random() < 0.4:
                return self._fill(self.rng.choice(TRUE), worth, worth)
            return self._fill(self.rng.choice(FALSE), worth, -worth)
        if draw < 0.92:
            return self._fill(self.rng.choice(DENIED), worth, self._against(worth))
        return self._fill(self.rng.choice(FEARED if worth > 0 else WISHED), worth, self._against(worth))

    def fact(self, frame: str) -> str:
        """A sentence that says nothing about the quality."""
        return frame.format(
            num=self.rng.randint(2, 60),
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


def _worths(rng: Random, target: int) -> list[int]:
    """Two or three worths whose mean is clearly nearest to the target."""
    while True:
        worths = [max(-2, min(2, target + rng.choice((0, 0, 0, -1, 1, 2, -2)))) for _ in range(rng.choice((2, 2, 3)))]
        if abs(sum(worths) / len(worths) - target) < 0.4:
            return worths


def write_review(rng: Random) -> tuple[int, str]:
    """One review: its stars, with noise, and its text with line breaks spelled as backslash and n."""
    target = rng.randint(-2, 2)
    reviewer = _Reviewer(rng)
    parts = [reviewer.statement(worth) for worth in _worths(rng, target)]
    if rng.random() < 0.6:
        parts.insert(rng.randint(0, len(parts)), reviewer.fact(rng.choice(FACTS.split("|"))))
    if rng.random() < 0.5:
        parts.insert(0, reviewer.fact(rng.choice(OPENERS)))
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
        rows = []
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
